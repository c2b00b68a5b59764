package tests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/draft"
	"github.com/turnstonedb/turnstone/effect"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/lease"
	"github.com/turnstonedb/turnstone/queue"
)

// lashRows are the rows of docs/hosts.md for lash.
var lashRows = map[string]func(h *host){
	"lash-lease": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		now := time.Unix(1_700_000_000, 0)
		acquire := func(holder string, steal bool) (*lease.Lease, error) {
			return lease.Acquire(ctx, s, "run", lease.Options{Holder: holder, TTL: time.Minute, Steal: steal, Now: func() time.Time { return now }})
		}
		one, err := acquire("one", false)
		h.must(err)
		_, err = acquire("two", false)
		h.equal(errors.Is(err, lease.ErrHeld), true)
		now = now.Add(50 * time.Second)
		h.must(one.Renew(ctx))
		now = now.Add(50 * time.Second)
		_, err = acquire("two", false)
		h.equal(errors.Is(err, lease.ErrHeld), true)
		now = now.Add(2 * time.Minute)
		two, err := acquire("two", false)
		h.must(err)
		three, err := acquire("three", true)
		h.must(err)
		h.equal(fmt.Sprint(one.Token(), two.Token(), three.Token()), "1 2 3")
		h.must(three.Release(ctx))
		_, err = acquire("four", false)
		h.must(err)
	},
	"lash-lane": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		for _, id := range []string{"1", "2", "3"} {
			_, err := s.ChangeRecords(ctx, queue.PutAs("inputs", id, []byte("input "+id)))
			h.must(err)
		}
		run, err := lease.Acquire(ctx, s, "run", lease.Options{Holder: "host"})
		h.must(err)
		turn, err := queue.ClaimJoined(ctx, s, "inputs", lease.Options{Under: run}, queue.Join{Limit: 2})
		h.must(err)
		successor, err := lease.Acquire(ctx, s, "run", lease.Options{Holder: "successor", Steal: true})
		h.must(err)
		again, err := queue.Claim(ctx, s, "inputs", lease.Options{Under: successor})
		h.must(err)
		h.equal(again.ID+again.Joined[0].ID, "12")
		_, err = turn.Commit(ctx, turnstone.Commit{Turn: turn.ID, Nodes: saying([]byte("late"))})
		h.equal(errors.Is(err, lease.ErrFenced), true)
		_, err = again.Commit(ctx, turnstone.Commit{Turn: again.ID, Nodes: saying([]byte("to both"))})
		h.must(err)
		left, _, err := queue.Peek(ctx, s, "inputs", "", 10)
		h.must(err)
		h.equal(len(left), 1)
	},
	"lash-pin": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		commitTo(h.T, s, turnstone.Commit{Nodes: saying([]byte("one"))})
		commitTo(h.T, s, turnstone.Commit{Expected: 1, Nodes: saying([]byte("two")), Checkpoint: map[string][]byte{"p": []byte("of two")}})
		commitTo(h.T, s, turnstone.Commit{Expected: 2, Nodes: saying([]byte("three")), Checkpoint: map[string][]byte{"p": []byte("of three")}})
		create(h.T, h.Store, turnstone.Request{ID: "pin/release-1", Parent: "s", ForkAt: 2, Metadata: head.Metadata{Group: "pins"}})
		h.must(h.Delete(ctx, "s", turnstone.KeepChildren))
		_, err := h.Vacuum(ctx, gc.VacuumOptions{})
		h.must(err)
		page, err := h.List(ctx, turnstone.ListOptions{Group: "pins"})
		h.must(err)
		h.equal(len(page.Sessions), 1)
		h.equal(page.Sessions[0].ID, "pin/release-1")
		pin := session(h.T, h.Store, "pin/release-1")
		h.equal(len(h.load("pin/release-1", turnstone.Scope{}).Nodes), 2)
		parts, err := pin.Checkpoint(ctx, 0)
		h.must(err)
		h.equal(string(parts["p"]), "of two")
		fork := create(h.T, h.Store, turnstone.Request{ID: "again", Parent: "pin/release-1", ForkAt: turnstone.RevisionZero})
		h.equal(fork.ID(), "again")
		h.equal(len(h.load("again", turnstone.Scope{}).Nodes), 2)
		h.must(h.Delete(ctx, "pin/release-1", turnstone.KeepChildren))
	},
	"lash-fence": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		stale, err := lease.Acquire(ctx, s, "run", lease.Options{})
		h.must(err)
		_, err = lease.Acquire(ctx, s, "run", lease.Options{Steal: true})
		h.must(err)
		_, err = stale.Commit(ctx, turnstone.Commit{Expected: 0, Nodes: saying([]byte("late"))})
		h.equal(errors.Is(err, lease.ErrFenced), true)
		h.equal(info(h.T, h.Store, "s").Revision, 0)
	},
	"lash-queue": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		commitTo(h.T, s, turnstone.Commit{Nodes: saying([]byte("plan")), Records: []turnstone.RecordChange{queue.PutAs("work", "w1", []byte("do it"))}})
		m, err := queue.Claim(ctx, s, "work", lease.Options{Holder: "worker"})
		h.must(err)
		h.equal(string(m.Value), "do it")
		_, err = m.Commit(ctx, turnstone.Commit{Expected: 1, Turn: m.ID, Nodes: saying([]byte("done"))})
		h.must(err)
		_, err = queue.Claim(ctx, s, "work", lease.Options{})
		h.equal(errors.Is(err, queue.ErrEmpty), true)
		h.equal(len(h.records("s", "")), 0)
	},
	"lash-retry": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		change(h.T, s, queue.Put("work", []byte("do it")))
		now := time.Unix(1_700_000_000, 0)
		o := lease.Options{TTL: time.Minute, Now: func() time.Time { return now }}
		dead, err := queue.Claim(ctx, s, "work", o)
		h.must(err)
		now = now.Add(2 * time.Minute)
		m, err := queue.Claim(ctx, s, "work", o)
		h.must(err)
		h.equal(fmt.Sprint(dead.Attempts, m.Attempts, dead.ID == m.ID), "1 2 true")
		_, err = dead.Commit(ctx, turnstone.Commit{Nodes: saying([]byte("late"))})
		h.equal(errors.Is(err, lease.ErrFenced), true)
	},
	"lash-input": func(h *host) {
		running := create(h.T, h.Store, turnstone.Request{ID: "running"})
		sender := create(h.T, h.Store, turnstone.Request{ID: "sender"})
		at := h.load("running", turnstone.Scope{}).Revision
		h.all(
			turnstone.SessionCommit{Session: sender, Commit: turnstone.Commit{Nodes: saying([]byte("asks"))}},
			turnstone.SessionCommit{Session: running, RecordsOnly: true, Commit: turnstone.Commit{Records: []turnstone.RecordChange{queue.Put("input", []byte("also this"))}}})
		commitAt(h.T, running, turnstone.Commit{Expected: at, Nodes: saying([]byte("the turn that was running"))})
		m, err := queue.Claim(ctx, running, "input", lease.Options{})
		h.must(err)
		h.equal(string(m.Value), "also this")
	},
	"lash-intent": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		a := upload(h.T, s, []byte("a file"))
		pending, err := s.Uploads(ctx)
		h.must(err)
		h.equal(fmt.Sprint(len(pending), pending[0].ID == a.ID, pending[0].Expires.After(time.Now())), "1 true true")
		_, err = s.ReadAttachment(ctx, io.Discard, a.ID)
		h.must(err)
		commitAt(h.T, s, turnstone.Commit{Nodes: attaching(a)})
		pending, err = s.Uploads(ctx)
		h.must(err)
		h.equal(len(pending), 0)
	},
	"lash-draft": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		d, err := draft.Open(ctx, s, "turn 1")
		h.must(err)
		for _, tokens := range []string{"Hello", ", ", "world"} {
			h.must(d.Append(ctx, []byte(tokens)))
		}
		d, err = draft.Open(ctx, session(h.T, h.Store, "s"), "turn 1") // after a crash
		h.must(err)
		h.equal(string(d.Content()), "Hello, world")
		commitAt(h.T, s, turnstone.Commit{Turn: "turn 1", Nodes: saying([]byte("Hello, world!")), Records: d.Done()})
		h.equal(len(h.records("s", "")), 0)
	},
	"lash-effect": func(h *host) { // lash-sansio: a restore replays what was recorded, and runs what was not
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		run := func(due ...string) (ran []string) {
			for _, id := range due {
				_, err := effect.Do(ctx, session(h.T, h.Store, "s"), "turn 1", id, func(context.Context) ([]byte, error) {
					ran = append(ran, id)
					return []byte("result of " + id), nil
				})
				h.must(err)
			}
			return ran
		}
		h.equal(fmt.Sprint(run("llm", "tool")), "[llm tool]")
		h.equal(fmt.Sprint(run("llm", "tool", "next")), "[next]") // after a crash
		_, err := effect.Commit(ctx, s, turnstone.Commit{Turn: "turn 1", Nodes: saying([]byte("done"))})
		h.must(err)
		h.equal(len(h.records("s", "effect/")), 0)
	},
	"lash-append": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		seen := commitTo(h.T, s, turnstone.Commit{Nodes: saying([]byte("one"))}).Leaf
		commitTo(h.T, s, turnstone.Commit{Nodes: saying([]byte("two"))})
		commitTo(h.T, s, turnstone.Commit{OnPath: seen, Nodes: saying([]byte("three"))})
		commitTo(h.T, s, turnstone.Commit{Leaf: turnstone.RefNone()}) // The user goes back.
		_, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, OnPath: seen, Nodes: saying([]byte("late"))})
		h.equal(errors.Is(err, turnstone.ErrConflict), true)
	},
	"lash-branches": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		root := commitTo(h.T, s, turnstone.Commit{Nodes: saying([]byte("root"))}).Leaf
		a := commitTo(h.T, s, turnstone.Commit{Nodes: saying([]byte("a")), Keep: "a"})
		b := commitTo(h.T, s, turnstone.Commit{Nodes: sayingAfter(root, []byte("b")), Keep: "b"})
		kept, err := s.Kept(ctx)
		h.must(err)
		h.equal(kept, []head.Kept{{Name: "a", Revision: a.Revision}, {Name: "b", Revision: b.Revision}})
		leaves, err := s.Leaves(ctx)
		h.must(err)
		h.equal(fmt.Sprint(leaves[0].ID, leaves[1].ID), fmt.Sprint(a.Leaf, b.Leaf))
	},
	"lash-wait": func(h *host) {
		s := create(h.T, h.Store, turnstone.Request{ID: "s"})
		commitTo(h.T, s, turnstone.Commit{})
		beyond := make(chan head.Revision)
		limited, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		go func() {
			defer close(beyond)
			for e, err := range s.Watch(limited, 1) {
				if err == nil {
					beyond <- e.Revision
				}
				return
			}
		}()
		commitTo(h.T, s, turnstone.Commit{})
		h.equal(<-beyond, 2)
	},
}
