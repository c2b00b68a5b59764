// Package repair makes a store of what can be read of a damaged one.
//
//	gather.go    reads all records that can be read, and leaves gaps where the database fails
//	repair.go    which sessions there are
//	survey.go    what of a session can be read
//	write.go     the records that make a session whole again
//	rekey.go     gives the records other keys, if the store record is lost
//
// It changes the store that it works on without guards, so that is a copy which nobody else has open.
package repair

import (
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
)

// Gathered says what Gather has read.
type Gathered struct {
	Records int      // that were copied
	Damaged [][]byte // the keys of those whose checksum does not match
	Gaps    []engine.Gap
}

// Gather copies the records of a namespace whose checksums match to another engine. The range begins with the prefix of
// the namespace, behind which a key has its letter; keep says which letters are copied. A record of another version of
// the format is an error that matches damage.ErrFormat.
func Gather(ctx context.Context, from engine.Scanner, to engine.Engine, of engine.Range, keep func(letter byte) bool) (*Gathered, error) {
	out := &Gathered{}
	w := &writer{Engine: to}
	for p, err := range engine.Around(ctx, from, of, func(g engine.Gap) { out.Gaps = append(out.Gaps, g) }) {
		if err != nil {
			return out, err
		}
		at := len(of.Start)
		if len(p.Key) <= at || !keep(p.Key[at]) {
			continue
		}
		_, err := codec.Decode(p.Key, p.Value, p.Key[at])
		switch {
		case errors.Is(err, damage.ErrFormat):
			return out, codec.Corrupt(err, "record at key %x", p.Key)
		case err != nil:
			out.Damaged = append(out.Damaged, p.Key)
			continue
		}
		out.Records++
		if err := w.set(ctx, p.Key, p.Value); err != nil {
			return out, err
		}
	}
	return out, w.flush(ctx)
}

// A writer makes batches.
type writer struct {
	engine.Engine
	b     engine.Batch
	keys  map[string]bool // of b
	bytes int
}

func (w *writer) set(ctx context.Context, key, value []byte) error {
	if err := w.room(ctx, key, len(key)+len(value)); err != nil {
		return err
	}
	w.b.Set(key, value)
	return nil
}

func (w *writer) remove(ctx context.Context, key []byte) error {
	if err := w.room(ctx, key, len(key)); err != nil {
		return err
	}
	w.b.Delete(key)
	return nil
}

// room applies the batch if it has no room for n more bytes, or has the key.
func (w *writer) room(ctx context.Context, key []byte, n int) error {
	if l := w.Limits(); w.bytes+n > l.BatchBytes || w.b.Ops() >= l.BatchOps || w.keys[string(key)] {
		if err := w.flush(ctx); err != nil {
			return err
		}
	}
	if w.keys == nil {
		w.keys = map[string]bool{}
	}
	w.keys[string(key)] = true
	w.bytes += n
	return nil
}

func (w *writer) flush(ctx context.Context) error {
	if w.b.Ops() == 0 {
		return nil
	}
	err := w.Apply(ctx, &w.b)
	w.b, w.keys, w.bytes = engine.Batch{}, nil, 0
	if err != nil {
		return fmt.Errorf("in the copy that is repaired: %w", err)
	}
	return nil
}
