package repair

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// Rekey copies the records of a store whose store record is lost to another engine, as they are in st, a store there
// that has another secret. The secret is in the hashes that keys have; what a hash stands for is in the records: the id
// of a session, of a blob, the name of a kept revision. Which checkpoint part a hash stands for is found by trying.
func Rekey(ctx context.Context, from engine.Engine, of engine.Range, st history.Store) error {
	r := &rekeying{Store: st, w: &writer{Engine: st.Engine}, from: from, sessions: map[keys.Hash]keys.Hash{}, parts: map[head.Incarnation]map[keys.Hash][]engine.Pair{}}
	at := len(of.Start)
	// Metadata first: they say what the hashes of sessions stand for.
	abouts := engine.PrefixRange(append(slices.Clone(of.Start), keys.About))
	for _, part := range []engine.Range{abouts, of} {
		for p, err := range from.Scan(ctx, part) {
			if err != nil {
				return err
			}
			if len(p.Key) <= at || (p.Key[at] == keys.About) != (len(part.Start) > at) {
				continue
			}
			if letter, fields, ok := st.Space.Fields(p.Key); ok {
				if err := r.record(ctx, letter, fields, p); err != nil {
					return err
				}
			}
		}
	}
	if err := r.w.flush(ctx); err != nil {
		return err
	}
	return r.versions(ctx)
}

// A rekeying is one call of Rekey.
type rekeying struct {
	history.Store
	w        *writer
	from     engine.Engine
	sessions map[keys.Hash]keys.Hash                          // the hashes of their ids, by those that they had
	blob     [2]keys.Hash                                     // that of the last blob, as it was and as it is
	parts    map[head.Incarnation]map[keys.Hash][]engine.Pair // versions of checkpoint parts, by the hashes that the names had
}

// record copies a record.
func (r *rekeying) record(ctx context.Context, letter byte, fields []byte, p engine.Pair) error {
	key := p.Key
	body, err := codec.Decode(p.Key, p.Value, letter)
	if err != nil {
		return err
	}
	switch letter {
	case keys.About:
		a, err := head.DecodeAbout(p.Key, p.Value)
		if err != nil {
			return nil // It is damaged all the same.
		}
		now := r.Space.Session(a.ID)
		r.sessions[keys.Hash(fields)] = now
		key = r.Space.About(now)
	case keys.Head:
		now, known := r.sessions[keys.Hash(fields)]
		if !known {
			return nil // The lifecycle record tells of the session.
		}
		key = r.Space.Head(now)
	case keys.Life:
		l, err := head.DecodeLife(p.Key, p.Value)
		if err != nil {
			return nil
		}
		if now, known := r.sessions[l.Session]; known {
			l.Session = now
		}
		return r.w.set(ctx, key, l.Encode(key))
	case keys.Ref:
		k, err := head.DecodeKept(p.Key, p.Value)
		if err != nil {
			return nil
		}
		key = r.Space.Ref(head.Incarnation(fields), k.Name)
	case keys.Blob:
		if key = r.blobKey(fields, body); key == nil {
			return nil // The first value is lost.
		}
	case keys.Version:
		inc, hash := head.Incarnation(fields), keys.Hash(fields[16:])
		if r.parts[inc] == nil {
			r.parts[inc] = map[keys.Hash][]engine.Pair{}
		}
		r.parts[inc][hash] = append(r.parts[inc][hash], engine.Pair{Key: p.Key})
		return nil
	case keys.Store, keys.Index:
		return nil
	}
	value, err := codec.Move(p.Key, p.Value, key)
	if err != nil {
		return err
	}
	return r.w.set(ctx, key, value)
}

// blobKey returns the key that the value of a blob gets, or nil if the first value of the blob is lost.
func (r *rekeying) blobKey(fields, body []byte) []byte {
	was, value := keys.Hash(fields), int(fields[16])
	if value == 0 {
		d := codec.Decoder{B: body}
		var id [codec.HashSize]byte
		d.Shape(5)
		d.Fixed(id[:])
		if d.Err() != nil {
			return nil
		}
		r.blob = [2]keys.Hash{was, r.Space.BlobHash(id)}
	}
	if r.blob[0] != was {
		return nil
	}
	return r.Space.Blob(r.blob[1], value)
}

// versions copies the versions of checkpoint parts: those of a hash belong to a part that the commits set as deltas at
// their revisions, and whose content has the hash that the commit says.
func (r *rekeying) versions(ctx context.Context) error {
	for inc, by := range r.parts {
		h, err := r.Open(ctx, inc)
		if _, fatal := damaged(err); fatal != nil {
			return fatal
		}
		if h == nil {
			h = &history.History{Store: r.Store, Inc: inc}
		}
		set := map[string]map[head.Revision]head.Part{}
		err = r.Reader.Turns(ctx, history.Revisions{Inc: inc, Name: h.Name, Last: history.Unsealed}, func(t *history.Turn) error {
			for _, p := range t.Parts {
				if p.Set == t.Revision && head.IsDelta(p) {
					if set[p.Name] == nil {
						set[p.Name] = map[head.Revision]head.Part{}
					}
					set[p.Name][p.Set] = p
				}
			}
			return nil
		})
		if _, fatal := damaged(err); fatal != nil {
			return fatal
		}
		for _, whole := range []bool{true, false} {
			for _, hash := range slices.SortedFunc(maps.Keys(by), func(a, b keys.Hash) int { return bytes.Compare(a[:], b[:]) }) {
				for _, name := range slices.Sorted(maps.Keys(set)) {
					fits, err := r.try(ctx, h, name, set[name], by[hash], whole)
					if err != nil {
						return err
					}
					if fits {
						delete(set, name)
						delete(by, hash)
						break
					}
				}
			}
		}
	}
	return nil
}

// try copies versions as those of a part, and reports whether they fit. If not, it removes them again. They fit if the
// last version can be read. If whole is false, they also fit if only the version that it is a delta of is missing, and
// the commits have set all of them.
func (r *rekeying) try(ctx context.Context, h *history.History, name string, parts map[head.Revision]head.Part, pairs []engine.Pair, whole bool) (fits bool, err error) {
	hash := r.Space.PartHash(name)
	var written [][]byte
	var last head.Part
	for _, p := range pairs {
		_, fields, _ := r.Space.Fields(p.Key)
		revision, value := binary.BigEndian.Uint64(fields[32:]), int(fields[40])
		part, ok := parts[head.Revision(revision)]
		if !ok {
			continue
		}
		values, err := r.from.Get(ctx, p.Key)
		if err != nil {
			return false, err
		}
		key := r.Space.Version(h.Inc, hash, revision, value)
		moved, err := codec.Move(p.Key, values[0], key)
		if err != nil {
			return false, err
		}
		if err := r.w.set(ctx, key, moved); err != nil {
			return false, err
		}
		written, last = append(written, key), part
	}
	if err := r.w.flush(ctx); err != nil || written == nil {
		return false, err
	}
	_, _, err = h.ReadPart(ctx, last)
	why, fatal := damaged(err)
	if fatal != nil {
		return false, fatal
	}
	if why == nil || !whole && errors.Is(why, damage.ErrMissing) && len(written) == len(pairs) {
		return true, nil
	}
	for _, key := range written {
		if err := r.w.remove(ctx, key); err != nil {
			return false, err
		}
	}
	return false, r.w.flush(ctx)
}
