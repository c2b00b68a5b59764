package sealed_test

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"os"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/sealed"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

func headKey(i byte) []byte { return keys.New("n", [32]byte{9}).Head(keys.Hash{i}) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A host whose keyring has lost the namespace is told so by a scan.
func TestES2_AScanWithoutTheKeysetFails(t *testing.T) {
	base := memory.New()
	path, _ := newRing(t, "n")
	s, k := open(t, base, path, "n")
	must(t, set(s, headKey(1), []byte("v")))
	must(t, k.Destroy(ctx, "n"))
	vs, _ := base.Get(ctx, headKey(1))
	vs[0][2] ^= 1
	must(t, set(base, headKey(1), vs[0]))
	var failed error
	for _, err := range s.Scan(ctx, engine.PrefixRange(keys.Prefix("n"))) {
		failed = err
	}
	if !errors.Is(failed, sealed.ErrKey) {
		t.Error(failed)
	}
}

// A host that was not given the new keyring is told so by a scan.
func TestES2_AScanWithoutTheNewKeyFails(t *testing.T) {
	base := memory.New()
	path, _ := newRing(t, "n")
	s, _ := open(t, base, path, "n")
	must(t, set(s, headKey(1), []byte("v")))
	path2 := copyFile(t, path)
	s2, k2 := open(t, base, path2, "n")
	must(t, k2.Rotate(ctx, "n"))
	if _, err := s2.Reencrypt(ctx); err != nil {
		t.Fatal(err)
	}
	var failed error
	for _, err := range s.Scan(ctx, engine.PrefixRange(keys.Prefix("n"))) {
		failed = err
	}
	if !errors.Is(failed, sealed.ErrKey) {
		t.Error(failed)
	}
}

// A guard of a value whose damage is in the id of its key ends, as any other does.
func TestES3_AGuardOfADamagedKeyIDEnds(t *testing.T) {
	base := memory.New()
	path, _ := newRing(t, "n")
	s, _ := open(t, base, path, "n")
	must(t, set(s, headKey(1), []byte("v")))
	vs, _ := base.Get(ctx, headKey(1))
	vs[0][2] ^= 1 // the id of the key
	must(t, set(base, headKey(1), vs[0]))
	c, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		var b engine.Batch
		b.Guard(headKey(1), codec.Forged)
		b.Set(headKey(1), []byte("w"))
		done <- s.Apply(c, &b)
	}()
	select {
	case err := <-done:
		if errors.Is(err, context.DeadlineExceeded) {
			t.Error("livelock until the deadline")
		}
	case <-time.After(4 * time.Second):
		t.Error("livelock")
	}
}

// during is an engine that calls f once, after the first pair of a scan or after a Get.
type during struct {
	engine.Engine
	onScan, onGet, onApply func()
}

func (d *during) Get(c context.Context, ks ...[]byte) ([][]byte, error) {
	vs, err := d.Engine.Get(c, ks...)
	if f := d.onGet; f != nil {
		d.onGet = nil
		f()
	}
	return vs, err
}

func (d *during) Scan(c context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		var all []engine.Pair
		for p, err := range d.Engine.Scan(c, r) {
			if err != nil {
				yield(p, err)
				return
			}
			all = append(all, engine.Pair{Key: bytes.Clone(p.Key), Value: bytes.Clone(p.Value)})
		}
		if f := d.onScan; f != nil && len(all) > 0 {
			d.onScan = nil
			f()
		}
		for _, p := range all {
			if !yield(p, nil) {
				return
			}
		}
	}
}

func (d *during) Apply(c context.Context, b *engine.Batch) error {
	if f := d.onApply; f != nil {
		d.onApply = nil
		f()
	}
	return d.Engine.Apply(c, b)
}

func TestES4_WhatIsReadWhileKeysAreForgottenIsRead(t *testing.T) {
	for _, how := range []string{"scan", "get"} {
		base := memory.New()
		path, _ := newRing(t, "n")
		d := &during{Engine: base}
		s, k := open(t, d, path, "n")
		must(t, set(s, headKey(1), []byte("v")))
		must(t, set(s, headKey(2), []byte("v")))
		other, _ := open(t, base, path, "n")
		f := func() {
			must(t, k.Rotate(ctx, "n"))
			_, err := other.Reencrypt(ctx)
			must(t, err)
			must(t, other.Forget(ctx))
			get(t, s, headKey(1)) // a call of another goroutine meets the new key
		}
		if how == "scan" {
			d.onScan = f
			for p, err := range s.Scan(ctx, engine.PrefixRange(keys.Prefix("n"))) {
				if err != nil || string(p.Value) != "v" {
					t.Errorf("scan: %x %q %v", p.Key, p.Value, err)
				}
			}
			continue
		}
		// half reencrypted: key 1 has the new key, key 2 the old one, when they are read
		must(t, k.Rotate(ctx, "n"))
		tmp := memory.New()
		o2, _ := open(t, tmp, path, "n")
		must(t, set(o2, headKey(1), []byte("v")))
		vs, _ := tmp.Get(ctx, headKey(1))
		must(t, set(base, headKey(1), vs[0]))
		d.onGet = func() {
			_, err := other.Reencrypt(ctx)
			must(t, err)
			must(t, other.Forget(ctx))
		}
		got, err := s.Get(ctx, headKey(1), headKey(2))
		if err != nil || string(got[0]) != "v" || string(got[1]) != "v" {
			t.Errorf("get: %q %v", got, err)
		}
	}
}

// A value with an older key, while keys are rotated again, is not lost when that key is forgotten.
func TestES4_ForgettingLosesNoValue(t *testing.T) {
	base := memory.New()
	path, _ := newRing(t, "n")
	d := &during{Engine: base}
	s, k := open(t, d, path, "n")
	must(t, set(s, headKey(1), []byte("v")))
	vs, _ := base.Get(ctx, headKey(1))
	old := bytes.Clone(vs[0])
	must(t, k.Rotate(ctx, "n"))
	_, err := s.Reencrypt(ctx)
	must(t, err)
	must(t, set(base, headKey(1), old)) // put back: it verifies
	if get(t, s, headKey(1)) != "v" {
		t.Fatal("old value")
	}
	must(t, k.Rotate(ctx, "n"))
	d.onApply = func() { // the other process begins and is interrupted before it gets there
		c, cancel := context.WithCancel(ctx)
		b := &stopAfter{Engine: base, n: 1, cancel: cancel}
		o, _ := open(t, b, path, "n")
		if _, err := o.Reencrypt(c); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if err := s.Forget(ctx); err != nil && !errors.Is(err, engine.ErrInvalid) && !errors.Is(err, engine.ErrConflict) {
		t.Error(err)
	}
	fresh, _ := open(t, base, path, "n")
	if g := get(t, fresh, headKey(1)); g != "v" {
		t.Errorf("lost: %q", g)
	}
}

type stopAfter struct {
	engine.Engine
	n      int
	cancel func()
}

func (s *stopAfter) Apply(c context.Context, b *engine.Batch) error {
	if s.n == 0 {
		s.cancel()
		return context.Canceled
	}
	s.n--
	return s.Engine.Apply(c, b)
}

func copyFile(t *testing.T, path string) string {
	b, err := os.ReadFile(path)
	must(t, err)
	p := t.TempDir() + "/keys"
	must(t, os.WriteFile(p, b, 0o600))
	return p
}
