package sealed_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"iter"
	"path/filepath"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/sealed"
	"github.com/turnstonedb/turnstone/internal/keys"
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

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// headKey returns one of the keys of namespace "n" that have no text.
func headKey(i byte) []byte { return keys.New("n", [32]byte{9}).Head(keys.Hash{i}) }

// rotates adds a key to namespace "n", encrypts the store of e with it, and has the older ones forgotten.
func rotates(t testing.TB, k *sealed.Keyring, e *sealed.Engine) {
	t.Helper()
	must(t, k.Rotate(ctx, "n"))
	_, err := e.Forget(ctx)
	must(t, err)
}

// late is an engine that calls a function once, after a Get, or after a Scan has read everything.
type late struct {
	kept
	then func()
}

func (l *late) call() {
	if f := l.then; f != nil {
		l.then = nil
		f()
	}
}

func (l *late) Get(ctx context.Context, ks ...[]byte) ([][]byte, error) {
	vs, err := l.kept.Get(ctx, ks...)
	l.call()
	return vs, err
}

func (l *late) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	return func(yield func(engine.Pair, error) bool) {
		var all []engine.Pair
		for p, err := range l.kept.Scan(ctx, r) {
			if err != nil {
				yield(p, err)
				return
			}
			all = append(all, p)
		}
		l.call()
		for _, p := range all {
			if !yield(p, nil) {
				return
			}
		}
	}
}
