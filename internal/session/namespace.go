// Package session has what surrounds the histories of sessions: the namespace that they are in, the lists that they
// are found by, their records, which are small values under ordered keys, and the space that they take.
//
//	namespace.go   opens a namespace: reads the store record, or creates it
//	list.go        pages of sessions, the most recently updated first
//	record.go      the form of a record; records.go pages of them
//	stats.go       counts what a store holds
package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

var (
	// ErrStoreNotFound says that the namespace has no store.
	ErrStoreNotFound = errors.New("turnstone: no store")
	// ErrUnfinishedCopy says that a copy into the namespace is not finished: it goes on,
	// or it was interrupted.
	ErrUnfinishedCopy = errors.New("turnstone: a copy into the store is not finished")
	// ErrEncrypted says that the namespace has an encrypted store, and the engine does not decrypt it.
	ErrEncrypted = errors.New("turnstone: the store is encrypted")
)

// A Namespace says what to open.
type Namespace struct {
	Name      string       // of the namespace
	MustExist bool         // an empty namespace is ErrStoreNotFound
	Upgrade   bool         // raise the format of the store to the newest known one, unless it is being moved
	Known     head.Formats // formats of stores that can be opened
	Random    func([]byte) // makes the identity and the secret of a new store
}

// OpenNamespace returns the store record of a namespace. If the namespace is empty, OpenNamespace creates the
// record or, with r.MustExist, fails with ErrStoreNotFound. It fails if a copy into the namespace
// is not finished, or if there are records without a store record. With r.Upgrade it raises the
// format.
func OpenNamespace(ctx context.Context, e engine.Engine, r Namespace) (rec head.Store, err error) {
	name := r.Name
	key, noteKey, cycleKey := keys.StoreKey(name), keys.CopyingKey(name), keys.CycleKey(name)
	err = history.Settle(ctx, e, func(c *history.Change) error {
		vs, empty, err := look(ctx, e, name, key, noteKey, cycleKey, engine.UnfinishedKey, keys.EncryptionKey(name))
		if err != nil {
			return err
		}
		if vs[3] != nil {
			return fmt.Errorf("%w: a store is being moved to this engine, or was when that failed", ErrUnfinishedCopy)
		}
		if vs[4] != nil {
			return fmt.Errorf("%w (namespace %q)", ErrEncrypted, name)
		}
		if vs[0] != nil {
			if rec, err = decodeStore(name, key, vs[0], r.Known); err != nil {
				return err
			}
			if rec.Move.Phase == head.Moved {
				return &engine.MovedError{Path: fmt.Sprintf("namespace %q", name), To: rec.Move.To}
			}
			if !r.Upgrade || rec.Format == r.Known.Newest || rec.Move.Phase != head.NotMoving {
				return nil // The other database gets the format that the store had when its move began.
			}
			rec.Format = r.Known.Newest
			return c.Apply(ctx, &engine.Batch{
				Guards: []engine.Pair{{Key: key, Value: vs[0]}},
				Sets:   []engine.Pair{{Key: key, Value: rec.Encode(key)}},
			})
		}
		if err := checkNote(name, noteKey, vs[1]); err != nil {
			return err
		}
		if empty != nil {
			return empty
		}
		if r.MustExist {
			return fmt.Errorf("%w: namespace %q", ErrStoreNotFound, name)
		}
		rec = head.Store{Format: r.Known.Newest, Namespace: name, Chunks: blob.DefaultChunking}
		r.Random(rec.ID[:])
		r.Random(rec.Secret[:])
		var b engine.Batch
		b.Guard(key, nil)
		b.Guard(noteKey, vs[1])
		b.Set(key, rec.Encode(key))
		return c.Apply(ctx, &b)
	})
	if err != nil {
		return head.Store{}, err
	}
	return rec, nil
}

// look reads the store record of a namespace, the note of a copy and the cycle record. If there is no store record,
// empty is what checkEmpty has found.
func look(ctx context.Context, e engine.Engine, name string, keys ...[]byte) (vs [][]byte, empty, err error) {
	for {
		if vs, err = e.Get(ctx, keys...); err != nil || vs[0] != nil {
			return vs, nil, err
		}
		if empty = checkEmpty(ctx, e, name, vs[2]); empty == nil {
			return vs, nil, nil
		}
		// The scan came after the read. Another process may have made the store, or begun a copy, between the two.
		again, err := e.Get(ctx, keys...)
		if err != nil || slices.EqualFunc(vs, again, bytes.Equal) {
			return vs, empty, err
		}
	}
}

// decodeStore decodes a store record. The keys of a namespace begin with a short hash of its
// name, so the record may be that of another namespace.
func decodeStore(name string, key, value []byte, known head.Formats) (head.Store, error) {
	rec, err := head.DecodeStore(key, value, known)
	if err == nil && rec.Namespace != name {
		err = fmt.Errorf("prefix is taken by namespace %q: choose another name", rec.Namespace)
	}
	return rec, codec.Corrupt(err, "store record of namespace %q", name)
}

// checkNote fails with ErrUnfinishedCopy if value is the note of a copy that is not finished.
// It ignores a note that is damaged.
func checkNote(name string, key, value []byte) error {
	if value == nil {
		return nil
	}
	note, err := head.DecodeCopyNote(key, value)
	if errors.Is(err, damage.ErrFormat) {
		return codec.Corrupt(err, "note of the last copy, namespace %q", name)
	}
	if err == nil && len(note.Store) > 0 {
		return fmt.Errorf("%w (namespace %q)", ErrUnfinishedCopy, name)
	}
	return nil
}

// checkEmpty fails if a namespace without a store record has any other record. The store
// record has the secret that other keys are made with, so a new one would hide the other
// records for good. value is that of the cycle record of the collector, whose key needs no
// secret. The caller looks it up by its key, because a scan of a damaged engine may come back
// empty.
func checkEmpty(ctx context.Context, e engine.Engine, name string, value []byte) error {
	found := keys.CycleKey(name)
	if value == nil {
		var err error
		if found, err = firstKey(ctx, e, name); err != nil || found == nil {
			return err
		}
	}
	return codec.Corrupt(fmt.Errorf("%w, but the namespace has a record at key %x", damage.ErrMissing, found), "store record of namespace %q", name)
}

// firstKey returns the first key of a namespace, or nil if it has no record.
func firstKey(ctx context.Context, e engine.Engine, name string) ([]byte, error) {
	first := engine.PrefixRange(keys.Prefix(name))
	first.Limit = 1
	for p, err := range e.Scan(ctx, first) {
		return p.Key, err
	}
	return nil, nil
}

// Histories returns the histories of the namespace with this store record.
func Histories(e engine.Engine, rec *head.Store) history.Store {
	space := keys.New(rec.Namespace, rec.Secret)
	return history.Store{Reader: history.Reader{Engine: e, Space: space}, Blobs: blob.New(e, space, rec.Chunks)}
}
