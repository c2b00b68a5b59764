package persistencetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/effect"
)

var effects = []behaviour{
	{name: "EF1_TheFirstWriterOfAnEffectWins", test: func(s *suite) {
		s.create(turnstone.Request{ID: "a"})
		s.create(turnstone.Request{ID: "b"})
		_, err := effect.Get(ctx, s.session("a"), "t", "pay")
		s.is(err, effect.ErrNotRecorded)
		failed := errors.New("failed")
		_, err = effect.Do(ctx, s.session("a"), "t", "pay", func(context.Context) ([]byte, error) { return nil, failed })
		s.is(err, failed)
		const workers = 8
		var wg sync.WaitGroup
		results, firsts := make([]string, workers), make([]bool, workers)
		for i := range workers {
			p := s.session("a")
			wg.Go(func() {
				got, first, err := effect.Record(ctx, p, "t", "pay", fmt.Append(nil, i))
				if err != nil {
					s.Error(err)
				}
				results[i], firsts[i] = string(got), first
			})
		}
		wg.Wait()
		winner := ""
		for i, first := range firsts {
			if first && winner == "" {
				winner = fmt.Sprint(i)
			} else if first {
				s.Error("two were first")
			}
		}
		for _, got := range results {
			s.equal("what stands", got, winner)
		}
		s.twice(func() {
			got, err := effect.Do(ctx, s.session("a"), "t", "pay", func(context.Context) ([]byte, error) { return nil, errors.New("it was repeated") })
			s.must(err)
			s.equal("result", string(got), winner)
			for _, other := range []struct{ session, turn, id string }{{"b", "t", "pay"}, {"a", "u", "pay"}, {"a", "t", "other"}} {
				_, err := effect.Get(ctx, s.session(other.session), other.turn, other.id)
				s.is(err, effect.ErrNotRecorded)
			}
			i, err := s.session("a").Info(ctx)
			s.must(err)
			s.equal("revision", i.Revision, 0)
		})
		for _, bad := range []func() error{
			func() error { _, err := effect.Get(ctx, nil, "t", "x"); return err },
			func() error { _, _, err := effect.Record(ctx, s.session("a"), "", "x", nil); return err },
			func() error { _, err := effect.Wait(ctx, s.session("a"), "t", ""); return err },
			func() error { _, err := effect.List(ctx, s.session("a"), ""); return err },
			func() error { return effect.Drop(ctx, s.session("a"), "") },
			func() error { _, err := effect.Commit(ctx, s.session("a"), turnstone.Commit{}); return err },
		} {
			s.is(bad(), turnstone.ErrInvalid)
		}
	}},
	{name: "EF2_ResultsHaveAnySize", test: func(s *suite) {
		s.create(turnstone.Request{ID: "a"})
		sizes := []int{0, 1, turnstone.MaxRecord - 256, turnstone.MaxRecord - 255, 16*48<<10 - 1, 16 * 48 << 10, 3_000_000}
		content := func(n int) []byte { return bytes.Repeat([]byte("0123456789abcde\n"), n/16+1)[:n] }
		for _, n := range sizes {
			_, first, err := effect.Record(ctx, s.session("a"), "turn/1", fmt.Sprint("size/", n), content(n))
			s.must(err)
			s.equal("first", first, true)
		}
		s.twice(func() {
			ids, err := effect.List(ctx, s.session("a"), "turn/1")
			s.must(err)
			s.equal("effects", len(ids), len(sizes))
			for _, n := range sizes {
				got, err := effect.Get(ctx, s.session("a"), "turn/1", fmt.Sprint("size/", n))
				s.must(err)
				if !bytes.Equal(got, content(n)) {
					s.Fatalf("%d bytes come back as %d", n, len(got))
				}
			}
		})
		got, first, err := effect.Record(ctx, s.session("a"), "turn/1", "size/3000000", content(2_000_000)) // The later result is refused, and leaves no pieces.
		s.must(err)
		s.equal("second", []any{len(got), first}, []any{3_000_000, false})
		s.must(effect.Drop(ctx, s.session("a"), "turn/1"))
		s.twice(func() {
			all, err := s.session("a").Records(ctx, turnstone.RecordQuery{})
			s.must(err)
			s.equal("records", len(all.Records), 0)
		})
	}},
	{name: "EF3_EffectsGoWithTheirTurn", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		for _, id := range []string{"one", "two"} {
			_, _, err := effect.Record(ctx, p, "t", id, []byte(id))
			s.must(err)
		}
		_, _, err := effect.Record(ctx, p, "other", "stays", []byte("x"))
		s.must(err)
		_, _, err = effect.Record(ctx, p, "t", "large", make([]byte, 200_000))
		s.must(err)
		_, err = effect.Commit(ctx, p, turnstone.Commit{Turn: "t", Expected: 7, Nodes: texts("lost")})
		s.is(err, turnstone.ErrConflict)
		s.twice(func() {
			ids, err := effect.List(ctx, s.session("a"), "t")
			s.must(err)
			s.equal("after a commit that was refused", ids, []string{"large", "one", "two"})
		})
		for i := range 2 { // The turn is committed once, however often it is asked for.
			r, err := effect.Commit(ctx, s.session("a"), turnstone.Commit{Turn: "t", Nodes: texts("done"), Records: set("k", "v")})
			s.must(err)
			s.equal("result", []any{r.Revision, len(r.Records), r.Replayed}, []any{1, 1, i == 1})
		}
		s.twice(func() {
			s.reads(s.session("a"), turnstone.Scope{}, "done")
			all, err := s.session("a").Records(ctx, turnstone.RecordQuery{})
			s.must(err)
			var keys []string
			for _, r := range all.Records {
				keys = append(keys, r.Key)
			}
			s.equal("records", keys, []string{".effect.done/t", "effect/other/stays", "k"})
			// A worker that has not noticed the commit is told of it, and repeats nothing.
			_, err = effect.Do(ctx, s.session("a"), "t", "one", func(context.Context) ([]byte, error) { return nil, errors.New("it was repeated") })
			s.is(err, effect.ErrTurnStands)
			_, _, err = effect.Record(ctx, s.session("a"), "t", "late", []byte("x"))
			s.is(err, effect.ErrTurnStands)
			_, err = effect.Wait(ctx, s.session("a"), "t", "late")
			s.is(err, effect.ErrTurnStands)
		})
		_, err = effect.Commit(ctx, s.session("a"), turnstone.Commit{Turn: "other", Expected: 1, Nodes: texts("next")})
		s.must(err)
		s.twice(func() {
			all, err := s.session("a").Records(ctx, turnstone.RecordQuery{})
			s.must(err)
			s.equal("records", []any{len(all.Records), all.Records[0].Key}, []any{2, ".effect.done/other"})
		})
	}},
	{name: "EF4_AResultIsWaitedFor", test: func(s *suite) {
		s.create(turnstone.Request{ID: "a"})
		limited, cancel := context.WithTimeout(ctx, 30*time.Millisecond)
		_, err := effect.Wait(limited, s.session("a"), "t", "x")
		cancel()
		s.is(err, context.DeadlineExceeded)
		done := make(chan string, 1)
		p := s.session("a")
		go func() {
			got, err := effect.Wait(ctx, p, "t", "x")
			if err != nil {
				s.Error(err)
			}
			done <- string(got)
		}()
		time.Sleep(10 * time.Millisecond)
		_, _, err = effect.Record(ctx, s.session("a"), "t", "x", []byte("late"))
		s.must(err)
		s.equal("result", <-done, "late")
	}},
}
