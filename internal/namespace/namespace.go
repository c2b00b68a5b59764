// Package namespace opens a namespace of an engine: it reads the store record, or creates
// it.
package namespace

import (
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/change"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/record"
)

var (
	// ErrStoreNotFound: the namespace has no store.
	ErrStoreNotFound = errors.New("turnstone: no store")
	// ErrUnfinishedCopy: a copy into the store goes on, or was interrupted.
	ErrUnfinishedCopy = errors.New("turnstone: a copy into the store is not finished")
)

// inlineBytes is the size up to which a payload is stored in the pack of its commit. A
// larger payload is stored as a blob, once per namespace. System prompts and tool
// catalogues, which sessions repeat, are larger. Most messages are smaller, and
// compress better in the segment of their session. Of 4, 5, 6, 8 and 16 KiB this size
// makes the corpus of docs/design.md smallest.
const inlineBytes = 5 << 10

// Open returns the store record of a namespace. In a namespace that has no records it
// writes one, with random numbers from random, unless mustExist is set: then the error is
// ErrStoreNotFound.
func Open(ctx context.Context, e engine.Engine, name string, mustExist bool, random func([]byte)) (rec heads.Store, err error) {
	key, noteKey, cycleKey := keys.StoreKey(name), keys.CopyingKey(name), keys.CycleKey(name)
	err = change.Settle(ctx, e, func(c *change.Change) error {
		vs, err := e.Get(ctx, key, noteKey, cycleKey)
		if err != nil {
			return err
		}
		if vs[0] == nil && vs[1] != nil {
			note, err := heads.OpenCopyNote(noteKey, vs[1])
			if errors.Is(err, record.ErrFormat) {
				return codec.Corrupt(err, "note of the last copy, namespace %q", name)
			}
			if err == nil && len(note.Store) > 0 {
				return fmt.Errorf("%w (namespace %q)", ErrUnfinishedCopy, name)
			}
		}
		if vs[0] != nil {
			rec, err = heads.OpenStore(key, vs[0])
			if err == nil && rec.Namespace != name {
				err = fmt.Errorf("prefix is taken by namespace %q: choose another name", rec.Namespace)
			}
			return codec.Corrupt(err, "store record of namespace %q", name)
		}
		if err := vacant(ctx, e, name, vs[2]); err != nil {
			return err
		}
		if mustExist {
			return fmt.Errorf("%w: namespace %q", ErrStoreNotFound, name)
		}
		r := heads.Store{Namespace: name, Inline: inlineBytes, Chunks: blobs.DefaultChunking}
		random(r.ID[:])
		random(r.Secret[:])
		var b engine.Batch
		b.Guard(key, nil)
		b.Guard(noteKey, vs[1])
		b.Set(key, r.Seal(key))
		if err = c.Apply(ctx, &b); err == nil {
			rec = r
		}
		return err
	})
	return rec, err
}

// vacant fails if the namespace, which has no store record, has any other record:
// without the store record the keys of a namespace can't be found, so a new one
// would hide for good all that is there. cycle is the cycle record, which has the one other key
// that is known without the store record: it is looked up by itself, because
// damage beneath can make a scan come back empty.
func vacant(ctx context.Context, e engine.Engine, name string, cycle []byte) error {
	found := keys.CycleKey(name)
	if cycle == nil {
		found = nil
		first := engine.PrefixRange(keys.Prefix(name))
		first.Limit = 1
		for p, err := range e.Scan(ctx, first) {
			if err != nil {
				return err
			}
			found = p.Key
		}
	}
	if found == nil {
		return nil
	}
	return codec.Corrupt(fmt.Errorf("%w, but the namespace has a record at key %x", record.ErrMissing, found), "store record of namespace %q", name)
}

// Histories returns where the histories of a namespace of e are read from.
func Histories(e engine.Engine, rec *heads.Store) history.Store {
	space := keys.New(rec.Namespace, rec.Secret)
	return history.Store{Engine: e, Space: space, Blobs: blobs.New(e, space, rec.Chunks)}
}
