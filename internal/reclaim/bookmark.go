package reclaim

import (
	"slices"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A bookmark says how far the index follows a session.
type bookmark struct {
	revision head.Revision   // commits up to here are in the index
	commit   head.CommitID   // of the last of them; not stored: the record says it
	floor    head.Revision   // edges of revisions below were looked at
	kept     []head.Revision // those kept by name when they were, ascending
	held     head.Revision   // of a deleted session: edges of later revisions are gone; open for one that lives
	stones   uint64          // tombstones of the session that were seen
	due      due             // what vacuum has to do
	parts    []part          // the checkpoint at revision
}

func (m *bookmark) seal(key []byte) []byte {
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
	return codec.Seal(key, keys.Bookmark, e.B)
}

func openBookmark(key, value []byte) (m bookmark, err error) {
	body, err := codec.Open(key, value, keys.Bookmark)
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
	m.parts = make([]part, d.Array(heads.MaxParts))
	for i := range m.parts {
		d.Shape(2)
		if m.parts[i].name = d.Text(); !d.Null() {
			d.Fixed(m.parts[i].blob[:])
		}
	}
	return m, d.Done()
}

// maxKept bounds the revisions of a session that are kept by name in a bookmark.
const maxKept = 1 << 16

func sameBookmark(a, b *bookmark) bool {
	return a.revision == b.revision && a.floor == b.floor && slices.Equal(a.kept, b.kept) && a.held == b.held && a.stones == b.stones && a.due == b.due
}
