package transcript_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/transcript"
)

func TestSaverWaitsAndKeepsTheLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, st := open(t)
		var reports []transcript.Saved
		s := tr.Saver("a", time.Second, func(r transcript.Saved, err error) {
			if err != nil {
				t.Error(err)
			}
			reports = append(reports, r)
		})
		for i := range 6 { // one every 300 ms: two saves, of the first four and of the last two
			s.Save(transcript.Snapshot{Messages: history(strings.Fields("1 2 3 4 5 6")[:i+1]...), Usage: []head.Usage{{Model: "m", Input: 1}}})
			time.Sleep(300 * time.Millisecond)
		}
		if len(reports) != 1 || reports[0].Added != 4 {
			t.Errorf("%+v", reports)
		}
		if err := s.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		if got := load(t, tr, "a"); texts(got.Messages) != "1 2 3 4 5 6" || got.Usage[0].Input != 6 {
			t.Errorf("%q, %+v", texts(got.Messages), got.Usage)
		}
		if err := s.Flush(ctx); err != nil || len(reports) != 2 || reports[1].Added != 2 {
			t.Errorf("%v, %+v", err, reports)
		}
		time.Sleep(time.Minute)
		if got := load(t, tr, "a"); got.Revision != 2 || nodes(t, st, "a") != 6 {
			t.Errorf("revision %d", got.Revision)
		}
	})
}

func TestSaverGoesOnFromItsOwnSaves(t *testing.T) {
	tr, _ := open(t)
	base := save(t, tr, "a", transcript.Snapshot{Messages: history("1")}).Revision
	s := tr.Saver("a", time.Hour, nil)
	for i := range 3 {
		s.Save(transcript.Snapshot{Messages: history(strings.Fields("1 2 3 4")[:i+2]...), Base: base})
		if err := s.Flush(ctx); err != nil {
			t.Fatal(err)
		}
	}
	save(t, tr, "a", transcript.Snapshot{Messages: history("somebody", "else")})
	s.Save(transcript.Snapshot{Messages: history("1", "2", "3", "4", "5"), Base: base})
	for range 2 { // the snapshot stays due
		if err := s.Flush(ctx); !errors.Is(err, turnstone.ErrConflict) {
			t.Errorf("%v", err)
		}
	}
	if got := texts(load(t, tr, "a").Messages); got != "somebody else" {
		t.Errorf("%q", got)
	}
}

// After a save with an unknown outcome, the next flush makes the history that of the host
// and counts the usage once.
func TestSaverAfterAnUnknownOutcome(t *testing.T) {
	for _, stands := range []bool{true, false} {
		for _, based := range []bool{true, false} {
			for _, more := range []bool{true, false} {
				tr, f := openFlaky(t)
				first := transcript.Snapshot{Messages: history("1"), State: map[string][]byte{"p": []byte("x")}}
				base := save(t, tr, "a", first).Revision
				if !based {
					base = 0
				}
				s := tr.Saver("a", time.Hour, nil)
				use := []head.Usage{{Model: "m", Input: 1}}
				s.Save(transcript.Snapshot{Messages: history("1", "2"), Usage: use, Base: base})
				f.unknown(stands)
				if err := s.Flush(ctx); !errors.Is(err, turnstone.ErrOutcomeUnknown) {
					t.Fatal(err)
				}
				want, used := "1 2", uint64(1)
				if more {
					want, used = "1 2 3", 2
					s.Save(transcript.Snapshot{Messages: history("1", "2", "3"), Usage: use, Base: base})
				}
				for range 2 {
					if err := s.Flush(ctx); err != nil {
						t.Errorf("stands %v, based %v, more %v: %v", stands, based, more, err)
					}
				}
				got := load(t, tr, "a")
				if texts(got.Messages) != want || got.Usage[0].Input != used || string(got.State["p"]) != "x" {
					t.Errorf("stands %v, based %v, more %v: %q, used %+v", stands, based, more, texts(got.Messages), got.Usage)
				}
			}
		}
	}
}

// After a conflict the host loads the history and goes on with the new base.
func TestSaverAfterAConflict(t *testing.T) {
	tr, _ := open(t)
	base := save(t, tr, "a", transcript.Snapshot{Messages: history("1")}).Revision
	s := tr.Saver("a", time.Hour, nil)
	s.Save(transcript.Snapshot{Messages: history("1", "mine"), Base: base})
	save(t, tr, "a", transcript.Snapshot{Messages: history("1", "theirs")})
	if err := s.Flush(ctx); !errors.Is(err, turnstone.ErrConflict) {
		t.Fatal(err)
	}
	now := load(t, tr, "a")
	s.Save(transcript.Snapshot{Messages: history("1", "theirs", "mine"), Base: now.Revision})
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if got := texts(load(t, tr, "a").Messages); got != "1 theirs mine" {
		t.Errorf("%q", got)
	}
}

// If metadata can't be saved, the rest of the snapshot is not saved either.
func TestMetadataThatDoesNotFit(t *testing.T) {
	tr, _ := open(t)
	labels := func(from, n int) map[string]string {
		out := map[string]string{}
		for i := range n {
			out[fmt.Sprint("l", from+i)] = "x"
		}
		return out
	}
	save(t, tr, "a", transcript.Snapshot{Metadata: head.Metadata{Labels: labels(0, turnstone.MaxLabels-4)}})
	s := tr.Saver("a", time.Hour, nil)
	s.Save(transcript.Snapshot{Messages: history("1"), Usage: []head.Usage{{Model: "m", Input: 1}}, Metadata: head.Metadata{Labels: labels(1000, 10)}})
	for range 3 {
		if err := s.Flush(ctx); !errors.Is(err, turnstone.ErrLimit) {
			t.Error(err)
		}
	}
	if got := load(t, tr, "a"); len(got.Messages) != 0 || len(got.Usage) != 0 {
		t.Errorf("%+v", got)
	}
}
