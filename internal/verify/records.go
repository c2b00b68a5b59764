package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/record"
)

// What problems call the records under each letter.
var recordNames = map[byte]string{
	keys.Store: "store record", keys.About: "metadata", keys.Blob: "blob", keys.Commit: "commit", keys.Copying: "note of the last copy",
	keys.Detached: "detached blob", keys.Stale: "stale record", keys.Loose: "loose record", keys.Dirty: "dirty record", keys.Attachment: "attachment entry", keys.Fork: "fork entry",
	keys.Candidate: "candidate", keys.Cycle: "cycle record", keys.Edge: "edge", keys.Turn: "turn", keys.Count: "number of edges",
	keys.EventKey: "event key", keys.Life: "lifecycle", keys.Mark: "mark", keys.Origin: "origin", keys.Pack: "pack", keys.Version: "version of a checkpoint part", keys.Child: "child entry",
	keys.Ref: "kept revision", keys.Head: "head", keys.Tombstone: "tombstone", keys.Order: "place in the order of sessions",
	keys.OrderTime: "time in the order of sessions", keys.Predecessor: "predecessor", keys.Upload: "upload", keys.Index: "index of nodes", keys.Bookmark: "bookmark",
}

// A badRecord is one whose key or value can't be.
type badRecord struct {
	key    []byte
	letter byte
	fields []byte // nil if the key is none of the format
	err    error
}

// A blobTable is which blobs are stored, by what and in how many values: hashes
// ascend, as their keys do.
type blobTable struct {
	values, marks []storedBlob
}

type storedBlob struct {
	hash  keys.Hash
	parts int
}

// owner returns the incarnation that a record belongs to, if its key says so.
func owner(letter byte, fields []byte) (inc heads.Incarnation, ok bool) {
	switch letter {
	case keys.Commit, keys.Dirty, keys.Attachment, keys.Turn, keys.EventKey, keys.Life, keys.Origin, keys.Pack, keys.Version, keys.Ref,
		keys.Tombstone, keys.OrderTime, keys.Index, keys.Bookmark, keys.Detached, keys.Fork:
		return heads.Incarnation(fields), true
	case keys.Child:
		return heads.Incarnation(fields[16:]), true
	case keys.Order:
		return heads.Incarnation(fields[8:]), true
	}
	return inc, false
}

// records checks the checksum of every record, in whatever place it is, and gathers
// what they say of each other.
func (v *verifier) records(ctx context.Context) error {
	for p, err := range v.store.Engine.Scan(ctx, v.store.Space.Everything()) {
		if err != nil {
			return err
		}
		v.Records++
		letter, fields, ok := v.store.Space.Fields(p.Key)
		if !ok {
			v.damaged = append(v.damaged, badRecord{key: p.Key, err: fmt.Errorf("%w: no key of the format", record.ErrMalformed)})
			continue
		}
		if _, err := codec.Open(p.Key, p.Value, letter); err != nil {
			v.damaged = append(v.damaged, badRecord{p.Key, letter, fields, err})
		}
		inc, owned := owner(letter, fields)
		if owned && letter != keys.Dirty { // what vacuum has removed may have one still
			v.seen[inc] = p.Key
		}
		switch letter {
		case keys.Blob:
			if t := &v.stored.values; len(*t) > 0 && bytes.Equal((*t)[len(*t)-1].hash[:], fields[:16]) {
				(*t)[len(*t)-1].parts++
			} else {
				*t = append(*t, storedBlob{keys.Hash(fields), 1})
			}
		case keys.Mark:
			m, err := blobs.OpenMark(p.Key, p.Value)
			if err == nil && m.Condemned {
				v.Condemned++
			}
			v.stored.marks = append(v.stored.marks, storedBlob{keys.Hash(fields), m.Parts})
		case keys.Life:
			if life, err := heads.OpenLife(p.Key, p.Value); err == nil {
				v.lives[inc] = life
			}
		case keys.About:
			if about, err := heads.OpenAbout(p.Key, p.Value); err == nil {
				v.seen[about.Incarnation] = p.Key
				v.names[about.Incarnation] = fmt.Sprintf("session %q", about.ID)
			}
		case keys.Head:
			if h, err := heads.OpenHead(p.Key, p.Value); err == nil {
				v.seen[h.Incarnation] = p.Key
			}
		case keys.Tombstone:
			v.stones[inc]++
		case keys.Fork:
			v.forks[inc]++
			v.entries[forkEntry{inc, heads.Incarnation(fields[16:])}] = true
		case keys.Origin:
			if o, err := heads.OpenOrigin(p.Key, p.Value); err == nil {
				v.origin(inc, o)
			}
		}
	}
	var other error
	for _, r := range v.damaged {
		if errors.Is(r.err, record.ErrFormat) {
			if other == nil {
				other = codec.Corrupt(r.err, "%s", v.describe(&r))
			}
			continue
		}
		v.problem(r.err, "%s", v.describe(&r))
	}
	if other != nil {
		return other // what the record says of the others is not known
	}
	return v.pairs(ctx)
}

// origin notes what a fork shares. Keys of lifecycles and fork entries come before
// those of origins.
func (v *verifier) origin(fork heads.Incarnation, o *heads.Origin) {
	v.depth[fork] = len(o.Ancestors)
	life := v.lives[fork]
	for _, a := range o.Ancestors {
		entry := forkEntry{a.Incarnation, fork}
		if v.entries[entry] {
			delete(v.entries, entry)
		} else {
			v.entries[entry] = false // looked at again by owners
		}
		most, known := v.shared[a.Incarnation]
		if life == nil || life.State != heads.Live {
			continue
		}
		if !known || a.Revision > most.Last || a.Revision == most.Last && most.Nodes != 0 && (a.Nodes == 0 || a.Nodes > most.Nodes) {
			v.shared[a.Incarnation] = history.Layer{Inc: a.Incarnation, Last: a.Revision, Nodes: a.Nodes}
		}
	}
}

// describe names a record by its kind, what it belongs to, and its key.
func (v *verifier) describe(r *badRecord) string {
	what := "record"
	if r.fields != nil {
		what = recordNames[r.letter]
		inc, owned := owner(r.letter, r.fields)
		switch {
		case owned:
			what += " of " + v.name(inc)
		case r.letter == keys.Edge && r.fields[16] == 's':
			what += " of " + v.name(heads.Incarnation(r.fields[17:])) + fmt.Sprintf(" to the blob at %x", r.fields[:16])
		case r.letter == keys.Upload:
			if name := v.names[heads.Incarnation(r.fields)]; name != "" {
				what += " of " + name
			}
		case r.letter == keys.About || r.letter == keys.Head || r.letter == keys.Predecessor:
			what += fmt.Sprintf(" of the session at %x", r.fields)
			for inc, life := range v.lives {
				if life.Session == keys.Hash(r.fields) {
					what += ", " + v.name(inc)
				}
			}
		}
	}
	return fmt.Sprintf("%s at key %x", what, r.key)
}

// pairs checks that each blob has a mark and as many values as the mark says, and
// the other way round.
func (v *verifier) pairs(ctx context.Context) error {
	values, marks := v.stored.values, v.stored.marks
	v.Blobs = len(values)
	for len(values) > 0 || len(marks) > 0 {
		c := 0
		switch {
		case len(values) == 0:
			c = 1
		case len(marks) == 0:
			c = -1
		default:
			c = bytes.Compare(values[0].hash[:], marks[0].hash[:])
		}
		var odd keys.Hash
		switch {
		case c == 0 && values[0].parts == marks[0].parts || c == 0 && marks[0].parts == 0: // the mark is damaged
			values, marks = values[1:], marks[1:]
			continue
		case c == 0:
			odd, values, marks = values[0].hash, values[1:], marks[1:]
		case c < 0:
			odd, values = values[0].hash, values[1:]
		default:
			odd, marks = marks[0].hash, marks[1:]
		}
		if err := v.pair(ctx, odd); err != nil {
			return err
		}
	}
	return nil
}

// pair looks at one blob again, at one moment: pages of the scan are of different ones.
func (v *verifier) pair(ctx context.Context, h keys.Hash) error {
	const most = 256
	ks := make([][]byte, 0, most+1)
	ks = append(ks, v.store.Space.Mark(h))
	for part := range most {
		ks = append(ks, v.store.Space.Blob(h, part))
	}
	vs, err := v.store.Engine.Get(ctx, ks...)
	if err != nil {
		return err
	}
	n := 0
	for _, value := range vs[1:] {
		if value != nil {
			n++
		}
	}
	if vs[0] == nil && n > 0 {
		v.problem(fmt.Errorf("%w: its values are there without it", record.ErrMissing), "mark of the blob at %x", h)
	} else if m, err := blobs.OpenMark(ks[0], vs[0]); vs[0] != nil && err == nil && m.Parts != n {
		v.problem(fmt.Errorf("%w: %d of %d values are there", record.ErrMissing, n, m.Parts), "blob at %x", h)
	}
	return nil
}

// owners checks what the scan gathered: that whatever has records has a lifecycle
// record, that the entries of forks are those that the forks' origins name, and that
// the lifecycle record counts entries and tombstones right.
func (v *verifier) owners(ctx context.Context) error {
	for inc, key := range v.seen {
		if v.lives[inc] == nil {
			if err := v.ownerless(ctx, inc, key); err != nil {
				return err
			}
		}
	}
	for e := range v.entries {
		if err := v.forkEntry(ctx, e); err != nil {
			return err
		}
	}
	for inc, life := range v.lives {
		if life.Forks != v.forks[inc] || life.Stones > v.stones[inc] {
			if err := v.counted(ctx, inc); err != nil {
				return err
			}
		}
	}
	return nil
}

// ownerless looks again at an incarnation that has the record of a key, and no
// lifecycle record, which goes last.
func (v *verifier) ownerless(ctx context.Context, inc heads.Incarnation, key []byte) error {
	lifeKey := v.store.Space.Life(inc)
	vs, err := v.store.Engine.Get(ctx, lifeKey, key)
	if err != nil {
		return err
	}
	if vs[0] == nil && vs[1] != nil {
		v.problem(fmt.Errorf("%w, but there is its %s", record.ErrMissing, recordNames[v.store.Space.Letter(key)]), "lifecycle of %s", v.name(inc))
	} else if life, err := heads.OpenLife(lifeKey, vs[0]); err == nil {
		v.lives[inc] = life // made meanwhile; records has named it if it is damaged
	}
	return nil
}

// forkEntry looks again at a fork and an ancestor that the scan did not find to name
// each other.
func (v *verifier) forkEntry(ctx context.Context, e forkEntry) error {
	space := v.store.Space
	originKey := space.Origin(e.fork)
	vs, err := v.store.Engine.Get(ctx, space.Fork(e.ancestor, e.fork), originKey, space.Life(e.fork), space.Life(e.ancestor))
	if err != nil {
		return err
	}
	entry, named := vs[0] != nil, false
	if o, err := heads.OpenOrigin(originKey, vs[1]); err == nil {
		for _, a := range o.Ancestors {
			named = named || a.Incarnation == e.ancestor
		}
	} else if vs[1] != nil {
		return nil // records has named it
	}
	switch {
	case entry && vs[1] == nil:
		v.problem(record.ErrMissing, "origin of %s, which %s lists as a fork", v.name(e.fork), v.name(e.ancestor))
	case entry && !named:
		v.problem(fmt.Errorf("%w: its origin does not name the ancestor", record.ErrHash), "fork entry of %s for its fork %s", v.name(e.ancestor), v.name(e.fork))
	case !entry && named && vs[3] != nil: // vacuum removes an ancestor that only deleted forks name
		v.problem(record.ErrMissing, "fork entry of %s for its fork %s", v.name(e.ancestor), v.name(e.fork))
	case named && vs[3] == nil:
		if life, err := heads.OpenLife(space.Life(e.fork), vs[2]); err == nil && life.State == heads.Live {
			v.problem(record.ErrMissing, "lifecycle of %s, an ancestor of %s", v.name(e.ancestor), v.name(e.fork))
		}
	}
	return nil
}

// counted looks again at the numbers of a lifecycle record.
func (v *verifier) counted(ctx context.Context, inc heads.Incarnation) error {
	key := v.store.Space.Life(inc)
	for {
		vs, err := v.store.Engine.Get(ctx, key)
		if err != nil || vs[0] == nil {
			return err
		}
		forks, err := v.count(ctx, keys.Fork, inc)
		if err != nil {
			return err
		}
		stones, err := v.count(ctx, keys.Tombstone, inc)
		if err != nil {
			return err
		}
		again, err := v.store.Engine.Get(ctx, key)
		if err != nil {
			return err
		}
		if string(again[0]) != string(vs[0]) {
			continue
		}
		life, err := heads.OpenLife(key, vs[0])
		if err != nil {
			return nil // records has named it
		}
		if life.Forks != forks {
			v.problem(fmt.Errorf("%w: %d of %d", record.ErrMissing, forks, life.Forks), "fork entries of %s", v.name(inc))
		}
		if life.Stones > stones {
			v.problem(fmt.Errorf("%w: %d of %d", record.ErrMissing, stones, life.Stones), "tombstones of %s", v.name(inc))
		}
		return nil
	}
}

func (v *verifier) count(ctx context.Context, letter byte, inc heads.Incarnation) (n uint64, err error) {
	for _, err := range v.store.Engine.Scan(ctx, v.store.Space.Of(letter, inc)) {
		if err != nil {
			return 0, err
		}
		n++
	}
	return n, nil
}
