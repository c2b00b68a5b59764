package sealed_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/sealed"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/storetest"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

var ctx = context.Background()

// below is an engine whose keys are those of another one that begin with a prefix.
type below struct {
	engine.Engine
	prefix []byte
}

func (e *below) key(k []byte) []byte { return append(slices.Clip(e.prefix), k...) }

func (e *below) Get(ctx context.Context, ks ...[]byte) ([][]byte, error) {
	for i, k := range ks {
		ks[i] = e.key(k)
	}
	return e.Engine.Get(ctx, ks...)
}

func (e *below) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	r.Start = e.key(r.Start)
	if r.End == nil {
		r.End = engine.PrefixEnd(e.prefix)
	} else {
		r.End = e.key(r.End)
	}
	r.Guards = slices.Clone(r.Guards)
	for i := range r.Guards {
		r.Guards[i].Key = e.key(r.Guards[i].Key)
	}
	return func(yield func(engine.Pair, error) bool) {
		for p, err := range e.Engine.Scan(ctx, r) {
			var c *engine.ConflictError
			if errors.As(err, &c) {
				err = &engine.ConflictError{Key: c.Key[len(e.prefix):]}
			}
			if err == nil {
				p.Key = p.Key[len(e.prefix):]
			}
			if !yield(p, err) {
				return
			}
		}
	}
}

func (e *below) Apply(ctx context.Context, b *engine.Batch) error {
	if len(e.prefix) > 0 {
		out := &engine.Batch{Reclaim: b.Reclaim}
		for _, g := range b.Guards {
			if len(g.Key) == 0 {
				return engine.ErrInvalid
			}
			out.Guard(e.key(g.Key), g.Value)
		}
		for _, p := range b.Sets {
			if len(p.Key) == 0 {
				return engine.ErrInvalid
			}
			out.Set(e.key(p.Key), p.Value)
		}
		for _, k := range b.Deletes {
			out.Delete(e.key(k))
		}
		b = out
	}
	err := e.Engine.Apply(ctx, b)
	var c *engine.ConflictError
	if errors.As(err, &c) {
		return &engine.ConflictError{Key: c.Key[len(e.prefix):]}
	}
	return err
}

// under returns what keys of a letter begin with.
func under(letter byte) []byte { return append(keys.Prefix(""), letter) }

func TestContract(t *testing.T) {
	k := storetest.Keyring(t, "")
	engines := maps.Clone(storetest.Embedded)
	engines["memory"] = func(string) (engine.Engine, error) { return memory.New(), nil }
	for name, base := range engines {
		t.Run(name, func(t *testing.T) {
			storetest.Some(t, name)
			enginetest.Run(t, enginetest.Driver{Durable: name != "memory", Exclusive: name != "memory", Skip: map[string]string{
				"LimitsAreAcceptedAndOneMoreIsRefused": "keys of the test become longer",
				"VacuumLeavesNoRemovedByte":            "what it looks for in files is encrypted",
			}, Open: func(dir string) (engine.Engine, error) {
				e, err := base(dir)
				if err != nil {
					return nil, err
				}
				s, err := sealed.Open(ctx, e, k, "")
				if err != nil {
					return nil, errors.Join(err, e.Close())
				}
				return &below{s, under(keys.Dirty)}, nil
			}})
		})
	}
}

// A range of keys with texts has them in the order of the texts, whatever stands in their place.
func TestScansAreInTheOrderOfTexts(t *testing.T) {
	for seed := range uint64(testkit.Pick(300, 60, 20)) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		plain := memory.New()
		s, err := sealed.Open(ctx, memory.New(), storetest.Keyring(t, ""), "")
		if err != nil {
			t.Fatal(err)
		}
		text := func() string {
			var b strings.Builder
			for range rnd.IntN(24) {
				b.WriteByte("ab/"[rnd.IntN(3)])
			}
			return b.String()
		}
		space := keys.New("", [32]byte{})
		key := func() []byte {
			inc := keys.Incarnation{byte(rnd.IntN(3)), 15: byte('/' - rnd.IntN(2))}
			switch rnd.IntN(4) {
			case 0:
				return space.Head(keys.Hash(inc))
			case 1:
				return space.Listing("a"+text(), inc)
			default:
				return space.Record(inc, "a"+text())
			}
		}
		for range 20 {
			for range 1 + rnd.IntN(10) {
				var b engine.Batch
				k := key()
				if b.Set(k, fmt.Append(nil, rnd.IntN(10))); rnd.IntN(4) == 0 {
					b = engine.Batch{}
					b.Delete(k)
				}
				if err := errors.Join(plain.Apply(ctx, &b), s.Apply(ctx, &b)); err != nil {
					t.Fatal(err)
				}
			}
			for range 10 {
				r := engine.Range{Start: keys.Prefix(""), Limit: rnd.IntN(5)}
				switch rnd.IntN(6) {
				case 0:
				case 5:
					r.Start = key()
					r.End = engine.Successor(r.Start)
				case 1:
					r = engine.PrefixRange(key()[:5+rnd.IntN(17)])
				case 2:
					r.Start, r.End = key(), key()
				case 3:
					r = space.Records(keys.Incarnation{byte(rnd.IntN(3)), 15: '/'}, "a"+text())
				case 4:
					r = space.Listings("a" + text())
					r.Start = engine.Successor(key())
				}
				want, got := all(t, plain, r), all(t, s, r)
				if !slices.Equal(want, got) {
					t.Fatalf("seed %d, from %x to %x: %q, want %q", seed, r.Start, r.End, got, want)
				}
			}
			k := key()
			want, err := plain.Get(ctx, k)
			got, err2 := s.Get(ctx, k)
			if errors.Join(err, err2) != nil || !bytes.Equal(want[0], got[0]) {
				t.Fatalf("seed %d: %x is %q, want %q", seed, k, got, want)
			}
		}
	}
}

func all(t *testing.T, e engine.Engine, r engine.Range) (out []string) {
	t.Helper()
	for p, err := range e.Scan(ctx, r) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, fmt.Sprintf("%x=%s", p.Key, p.Value))
	}
	return out
}
