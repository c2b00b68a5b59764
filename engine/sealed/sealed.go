// Package sealed encrypts a store. Open returns an engine that encrypts what it passes to another engine. A store that
// is opened on it works as on any other engine. The files or the server of the other engine get no content and no name.
//
// # What is encrypted
//
// Values are encrypted with AES-SIV (RFC 5297) of Tink. Each is bound to its key: a value that was changed, or moved to
// another key, does not verify. An older value of the same key verifies. The same value at the same key is encrypted to
// the same bytes, so the database can still compare guards; whoever sees the database twice sees which values have
// changed.
//
// Session records have keys with a text that the caller chose, and are listed in the order of these texts. Hashes under
// a secret take the place of a text: one for each of its first four parts that end with "/", and one for the whole
// text. So the database shows which texts begin alike. To list records, the engine reads all whose text begins with the
// same parts, decrypts them, and sorts them. Such a list is of one moment only if all that was read fits into one page.
// All other names in keys are hashed by the store itself.
//
// The database also shows how many records of each kind there are, their sizes, when sessions were changed, and which
// records belong to one session.
//
// # Keys
//
// A Keyring is a file with a keyset for each namespace. Keyring.Rotate adds a key to a keyset. Engine.Reencrypt
// encrypts the store with the newest key, and Engine.Forget removes the older ones. Keyring.Destroy removes a keyset:
// without another copy of the file nobody can read that namespace, nor any copy of it.
package sealed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

var (
	// ErrKey says that the keyring has no keyset of the namespace, or that the keyset lacks a key that was used. It
	// matches engine.ErrEncrypted.
	ErrKey = fmt.Errorf("%w, and there is no key", engine.ErrEncrypted)
	// ErrNotEncrypted says that a store, or a stream, was to be decrypted and is not encrypted.
	ErrNotEncrypted = errors.New("sealed: not encrypted")
)

// An Engine encrypts what it passes to another engine. It takes the keys of one namespace and refuses all others.
type Engine struct {
	base   engine.Engine
	ring   *Keyring
	name   string // of the namespace
	prefix []byte // of all keys of the namespace
	note   []byte // the key of the note: see keyset.encodeNote
	state  atomic.Pointer[state]
}

// A state is what an Engine has read last of its keyring and its note.
type state struct {
	set    *keyset
	note   []byte                 // the value of the note; nil before the first batch
	ids    []uint32               // of the keys in the note; the newest key before there is a note
	seal   tink.DeterministicAEAD // encrypts with the first of ids
	recent recent
}

// Open returns an engine for the store of a namespace on e. The keyring must have a keyset of the namespace: the error
// is ErrKey otherwise. If e has a store of the namespace that is not encrypted, the error is ErrNotEncrypted;
// turnstone.Copy makes an encrypted copy of such a store. Closing the Engine closes e.
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
		if st == nil || before != nil && bytes.Equal(before.note, st.note) && slices.Equal(before.set.ids, st.set.ids) {
			return nil, err
		}
		before = st // A rotation may have come between the two reads.
	}
}

// read reads the keyring and the note. If the keyset lacks a key of the note, it returns an error and what it has read.
func (e *Engine) read(ctx context.Context) (*state, error) {
	set, err := e.ring.keyset(ctx, e.name)
	if err != nil {
		return nil, err
	}
	vs, err := e.base.Get(ctx, e.note, keys.StoreKey(e.name), keys.CopyingKey(e.name))
	if err != nil {
		return nil, err
	}
	st := &state{set: set, note: vs[0], ids: []uint32{set.newest}}
	if st.note == nil && (vs[1] != nil || vs[2] != nil) {
		return nil, fmt.Errorf("%w: the store of namespace %q", ErrNotEncrypted, e.name)
	}
	if st.note != nil {
		if st.ids, err = set.decodeNote(e.note, st.note); err != nil {
			return nil, codec.Corrupt(err, "note of the keys of namespace %q", e.name)
		}
	}
	for _, id := range st.ids {
		if !set.has(id) {
			return st, fmt.Errorf("%w: namespace %q is encrypted with key %08x, which the keyring lacks", ErrKey, e.name, id)
		}
	}
	if st.seal, err = set.sealing(st.ids[0]); err != nil {
		return nil, err
	}
	return st, nil
}

// storedKey returns the key under which the pair of a key is stored. It refuses keys that no store of the namespace
// has.
func (e *Engine) storedKey(set *keyset, key []byte) ([]byte, error) {
	if !bytes.HasPrefix(key, e.prefix) || bytes.Equal(key, e.note) {
		return nil, fmt.Errorf("%w: key %x is none of a store of namespace %q", engine.ErrInvalid, key, e.name)
	}
	return set.storedKey(key), nil
}

// knowing returns a keyset that has the key with which a stored value is encrypted. It reads the keyring again if
// neither first nor the last state has it. If nobody has it, the value is damaged.
func (e *Engine) knowing(ctx context.Context, first *keyset, value []byte) (*keyset, error) {
	if first.knows(value) {
		return first, nil
	}
	for st := e.state.Load(); ; {
		if st.set.knows(value) {
			return st.set, nil
		}
		now, err := e.look(ctx)
		if err != nil {
			return nil, err
		}
		if bytes.Equal(now.note, st.note) {
			return now.set, nil
		}
		st = now
	}
}

// Get implements engine.Engine.
func (e *Engine) Get(ctx context.Context, ks ...[]byte) ([][]byte, error) {
	st := e.state.Load()
	if st == nil {
		return nil, engine.ErrClosed
	}
	ours := func(k []byte) bool { return !bytes.Equal(k, engine.UnfinishedKey) && !bytes.Equal(k, e.note) }
	stored := slices.Clone(ks)
	for i, k := range ks {
		if !ours(k) {
			continue
		}
		var err error
		if stored[i], err = e.storedKey(st.set, k); err != nil {
			return nil, err
		}
	}
	vs, err := e.base.Get(ctx, stored...)
	if err != nil {
		return nil, err
	}
	for i, v := range vs {
		switch {
		case bytes.Equal(ks[i], e.note): // The store does not know of it.
			vs[i] = nil
		case v == nil || !ours(ks[i]):
		default:
			// The value may have been read before the key was forgotten, so the keyset of then comes first.
			set, err := e.knowing(ctx, st.set, v)
			if err != nil {
				return nil, err
			}
			p := set.open(stored[i], v)
			if vs[i] = p.Value; !bytes.Equal(p.Key, ks[i]) {
				vs[i] = codec.Forged
			}
		}
	}
	return vs, nil
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

// Notify implements engine.Notifier. It does nothing if the other engine is no Notifier.
func (e *Engine) Notify(topic string) {
	if n, ok := e.base.(engine.Notifier); ok {
		n.Notify(topic)
	}
}

// Listen implements engine.Notifier. It hears nothing if the other engine is no Notifier.
func (e *Engine) Listen(ctx context.Context, heard func(topic string)) error {
	if n, ok := e.base.(engine.Notifier); ok {
		return n.Listen(ctx, heard)
	}
	<-ctx.Done()
	return ctx.Err()
}
