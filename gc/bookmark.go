package gc

import (
	"slices"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A bookmark says how far the index follows a session. The next collection compares it with
// the records of the session, and takes over the difference:
//
//	revision, commit   against the head: commits to read, by index
//	floor, kept        against the lifecycle record and kept revisions: parts to drop, by retain
//	held               against the forks of a deleted session: edges to drop, by release
//	stones             against the lifecycle record: content to erase, by vacuum
//
// It is written after the edges of the commits up to its revision: a cycle that is cut off
// before reads these commits again, and finds that their edges are there. Only collectors
// write bookmarks, so their batches need not guard them.
type bookmark struct {
	revision head.Revision   // The commits up to this one are in the index.
	commit   head.CommitID   // The id of the last of them. It is not stored: the commit's record tells it.
	floor    head.Revision   // The floor when checkpoint parts below it were dropped last.
	kept     []head.Revision // The revisions kept by name at that time, ascending.
	held     head.Revision   // Of a deleted session: edges of later revisions are gone. open if the session lives.
	stones   uint64          // How many tombstones the session had.
	due      due             // The work that is due for vacuum on the session.
	parts    []part          // The checkpoint at revision.
}

// live reports whether the session lived when the bookmark was written.
func (m *bookmark) live() bool { return m.held == head.Revision(open) }

// unread returns the bookmark of a session that the index does not have yet.
func unread() bookmark { return bookmark{held: head.Revision(open)} }

// maxKept bounds the revisions of a session that are kept by name in a bookmark. A decoder
// refuses more, so that a damaged length does not make it allocate.
const maxKept = 1 << 16

// encode returns the record of m for key. docs/format.md has its fields. A part that needs no
// blob has null in place of the blob's hash.
func (m *bookmark) encode(key []byte) []byte {
	var e codec.Encoder
	e.Array(7)
	e.Uint(uint64(m.revision))
	e.Uint(uint64(m.floor))
	e.Array(len(m.kept))
	for _, r := range m.kept {
		e.Uint(uint64(r))
	}
	e.Uint(uint64(m.held))
	e.Uint(m.stones)
	e.Uint(uint64(m.due))
	e.Array(len(m.parts))
	for _, p := range m.parts {
		e.Array(2)
		e.Text(p.name)
		if p.blob == (keys.Hash{}) {
			e.Null()
		} else {
			e.Bytes(p.blob[:])
		}
	}
	return codec.Encode(key, keys.Bookmark, e.B)
}

// decodeBookmark decodes the record of key.
func decodeBookmark(key, value []byte) (m bookmark, err error) {
	body, err := codec.Decode(key, value, keys.Bookmark)
	if err != nil {
		return m, err
	}
	d := codec.Decoder{B: body}
	d.Shape(7)
	m.revision, m.floor = head.Revision(d.Uint()), head.Revision(d.Uint())
	m.kept = make([]head.Revision, d.Array(maxKept))
	for i := range m.kept {
		m.kept[i] = head.Revision(d.Uint())
	}
	m.held, m.stones = head.Revision(d.Uint()), d.Uint()
	if m.due = due(d.Uint()); m.due >= dueEnd {
		d.Fail("due %d", m.due)
	}
	m.parts = make([]part, d.Array(head.MaxParts))
	for i := range m.parts {
		d.Shape(2)
		if m.parts[i].name = d.Text(); !d.Null() {
			d.Fixed(m.parts[i].blob[:])
		}
	}
	return m, d.Done()
}

// sameBookmark reports whether a and b are equal but for their parts, which follow from the
// revision.
func sameBookmark(a, b *bookmark) bool {
	return a.revision == b.revision && a.floor == b.floor && slices.Equal(a.kept, b.kept) && a.held == b.held && a.stones == b.stones && a.due == b.due
}
