package sealed_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/sealed"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A damaged value can be guarded as it was read, and so be removed.
func TestES3_WhatDoesNotVerifyCanBeGuarded(t *testing.T) {
	path, _ := newRing(t, "")
	base := memory.New()
	e, _ := open(t, base, path, "")
	key := keys.StoreKey("")
	if err := errors.Join(set(e, key, []byte("v")), set(base, key, []byte("damaged"))); err != nil {
		t.Fatal(err)
	}
	var b engine.Batch
	b.Guard(key, []byte(get(t, e, key)))
	b.Delete(key)
	if err := e.Apply(ctx, &b); err != nil {
		t.Error(err)
	}
	if got := get(t, e, key); got != "" {
		t.Error(got)
	}
}

// A note that somebody else has made is refused.
func TestES3_AForgedNoteIsRefused(t *testing.T) {
	path, ring := newRing(t, "")
	base := memory.New()
	e, _ := open(t, base, path, "")
	if err := set(e, keys.StoreKey(""), []byte("v")); err != nil {
		t.Fatal(err)
	}
	stored, err := base.Get(ctx, keys.EncryptionKey(""))
	if err != nil {
		t.Fatal(err)
	}
	old := binary.BigEndian.Uint32(stored[0][len(stored[0])-8:])
	if err := errors.Join(ring.Rotate(ctx, ""), func() error { _, err := e.Reencrypt(ctx); return err }()); err != nil {
		t.Fatal(err)
	}
	body := binary.BigEndian.AppendUint32(make([]byte, 16), old)
	if err := set(base, keys.EncryptionKey(""), codec.Encode(keys.EncryptionKey(""), keys.Encryption, body)); err != nil {
		t.Fatal(err)
	}
	if _, err := sealed.Open(ctx, kept{base}, ring, ""); !errors.Is(err, damage.ErrDamaged) {
		t.Error(err)
	}
	if err := set(e, keys.StoreKey(""), []byte("w")); !errors.Is(err, damage.ErrDamaged) {
		t.Error(err)
	}
}

// A value that was changed, shortened, or moved to another key is not read as if it had been written.
func TestES3_WhatWasTamperedWithDoesNotVerify(t *testing.T) {
	path, _ := newRing(t, "")
	base := memory.New()
	e, _ := open(t, base, path, "")
	space := keys.New("", [32]byte{})
	inc := keys.Incarnation{1}
	written := [][]byte{space.Head(keys.Hash{1}), space.Head(keys.Hash{2}), space.Record(inc, "a/b"), space.Record(inc, "a/c"), space.Listing("a/b", inc), space.Listing("c", inc)}
	for i, k := range written {
		if err := set(e, k, fmt.Append(nil, "value ", i)); err != nil {
			t.Fatal(err)
		}
	}
	var stored []engine.Pair
	for p, err := range base.Scan(ctx, engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(p.Key, keys.EncryptionKey("")) {
			stored = append(stored, p)
		}
	}
	read := func() (seen map[string]string) {
		seen = map[string]string{}
		for p, err := range e.Scan(ctx, engine.PrefixRange(keys.Prefix(""))) {
			if err != nil {
				t.Fatal(err)
			}
			seen[string(p.Key)] = string(p.Value)
			if got := get(t, e, p.Key); got != string(p.Value) {
				t.Errorf("a scan has %q, Get %q", p.Value, got)
			}
		}
		return seen
	}
	was := read()
	for i, p := range stored {
		var altered [][]byte
		for at := range p.Value {
			v := bytes.Clone(p.Value)
			v[at] ^= 1 << (at % 8)
			altered = append(altered, v, p.Value[:at])
		}
		for j, other := range stored {
			if i != j {
				altered = append(altered, other.Value)
			}
		}
		for _, v := range altered {
			if len(v) == 0 {
				continue
			}
			if err := set(base, p.Key, v); err != nil {
				t.Fatal(err)
			}
			now := read()
			forged := 0
			for k, v := range now {
				if v == string(codec.Forged) {
					forged++
				} else if was[k] != v {
					t.Fatalf("%x is read as %q", k, v)
				}
			}
			if forged != 1 || len(now) != len(was) {
				t.Fatalf("%d of %d pairs do not verify", forged, len(now))
			}
		}
		if err := set(base, p.Key, p.Value); err != nil {
			t.Fatal(err)
		}
	}
	// What does not verify can be deleted by the key that a scan gives it.
	for _, p := range stored {
		if err := set(base, p.Key, []byte("damaged")); err != nil {
			t.Fatal(err)
		}
	}
	for k := range read() {
		var b engine.Batch
		b.Delete([]byte(k))
		if err := e.Apply(ctx, &b); err != nil {
			t.Fatal(err)
		}
	}
	if left := read(); len(left) > 0 {
		t.Errorf("%d pairs are left", len(left))
	}
}

// A guard of a value that was damaged in the id of its key holds or fails as any other does.
func TestES3_AValueWithADamagedIDCanBeGuarded(t *testing.T) {
	base := memory.New()
	path, _ := newRing(t, "n")
	e, _ := open(t, base, path, "n")
	must(t, set(e, headKey(1), []byte("v")))
	vs, err := base.Get(ctx, headKey(1))
	must(t, err)
	vs[0][2] ^= 1
	must(t, set(base, headKey(1), vs[0]))
	limited, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, guard := range []string{"v", get(t, e, headKey(1))} {
		var b engine.Batch
		b.Guard(headKey(1), []byte(guard))
		b.Set(headKey(1), []byte("w"))
		if err := e.Apply(limited, &b); guard == "v" != errors.Is(err, engine.ErrConflict) {
			t.Errorf("guard %q: %v", guard, err)
		}
	}
	if got := get(t, e, headKey(1)); got != "w" {
		t.Error(got)
	}
}
