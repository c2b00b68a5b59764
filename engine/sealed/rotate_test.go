package sealed_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/sealed"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// counters are guarded increments of several engines, as commits are.
type counters struct {
	t       testing.TB
	space   *keys.Space
	n       int
	mu      sync.Mutex
	added   map[int]int
	stopped chan struct{}
	workers sync.WaitGroup
}

func (c *counters) key(i int) []byte {
	if i%2 == 0 {
		return c.space.Record(keys.Incarnation{byte(i % 3)}, fmt.Sprint("counter/", i))
	}
	return c.space.Head(keys.Hash{byte(i)})
}

// run increments until c stops.
func (c *counters) run(e engine.Engine, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 7))
	for {
		select {
		case <-c.stopped:
			return
		default:
		}
		i := rnd.IntN(c.n)
		vs, err := e.Get(ctx, c.key(i))
		if err != nil {
			c.t.Error(err)
			return
		}
		n := 0
		if vs[0] != nil {
			fmt.Sscan(string(vs[0]), &n)
		}
		var b engine.Batch
		b.Guard(c.key(i), vs[0])
		b.Set(c.key(i), fmt.Append(nil, n+1))
		switch err := e.Apply(ctx, &b); {
		case err == nil:
			c.mu.Lock()
			c.added[i]++
			c.mu.Unlock()
		case !errors.Is(err, engine.ErrConflict):
			c.t.Error(err)
			return
		}
	}
}

// Keys are rotated, and older ones removed, while two processes write. Nothing is lost, and nothing is encrypted with
// an older key at the end.
func TestES4_KeysAreRotatedWhileOthersWrite(t *testing.T) {
	path, ring := newRing(t, "n")
	base := memory.New()
	c := &counters{t: t, space: keys.New("n", [32]byte{1}), n: 40, added: map[int]int{}, stopped: make(chan struct{})}
	for seed := range uint64(4) {
		e, _ := open(t, base, path, "n")
		c.workers.Go(func() { c.run(e, seed) })
	}
	rnd := rand.New(rand.NewPCG(1, 1))
	e, _ := open(t, base, path, "n")
	for i := range 400 { // so that there is more than a batch
		if err := set(e, c.space.About(keys.Hash{byte(i), byte(i >> 8)}), bytes.Repeat([]byte("x"), 3000)); err != nil {
			t.Fatal(err)
		}
	}
	for range testkit.Pick(40, 12, 5) {
		if err := ring.Rotate(ctx, "n"); err != nil {
			t.Fatal(err)
		}
		for {
			limited, cancel := context.WithCancel(ctx)
			interrupted := &enginetest.Faulty{Engine: kept{base}, Plan: func(c enginetest.Call) (f enginetest.Fault) {
				if rnd.IntN(6) == 0 {
					cancel()
				}
				if c.Op == "Apply" && rnd.IntN(5) == 0 {
					f = enginetest.Fault{Err: engine.ErrUnknown, Applied: rnd.IntN(2) == 0}
				}
				return f
			}}
			k, err := sealed.OpenKeyring(ctx, path, sealed.Key([32]byte{1}))
			if err != nil {
				t.Fatal(err)
			}
			if e, err = sealed.Open(ctx, interrupted, k, "n"); err == nil {
				_, err = e.Reencrypt(limited)
			}
			cancel()
			if err == nil {
				break
			}
			if !errors.Is(err, context.Canceled) && !errors.Is(err, engine.ErrUnknown) {
				t.Fatal(err)
			}
		}
		if _, err := e.Forget(ctx); err != nil {
			t.Fatal(err)
		}
		if used := usedKeys(t, base, "n"); len(used) != 1 {
			t.Fatalf("values are encrypted with several keys: %v", used)
		}
	}
	close(c.stopped)
	c.workers.Wait()
	e, _ = open(t, base, path, "n")
	for i, n := range c.added {
		if got := get(t, e, c.key(i)); got != fmt.Sprint(n) {
			t.Errorf("counter %d is %s, %d were acknowledged", i, got, n)
		}
	}
	if len(c.added) < 20 {
		t.Errorf("only %d counters were written to", len(c.added))
	}
}

// A process that has known nothing of it goes on with the new key.
func TestES4_WhoWasAwayGoesOnWithTheNewKey(t *testing.T) {
	path, ring := newRing(t, "")
	base := memory.New()
	space := keys.New("", [32]byte{})
	old, record, fresh := space.Head(keys.Hash{1}), space.Record(keys.Incarnation{1}, "a/b"), space.Head(keys.Hash{2})
	first, _ := open(t, base, path, "")
	for _, k := range [][]byte{old, record} {
		if err := set(first, k, []byte("v")); err != nil {
			t.Fatal(err)
		}
	}
	for name, goesOn := range map[string]func(e engine.Engine) error{
		"sets":    func(e engine.Engine) error { return set(e, fresh, []byte("v")) },
		"deletes": func(e engine.Engine) error { b := engine.Batch{Deletes: [][]byte{fresh}}; return e.Apply(ctx, &b) },
		"gets": func(e engine.Engine) error {
			if got := get(t, e, old) + get(t, e, record); got != "vv" {
				return fmt.Errorf("got %q", got)
			}
			return nil
		},
		"scans": func(e engine.Engine) error {
			if got := all(t, e, engine.PrefixRange(keys.Prefix(""))); len(got) < 2 || !strings.HasSuffix(got[0], "=v") {
				return fmt.Errorf("got %q", got)
			}
			return nil
		},
		"guards": func(e engine.Engine) error {
			var b engine.Batch
			b.Guard(old, []byte("v"))
			b.Set(record, []byte("v"))
			return e.Apply(ctx, &b)
		},
	} {
		away, _ := open(t, base, path, "")
		if err := ring.Rotate(ctx, ""); err != nil {
			t.Fatal(err)
		}
		e, _ := open(t, base, path, "")
		if _, err := e.Reencrypt(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Forget(ctx); err != nil {
			t.Fatal(err)
		}
		if err := goesOn(away); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if used := usedKeys(t, base, ""); len(used) != 1 {
			t.Errorf("%s: %v", name, used)
		}
	}
}

// A store that nobody has written to yet is encrypted with the newest key, although it was opened before that was
// made.
func TestES4_TheFirstBatchHasTheNewestKey(t *testing.T) {
	for _, written := range []bool{false, true} {
		path, ring := newRing(t, "")
		base := memory.New()
		key := keys.StoreKey("")
		early, _ := open(t, base, path, "")
		if err := ring.Rotate(ctx, ""); err != nil {
			t.Fatal(err)
		}
		e, _ := open(t, base, path, "")
		if written {
			if err := set(e, key, []byte("v")); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := e.Reencrypt(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Forget(ctx); err != nil {
			t.Fatal(err)
		}
		if err := set(early, key, []byte("v")); err != nil {
			t.Fatal(err)
		}
		again, _ := open(t, base, path, "")
		if got := get(t, again, key); got != "v" {
			t.Error(got)
		}
	}
}

// A key that is made while older ones are forgotten does not have the one forgotten that is used.
func TestES4_TheKeyThatIsUsedIsNotForgotten(t *testing.T) {
	path, ring := newRing(t, "n")
	base := memory.New()
	scans := 0
	e, err := sealed.Open(ctx, &enginetest.Faulty{Engine: kept{base}, Plan: func(c enginetest.Call) (f enginetest.Fault) {
		if c.Op == "Scan" {
			scans++
			must(t, ring.Rotate(ctx, "n"))
		}
		return f
	}}, ring, "n")
	must(t, err)
	must(t, set(e, headKey(1), []byte("v")))
	_, err = e.Forget(ctx)
	must(t, err)
	again, _ := open(t, base, path, "n")
	if got := get(t, again, headKey(1)); got != "v" || scans == 0 {
		t.Errorf("%q after %d rotations", got, scans)
	}
	if _, err := again.Reencrypt(ctx); err != nil {
		t.Fatal(err)
	}
}

// Keys that are rotated while the keyring is read are found all the same.
func TestES4_WhoOpensWhileKeysAreRotatedFindsThem(t *testing.T) {
	path, ring := newRing(t, "")
	base := memory.New()
	e, _ := open(t, base, path, "")
	if err := set(e, keys.StoreKey(""), []byte("v")); err != nil {
		t.Fatal(err)
	}
	times := 0
	k, err := sealed.OpenKeyring(ctx, path, sealed.Key([32]byte{1}))
	if err != nil {
		t.Fatal(err)
	}
	opened, err := sealed.Open(ctx, &enginetest.Faulty{Engine: kept{base}, Plan: func(c enginetest.Call) (f enginetest.Fault) {
		if times++; c.Op != "Get" || times > 5 {
			return f
		}
		if err := ring.Rotate(ctx, ""); err != nil {
			t.Error(err)
		}
		if _, err := e.Reencrypt(ctx); err != nil {
			t.Error(err)
		}
		if _, err := e.Forget(ctx); err != nil {
			t.Error(err)
		}
		return f
	}}, k, "")
	if err != nil || times <= 5 {
		t.Fatal(err, times)
	}
	if got := get(t, opened, keys.StoreKey("")); got != "v" {
		t.Error(got)
	}
}

// A guard holds or fails for what was written, whatever key it is encrypted with.
func TestES4_GuardsCompareWhatWasWritten(t *testing.T) {
	path, ring := newRing(t, "")
	base := memory.New()
	e, _ := open(t, base, path, "")
	space := keys.New("", [32]byte{})
	a, r := space.Head(keys.Hash{1}), space.Record(keys.Incarnation{2}, "key")
	for _, k := range [][]byte{a, r} {
		if err := set(e, k, []byte("old")); err != nil {
			t.Fatal(err)
		}
	}
	if err := ring.Rotate(ctx, ""); err != nil {
		t.Fatal(err)
	}
	note, err := base.Get(ctx, keys.EncryptionKey(""))
	if err != nil {
		t.Fatal(err)
	}
	// A reencryption that ends when the note has both keys.
	stopped := &enginetest.Faulty{Engine: kept{base}, Plan: func(c enginetest.Call) (f enginetest.Fault) {
		if now, _ := base.Get(ctx, keys.EncryptionKey("")); c.Op == "Scan" && !bytes.Equal(now[0], note[0]) {
			f.Err = engine.ErrUnavailable
		}
		return f
	}}
	k, _ := sealed.OpenKeyring(ctx, path, sealed.Key([32]byte{1}))
	half, err := sealed.Open(ctx, stopped, k, "")
	if err == nil {
		_, err = half.Reencrypt(ctx)
	}
	if !errors.Is(err, engine.ErrUnavailable) {
		t.Fatal(err)
	}
	for _, e := range []engine.Engine{e, half} { // one learns of the new key now
		for _, k := range [][]byte{a, r} {
			var b engine.Batch
			b.Guard(k, []byte("other"))
			b.Set(k, []byte("new"))
			var c *engine.ConflictError
			if err := e.Apply(ctx, &b); !errors.As(err, &c) || !bytes.Equal(c.Key, k) {
				t.Errorf("a guard that does not hold: %v", err)
			}
			b = engine.Batch{}
			b.Guard(k, []byte("old"))
			b.Guard(space.Head(keys.Hash{9}), nil)
			b.Set(k, []byte("old")) // as it was: it is encrypted anew
			if err := e.Apply(ctx, &b); err != nil {
				t.Errorf("a guard that holds: %v", err)
			}
			b.Guard(space.Head(keys.Hash{1}), nil)
			if err := e.Apply(ctx, &b); !errors.As(err, &c) || !bytes.Equal(c.Key, a) {
				t.Errorf("a guard of absence: %v", err)
			}
		}
	}
	if used := usedKeys(t, base, ""); len(used) != 1 {
		t.Error(used)
	}
}

// What was read before a key was forgotten is decrypted with it.
func TestES4_WhatIsReadWhileKeysAreForgottenIsRead(t *testing.T) {
	base := memory.New()
	path, k := newRing(t, "n")
	slow := &late{kept: kept{base}}
	kOther, err := sealed.OpenKeyring(ctx, path, sealed.Key([32]byte{1}))
	must(t, err)
	s, err := sealed.Open(ctx, slow, kOther, "n")
	must(t, err)
	other, _ := open(t, base, path, "n")
	must(t, set(s, headKey(1), []byte("v")))
	must(t, set(s, headKey(2), []byte("v")))
	meanwhile := func() {
		rotates(t, k, other)
		if got := get(t, s, headKey(1)); got != "v" { // It learns of the new key.
			t.Error(got)
		}
	}
	slow.then = meanwhile
	pairs := all(t, s, engine.PrefixRange(keys.Prefix("n")))
	if len(pairs) != 2 || !strings.HasSuffix(pairs[0], "=v") || !strings.HasSuffix(pairs[1], "=v") {
		t.Error(pairs)
	}
	slow.then = meanwhile
	if vs, err := s.Get(ctx, headKey(1), headKey(2)); err != nil || string(vs[0]) != "v" || string(vs[1]) != "v" {
		t.Errorf("%q, %v", vs, err)
	}
}

// A value whose older key was put back is not lost when that key is forgotten, also if keys are rotated meanwhile.
func TestES4_ForgettingLosesNoValue(t *testing.T) {
	base := memory.New()
	path, k := newRing(t, "n")
	e, _ := open(t, base, path, "n")
	must(t, set(e, headKey(1), []byte("v")))
	old, err := base.Get(ctx, headKey(1))
	must(t, err)
	must(t, k.Rotate(ctx, "n"))
	_, err = e.Reencrypt(ctx)
	must(t, err)
	must(t, set(base, headKey(1), old[0]))
	applied := 0
	meets := &enginetest.Faulty{Engine: kept{base}, Plan: func(c enginetest.Call) (f enginetest.Fault) {
		if c.Op != "Apply" {
			return f
		}
		if applied++; applied == 1 { // Another process begins with the next key, and is cut off.
			must(t, k.Rotate(ctx, "n"))
			o, _ := open(t, &enginetest.Faulty{Engine: base, Plan: enginetest.CrashAfter(1)}, path, "n")
			if _, err := o.Reencrypt(ctx); err == nil {
				t.Error("it was not cut off")
			}
		}
		return f
	}}
	forgets, err := sealed.Open(ctx, meets, k, "n")
	must(t, err)
	_, err = forgets.Forget(ctx)
	must(t, err)
	again, _ := open(t, base, path, "n")
	if got := get(t, again, headKey(1)); got != "v" || applied == 0 {
		t.Errorf("%q after %d batches", got, applied)
	}
}
