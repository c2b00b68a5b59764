package sealed_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/sealed"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// What is passed is not retained: a caller may use its key again.
func TestNothingIsRetained(t *testing.T) {
	path, _ := newRing(t, "")
	base := memory.New()
	e, _ := open(t, base, path, "")
	key, value := keys.StoreKey(""), []byte("v0")
	for i := range 10 {
		var b engine.Batch
		if i > 0 {
			b.Guard(key, value)
		}
		b.Set(key, fmt.Append(nil, "v", i))
		if err := e.Apply(ctx, &b); err != nil {
			t.Fatal(err)
		}
		copy(value, fmt.Append(nil, "v", i))
	}
	first := bytes.Clone(key)
	key[4]++
	if err := set(e, key, []byte("x")); err != nil {
		t.Fatal(err)
	}
	if got := get(t, e, first); got != "v9" {
		t.Error(got)
	}
}

// What stands in place of a text is short, however many parts the text has.
func TestES1_KeysStayShort(t *testing.T) {
	path, _ := newRing(t, "")
	base := memory.New()
	e, _ := open(t, base, path, "")
	space := keys.New("", [32]byte{})
	if err := set(e, space.Listing(strings.Repeat("/", keys.MaxText), keys.Incarnation{}), []byte("v")); err != nil {
		t.Fatal(err)
	}
	var b engine.Batch // the largest one, and what grows most
	for i := range e.Limits().BatchOps {
		key := space.Listing(fmt.Sprint("a/b/c/d/e/f", i), keys.Incarnation{})
		b.Set(key, make([]byte, (e.Limits().BatchBytes-b.Bytes())/(e.Limits().BatchOps-i)-len(key)))
	}
	if err := b.Check(e.Limits()); err != nil {
		t.Fatal(err)
	}
	if err := e.Apply(ctx, &b); err != nil {
		t.Error(err)
	}
	for p, err := range base.Scan(ctx, engine.Range{}) {
		if len(p.Key) > 90 || err != nil {
			t.Errorf("a key of %d bytes, %v", len(p.Key), err)
		}
	}
}

// Whoever has not the keys gets a typed error, and nothing is changed.
func TestES2_WithoutTheKeysNothingIsRead(t *testing.T) {
	path, ring := newRing(t, "n", "gone")
	base := memory.New()
	for _, name := range []string{"n", "gone"} {
		e, _ := open(t, base, path, name)
		if err := set(e, keys.StoreKey(name), []byte("v")); err != nil {
			t.Fatal(err)
		}
	}
	if err := set(base, keys.StoreKey("plain"), []byte("v")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"plain"} {
		if err := ring.Add(ctx, name); err != nil {
			t.Fatal(err)
		}
	}
	_, other := newRing(t, "n")
	if err := ring.Destroy(ctx, "gone"); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		ring      *sealed.Keyring
		namespace string
		want      error
	}{
		"another key":   {other, "n", sealed.ErrKey},
		"destroyed":     {ring, "gone", sealed.ErrKey},
		"never there":   {ring, "x", sealed.ErrKey},
		"not encrypted": {ring, "plain", sealed.ErrNotEncrypted},
		"no keyring":    {nil, "n", engine.ErrInvalid},
	} {
		if _, err := sealed.Open(ctx, base, test.ring, test.namespace); !errors.Is(err, test.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := ring.Add(ctx, "gone"); err != nil { // another key than the one that was destroyed
		t.Fatal(err)
	}
	if _, err := sealed.Open(ctx, base, ring, "gone"); !errors.Is(err, sealed.ErrKey) {
		t.Error(err)
	}
	e, _ := open(t, base, path, "n")
	if err := ring.Destroy(ctx, "n"); err != nil {
		t.Fatal(err)
	}
	if err := ring.Add(ctx, "n"); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Reencrypt(ctx); !errors.Is(err, sealed.ErrKey) {
		t.Errorf("encrypting anew without the old key: %v", err)
	}
	var b engine.Batch
	b.Set(keys.StoreKey("other"), []byte("v"))
	if err := e.Apply(ctx, &b); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("a key of another namespace: %v", err)
	}
	if _, err := e.Get(ctx, keys.StoreKey("other")); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("a key of another namespace: %v", err)
	}
}

// Whoever was not given a new key, or has lost all, is told so by a scan and by a read.
func TestES2_WithoutTheKeyReadsFail(t *testing.T) {
	for _, lost := range []bool{false, true} {
		base := memory.New()
		path, k := newRing(t, "n")
		other := filepath.Join(t.TempDir(), "keys")
		text, err := os.ReadFile(path)
		must(t, err)
		must(t, os.WriteFile(other, text, 0o600))
		s, mine := open(t, base, other, "n")
		must(t, set(s, headKey(1), []byte("v")))
		e, _ := open(t, base, path, "n")
		rotates(t, k, e)
		if lost {
			must(t, mine.Destroy(ctx, "n"))
		}
		for _, err = range s.Scan(ctx, engine.PrefixRange(keys.Prefix("n"))) {
		}
		_, err2 := s.Get(ctx, headKey(1))
		err3 := set(s, headKey(1), []byte("w"))
		for _, err := range []error{err, err2, err3} {
			if !errors.Is(err, sealed.ErrKey) {
				t.Errorf("the keyset is lost: %v: %v", lost, err)
			}
		}
		if got := get(t, e, headKey(1)); got != "v" {
			t.Errorf("%q was written", got)
		}
	}
}
