// Package sealed encrypts what a store keeps. Open returns an engine that encrypts every value before it reaches
// another engine, and hides the texts that are in keys; a store that is opened on it does not know. What is on the
// disk, in the database of a server, and in the messages to it, has no content of the store.
//
// # What is encrypted
//
// A value is encrypted with AES-SIV (RFC 5297) of Tink, bound to its key: one that was changed, or moved to another
// key, does not verify. Equal values at one key are equal when they are encrypted, so that guards stay comparisons of
// bytes, and who sees the database twice sees whether a value has changed. An older value of the same key verifies.
//
// Keys of the store have hashes under a secret in place of names, but for the keys of records, which are listed in the
// order of their texts. Here a secret hash stands for each of the first parts of such a text that end with "/", and
// one for the whole text. So who sees the database sees which texts begin alike, up to a "/". A list reads all records
// whose keys begin with the same such parts, decrypts them and sorts them; its first page is of one moment only if it
// reads no more than a page.
//
// What can be seen is how many records of which kind there are, how large they are, when sessions were changed, and
// which records belong to one session.
//
// # Keys
//
// A Keyring is a file with a keyset for each namespace. Keyring.Rotate adds a key to a namespace, and Engine.Reencrypt
// encrypts all anew with it. Keyring.Destroy removes the keyset: nobody can read the namespace then, nor any copy of
// it that has no other copy of the file.
package sealed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync/atomic"

	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

var (
	// ErrKey says that the keyring has no keyset of the namespace, or that its keyset lacks a key that the store is
	// encrypted with. It matches engine.ErrEncrypted.
	ErrKey = fmt.Errorf("%w, and there is no key", engine.ErrEncrypted)
	// ErrNotEncrypted says that the namespace has a store that is not encrypted, or that a stream is not.
	ErrNotEncrypted = errors.New("sealed: not encrypted")
)

// An Engine encrypts what it passes to another engine. It has the keys of one namespace and refuses others.
type Engine struct {
	base   engine.Engine
	ring   *Keyring
	name   string // of the namespace
	prefix []byte // of all its keys
	note   []byte // the key of the note
	state  atomic.Pointer[state]
}

// A state is what an Engine knows of the keys of its namespace.
type state struct {
	set    *keyset
	note   []byte                 // as it is stored, or nil
	writes uint32                 // the key that is used
	seal   tink.DeterministicAEAD // with the key that is used
	others bool                   // values may be encrypted with other keys, too
	recent recent                 // with seal
}

// Open returns an engine for the store of a namespace on e, which package turnstone can open. The keyring must have a
// keyset of the namespace, or the error is ErrKey. If e has a store of the namespace that is not encrypted, the error
// is ErrNotEncrypted: turnstone.Copy makes an encrypted copy of it. Closing the Engine closes e.
func Open(ctx context.Context, e engine.Engine, ring *Keyring, namespace string) (*Engine, error) {
	if e == nil || ring == nil {
		return nil, fmt.Errorf("%w: the engine or the keyring is nil", engine.ErrInvalid)
	}
	if l, m := e.Limits(), engine.DriverLimits; l.KeyBytes < m.KeyBytes || l.ValueBytes < m.ValueBytes || l.BatchBytes < m.BatchBytes || l.BatchOps < m.BatchOps {
		return nil, fmt.Errorf("%w: the engine takes %+v, and is to take %+v", engine.ErrInvalid, l, m)
	}
	s := &Engine{base: e, ring: ring, name: namespace, prefix: keys.Prefix(namespace), note: keys.EncryptionKey(namespace)}
	if _, err := s.look(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// look reads the keyring and the note again.
func (e *Engine) look(ctx context.Context) (*state, error) {
	for before := (*state)(nil); ; {
		st, err := e.read(ctx)
		if err == nil {
			e.state.Store(st)
			return st, nil
		}
		if !errors.Is(err, ErrKey) || st == nil || before != nil && bytes.Equal(before.note, st.note) && slices.Equal(before.set.ids, st.set.ids) {
			return nil, err
		}
		before = st // The keys may have been changed between the two reads.
	}
}

// read reads the keyring and the note. With an error that matches ErrKey it may return what it has read.
func (e *Engine) read(ctx context.Context) (*state, error) {
	set, err := e.ring.keyset(ctx, e.name)
	if err != nil {
		return nil, err
	}
	vs, err := e.base.Get(ctx, e.note, keys.StoreKey(e.name), keys.CopyingKey(e.name))
	if err != nil {
		return nil, err
	}
	st := &state{set: set, note: vs[0]}
	st.writes = set.primary
	if st.note == nil && (vs[1] != nil || vs[2] != nil) {
		return nil, fmt.Errorf("%w: namespace %q", ErrNotEncrypted, e.name)
	}
	if st.note != nil {
		ids, err := set.decodeNote(e.note, st.note)
		if err != nil {
			return nil, codec.Corrupt(err, "note of the keys of namespace %q", e.name)
		}
		for _, id := range ids {
			if !set.has(id) {
				return st, fmt.Errorf("%w: namespace %q is encrypted with key %08x, which the keyring does not have", ErrKey, e.name, id)
			}
		}
		st.writes, st.others = ids[0], len(ids) > 1
	}
	st.seal, err = set.sealing(st.writes)
	return st, err
}

// check refuses keys that are not those of a store in the namespace.
func (e *Engine) check(key []byte) error {
	if !bytes.HasPrefix(key, e.prefix) || bytes.Equal(key, e.note) {
		return fmt.Errorf("%w: key %x is not one of a store in namespace %q", engine.ErrInvalid, key, e.name)
	}
	return nil
}

// Get implements engine.Engine.
func (e *Engine) Get(ctx context.Context, ks ...[]byte) ([][]byte, error) {
	st := e.state.Load()
	if st == nil {
		return nil, engine.ErrClosed
	}
	hidden := make([][]byte, len(ks))
	for i, k := range ks {
		if hidden[i] = k; bytes.Equal(k, engine.UnfinishedKey) || bytes.Equal(k, e.note) {
			continue
		}
		if err := e.check(k); err != nil {
			return nil, err
		}
		hidden[i] = st.set.hide(k)
	}
	first := st.set
	vs, err := e.base.Get(ctx, hidden...)
	if err != nil {
		return nil, err
	}
	for i, v := range vs {
		if v == nil || bytes.Equal(ks[i], engine.UnfinishedKey) { // which is of the database, not of a store
			continue
		}
		if bytes.Equal(ks[i], e.note) {
			vs[i] = nil
			continue
		}
		set := first // What was read before a key was forgotten may have it.
		for !set.knows(v) && !st.set.knows(v) {
			before := st
			if st, err = e.look(ctx); err != nil {
				return nil, err
			}
			if bytes.Equal(st.note, before.note) { // No key of the store.
				break
			}
		}
		if !set.knows(v) {
			set = st.set
		}
		p := set.open(hidden[i], v)
		if vs[i] = p.Value; !bytes.Equal(p.Key, ks[i]) {
			vs[i] = codec.Forged
		}
	}
	return vs, nil
}

// Scan implements engine.Engine. See the package comment for pages of records.
func (e *Engine) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	if e.state.Load() == nil {
		return func(yield func(engine.Pair, error) bool) { yield(engine.Pair{}, engine.ErrClosed) }
	}
	first := e.state.Load().set // A page that was read before a key was forgotten may have it.
	s := &scanning{from: e.base, note: e.note, known: func(v []byte) (*keyset, error) {
		if v == nil || first.knows(v) {
			return first, nil
		}
		for st := e.state.Load(); ; {
			if st.set.knows(v) {
				return st.set, nil
			}
			now, err := e.look(ctx)
			if err != nil {
				return nil, err
			}
			if bytes.Equal(now.note, st.note) { // No key of the store.
				return now.set, nil
			}
			st = now
		}
	}}
	return s.scan(ctx, clip(r, e.prefix))
}

// clip returns the part of a range whose keys begin with a prefix.
func clip(r engine.Range, prefix []byte) engine.Range {
	of := engine.PrefixRange(prefix)
	if bytes.Compare(r.Start, of.Start) < 0 {
		r.Start = of.Start
	}
	if of.End != nil && (r.End == nil || bytes.Compare(r.End, of.End) > 0) {
		r.End = of.End
	}
	return r
}

// Vacuum implements engine.Engine.
func (e *Engine) Vacuum(ctx context.Context) error {
	if e.base == nil {
		return engine.ErrClosed
	}
	return e.base.Vacuum(ctx)
}

// Limits implements engine.Engine.
func (e *Engine) Limits() engine.Limits { return engine.MinLimits }

// Close implements engine.Engine.
func (e *Engine) Close() error {
	if e.base == nil {
		return nil
	}
	return e.base.Close()
}

// Notify implements engine.Notifier. It does nothing if the engine below can't tell other processes.
func (e *Engine) Notify(topic string) {
	if n, ok := e.base.(engine.Notifier); ok {
		n.Notify(topic)
	}
}

// Listen implements engine.Notifier. It hears nothing if the engine below can't tell.
func (e *Engine) Listen(ctx context.Context, heard func(topic string)) error {
	if n, ok := e.base.(engine.Notifier); ok {
		return n.Listen(ctx, heard)
	}
	<-ctx.Done()
	return ctx.Err()
}
