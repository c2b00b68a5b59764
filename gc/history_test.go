package gc_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/testscale"
)

// seeds is how many histories TestRandomHistories tries.
var seeds = flag.Uint64("seeds", 0, "how many random histories to try; 0 is what testscale says")

// Random histories of sessions, forks, uploads, retention and maintenance, runs of
// which are cut, or have other calls happen in their middle. After every step
// everything reachable is there; after two vacuums nothing else is; a dry run says
// what the run does; a full run finds what the index says.
func TestRandomHistories(t *testing.T) {
	n := *seeds
	if n == 0 {
		n = testscale.Pick[uint64](60, 30, 8)
	}
	for seed := range n {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { history(t, seed) }) {
			return
		}
	}
}

func history(t *testing.T, seed uint64) {
	he := &hooked{Engine: memory.New(), on: func() {}}
	var e engine.Engine = he
	rng := rand.New(rand.NewPCG(seed, 1))
	now := epoch
	st, err := turnstone.Open(ctx, e, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1, SealBytes: 8000, Now: func() time.Time { return now }, UploadTTL: time.Hour, Random: rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})})
	if err != nil {
		t.Fatal(err)
	}
	keeps := seed%2 == 0
	var log []string
	defer func() {
		if t.Failed() {
			n := len(log)
			for _, l := range log[max(0, n-60):] {
				t.Log(l)
			}
		}
	}()
	type sess struct {
		id    string
		nodes []turnstone.NodeID
		att   []turnstone.Attachment
	}
	var live []*sess
	next, fresh := 0, 0
	pool := func() []byte {
		i := rng.IntN(10)
		if i < 7 {
			return version(i)
		}
		return noise(6000+i, uint64(i))
	}
	part := func() []byte {
		if keeps {
			fresh++
			return version(100 + fresh)
		}
		return pool()
	}
	ok := func(err error) bool {
		if err == nil {
			return true
		}
		if fair(err) != nil && !errors.Is(err, turnstone.ErrInvalid) && !errors.Is(err, turnstone.ErrExists) && !errors.Is(err, turnstone.ErrRevisionNotFound) && !errors.Is(err, turnstone.ErrBlobNotFound) {
			t.Fatalf("op: %v", err)
		}
		return false
	}
	open := func(s *sess) *turnstone.Session {
		h, err := st.Session(ctx, s.id)
		if err != nil {
			t.Fatal(s.id, err)
		}
		return h
	}
	count, hit := 0, 0
	var fire func()
	he.on = func() {
		count++
		if fire != nil && count == hit {
			f := fire
			fire = nil
			f()
		}
	}
	var act func(step int)
	gctx := func() context.Context {
		c, cancel := context.WithCancel(ctx)
		t.Cleanup(cancel)
		count, hit = 0, rng.IntN(60)
		switch rng.IntN(5) {
		case 0:
			log = append(log, fmt.Sprint("cut at ", hit))
			fire = cancel
		case 1, 2:
			k := 1 + rng.IntN(3)
			fire = func() {
				log = append(log, fmt.Sprint("nested at ", hit))
				for range k {
					act(-1)
				}
				log = append(log, "end nested")
			}
		}
		return c
	}
	cutok := func(err error) error {
		fire = nil
		if errors.Is(err, context.Canceled) || errors.Is(err, turnstone.ErrSessionNotFound) || errors.Is(err, turnstone.ErrSessionDeleted) {
			return nil
		}
		return err
	}
	act = func(step int) {
		op := rng.IntN(40)
		if step < 0 {
			op = rng.IntN(30)
		}
		if len(live) == 0 {
			op = 0
		}
		var s *sess
		var h *turnstone.Session
		if len(live) > 0 {
			s = live[rng.IntN(len(live))]
			h = open(s)
		}
		say := func(f string, a ...any) {
			l := fmt.Sprintf("%d: ", step) + fmt.Sprintf(f, a...)
			log = append(log, l)
		}
		switch {
		case op < 2:
			next++
			n := &sess{id: fmt.Sprint("s", next)}
			say("create %s", n.id)
			_, _, err := st.Create(ctx, turnstone.Request{ID: n.id})
			ok(err)
			live = append(live, n)
		case op < 6:
			next++
			n := &sess{id: fmt.Sprint("s", next)}
			r := turnstone.Request{ID: n.id, Parent: s.id}
			k := -1
			if len(s.nodes) > 0 && rng.IntN(2) == 0 {
				k = rng.IntN(len(s.nodes))
				r.ForkNode = s.nodes[k]
			}
			_, _, err := st.Create(ctx, r)
			say("fork %s of %s at %d: %v", n.id, s.id, k, err)
			if ok(err) {
				if state, err := open(n).Load(ctx, turnstone.Scope{}); err != nil {
					t.Fatal("load fork", err)
				} else {
					for _, x := range state.Nodes {
						n.nodes = append(n.nodes, x.ID)
					}
				}
				n.att = append(n.att, s.att...)
				live = append(live, n)
			}
		case op < 20:
			c := turnstone.Commit{Expected: turnstone.AnyRevision}
			for range rng.IntN(3) {
				n := turnstone.NewNode{Kind: "u", Payload: pool()}
				if rng.IntN(3) == 0 {
					n.Payload = fmt.Append(nil, step)
				}
				if len(s.att) > 0 && rng.IntN(3) == 0 {
					n.Attachments = append(n.Attachments, s.att[rng.IntN(len(s.att))])
				}
				c.Nodes = append(c.Nodes, n)
			}
			if len(s.nodes) > 0 && rng.IntN(4) == 0 {
				at := turnstone.At(s.nodes[rng.IntN(len(s.nodes))])
				if len(c.Nodes) > 0 {
					c.Nodes[0].Parent = at
				} else {
					c.Leaf = at
				}
			}
			c.Checkpoint = map[string][]byte{}
			for _, p := range []string{"p", "q"} {
				switch rng.IntN(5) {
				case 0, 1, 2:
					c.Checkpoint[p] = part()
				case 3:
					c.Drop = append(c.Drop, p)
				}
			}
			r, err := h.Commit(ctx, c)
			say("commit %s: %d nodes, parts %d, drop %v: %d %v", s.id, len(c.Nodes), len(c.Checkpoint), c.Drop, r.Revision, err)
			if ok(err) {
				s.nodes = append(s.nodes, r.Nodes...)
			}
		case op < 22:
			i := rng.IntN(len(live))
			s = live[i]
			say("delete %s", s.id)
			ok(st.Delete(ctx, s.id, turnstone.KeepChildren))
			live = append(live[:i], live[i+1:]...)
		case op < 24:
			k := 1 + rng.IntN(3)
			m, err := h.Prune(ctx, turnstone.Retention(k))
			say("prune %s %d: %v", s.id, k, m)
			ok(err)
		case op < 26:
			if keeps {
				if rng.IntN(2) == 0 {
					r := rng.IntN(6)
					err := h.Keep(ctx, fmt.Sprint("k", rng.IntN(3)), turnstone.Revision(r))
					say("keep %s %d: %v", s.id, r, err)
					ok(err)
				} else {
					say("release %s", s.id)
					ok(h.Release(ctx, fmt.Sprint("k", rng.IntN(3))))
				}
			}
		case op < 28:
			if len(s.nodes) > 0 {
				k := rng.IntN(len(s.nodes))
				err := h.Tombstone(ctx, s.nodes[k])
				say("tombstone %s %d: %v", s.id, k, err)
				ok(err)
			}
		case op < 30:
			b := pool()
			if rng.IntN(3) == 0 {
				b = noise(300_000, uint64(rng.IntN(2)))
			}
			a, err := h.PutAttachment(ctx, bytes.NewReader(b), -1, "", "")
			say("upload %s %d: %v", s.id, len(b), err)
			if ok(err) {
				s.att = append(s.att, a)
			}
		case op < 33:
			plan, err := st.GC(ctx, turnstone.GCOptions{DryRun: true})
			if err != nil {
				t.Fatal("plan", err)
			}
			if rng.IntN(2) == 0 {
				_, err := st.GC(gctx(), turnstone.GCOptions{})
				if cutok(err) != nil {
					t.Fatal("gc", err)
				}
				say("gc")
				return
			}
			r, err := st.GC(ctx, turnstone.GCOptions{})
			if err != nil {
				t.Fatal("gc", err)
			}
			say("gc: %+v", *r)
			plan.Duration = r.Duration
			if *plan != *r {
				t.Fatalf("plan %+v, run %+v", *plan, *r)
			}
		case op < 34:
			say("gc of %s", s.id)
			if _, err := h.GC(gctx()); cutok(err) != nil {
				t.Fatal("gc session", err)
			}
		case op < 35:
			c := gctx()
			armed := fire != nil
			r, err := st.GC(c, turnstone.GCOptions{Full: true})
			say("full: %+v %v", r, err)
			err = cutok(err)
			if err != nil || r != nil && r.Repaired && !armed {
				t.Fatal("full", err, r)
			}
		case op < 36:
			say("vacuum")
			if _, err := st.Vacuum(gctx(), turnstone.VacuumOptions{}); cutok(err) != nil {
				t.Fatal("vacuum", err)
			}
		case op < 37:
			say("vacuum of %s", s.id)
			if _, err := h.Vacuum(gctx()); cutok(err) != nil {
				t.Fatal("vacuum session", err)
			}
		case op < 38:
			say("later")
			now = now.Add(time.Duration(rng.IntN(90)) * time.Minute)
		case op < 39:
			say("seal %s", s.id)
			ok(h.Seal(ctx))
		default:
			next++
			id := fmt.Sprint("s", next)
			say("rename %s %s", s.id, id)
			if ok(st.Rename(ctx, s.id, id)) {
				s.id = id
			}
		}
		if err := reachable(he.Engine, false); err != nil {
			t.Fatal("step", step, err)
		}
	}
	for step := range 30 + rng.IntN(60) {
		act(step)
	}
	if v, err := st.Verify(ctx, nil); err != nil || !v.OK() {
		t.Fatal("verify:", err, v.Problems)
	}
	now = now.Add(3 * time.Hour)
	for range 2 {
		if _, err := st.Vacuum(ctx, turnstone.VacuumOptions{}); err != nil {
			t.Fatal("vacuum", err)
		}
	}
	if err := reachable(e, true); err != nil {
		t.Error("exact:", err)
	}
	r, err := st.GC(ctx, turnstone.GCOptions{Full: true})
	if err != nil || r.Repaired || r.Deleted != 0 {
		t.Error("full at the end", err, r)
	}
	if v, err := st.Verify(ctx, nil); err != nil || !v.OK() {
		t.Error("verify:", err, v.Problems)
	}
	for _, s := range live {
		h := open(s)
		if _, err := h.Load(ctx, turnstone.Scope{}); err != nil {
			t.Error("load", s.id, err)
		}
	}
}
