package transcript_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/transcript"
)

// A save that fails leaves nothing, not even an empty session.
func TestAFailedSaveLeavesNothing(t *testing.T) {
	tr, _ := open(t)
	long := make([]transcript.Message, 3000)
	for i := range long {
		long[i].Kind = "user"
	}
	long[2999].Kind = "" // in another commit than the first
	for name, s := range map[string]transcript.Snapshot{
		"no kind":       {Messages: []transcript.Message{{Payload: []byte("x")}}},
		"no kind, long": {Messages: long},
		"empty state":   {State: map[string][]byte{"": []byte("x")}},
		"model":         {Usage: []head.Usage{{Model: strings.Repeat("m", turnstone.MaxModel+1)}}},
	} {
		if _, err := tr.Save(ctx, "a", s); !errors.Is(err, turnstone.ErrInvalid) && !errors.Is(err, turnstone.ErrLimit) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Saving a history that was loaded does not create its session again.
	if _, err := tr.Save(ctx, "a", transcript.Snapshot{Messages: history("1"), Base: 7}); !errors.Is(err, turnstone.ErrSessionNotFound) {
		t.Error(err)
	}
	if _, ok, err := tr.Load(ctx, "a"); ok || err != nil {
		t.Errorf("there is a session: %v", err)
	}
}

// A flaky engine fails as planned.
type flaky struct {
	engine.Engine
	mu   sync.Mutex
	plan func(b *engine.Batch) (apply bool, err error)
}

func (f *flaky) Apply(ctx context.Context, b *engine.Batch) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.plan != nil {
		if apply, err := f.plan(b); err != nil {
			if apply {
				err = errors.Join(err, f.Engine.Apply(ctx, b))
			}
			return err
		}
	}
	return f.Engine.Apply(ctx, b)
}

func openFlaky(t *testing.T) (*transcript.Transcripts, *flaky) {
	t.Helper()
	f := &flaky{Engine: memory.New()}
	st, err := turnstone.Open(ctx, f, &turnstone.Options{NoAutoSeal: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close(); f.Close() })
	return transcript.New(st.Factory()), f
}

// unknown makes the outcome of the next Apply unknown. The batch may be applied or not.
func (f *flaky) unknown(stands bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	f.plan = func(*engine.Batch) (bool, error) {
		switch n++; n {
		case 1:
			return stands, engine.ErrUnknown
		case 2:
			return false, engine.ErrClosed
		}
		return false, nil
	}
}

// After a long save has failed between its commits, the next save completes it.
func TestALongSaveThatFailedHalfway(t *testing.T) {
	tr, f := openFlaky(t)
	var all []string
	for i := range 5000 {
		all = append(all, fmt.Sprint(i))
	}
	base := save(t, tr, "a", transcript.Snapshot{Messages: history("old")}).Revision
	n := 0
	f.plan = func(*engine.Batch) (bool, error) {
		if n++; n == 2 {
			return false, engine.ErrNoSpace
		}
		return false, nil
	}
	long := transcript.Snapshot{Messages: history(all...), Base: base, Usage: []head.Usage{{Model: "m", Input: 1}}}
	saved, err := tr.Save(ctx, "a", long)
	if !errors.Is(err, engine.ErrNoSpace) || saved.Revision != base+1 {
		t.Fatalf("%+v, %v", saved, err)
	}
	if got := texts(load(t, tr, "a").Messages); got != "old" {
		t.Errorf("%.100s", got)
	}
	save(t, tr, "a", long) // Its Base holds: nobody has changed the history.
	s := tr.Saver("b", time.Hour, nil)
	base = save(t, tr, "b", transcript.Snapshot{Messages: history("old")}).Revision
	long.Base, n = base, 0
	s.Save(long)
	if err := s.Flush(ctx); !errors.Is(err, engine.ErrNoSpace) {
		t.Fatal(err)
	}
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"a", "b"} {
		if got := load(t, tr, id); len(got.Messages) != 5000 || got.Usage[0].Input != 1 {
			t.Errorf("%s: %d messages, %+v", id, len(got.Messages), got.Usage)
		}
	}
}
