package verify

import (
	"context"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// recordNames is what problems call the records of each letter.
var recordNames = map[byte]string{
	keys.Store: "store record", keys.About: "metadata", keys.Blob: "blob", keys.Copying: "note of the last copy", keys.Touched: "note of a change while the namespace is moved", keys.Scrub: "scrub record", keys.Maintenance: "note of the last maintenance",
	keys.Detached: "detached blob", keys.Stale: "stale record", keys.Loose: "loose record", keys.Dirty: "dirty record", keys.Attachment: "attachment entry", keys.Fork: "fork entry",
	keys.Candidate: "candidate", keys.Cycle: "cycle record", keys.Edge: "edge", keys.Erased: "erasure", keys.Count: "number of edges",
	keys.Life: "lifecycle", keys.Mark: "mark", keys.Origin: "origin", keys.Segment: "segment of commits", keys.Version: "version of a checkpoint part",
	keys.Ref: "kept revision", keys.Head: "head", keys.Tombstone: "tombstone", keys.Entry: "list entry",
	keys.Place: "place in lists", keys.Predecessor: "predecessor", keys.Forgotten: "forgotten predecessors", keys.Upload: "upload", keys.Index: "index of nodes", keys.Bookmark: "bookmark",
	keys.Record: "session record", keys.Listing: "entry in the list of records",
	keys.Feed: "record of the feed", keys.FeedEnd: "end of the feed", keys.Pending: "change that is not in the feed yet", keys.Change: "change of the feed",
}

// A badRecord is a record whose key or value the format does not allow.
type badRecord struct {
	key    []byte
	letter byte
	fields []byte // nil if the key is not of the format
	err    error
}

// owner returns the incarnation that a record belongs to. ok is false if the key does not
// name one.
func owner(letter byte, fields []byte) (inc head.Incarnation, ok bool) {
	switch letter {
	case keys.Dirty, keys.Attachment, keys.Life, keys.Origin, keys.Segment, keys.Version, keys.Ref,
		keys.Tombstone, keys.Place, keys.Index, keys.Bookmark, keys.Detached, keys.Fork, keys.Record:
		return head.Incarnation(fields), true
	case keys.Entry:
		_, _, inc := keys.EntryFields(fields)
		return inc, true
	case keys.Listing:
		_, inc := keys.ListingFields(fields)
		return inc, true
	}
	return inc, false
}

// scan verifies the checksum of every record, and that the record belongs to its key. It
// gathers what the records say of each other.
func (v *verifier) scan(ctx context.Context) error {
	for p, err := range v.store.Engine.Scan(ctx, v.store.Space.Everything()) {
		if err != nil {
			return err
		}
		v.Records++
		letter, fields, ok := v.store.Space.Fields(p.Key)
		if !ok {
			v.damaged = append(v.damaged, badRecord{key: p.Key, err: codec.Unknown(p.Key, p.Value)})
			continue
		}
		if _, err := codec.Decode(p.Key, p.Value, letter); err != nil {
			v.damaged = append(v.damaged, badRecord{p.Key, letter, fields, err})
		}
		v.gather(p, letter, fields)
	}
	return v.reportDamaged()
}

// gather notes what one record says of others. Damaged records say nothing: the caller has
// noted them.
func (v *verifier) gather(p engine.Pair, letter byte, fields []byte) {
	inc, owned := owner(letter, fields)
	if owned && letter != keys.Dirty { // A dirty record may outlive an incarnation that vacuum has removed.
		v.mentioned[inc] = p.Key
	}
	switch letter {
	case keys.Blob:
		v.values.addValue(keys.Hash(fields))
	case keys.Mark:
		v.gatherMark(p, keys.Hash(fields))
	case keys.Life:
		if life, err := head.DecodeLife(p.Key, p.Value); err == nil {
			v.lives[inc] = life
		}
	case keys.About:
		if about, err := head.DecodeAbout(p.Key, p.Value); err == nil {
			v.mentioned[about.Incarnation] = p.Key
			v.names[about.Incarnation] = fmt.Sprintf("session %q", about.ID)
		}
	case keys.Head:
		if h, err := head.DecodeHead(p.Key, p.Value); err == nil {
			v.mentioned[h.Incarnation] = p.Key
		}
	case keys.Entry:
		v.entries[string(p.Key)] = true
	case keys.Record:
		v.gatherRecord(p, fields)
	case keys.Listing:
		v.gatherListing(p)
	case keys.Tombstone:
		v.tombstones[inc]++
	case keys.Fork:
		v.forks[inc]++
		v.unmatched[forkEntry{inc, head.Incarnation(fields[16:])}] = true
	case keys.Origin:
		if o, err := head.DecodeOrigin(p.Key, p.Value); err == nil {
			v.gatherOrigin(inc, o)
		}
	}
}

// gatherMark notes how many values the mark of a blob promises, or 0 if it is damaged.
func (v *verifier) gatherMark(p engine.Pair, h keys.Hash) {
	m, err := blob.DecodeMark(p.Key, p.Value)
	if err == nil && m.Condemned {
		v.Condemned++
	}
	v.marks = append(v.marks, storedBlob{h, m.Parts})
}

// reportDamaged reports the damaged records of the scan as problems. A record of another
// format version is an error instead: the check can't tell what the record says.
func (v *verifier) reportDamaged() error {
	var otherVersion error
	for i := range v.damaged {
		r := &v.damaged[i]
		switch {
		case !errors.Is(r.err, damage.ErrFormat):
			v.problem(r.err, "%s", v.describe(r))
		case otherVersion == nil:
			otherVersion = codec.Corrupt(r.err, "%s", v.describe(r))
		}
	}
	return otherVersion
}

// describe names a record by its kind, by what it belongs to, and by its key.
func (v *verifier) describe(r *badRecord) string {
	what := "record"
	if r.fields != nil {
		what = recordNames[r.letter] + v.describeOwner(r)
	}
	return fmt.Sprintf("%s at key %x", what, r.key)
}

// describeOwner returns what a record belongs to, as an addition to its name, or "".
func (v *verifier) describeOwner(r *badRecord) string {
	if inc, owned := owner(r.letter, r.fields); owned {
		return " of " + v.name(inc)
	}
	switch r.letter {
	case keys.Edge:
		if r.fields[16] == 's' {
			return fmt.Sprintf(" of %s to the blob at %x", v.name(head.Incarnation(r.fields[17:])), r.fields[:16])
		}
	case keys.Upload:
		if name := v.names[head.Incarnation(r.fields)]; name != "" {
			return " of " + name
		}
	case keys.About, keys.Head, keys.Predecessor:
		of := fmt.Sprintf(" of the session at %x", r.fields)
		for inc, life := range v.lives {
			if life.Session == keys.Hash(r.fields) {
				of += ", " + v.name(inc)
			}
		}
		return of
	}
	return ""
}
