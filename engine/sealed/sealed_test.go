package sealed_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/sealed"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// kept is an engine that stays open when it is closed.
type kept struct{ engine.Engine }

func (kept) Close() error { return nil }

// open opens a namespace of an engine with a keyring of its own, as another process does.
func open(t testing.TB, base engine.Engine, path, namespace string) (*sealed.Engine, *sealed.Keyring) {
	t.Helper()
	k, err := sealed.OpenKeyring(ctx, path, sealed.Key([32]byte{1}))
	if err != nil {
		t.Fatal(err)
	}
	s, err := sealed.Open(ctx, kept{base}, k, namespace)
	if err != nil {
		t.Fatal(err)
	}
	return s, k
}

// newRing makes a keyring and returns its path.
func newRing(t testing.TB, namespaces ...string) (path string, k *sealed.Keyring) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "keys")
	k, err := sealed.CreateKeyring(ctx, path, sealed.Key([32]byte{1}))
	for _, name := range namespaces {
		err = errors.Join(err, k.Add(ctx, name))
	}
	if err != nil {
		t.Fatal(err)
	}
	return path, k
}

func set(e engine.Engine, key, value []byte) error {
	var b engine.Batch
	b.Set(key, value)
	return e.Apply(ctx, &b)
}

func get(t testing.TB, e engine.Engine, key []byte) string {
	t.Helper()
	vs, err := e.Get(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(vs[0])
}

// usedKeys returns how many values are encrypted with each key.
func usedKeys(t testing.TB, base engine.Engine, namespace string) map[uint32]int {
	t.Helper()
	used := map[uint32]int{}
	for p, err := range base.Scan(ctx, engine.PrefixRange(keys.Prefix(namespace))) {
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(p.Key, keys.EncryptionKey(namespace)) {
			used[binary.BigEndian.Uint32(p.Value[1:])]++
		}
	}
	return used
}

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
		if err := e.Forget(ctx); err != nil {
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
		if err := e.Forget(ctx); err != nil {
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
		if err := e.Forget(ctx); err != nil {
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

// A key that was made after a store was encrypted anew does not have the one forgotten that is used.
func TestES4_TheKeyThatIsUsedIsNotForgotten(t *testing.T) {
	path, ring := newRing(t, "")
	base := memory.New()
	e, _ := open(t, base, path, "")
	if err := set(e, keys.StoreKey(""), []byte("v")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := ring.Rotate(ctx, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Forget(ctx); err != nil {
		t.Fatal(err)
	}
	again, _ := open(t, base, path, "")
	if got := get(t, again, keys.StoreKey("")); got != "v" {
		t.Error(got)
	}
	if _, err := again.Reencrypt(ctx); err != nil {
		t.Fatal(err)
	}
}

// changing is an engine before whose reads something happens.
type changing struct {
	kept
	before func()
}

func (c *changing) Get(ctx context.Context, ks ...[]byte) ([][]byte, error) {
	c.before()
	return c.kept.Get(ctx, ks...)
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
	late, err := sealed.Open(ctx, &changing{kept{base}, func() {
		if times++; times > 5 {
			return
		}
		if err := ring.Rotate(ctx, ""); err != nil {
			t.Error(err)
		}
		if _, err := e.Reencrypt(ctx); err != nil {
			t.Error(err)
		}
		if err := e.Forget(ctx); err != nil {
			t.Error(err)
		}
	}}, k, "")
	if err != nil || times <= 5 {
		t.Fatal(err, times)
	}
	if got := get(t, late, keys.StoreKey("")); got != "v" {
		t.Error(got)
	}
}

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

// A keyring is changed by several processes, one after the other, and is whole at any time.
func TestES5_AKeyringIsWhole(t *testing.T) {
	path, _ := newRing(t)
	var workers sync.WaitGroup
	for w := range 4 {
		k, err := sealed.OpenKeyring(ctx, path, sealed.Key([32]byte{1}))
		if err != nil {
			t.Fatal(err)
		}
		workers.Go(func() {
			for i := range 5 {
				if err := k.Add(ctx, fmt.Sprint(w, "-", i)); err != nil {
					t.Error(err)
				}
				if _, err := k.Namespaces(ctx); err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
	k, err := sealed.OpenKeyring(ctx, path, sealed.Key([32]byte{1}))
	if err != nil {
		t.Fatal(err)
	}
	if names, err := k.Namespaces(ctx); len(names) != 20 || err != nil {
		t.Errorf("%q, %v", names, err)
	}
	if err := k.Add(ctx, "1-1"); !errors.Is(err, fs.ErrExist) {
		t.Error(err)
	}
	if _, err := sealed.CreateKeyring(ctx, path, sealed.Key([32]byte{1})); !errors.Is(err, fs.ErrExist) {
		t.Error(err)
	}
	for _, f := range []func(context.Context, string) error{k.Rotate, k.Destroy} {
		if err := f(ctx, "none"); !errors.Is(err, sealed.ErrKey) {
			t.Error(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	for _, by := range []sealed.Wrapper{sealed.Key([32]byte{2}), sealed.Passphrase("x")} {
		if _, err := sealed.OpenKeyring(ctx, path, by); !errors.Is(err, sealed.ErrKeyring) {
			t.Error(err)
		}
	}
	for at := range text {
		harmed := bytes.Clone(text)
		harmed[at] ^= 0x20
		if err := os.WriteFile(path, harmed, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := sealed.OpenKeyring(ctx, path, sealed.Key([32]byte{1})); !errors.Is(err, sealed.ErrKeyring) {
			t.Fatalf("byte %d of %q: %v", at, harmed, err)
		}
	}
	if _, err := sealed.OpenKeyring(ctx, path+"x", sealed.Key([32]byte{1})); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// A passphrase, a secret, or a service of the host opens a keyring.
func TestES5_WhatOpensAKeyring(t *testing.T) {
	for name, by := range map[string]sealed.Wrapper{"passphrase": sealed.Passphrase("correct horse"), "service": service{}} {
		path := filepath.Join(t.TempDir(), "keys")
		k, err := sealed.CreateKeyring(ctx, path, by)
		if err == nil {
			err = k.Add(ctx, "n")
		}
		if err == nil {
			k, err = sealed.OpenKeyring(ctx, path, by)
		}
		if err != nil {
			t.Fatal(name, err)
		}
		if names, err := k.Namespaces(ctx); len(names) != 1 || err != nil {
			t.Errorf("%s: %q, %v", name, names, err)
		}
	}
	if _, err := sealed.CreateKeyring(ctx, filepath.Join(t.TempDir(), "keys"), nil); !errors.Is(err, engine.ErrInvalid) {
		t.Error(err)
	}
	if _, err := sealed.CreateKeyring(ctx, filepath.Join(t.TempDir(), "keys"), away{}); !errors.Is(err, engine.ErrUnavailable) {
		t.Error(err)
	}
}

// A keyring that is changed through a link stays one file, with its mode.
func TestES5_AKeyringMayBeALink(t *testing.T) {
	path, _ := newRing(t, "")
	link := filepath.Join(t.TempDir(), "link")
	if err := errors.Join(os.Symlink(path, link), os.Chmod(path, 0o640)); err != nil {
		t.Fatal(err)
	}
	k, err := sealed.OpenKeyring(ctx, link, sealed.Key([32]byte{1}))
	if err == nil {
		err = k.Destroy(ctx, "")
	}
	if err != nil {
		t.Fatal(err)
	}
	if k, err = sealed.OpenKeyring(ctx, path, sealed.Key([32]byte{1})); err != nil {
		t.Fatal(err)
	}
	if names, err := k.Namespaces(ctx); len(names) > 0 || err != nil {
		t.Errorf("%q, %v", names, err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode() != 0o640 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if err := k.Add(ctx, "\xff"); !errors.Is(err, engine.ErrInvalid) {
		t.Error(err)
	}
}

// A service is a Wrapper as a key management service is one.
type service struct{}

func (service) Wrap(_ context.Context, key []byte) ([]byte, error) {
	return append([]byte("wrapped:"), key...), nil
}

func (service) Unwrap(_ context.Context, wrapped []byte) ([]byte, error) {
	return bytes.TrimPrefix(wrapped, []byte("wrapped:")), nil
}

type away struct{ service }

func (away) Wrap(context.Context, []byte) ([]byte, error) { return nil, engine.ErrUnavailable }
