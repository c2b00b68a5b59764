package server

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/internal/testkit"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// waits begins to wait for n of a pool, and returns when it waits. Its channel gets what the wait has ended with.
func waits(t *testing.T, p *pool, of party, n int64) chan error {
	t.Helper()
	p.mu.Lock()
	before := len(p.waiting)
	p.mu.Unlock()
	ended := make(chan error, 1)
	go func() {
		_, err := p.acquire(context.Background(), of, n, 10*time.Second)
		ended <- err
	}()
	testkit.Until(t, "one more waits", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.waiting) > before
	})
	return ended
}

// Who is within its share has its turn before those who came later, and who is not keeps nobody waiting.
func TestSV15_WhoCameFirstHasItsTurn(t *testing.T) {
	a, b, c := party{"a", "1"}, party{"b", "2"}, party{"c", "3"}
	p := newPool("things", 10, 0.5)
	full, ok := p.try(a, 5)
	other, also := p.try(b, 3)
	if !ok || !also {
		t.Fatal("there is room for both")
	}
	ownShare := waits(t, p, a, 1) // It waits for its own share.
	first := waits(t, p, c, 4)    // It waits for the others.
	second := waits(t, p, b, 1)   // There would be room for it.
	if _, ok := p.try(party{"d", "4"}, 3); ok {
		t.Error("there is room for more than there is")
	}
	other()
	for name, ended := range map[string]chan error{"first": first, "second": second} {
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	select {
	case err := <-ownShare:
		t.Errorf("a token has more than its share: %v", err)
	default:
	}
	full()
	if err := <-ownShare; err != nil {
		t.Error(err)
	}
	// The second one has waited behind the first.
	p = newPool("things", 10, 1)
	most, _ := p.try(a, 8)
	first, second = waits(t, p, b, 5), waits(t, p, c, 1)
	p.release(a, 0) // Nothing has changed.
	select {
	case err := <-second:
		t.Errorf("it has overtaken the first one: %v", err)
	default:
	}
	most()
	if err := errors.Join(<-first, <-second); err != nil {
		t.Error(err)
	}
}

// A namespace has a share as a token has, and of one token so many wait at most.
func TestSV15_NamespacesHaveSharesAndQueuesHaveAnEnd(t *testing.T) {
	p := newPool("things", 10, 0.5)
	p.queue = 2
	if _, ok := p.try(party{"a", "n"}, 5); !ok {
		t.Fatal("there is room")
	}
	if _, ok := p.try(party{"b", "n"}, 1); ok {
		t.Error("a namespace has more than its share")
	}
	waits(t, p, party{"b", "n"}, 1)
	waits(t, p, party{"b", "n"}, 1)
	if _, err := p.acquire(context.Background(), party{"b", "n"}, 1, 10*time.Second); !errors.Is(err, wire.ErrBusy) {
		t.Errorf("a third one that would wait: %v", err)
	}
	if _, err := p.acquire(context.Background(), party{"c", "n"}, 1, time.Millisecond); !errors.Is(err, wire.ErrBusy) {
		t.Errorf("one of another token: %v", err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := p.acquire(ended, party{"c", "n"}, 1, 10*time.Second); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if n := len(p.waiting); n != 2 {
		t.Errorf("%d wait", n)
	}
}

// A request that has bytes does not wait for more: two of them would wait for each other.
func TestSV15_WhoHasBytesDoesNotWaitForMore(t *testing.T) {
	s := &Server{o: Options{Patience: 10 * time.Second}}
	s.limits.bytes = newPool("bytes", 10, 1)
	one, two := charge{s: s, of: party{"a", ""}}, charge{s: s, of: party{"b", ""}}
	if err := errors.Join(one.add(t.Context(), 6), two.add(t.Context(), 4)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*charge{&one, &two} {
		if err := c.add(t.Context(), 1); !errors.Is(err, wire.ErrBusy) {
			t.Error(err)
		}
	}
	if err := one.add(t.Context(), 5); !errors.Is(err, wire.ErrTooLarge) {
		t.Errorf("more than there is: %v", err)
	}
	one.keep(2)
	if err := two.add(t.Context(), 4); err != nil {
		t.Error(err)
	}
	one.keep(0)
	two.keep(0)
	if s.limits.bytes.used != 0 || len(s.limits.bytes.tokens) != 0 {
		t.Errorf("%+v", s.limits.bytes)
	}
}
