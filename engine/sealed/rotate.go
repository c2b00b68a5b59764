package sealed

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// The note says which keys the values of a namespace are encrypted with: the one that is used, and then those that
// values may still have from before. The first batch writes it, and every batch guards it. So no process goes on with
// a key that was replaced. A hash under the secret of the keyset tells that nobody else has made it.
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

// Reencrypt encrypts what is still encrypted with other keys than the newest of the namespace in the keyring, beside
// other calls of this and other processes. These read the keyring again when they meet the newest key. If Reencrypt is
// interrupted, the next call goes on. Afterwards Forget may remove the older keys. It returns how many values it has
// encrypted.
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
			if values += n; errors.Is(err, engine.ErrConflict) {
				continue
			}
			if err != nil {
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

// Forget removes from the keyring the keys of the namespace that are older than the one that the store is encrypted
// with. It reads all values before, and encrypts those that still have an older one. If Reencrypt was cut off, the
// error is engine.ErrInvalid. Copies of the store, and streams, that are encrypted with a key that was removed can't
// be read any more.
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
	otherKey := func(err error) bool { // It conflicts with another rotation.
		var c *engine.ConflictError
		return errors.As(err, &c) && bytes.Equal(c.Key, e.note)
	}
	apply := func() error {
		_, err := engine.ApplyUntilKnown(ctx, e.base, &b)
		if otherKey(err) {
			return err
		}
		if errors.Is(err, engine.ErrConflict) && len(b.Sets) > 1 { // Those that were changed meanwhile have the key.
			for i := range b.Sets {
				one := engine.Batch{Guards: []engine.Pair{b.Guards[0], b.Guards[i+1]}, Sets: b.Sets[i : i+1]}
				if _, err = engine.ApplyUntilKnown(ctx, e.base, &one); err != nil && (otherKey(err) || !errors.Is(err, engine.ErrConflict)) {
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
