package tests

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/lease"
)

// genkitRows are the rows of docs/hosts.md for Genkit.
var genkitRows = map[string]func(h *host){
	"genkit-save": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		tries := 0
		_, err := turnstone.Update(ctx, s, turnstone.Scope{}, func(st *turnstone.State) (turnstone.Commit, error) {
			if tries++; tries == 1 { // somebody else is first
				commitTo(h.T, s, turnstone.Commit{Nodes: saying([]byte("theirs"))})
			}
			return turnstone.Commit{Nodes: saying(fmt.Append(nil, "after ", len(st.Nodes)))}, nil
		})
		h.must(err)
		h.equal(string(h.load("s", turnstone.Scope{Last: 1}).Nodes[0].Payload), "after 1")
	},
	"genkit-get": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		snapshot(h, s, "n1", "completed", "one")
		snapshot(h, s, "n2", "completed", "two")
		var revision head.Revision
		_, err := fmt.Sscan(h.records("s", "snapshot/n1")["snapshot/n1"], &revision)
		h.must(err)
		h.equal(len(h.load("s", turnstone.Scope{At: revision}).Nodes), 1)
	},
	"genkit-latest": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		snapshot(h, s, "n1", "completed", "one")
		snapshot(h, s, "n2", "pending", "two")
		for e, err := range s.Log(ctx, info(h.T, h.Store, "s").Revision-1) {
			h.must(err)
			h.equal(e.Labels["snapshot"]+" "+e.Labels["status"], "n2 pending")
		}
		h.equal(len(h.load("s", turnstone.Scope{}).Nodes), 2)
	},
	"genkit-status": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		snapshot(h, s, "n1", "pending", "one")
		other := openStore(h.T, h.faulty, &turnstone.Options{PollEvery: time.Millisecond}) // another process
		seen := make(chan string)
		limited, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		go func() {
			defer close(seen)
			for e, err := range session(h.T, other, "s").Watch(limited, 0) {
				if err != nil {
					return
				}
				seen <- e.Labels["snapshot"] + " " + e.Labels["status"]
			}
		}()
		h.equal(<-seen, "n1 pending")
		snapshot(h, s, "n1", "completed", "")
		h.equal(<-seen, "n1 completed")
	},
	"genkit-detach": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		l, err := lease.Acquire(ctx, s, "run", lease.Options{Holder: "server 1"})
		h.must(err)
		held, stop := l.Keep(ctx)
		h.must(held.Err())
		other := openStore(h.T, h.faulty, nil)
		_, err = lease.Acquire(ctx, session(h.T, other, "s"), "run", lease.Options{Holder: "server 2"})
		var alive *lease.HeldError
		h.equal(errors.As(err, &alive), true)
		h.equal(alive.Holder, "server 1")
		stop()
		h.must(l.Release(ctx))
		_, err = lease.Acquire(ctx, session(h.T, other, "s"), "run", lease.Options{Holder: "server 2"})
		h.must(err)
	},
	"genkit-feed": func(h *host) {
		begin := startFeed(h.T, h.Store)
		snapshot(h, create(h.T, h.Store, turnstone.Request{ID: "a"}), "n1", "pending", "one")
		snapshot(h, create(h.T, h.Store, turnstone.Request{ID: "b"}), "n2", "pending", "two")
		h.equal(toldBy(h.T, h.Store, begin), "[created a committed a 1 created b committed b 1]")
	},
}

// snapshot saves a snapshot of Genkit, with a message or none.
func snapshot(h *host, s *turnstone.Session, id, status, message string) {
	h.Helper()
	at := info(h.T, h.Store, s.ID()).Revision
	c := turnstone.Commit{Expected: at, Labels: map[string]string{"snapshot": id, "status": status}, Records: sets("snapshot/"+id, fmt.Sprint(at+1))}
	if message != "" {
		c.Nodes = saying([]byte(message))
	}
	commitAt(h.T, s, c)
}
