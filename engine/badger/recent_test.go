package badger

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
)

// What is remembered is what was written last, readers of the past are not told of
// it, and it is bounded.
func TestRecent(t *testing.T) {
	var r recent
	rng := rand.New(rand.NewPCG(1, 1))
	type written struct {
		value string
		ts    uint64
	}
	truth := map[string]written{}
	known, past := 0, 0
	for ts := uint64(1); ts < 200_000; ts++ {
		key := fmt.Appendf(nil, "key-%d", rng.IntN(3000))
		v := bytes.Repeat([]byte{byte('a' + rng.IntN(26))}, 1+rng.IntN(4000))
		if rng.IntN(1000) == 0 {
			v = append(v, make([]byte, recentValue)...)
		}
		want, exists := truth[string(key)]
		switch rng.IntN(5) {
		case 0: // a guard
			if got, ok := r.newest(key); ok {
				if known++; string(got) != want.value {
					t.Fatalf("%s is %d bytes, want %d", key, len(got), len(want.value))
				}
			} else if exists {
				r.saw(ts, key, []byte(want.value))
			}
		case 1: // a reader
			then := ts - min(ts, rng.Uint64N(2000))
			if got, ok := r.at(then, key); ok {
				if past++; then < want.ts || string(got) != want.value {
					t.Fatalf("%s at %d is %d bytes, want %d since %d", key, then, len(got), len(want.value), want.ts)
				}
				got[0]++ // it is the reader's
			}
		case 2:
			r.deleted(key)
			delete(truth, string(key))
		default:
			r.wrote(ts, key, v)
			truth[string(key)] = written{string(v), ts}
		}
		if ts%1000 > 0 {
			continue
		}
		size := 0
		for k, v := range r.young {
			size += recentEntry + len(k) + len(v.value)
		}
		if size != r.bytes || size > recentBytes+recentValue+1000 {
			t.Fatalf("%d bytes, counted as %d", size, r.bytes)
		}
	}
	if known < 10_000 || past < 10_000 {
		t.Errorf("only %d of 40,000 guards and %d of 40,000 readers were helped", known, past)
	}
}

// Readers see what is durable, not what is on its way, though a guard has seen it.
func TestWhatIsOnItsWayIsNotRead(t *testing.T) {
	e := open(t, t.TempDir()+"/store", nil)
	cas := func(from, to string) *request {
		var b engine.Batch
		b.Guard([]byte("k"), []byte(from))
		b.Set([]byte("k"), []byte(to))
		return &request{ctx: ctx, batch: &b, err: make(chan error, 1)}
	}
	set(t, e, "k", "0")
	first := &flight{group: []*request{cas("0", "1")}, verdicts: make([]error, 1)}
	var other engine.Batch
	other.Set([]byte("new"), []byte("value"))
	var guarded engine.Batch
	guarded.Guard([]byte("new"), []byte("value"))
	guarded.Set([]byte("k2"), []byte("1"))
	second := &flight{
		group:    []*request{cas("1", "2"), {ctx: ctx, batch: &other}, {ctx: ctx, batch: &guarded}},
		verdicts: make([]error, 3),
	}
	for _, f := range []*flight{first, second} {
		if err := e.transact(f); err != nil {
			t.Fatal(err)
		}
		for i, err := range f.verdicts {
			if err != nil {
				t.Fatalf("verdict %d: %v", i, err)
			}
		}
	}
	want := func(k, n string) {
		t.Helper()
		vs, err := e.Get(ctx, []byte("k"), []byte("new"))
		if err != nil || string(vs[0]) != k || string(vs[1]) != n {
			t.Errorf("read %q and %q, want %q and %q (%v)", vs[0], vs[1], k, n, err)
		}
	}
	want("0", "")
	e.sync(first)
	want("1", "")
	e.sync(second)
	want("2", "value")
}

// A transaction that is dropped leaves nothing behind that guards could see.
func TestWhatWasNotWrittenIsNotRemembered(t *testing.T) {
	e := open(t, t.TempDir()+"/store", nil)
	set(t, e, "k", "0")
	cas := func(from, to string) *engine.Batch {
		var b engine.Batch
		b.Guard([]byte("k"), []byte(from))
		b.Set([]byte("k"), []byte(to))
		return &b
	}
	for i := range 2 {
		if err := e.Apply(ctx, cas(fmt.Sprint(i), fmt.Sprint(i+1))); err != nil {
			t.Fatal(err)
		}
	}
	var large engine.Batch // more than a transaction of Badger's takes
	for i := range 5 {
		large.Set(fmt.Appendf(nil, "large-%d", i), make([]byte, 1<<20-100))
	}
	f := &flight{
		group:    []*request{{ctx: ctx, batch: cas("2", "3")}, {ctx: ctx, batch: &large}},
		verdicts: make([]error, 2),
	}
	if err := e.transact(f); !errors.Is(err, engine.ErrInvalid) {
		t.Fatalf("got %v", err)
	}
	if err := e.Apply(ctx, cas("3", "4")); !errors.Is(err, engine.ErrConflict) {
		t.Errorf("a guard on what was dropped: %v", err)
	}
	if err := e.Apply(ctx, cas("2", "3")); err != nil {
		t.Error(err)
	}
	var b engine.Batch
	b.Delete([]byte("k"))
	if err := e.Apply(ctx, &b); err != nil {
		t.Fatal(err)
	}
	if err := e.Apply(ctx, cas("3", "4")); !errors.Is(err, engine.ErrConflict) {
		t.Errorf("a guard on what was deleted: %v", err)
	}
}
