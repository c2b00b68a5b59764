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

// A Request says what Open is to open.
type Request struct {
	Name      string // of the namespace
	MustExist bool   // a namespace without records is ErrStoreNotFound
	// Upgrade raises the format of the store to the newest known one.
	Upgrade bool
	Known   heads.Formats
	Random  func([]byte) // for a new store
}

// Open returns the store record of a namespace. In a namespace that has no records it
// writes one.
func Open(ctx context.Context, e engine.Engine, r Request) (rec heads.Store, err error) {
	name := r.Name
	key, noteKey, runKey := keys.StoreKey(name), keys.CopyingKey(name), keys.RunKey(name)
	err = change.Settle(ctx, e, func(c *change.Change) error {
		vs, err := e.Get(ctx, key, noteKey, runKey)
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
			rec, err = heads.OpenStore(key, vs[0], r.Known)
			if err == nil && rec.Namespace != name {
				err = fmt.Errorf("prefix is taken by namespace %q: choose another name", rec.Namespace)
			}
			if err != nil || !r.Upgrade || rec.Format == r.Known.Newest {
				return codec.Corrupt(err, "store record of namespace %q", name)
			}
			return upgrade(ctx, c, key, vs[0], &rec, r.Known.Newest)
		}
		if err := vacant(ctx, e, name, vs[2]); err != nil {
			return err
		}
		if r.MustExist {
			return fmt.Errorf("%w: namespace %q", ErrStoreNotFound, name)
		}
		made := heads.Store{Format: r.Known.Newest, Namespace: name, Inline: inlineBytes, Chunks: blobs.DefaultChunking}
		r.Random(made.ID[:])
		r.Random(made.Secret[:])
		var b engine.Batch
		b.Guard(key, nil)
		b.Guard(noteKey, vs[1])
		b.Set(key, made.Seal(key))
		if err = c.Apply(ctx, &b); err == nil {
			rec = made
		}
		return err
	})
	return rec, err
}

// upgrade raises the format of a store, in one batch. What the store has stays as it is: a
// version of Turnstone reads the records of all formats that it knows.
func upgrade(ctx context.Context, c *change.Change, key, old []byte, rec *heads.Store, format uint64) error {
	raised := *rec
	raised.Format = format
	var b engine.Batch
	b.Guard(key, old)
	b.Set(key, raised.Seal(key))
	err := c.Apply(ctx, &b)
	if err == nil {
		*rec = raised
	}
	return err
}

// vacant fails if the namespace, which has no store record, has any other record:
// without the store record the keys of a namespace can't be found, so a new one
// would hide for good all that is there. run is the run record, which has the one other key
// that is known without the store record: it is looked up by itself, because
// damage beneath can make a scan come back empty.
func vacant(ctx context.Context, e engine.Engine, name string, run []byte) error {
	found := keys.RunKey(name)
	if run == nil {
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
