// Package sealed encrypts what a store keeps. Open returns an engine that encrypts every value before it reaches another
// engine, and hides the texts that are in keys; a store that is opened on it does not know. What is on the disk, in the
// database of a server, and in the messages to it, has no content of the store.
//
// # What is encrypted
//
// A value is encrypted with AES-SIV (RFC 5297) of Tink, bound to its key: one that was changed, or moved to another
// key, does not verify. Equal values at one key are equal when they are encrypted, so that guards stay comparisons of
// bytes, and who sees the database twice sees whether a value has changed. An older value of the same key verifies.
//
// Keys of the store have hashes under a secret in place of names, but for the keys of records, which are listed in
// the order of their texts. Here a secret hash stands for each of the first parts of such a text that end with "/", and
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
// encrypts all anew with it. Keyring.Destroy removes the keyset: nobody can read the namespace then, nor any copy of it
// that has no other copy of the file.
package sealed

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"iter"
	"slices"
	"sync/atomic"

	"github.com/tink-crypto/tink-go/v2/tink"

	"github.com/turnstonedb/turnstone/damage"
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
// keyset of the namespace, or the error is ErrKey. If e has a store of the namespace that is not encrypted, the error is
// ErrNotEncrypted: turnstone.Copy makes an encrypted copy of it. Closing the Engine closes e.
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

// The note says which keys the values of a namespace are encrypted with: the one that is used, and then those that
// values may still have from before. The first batch writes it, and every batch guards it. So no process goes on with a
// key that was replaced. A hash under the secret of the keyset tells that nobody else has made it.
func (s *keyset) encodeNote(key []byte, ids ...uint32) []byte {
	var body []byte
	for _, id := range ids {
		body = binary.BigEndian.AppendUint32(body, id)
	}
	sum := s.names.Sum16(ofNote, body)
	return codec.Encode(key, keys.Encryption, sum[:], body)
}

func (s *keyset) decodeNote(key, value []byte) (ids []uint32, err error) {
	body, err := codec.Decode(key, value, keys.Encryption)
	if err != nil {
		return nil, err
	}
	if len(body) < wholeHash+4 || len(body)%4 != 0 {
		return nil, fmt.Errorf("%w: %d bytes", damage.ErrMalformed, len(body))
	}
	list := body[wholeHash:]
	for b := list; len(b) > 0; b = b[4:] {
		ids = append(ids, binary.BigEndian.Uint32(b))
	}
	// Who has another keyset is told that the key is missing.
	if sum := s.names.Sum16(ofNote, list); !bytes.Equal(sum[:], body[:wholeHash]) && !slices.ContainsFunc(ids, func(id uint32) bool { return !s.has(id) }) {
		return nil, fmt.Errorf("%w: it does not verify with the keys of the store", damage.ErrMalformed)
	}
	return ids, nil
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
		for !st.set.knows(v) {
			before := st
			if st, err = e.look(ctx); err != nil {
				return nil, err
			}
			if bytes.Equal(st.note, before.note) { // No key of the store.
				break
			}
		}
		p := st.set.open(hidden[i], v)
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
	s := &scanning{from: e.base, note: e.note, known: func(v []byte) (*keyset, error) {
		for st := e.state.Load(); ; {
			if v == nil || st.set.knows(v) {
				return st.set, nil
			}
			before, err := st, error(nil)
			if st, err = e.look(ctx); err != nil || bytes.Equal(st.note, before.note) {
				return st.set, err
			}
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

// Apply implements engine.Engine.
func (e *Engine) Apply(ctx context.Context, b *engine.Batch) error {
	if e.state.Load() == nil {
		return engine.ErrClosed
	}
	if err := b.Check(e.Limits()); err != nil {
		return err
	}
	for _, k := range keysOf(b) {
		if err := e.check(k); err != nil {
			return err
		}
	}
	stored := make([][]byte, len(b.Guards)) // what stands at the guards' keys, encrypted with another key than the one that is used
	for {
		st := e.state.Load()
		if st.note == nil && b.Ops() > 0 { // The first batch chooses the key.
			var err error
			if st, err = e.look(ctx); err != nil {
				return err
			}
		}
		sealed, err := e.seal(st, b, stored)
		if err != nil {
			return err
		}
		err = e.base.Apply(ctx, sealed)
		var c *engine.ConflictError
		if !errors.As(err, &c) {
			return err
		}
		if bytes.Equal(c.Key, e.note) { // The key is another one now.
			if _, err := e.look(ctx); err != nil {
				return err
			}
			clear(stored)
			continue
		}
		i := slices.IndexFunc(sealed.Guards, func(g engine.Pair) bool { return bytes.Equal(g.Key, c.Key) }) - 1
		if i < 0 {
			return err
		}
		forged := func(g engine.Pair) bool { return bytes.Equal(g.Value, codec.Forged) } // what does not verify was read
		if b.Guards[i].Value == nil || !st.others && !slices.ContainsFunc(b.Guards, forged) {
			return &engine.ConflictError{Key: bytes.Clone(b.Guards[i].Key)}
		}
		if err := e.standing(ctx, b, stored); err != nil {
			return err
		}
	}
}

// keysOf returns the keys of a batch.
func keysOf(b *engine.Batch) (ks [][]byte) {
	for _, g := range b.Guards {
		ks = append(ks, g.Key)
	}
	for _, p := range b.Sets {
		ks = append(ks, p.Key)
	}
	return append(ks, b.Deletes...)
}

// seal returns what b is encrypted. stored has what a guard is to find, where that is known.
func (e *Engine) seal(st *state, b *engine.Batch, stored [][]byte) (*engine.Batch, error) {
	out := &engine.Batch{
		Reclaim: b.Reclaim, Guards: make([]engine.Pair, 0, len(b.Guards)+1), Sets: make([]engine.Pair, 0, len(b.Sets)+1), Deletes: make([][]byte, 0, len(b.Deletes)),
	}
	out.Guard(e.note, st.note) // The first one: with another key no other guard holds.
	if st.note == nil && b.Ops() > 0 {
		out.Set(e.note, st.set.encodeNote(e.note, st.writes))
	}
	for i, g := range b.Guards {
		p := engine.Pair{Key: st.set.hide(g.Key), Value: stored[i]}
		if g.Value != nil && p.Value == nil {
			var err error
			if p.Value, err = st.recent.encrypt(p.Key, g.Value, func() ([]byte, error) { return st.encrypt(g.Key, p.Key, g.Value) }); err != nil {
				return nil, err
			}
		}
		out.Guards = append(out.Guards, p)
	}
	for _, p := range b.Sets {
		k := st.set.hide(p.Key)
		v, err := st.encrypt(p.Key, k, p.Value)
		if err != nil {
			return nil, err
		}
		if out.Set(k, v); slices.ContainsFunc(b.Guards, func(g engine.Pair) bool { return bytes.Equal(g.Key, p.Key) }) {
			st.recent.keep(k, p.Value, v)
		}
	}
	for _, k := range b.Deletes {
		out.Delete(st.set.hide(k))
	}
	return out, nil
}

// encrypt encrypts the value of a key that is stored under hidden.
func (st *state) encrypt(key, hidden, value []byte) ([]byte, error) {
	return st.seal.EncryptDeterministically(plain(key, value), hidden)
}

// standing sets what is stored at the keys of b's guards. If one does not hold, the error is a ConflictError.
func (e *Engine) standing(ctx context.Context, b *engine.Batch, stored [][]byte) error {
	st := e.state.Load()
	ks := make([][]byte, len(b.Guards))
	for i, g := range b.Guards {
		ks[i] = st.set.hide(g.Key)
	}
	vs, err := e.base.Get(ctx, ks...)
	if err != nil {
		return err
	}
	for i, g := range b.Guards {
		holds := vs[i] == nil && g.Value == nil
		if vs[i] != nil && g.Value != nil {
			holds = bytes.Equal(st.set.open(ks[i], vs[i]).Value, g.Value)
		}
		if !holds {
			return &engine.ConflictError{Key: bytes.Clone(g.Key)}
		}
	}
	copy(stored, vs)
	return nil
}

// Reencrypt encrypts what is still encrypted with other keys than the newest of the namespace in the keyring, beside other
// calls of this and other processes. These read the keyring again when they meet the newest key. If Reencrypt is interrupted,
// the next call goes on. Afterwards Forget may remove the older keys. It returns how many values it has encrypted.
func (e *Engine) Reencrypt(ctx context.Context) (values int, err error) {
	if e.state.Load() == nil {
		return 0, engine.ErrClosed
	}
	ctx = engine.ForMaintenance(ctx)
	for {
		st, err := e.look(ctx)
		if err != nil {
			return values, err
		}
		newest, ids := st.set.primary, []uint32(nil)
		if st.note != nil {
			if ids, err = st.set.decodeNote(e.note, st.note); err != nil {
				return values, err
			}
		} else { // Nothing is written yet, and who is about to write is to learn of the newest key.
			ids = []uint32{newest, newest}
		}
		if ids[0] == newest && len(ids) == 1 {
			return values, nil
		}
		if ids[0] == newest {
			n, err := e.reencrypt(ctx, st)
			if values += n; err != nil {
				return values, err
			}
			ids = nil
		}
		ids = slices.DeleteFunc(ids, func(id uint32) bool { return id == newest })
		var b engine.Batch
		b.Guard(e.note, st.note)
		b.Set(e.note, st.set.encodeNote(e.note, append([]uint32{newest}, ids...)...))
		if _, err := engine.ApplyUntilKnown(ctx, e.base, &b); err != nil && !errors.Is(err, engine.ErrConflict) {
			return values, err
		}
	}
}

// Forget removes from the keyring the keys of the namespace that are older than the one that the store is encrypted with.
// It reads all values before, and encrypts those that still have an older one. If Reencrypt has not ended, the error is
// engine.ErrInvalid. Copies of the store, and streams, that are encrypted with a key that was removed can't be read any
// more.
func (e *Engine) Forget(ctx context.Context) error {
	if e.state.Load() == nil {
		return engine.ErrClosed
	}
	st, err := e.look(ctx)
	if err != nil {
		return err
	}
	if st.others || st.note == nil {
		return fmt.Errorf("%w: the values of namespace %q are encrypted with several keys: Reencrypt has not ended", engine.ErrInvalid, e.name)
	}
	if _, err := e.reencrypt(engine.ForMaintenance(ctx), st); err != nil {
		return err
	}
	return e.ring.forget(ctx, e.name, st.writes)
}

// reencryptBytes bounds what Reencrypt writes at once.
const reencryptBytes = 256 << 10

// reencrypt encrypts with the key that is used what is encrypted with another one.
func (e *Engine) reencrypt(ctx context.Context, st *state) (values int, err error) {
	var b engine.Batch
	apply := func() error {
		_, err := engine.ApplyUntilKnown(ctx, e.base, &b)
		if errors.Is(err, engine.ErrConflict) && len(b.Sets) > 1 { // One by one: those that were changed meanwhile have the key.
			for i := range b.Sets {
				one := engine.Batch{Guards: []engine.Pair{b.Guards[0], b.Guards[i+1]}, Sets: b.Sets[i : i+1]}
				if _, err = engine.ApplyUntilKnown(ctx, e.base, &one); err != nil && !errors.Is(err, engine.ErrConflict) {
					return err
				}
			}
		}
		if errors.Is(err, engine.ErrConflict) {
			err = nil
		}
		b = engine.Batch{}
		return err
	}
	for p, err := range e.base.Scan(ctx, engine.PrefixRange(e.prefix)) {
		if err != nil {
			return values, err
		}
		id, ok := keyOf(p.Value)
		if bytes.Equal(p.Key, e.note) || !ok || id == st.writes || !st.set.has(id) {
			continue
		}
		text, err := st.set.primitive.DecryptDeterministically(p.Value, p.Key)
		if err != nil { // damaged: it stays so
			continue
		}
		v, err := st.seal.EncryptDeterministically(text, p.Key)
		if err != nil {
			return values, err
		}
		if len(b.Sets) > 0 && b.Bytes()+len(p.Key)+len(v) > reencryptBytes {
			if err := apply(); err != nil {
				return values, err
			}
		}
		if len(b.Sets) == 0 {
			b.Guard(e.note, st.note)
		}
		b.Guard(p.Key, p.Value)
		b.Set(p.Key, v)
		values++
	}
	if len(b.Sets) > 0 {
		return values, apply()
	}
	return values, nil
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

// recent has values that were encrypted, because a batch often guards what the one before has set: the head of a session.
// Encryption is a function, so it does not matter whether the value is the one that is stored.
type recent [1024]atomic.Pointer[encrypted]

type encrypted struct{ hidden, value, sealed []byte }

var recentSeed = maphash.MakeSeed()

func (r *recent) place(hidden []byte) *atomic.Pointer[encrypted] {
	return &r[maphash.Bytes(recentSeed, hidden)%uint64(len(r))]
}

// keep remembers a value, if it is small.
func (r *recent) keep(hidden, value, sealed []byte) {
	const most = 1 << 10
	if len(value) <= most {
		r.place(hidden).Store(&encrypted{bytes.Clone(hidden), bytes.Clone(value), sealed})
	}
}

// encrypt returns what stands for a value, and calls f if that is not remembered.
func (r *recent) encrypt(hidden, value []byte, f func() ([]byte, error)) ([]byte, error) {
	if p := r.place(hidden).Load(); p != nil && bytes.Equal(p.hidden, hidden) && bytes.Equal(p.value, value) {
		return p.sealed, nil
	}
	return f()
}
