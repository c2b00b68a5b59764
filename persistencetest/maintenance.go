package persistencetest

import (
	"bytes"
	"io"
	"sync"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
)

var maintenance = []behaviour{
	{name: "T4_VacuumReportsWhatItRemoved", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "p"})
		ids := s.grow(p, 0, "1", "2", "3")
		s.must(p.Tombstone(ctx, ids[0], ids[2]))
		r, err := p.Vacuum(ctx, gc.VacuumOptions{})
		s.must(err)
		s.equal("nodes removed", r.Nodes, 2)
		r, err = s.session("p").Vacuum(ctx, gc.VacuumOptions{})
		s.must(err)
		s.equal("nodes removed by a second call", r.Nodes, 0)
		s.twice(func() {
			p := s.session("p")
			s.reads(p, turnstone.Scope{}, "2")
			s.reads(p, turnstone.Scope{Full: true}, "2")
			_, err := p.Node(ctx, ids[0])
			s.is(err, turnstone.ErrNodeNotFound)
		})
		p = s.session("p")
		s.grow(p, 3, "4") // the content of the leaf was removed
		s.reads(p, turnstone.Scope{}, "2", "4")
	}},
	{name: "C5_ARetryIsSafeAfterGCAndVacuum", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "p"})
		first := turnstone.Commit{Turn: "t", Nodes: texts("1", "2"), Checkpoint: map[string][]byte{"x": pattern(20_000, 1)}}
		want := s.commit(p, first)
		s.grow(p, 1, "3")
		_, err := s.Factory.GC(ctx, gc.Options{})
		s.must(err)
		_, err = s.Factory.Vacuum(ctx, gc.VacuumOptions{})
		s.must(err)
		s.twice(func() {
			again := s.commit(s.session("p"), first)
			want.Replayed = true
			s.equal("the retry's result", again, want)
		})
		// A retry of a turn whose node was erased does not commit the turn twice.
		p = s.session("p")
		s.must(p.Tombstone(ctx, want.Nodes[0]))
		_, err = p.Vacuum(ctx, gc.VacuumOptions{})
		s.must(err)
		s.equal("the retry's result", s.commit(s.session("p"), first), want)
	}},
	{name: "G1_G3_G4_WhatNothingRefersToGoes", test: func(s *suite) {
		large := pattern(20_000, 3)
		a, b := s.create(turnstone.Request{ID: "a"}), s.create(turnstone.Request{ID: "b"})
		for _, p := range []turnstone.Persistence{a, b} {
			s.commit(p, turnstone.Commit{Nodes: texts(string(large)), Checkpoint: map[string][]byte{"own": append([]byte(p.ID()), large...)}})
		}
		r, err := s.Factory.GC(ctx, gc.Options{})
		s.must(err)
		s.equal("blobs deleted while all are used", r.Deleted, 0)
		s.equal("blobs retained", r.Retained, 3)
		if r.Roots < 2 {
			s.Errorf("%d roots", r.Roots)
		}
		s.must(s.Factory.Delete(ctx, "a", turnstone.KeepChildren))
		plan, err := s.Factory.GC(ctx, gc.Options{DryRun: true})
		s.must(err)
		r, err = s.Factory.GC(ctx, gc.Options{})
		s.must(err)
		s.equal("blobs deleted", r.Deleted, 1)
		s.equal("what a dry run predicted", []any{plan.Deleted, plan.Bytes, plan.Retained}, []any{r.Deleted, r.Bytes, r.Retained})
		r, err = s.Factory.GC(ctx, gc.Options{})
		s.must(err)
		s.equal("blobs deleted by a second run", r.Deleted, 0)
		s.twice(func() {
			b := s.session("b")
			s.reads(b, turnstone.Scope{}, string(large))
			parts, err := b.Checkpoint(ctx, 0)
			s.must(err)
			if !bytes.Equal(parts["own"], append([]byte("b"), large...)) {
				s.Error("the live checkpoint is another")
			}
		})
	}},
	{name: "G11_WhatAPruneLetGoOfIsFreedWithoutCompaction", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		ref, err := p.PutAttachment(ctx, bytes.NewReader(pattern(50_000, 1)), -1, "", "")
		s.must(err)
		root := s.commit(p, turnstone.Commit{Nodes: texts("root")})
		s.commit(p, turnstone.Commit{Expected: 1, Nodes: []turnstone.NewNode{{Kind: "k", Payload: []byte("left"), Attachments: []blob.Attachment{ref}}}})
		s.commit(p, turnstone.Commit{Expected: 2, Nodes: []turnstone.NewNode{{Kind: "k", Payload: []byte("right"), Parent: turnstone.RefTo(root.Leaf)}}})
		moved, err := p.Prune(ctx, 1)
		s.must(err)
		s.equal("moved", moved, true)
		r, err := s.Factory.Vacuum(ctx, gc.VacuumOptions{NoCompaction: true})
		s.must(err)
		s.equal("removed", []int{r.Nodes, r.Deleted}, []int{1, 1})
		s.twice(func() {
			_, err := s.session("a").ReadAttachment(ctx, io.Discard, ref.ID)
			s.is(err, turnstone.ErrBlobNotFound)
			s.reads(s.session("a"), turnstone.Scope{}, "root", "right")
		})
		s.must(second(s.Factory.Vacuum(ctx, gc.VacuumOptions{})))
	}},
	{name: "G2_BesideCommitsForksAndDeletes", test: func(s *suite) {
		large := pattern(9000, 3)
		var maintenance, writers sync.WaitGroup
		stop := make(chan struct{})
		maintenance.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := s.Factory.GC(ctx, gc.Options{}); err != nil {
					s.Error(err)
					return
				}
				if _, err := s.Factory.Vacuum(ctx, gc.VacuumOptions{}); err != nil {
					s.Error(err)
					return
				}
			}
		})
		for i := range 4 {
			writers.Go(func() {
				id := string(rune('a' + i))
				for range 5 {
					p := s.create(turnstone.Request{ID: id})
					for r := range head.Revision(3) {
						s.commit(p, turnstone.Commit{Expected: r, Nodes: texts("x", string(large)), Checkpoint: map[string][]byte{"p": append([]byte{byte(r)}, large...)}})
					}
					f := s.create(turnstone.Request{ID: id + "-fork", Parent: id})
					s.must(s.Factory.Delete(ctx, id, turnstone.KeepChildren))
					s.reads(f, turnstone.Scope{}, "x", string(large), "x", string(large), "x", string(large))
					s.must(s.Factory.Delete(ctx, id+"-fork", turnstone.KeepChildren))
				}
			})
		}
		writers.Wait()
		close(stop)
		maintenance.Wait()
		for range 2 {
			_, err := s.Factory.Vacuum(ctx, gc.VacuumOptions{})
			s.must(err)
		}
		r, err := s.Factory.GC(ctx, gc.Options{})
		s.must(err)
		s.equal("blobs left", r.Retained, 0)
	}},
	{name: "F5_ForksHoldWhatTheyShareAndNoMore", test: func(s *suite) {
		shared, own := pattern(200_000, 5), pattern(200_000, 6)
		p := s.create(turnstone.Request{ID: "p"})
		s.commit(p, turnstone.Commit{Nodes: texts(string(shared))})
		s.create(turnstone.Request{ID: "f", Parent: "p"})
		s.commit(p, turnstone.Commit{Expected: 1, Nodes: texts(string(own))})
		s.must(s.Factory.Delete(ctx, "p", turnstone.KeepChildren))
		r, err := s.Factory.Vacuum(ctx, gc.VacuumOptions{})
		s.must(err)
		s.equal("blobs deleted", []int{r.Deleted, r.Retained}, []int{1, 1})
		s.twice(func() { s.reads(s.session("f"), turnstone.Scope{}, string(shared)) })
		s.must(s.Factory.Delete(ctx, "f", turnstone.KeepChildren))
		r, err = s.Factory.Vacuum(ctx, gc.VacuumOptions{})
		s.must(err)
		s.equal("blobs deleted", []int{r.Deleted, r.Retained}, []int{1, 0})
	}},
}
