package persistencetest

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/draft"
)

var drafts = []behaviour{
	{name: "DR1_ADraftGivesWayToItsTurn", test: func(s *suite) {
		s.create(turnstone.Request{ID: "a"})
		open := func(name string, want []byte) *draft.Draft {
			s.Helper()
			d, err := draft.Open(ctx, s.session("a"), name)
			s.must(err)
			s.equal("content is right", bytes.Equal(d.Content(), want), true)
			return d
		}
		names := func(want ...string) {
			s.Helper()
			have, err := draft.Names(ctx, s.session("a"))
			s.must(err)
			s.equal("names", have, want)
		}
		names()
		d := open("t1", nil)
		s.must(d.Set(ctx, nil))
		names()
		text := pattern(draft.Max, 1)
		for at := 0; at < 100_000; at += 7001 {
			s.must(d.Append(ctx, text[at:at+7001]))
		}
		text = text[:15*7001]
		s.must(open("t1/00", nil).Set(ctx, []byte("of another turn"))) // names that look like parts of the other one
		s.must(open("t1/n", nil).Set(ctx, []byte("of another turn")))
		s.must(open("t1-a", nil).Set(ctx, []byte("of another turn")))
		s.twice(func() {
			open("t1", text)
			names("t1", "t1-a", "t1/00", "t1/n")
		})
		// What has not changed is not written again.
		d = open("t1", text)
		before, err := s.session("a").Records(ctx, turnstone.RecordQuery{Prefix: ".draft/t1/"})
		s.must(err)
		s.must(d.Append(ctx, []byte("more")))
		after, err := s.session("a").Records(ctx, turnstone.RecordQuery{Prefix: ".draft/t1/"})
		s.must(err)
		written := 0
		for i, r := range after.Records {
			if r.Version != before.Records[i].Version {
				written++
			}
		}
		s.equal("records written", written, 2) // the last piece, and how many there are
		for _, n := range []int{draft.Max, 16 << 10, 16<<10 + 1, 1, 0, 40_000} {
			text := pattern(n, 2)
			s.must(d.Set(ctx, text))
			open("t1", text)
		}
		text = pattern(40_000, 2)
		var limit *turnstone.LimitError
		if err := d.Set(ctx, make([]byte, draft.Max+1)); !errors.As(err, &limit) || limit.Max != draft.Max {
			s.Fatalf("%v", err)
		}
		// Nothing of it is in the history, and a commit that is refused leaves it.
		p := s.session("a")
		s.reads(p, turnstone.Scope{})
		turn := turnstone.Commit{Expected: 7, Turn: "t1", Nodes: texts("whole"), Records: d.Done()}
		_, err = p.Commit(ctx, turn)
		s.is(err, turnstone.ErrConflict)
		open("t1", text)
		turn.Expected = 0
		s.commit(p, turn)
		s.twice(func() {
			open("t1", nil)
			names("t1-a", "t1/00", "t1/n")
			s.reads(s.session("a"), turnstone.Scope{}, "whole")
		})
		for _, err := range []error{second(draft.Open(ctx, nil, "x")), second(draft.Open(ctx, s.session("a"), "")), second(draft.Names(ctx, nil))} {
			s.is(err, turnstone.ErrInvalid)
		}
	}},
	{name: "DR2_ADraftHasOneWriter", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		one, err := draft.Open(ctx, p, "t")
		s.must(err)
		s.must(one.Set(ctx, pattern(50_000, 1)))
		two, err := draft.Open(ctx, p, "t")
		s.must(err)
		s.must(two.Set(ctx, pattern(60_000, 2))) // It took the turn over.
		s.is(one.Append(ctx, []byte("more")), turnstone.ErrRecordConflict)
		_, err = p.Commit(ctx, turnstone.Commit{Nodes: texts("late"), Records: one.Done()})
		s.is(err, turnstone.ErrRecordConflict)
		again, err := draft.Open(ctx, p, "t")
		s.must(err)
		s.equal("content is right", bytes.Equal(again.Content(), pattern(60_000, 2)), true)
		late, err := draft.Open(ctx, p, "t")
		s.must(err)
		s.commit(p, turnstone.Commit{Nodes: texts("done"), Records: again.Done()})
		s.hasRecords(p)
		s.is(late.Append(ctx, pattern(40_000, 3)), turnstone.ErrRecordConflict) // Its turn was committed.
		s.hasRecords(p)
		// Who opened it before there was anything is no writer either.
		early, err := draft.Open(ctx, p, "u")
		s.must(err)
		begun, err := draft.Open(ctx, p, "u")
		s.must(err)
		s.must(begun.Set(ctx, []byte("begun")))
		_, err = p.Commit(ctx, turnstone.Commit{Expected: 1, Records: early.Done()})
		s.is(err, turnstone.ErrRecordConflict)
		s.is(early.Set(ctx, nil), turnstone.ErrRecordConflict)
		s.commit(p, turnstone.Commit{Expected: 1, Records: begun.Done()})
		s.hasRecords(p)
		// Changes of different pieces exclude each other as well.
		text := pattern(5<<14, 1)
		one, err = draft.Open(ctx, p, "t")
		s.must(err)
		s.must(one.Set(ctx, text))
		two, err = draft.Open(ctx, p, "t")
		s.must(err)
		first := append([]byte("first"), text[5:]...)
		s.must(one.Set(ctx, first))
		s.is(two.Append(ctx, []byte("last")), turnstone.ErrRecordConflict)
		again, err = draft.Open(ctx, p, "t")
		s.must(err)
		s.equal("content is right", bytes.Equal(again.Content(), first), true)
	}},
	{name: "DR3_ADraftIsFollowedAndNothingIsLost", test: func(s *suite) {
		s.create(turnstone.Request{ID: "a"})
		following, end := context.WithCancel(ctx)
		defer end()
		// Each reader goes on after its cursor again and again, and always has what was written.
		type reader struct {
			mu      sync.Mutex
			content []byte
			began   int
			ended   bool
		}
		readers := make([]*reader, 3)
		var all sync.WaitGroup
		for i := range readers {
			r := &reader{}
			readers[i] = r
			all.Go(func() {
				for cursor := ""; ; {
					n := 0
					for p, err := range draft.Follow(following, s.session("a"), "t", cursor) {
						if err != nil {
							s.Error(err)
							return
						}
						r.mu.Lock()
						switch p.Kind {
						case draft.Grown:
							r.content = append(r.content, p.Content...)
						case draft.Anew:
							r.content = p.Content
							r.began++
						case draft.Ended:
							r.ended = true
						}
						ended := r.ended
						r.mu.Unlock()
						cursor = p.Cursor
						if ended {
							return
						}
						if n += len(p.Content); n > 1000*i { // It was cut off.
							break
						}
					}
				}
			})
		}
		time.Sleep(10 * time.Millisecond)
		d, err := draft.Open(ctx, s.session("a"), "t")
		s.must(err)
		have := func(want []byte) {
			s.Helper()
			for _, r := range readers {
				for try := 0; ; try++ {
					r.mu.Lock()
					same := bytes.Equal(r.content, want)
					r.mu.Unlock()
					if same {
						break
					}
					if try > 3000 {
						s.Fatalf("a reader has %d bytes, and not the %d that stand", len(r.content), len(want))
					}
					time.Sleep(10 * time.Millisecond)
				}
			}
		}
		text := pattern(300_000, 1)
		s.must(d.Set(ctx, text[:10]))
		have(text[:10])
		for at := 10; at < len(text); {
			next := min(at+1+at/3, len(text))
			s.must(d.Append(ctx, text[at:next]))
			at = next
		}
		have(text)
		for _, r := range readers {
			s.equal("begun", r.began, 1)
		}
		other := pattern(100_000, 2)
		s.must(d.Set(ctx, other)) // other content
		have(other)
		s.must(d.Set(ctx, append(bytes.Clone(other[:99_999]), 'x', 'y')))
		have(append(bytes.Clone(other[:99_999]), 'x', 'y'))
		again, err := draft.Open(ctx, s.session("a"), "t") // Another host goes on.
		s.must(err)
		s.must(again.Append(ctx, []byte("z")))
		have(append(bytes.Clone(other[:99_999]), 'x', 'y', 'z'))
		s.must(again.Set(ctx, other[:20_000])) // a part of it
		have(other[:20_000])
		s.commit(s.session("a"), turnstone.Commit{Nodes: texts("whole"), Records: again.Done()})
		all.Wait()
		for _, r := range readers {
			s.equal("ended, begun", []any{r.ended, r.began}, []any{true, 4})
		}
		// A cursor of a draft that is gone, or of another one, is told; one that is none is refused.
		last := ""
		follows := func(cursor string, want ...draft.Kind) {
			s.Helper()
			limit := time.Minute
			if len(want) == 0 { // Nothing comes.
				limit = 100 * time.Millisecond
			}
			few, end := context.WithTimeout(ctx, limit)
			defer end()
			var kinds []draft.Kind
			for p, err := range draft.Follow(few, s.session("a"), "t", cursor) {
				if err != nil {
					if len(want) > 0 || !errors.Is(err, context.DeadlineExceeded) {
						s.Fatal(err)
					}
					break
				}
				if kinds, last = append(kinds, p.Kind), p.Cursor; len(kinds) == len(want) && p.Kind != draft.Ended {
					break
				}
			}
			s.equal("kinds", len(kinds), len(want))
			for i := range want {
				s.equal("kind", kinds[i], want[i])
			}
		}
		follows("")
		follows("20000-ABC", draft.Ended)
		d, err = draft.Open(ctx, s.session("a"), "t")
		s.must(err)
		s.must(d.Set(ctx, pattern(70_000, 3)))
		follows("60000-ABC", draft.Anew)
		follows("", draft.Anew)
		follows(last, draft.Grown) // Nothing has come, and nothing was lost.
		for _, bad := range []string{"x", "-1-ABC", "5-", "99999999-ABC"} {
			for _, err := range draft.Follow(ctx, s.session("a"), "t", bad) {
				s.is(err, turnstone.ErrInvalid)
			}
		}
		for _, err := range draft.Follow(ctx, s.session("a"), "", "") {
			s.is(err, turnstone.ErrInvalid)
		}
	}},
}
