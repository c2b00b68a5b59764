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

// encodeNote returns the value of the note. The note has the ids of the keys with which the values of a namespace are
// encrypted: first the key that is used, then those that values may still have from before. It is the one value that is
// not encrypted. The first batch writes the note, and every batch guards it, so nobody goes on with a key that was
// replaced. A hash under the keyset's secret proves that somebody who has the keyset wrote it.
func (s *keyset) encodeNote(key []byte, ids []uint32) []byte {
	var body []byte
	for _, id := range ids {
		body = binary.BigEndian.AppendUint32(body, id)
	}
	sum := s.names.Sum16(ofNote, body)
	return codec.Encode(key, keys.Encryption, sum[:], body)
}

// decodeNote returns the ids in a note. It does not check the hash if the keyset lacks one of them: whoever has another
// keyset should be told that.
func (s *keyset) decodeNote(key, value []byte) (ids []uint32, err error) {
	body, err := codec.Decode(key, value, keys.Encryption)
	if err != nil {
		return nil, err
	}
	if len(body) < wholeHash+4 || len(body)%4 != 0 {
		return nil, fmt.Errorf("%w: %d bytes", damage.ErrMalformed, len(body))
	}
	list := body[wholeHash:]
	lacking := false
	for b := list; len(b) > 0; b = b[4:] {
		id := binary.BigEndian.Uint32(b)
		ids, lacking = append(ids, id), lacking || !s.has(id)
	}
	if sum := s.names.Sum16(ofNote, list); !lacking && !bytes.Equal(sum[:], body[:wholeHash]) {
		return nil, fmt.Errorf("%w: it does not verify with the keys of the store", damage.ErrMalformed)
	}
	return ids, nil
}

// Reencrypt encrypts the store with the newest key of its namespace in the keyring, and returns how many values had an
// older one. Other calls of this and other processes go on meanwhile: they read the keyring again when they meet the
// newest key. If Reencrypt is interrupted, the next call goes on.
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
		newest := []uint32{st.set.newest}
		next := newest
		switch {
		case st.note != nil && slices.Equal(st.ids, newest):
			return values, nil
		case st.ids[0] != newest[0]: // The newest key is to be used from now on; values keep the others for a while.
			older := slices.DeleteFunc(slices.Clone(st.ids), func(id uint32) bool { return id == newest[0] })
			next = append(newest, older...)
		default:
			n, err := e.reencrypt(ctx, st)
			values += n
			if errors.Is(err, engine.ErrConflict) {
				continue
			}
			if err != nil {
				return values, err
			}
		}
		b := engine.Batch{Guards: []engine.Pair{{Key: e.note, Value: st.note}}}
		b.Set(e.note, st.set.encodeNote(e.note, next))
		if _, err := engine.ApplyUntilKnown(ctx, e.base, &b); err != nil && !errors.Is(err, engine.ErrConflict) {
			return values, err
		}
	}
}

// Forget does what Reencrypt does, reads all values once more to be sure, and then removes the older keys of the
// namespace from the keyring. Other stores, backups and bundles that are encrypted with one of these keys can't be read
// any more.
func (e *Engine) Forget(ctx context.Context) (values int, err error) {
	for {
		n, err := e.Reencrypt(ctx)
		if values += n; err != nil {
			return values, err
		}
		st := e.state.Load()
		n, err = e.reencrypt(engine.ForMaintenance(ctx), st) // A value with an older key may have been put back.
		values += n
		if errors.Is(err, engine.ErrConflict) {
			continue
		}
		if err == nil {
			err = e.ring.forget(ctx, e.name, st.ids[0])
		}
		return values, err
	}
}

// reencryptBytes bounds what one batch of reencrypt writes.
const reencryptBytes = 256 << 10

// reencrypt encrypts with the key that is used every value that has another one, and returns how many these were. If
// the note changes meanwhile, the error is a ConflictError.
func (e *Engine) reencrypt(ctx context.Context, st *state) (values int, err error) {
	var b engine.Batch // guards and sets the same keys
	for p, err := range e.base.Scan(ctx, engine.PrefixRange(e.prefix)) {
		if err != nil {
			return values, err
		}
		id, ok := keyOf(p.Value)
		if bytes.Equal(p.Key, e.note) || !ok || id == st.ids[0] || !st.set.has(id) {
			continue
		}
		text, err := st.set.opens.DecryptDeterministically(p.Value, p.Key)
		if err != nil { // It is damaged, and stays so.
			continue
		}
		v, err := st.seal.EncryptDeterministically(text, p.Key)
		if err != nil {
			return values, err
		}
		if len(b.Sets) > 0 && b.Bytes()+len(p.Key)+len(v) > reencryptBytes {
			n, err := e.replace(ctx, st, &b)
			if values += n; err != nil {
				return values, err
			}
			b = engine.Batch{}
		}
		b.Guard(p.Key, p.Value)
		b.Set(p.Key, v)
	}
	n, err := e.replace(ctx, st, &b)
	return values + n, err
}

// replace makes the changes of b that can still be made, and returns how many. A value that was changed meanwhile has
// the key that is used.
func (e *Engine) replace(ctx context.Context, st *state, b *engine.Batch) (values int, err error) {
	if len(b.Sets) == 0 {
		return 0, nil
	}
	noted := engine.Batch{Guards: append([]engine.Pair{{Key: e.note, Value: st.note}}, b.Guards...), Sets: b.Sets}
	_, err = engine.ApplyUntilKnown(ctx, e.base, &noted)
	var c *engine.ConflictError
	switch {
	case err == nil:
		return len(b.Sets), nil
	case !errors.As(err, &c) || bytes.Equal(c.Key, e.note):
		return 0, err
	case len(b.Sets) == 1:
		return 0, nil
	}
	for i := range b.Sets { // one by one
		n, err := e.replace(ctx, st, &engine.Batch{Guards: b.Guards[i : i+1], Sets: b.Sets[i : i+1]})
		if values += n; err != nil {
			return values, err
		}
	}
	return values, nil
}
