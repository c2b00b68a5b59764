package bundle

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/commit"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/session"
)

// A Source is a session to write to a bundle.
type Source struct {
	ID  string
	Inc head.Incarnation // of the session, or zero: then it is the one that has the id
	// Since is a revision that the other side has: only what comes after it is written.
	Since head.Revision
	There bool // The other side has the session, perhaps before its first commit.
}

// A Written says what Write has written.
type Written struct {
	Sessions int
	Commits  int
	Nodes    int
	Blobs    int
	Content  int64       // bytes of payloads, attachments, and versions of checkpoint parts
	Expanded int64       // bytes of all, before compression
	Heads    []head.Base // of the sessions, in the order of the sources
}

// Write writes a bundle of sessions to w, as they stand now. A fork follows its parent if that is among them; else it
// comes with a copy of what it inherits. The error matches history.ErrConflict if a session was changed meanwhile by
// more than commits, so that what was to be written is gone: then what has been written is of no use.
func Write(ctx context.Context, st history.Store, w io.Writer, of []Source) (*Written, error) {
	z, ok := compressors.Get().(*zstd.Encoder)
	if ok {
		z.Reset(w)
	} else {
		var err error
		if z, err = compressor(w, zstd.SpeedBestCompression); err != nil {
			return nil, err
		}
	}
	b := &writer{Store: st.Uncached(), frames: frameWriter{w: z, sum: codec.BundleHash.New()}, sent: map[blob.ID]bool{}, number: map[head.Incarnation]int{}}
	if err := b.open(ctx, of); err != nil {
		return nil, err
	}
	if _, err := io.WriteString(w, Magic); err != nil {
		return nil, err
	}
	for _, s := range b.sources {
		if err := b.writeSource(ctx, s); err != nil {
			return nil, b.unlessChanged(ctx, s, err)
		}
	}
	sum := b.frames.sum.Sum()
	b.frames.sum = nil
	if err := b.frames.write(kindBundleEnd, bundleEnd(b.sections, sum)); err != nil {
		return nil, err
	}
	b.written.Expanded = b.frames.n
	if err := z.Close(); err != nil {
		return nil, err
	}
	z.Reset(nil)
	compressors.Put(z)
	return &b.written, nil
}

// compressors has the compressors of bundles that are written: to make one takes as long as to write a small session.
var compressors sync.Pool

// A writer is one call of Write.
type writer struct {
	history.Store
	frames   frameWriter
	sources  []*source
	copies   []*inherited
	number   map[head.Incarnation]int // of the sections of sessions that are written
	sections int                      // that are written
	sent     map[blob.ID]bool
	written  Written
}

// An inherited is what sessions of the bundle inherit of ancestors that are not in it.
type inherited struct {
	of      history.Inherited
	viewers []*source
	number  int // of its section, once it is written
}

// open opens the sessions, and puts parents before their forks.
func (b *writer) open(ctx context.Context, of []Source) error {
	by := map[head.Incarnation]*source{}
	var opened []*source
	for _, from := range of {
		s, err := b.openSource(ctx, from)
		if err != nil {
			return err
		}
		if by[s.Inc] != nil {
			return history.NewInvalid("bundle", "session %q twice", from.ID)
		}
		if s.about, err = b.about(ctx, s); err != nil {
			return err
		}
		by[s.Inc] = s
		opened = append(opened, s)
		b.written.Heads = append(b.written.Heads, s.head.Base)
	}
	placed := map[*source]bool{}
	var place func(s *source) error
	place = func(s *source) error {
		if placed[s] {
			return nil
		}
		placed[s] = true
		p := by[s.about.Parent]
		if p != nil {
			if err := place(p); err != nil {
				return err
			}
		}
		if o := s.Origin; o != nil && len(o.Ancestors) > 0 {
			follows, err := b.follows(ctx, s, p)
			switch {
			case err != nil:
				return err
			case follows:
				s.parent = p
			case s.since.Revision == 0:
				s.copied = b.copyFor(o.Ancestors)
			}
		}
		b.sources = append(b.sources, s)
		return nil
	}
	for _, s := range opened {
		if err := place(s); err != nil {
			return err
		}
	}
	for _, s := range b.sources {
		for at := s; at != nil; at = at.parent {
			if at.copied != nil {
				at.copied.viewers = append(at.copied.viewers, s)
			}
		}
	}
	return nil
}

// follows reports whether a fork shares what it inherits with its parent p, if p is in the bundle. Where the parent is
// already, it must hide the same nodes as when the fork was made, and what is pruned is a matter of each store.
func (b *writer) follows(ctx context.Context, s, p *source) (bool, error) {
	if p == nil || !s.inheritsFrom(p) {
		return false, nil
	}
	if s.since.Revision > 0 || !p.there {
		return true, nil
	}
	seen := s.Origin.Ancestors[len(s.Origin.Ancestors)-1].Epoch
	stones, err := b.stonesOf(ctx, p.Inc)
	return !slices.ContainsFunc(stones, func(t commit.Stone) bool {
		return t.Pruned || t.Epoch > seen && t.Epoch <= p.life.Epoch
	}), err
}

// copyFor returns the copy of what some ancestors share.
func (b *writer) copyFor(of []head.Ancestor) *inherited {
	for _, c := range b.copies {
		if slices.Equal(c.of.Ancestors, of) {
			return c
		}
	}
	c := &inherited{of: history.Inherited{Store: b.Store, Ancestors: of}}
	b.copies = append(b.copies, c)
	return c
}

// writeSource writes the section of a session, after that of the copy that it needs.
func (b *writer) writeSource(ctx context.Context, s *source) error {
	if s.copied != nil && s.copied.number == 0 {
		if err := b.writeCopy(ctx, s.copied); err != nil {
			return err
		}
	}
	stones, err := b.stonesOf(ctx, s.Inc)
	if err != nil {
		return err
	}
	stones = slices.DeleteFunc(stones, func(t commit.Stone) bool { return t.Epoch > s.life.Epoch }) // set meanwhile
	out := &section{
		genesis: head.Genesis(s.Inc, s.Origin), epoch: s.life.Epoch, floor: s.life.Floor, bytes: s.head.Bytes,
		about: s.about, parent: b.number[s.about.Parent],
	}
	if s.since.Revision > 0 {
		out.since = s.since.Base
	} else if o := s.Origin; o != nil && len(o.Ancestors) > 0 {
		out.origin = o
		if s.copied != nil {
			out.copied = s.copied.number
		}
		if s.parent != nil {
			if out.sees, err = b.seen(ctx, out.own()); err != nil {
				return err
			}
		}
	}
	if err := b.frames.write(kindSection, out.encode()); err != nil {
		return err
	}
	b.sections++
	b.number[s.Inc] = b.sections
	b.written.Sessions++
	for some := range slices.Chunk(stones, listed) {
		if err := b.frames.write(kindStones, encodeStones(some)); err != nil {
			return err
		}
	}
	for some := range slices.Chunk(s.kept, listed) {
		if err := b.frames.write(kindKept, encodeKept(some)); err != nil {
			return err
		}
	}
	if s.since.Revision == 0 && s.Origin != nil {
		for _, p := range s.Origin.Parts {
			if !s.needed(p) {
				continue
			}
			if err := b.writeBlob(ctx, p.Blob, p.Size); err != nil {
				return err
			}
			s.current[p.Name] = p
		}
	}
	turns, err := b.writeTurns(ctx, s)
	if err != nil {
		return err
	}
	if err := b.writeRecords(ctx, s); err != nil {
		return err
	}
	return turns.end()
}

// about reads the metadata of a session.
func (b *writer) about(ctx context.Context, s *source) (*head.About, error) {
	vs, err := b.Engine.Get(ctx, s.AboutKey)
	if err != nil {
		return nil, err
	}
	if vs[0] == nil {
		return nil, fmt.Errorf("%w: %q", history.ErrSessionDeleted, s.ID)
	}
	about, err := s.DecodeAbout(vs[0])
	if err == nil && about.Incarnation != s.Inc {
		err = fmt.Errorf("%w: %q", history.ErrSessionDeleted, s.ID)
	}
	return about, err
}

// stonesOf reads the tombstones of an incarnation.
func (b *writer) stonesOf(ctx context.Context, inc head.Incarnation) (out []commit.Stone, err error) {
	for p, err := range b.Engine.Scan(ctx, b.Space.Of(keys.Tombstone, inc)) {
		if err != nil {
			return nil, err
		}
		id, stone, err := history.DecodeStone(b.Space, p)
		if err != nil {
			return nil, err
		}
		out = append(out, commit.Stone{ID: id, Tombstone: stone})
	}
	return out, nil
}

// seen returns what a fork sees of the own tombstones of its parent.
func (b *writer) seen(ctx context.Context, a *head.Ancestor) (*stonesSum, error) {
	stones, err := b.stonesOf(ctx, a.Incarnation)
	if err != nil {
		return nil, err
	}
	var ids [][8]byte
	for _, s := range stones {
		if s.Epoch <= a.Epoch {
			ids = append(ids, s.ID)
		}
	}
	sum := sumOf(ids)
	return &sum, nil
}

// forget removes the content of those nodes of a turn of p that no session of the bundle shows. The error matches
// history.ErrConflict if one of them shows a node that was erased since the bundle was begun.
func (b *writer) forget(p *source, t *history.Turn) error {
	for i := range t.Pack.Nodes {
		n := &t.Pack.Nodes[i]
		if !n.Erased && !p.hidden.Has(n.ID) {
			continue
		}
		at := graph.Position{Revision: uint64(t.Revision), Index: i}
		shown := slices.ContainsFunc(b.sources, func(s *source) bool { return s.shows(p, at, n.ID) })
		switch {
		case n.Erased && (shown || !p.hidden.Has(n.ID)):
			return erased(p.ID, n.ID)
		case !shown:
			t.Pack.Erase(i)
		}
	}
	return nil
}

// erased says that a node of a session was erased while the session was written.
func erased(session string, id graph.ID) error {
	return fmt.Errorf("%w: node %s of session %q was erased while it was written", history.ErrConflict, id, session)
}

// writeTurns writes the turns of a session, each after the blobs and versions that it needs.
func (b *writer) writeTurns(ctx context.Context, s *source) (*group, error) {
	g := &group{b: b, base: s.since.Base}
	of := history.Revisions{Inc: s.Inc, Name: s.Name, After: s.since.Revision, Last: s.head.Revision, Previous: s.since.Commit}
	err := s.Reader.Turns(ctx, of, func(t *history.Turn) error {
		if err := b.forget(s, t); err != nil {
			return err
		}
		if err := b.writeContents(ctx, s, t); err != nil {
			return err
		}
		return g.add(t)
	})
	if err == nil {
		err = g.flush()
	}
	if err == nil && g.base.Commit != s.head.Commit {
		err = codec.Corrupt(damage.ErrHash, "commit %d of %s", s.head.Revision, s.Name)
	}
	b.written.Commits += int(g.turns)
	b.written.Nodes += int(g.nodes)
	return g, err
}

// A group gathers turns for a frame.
type group struct {
	b            *writer
	base         head.Base // after the turns that were written
	turns, nodes uint64    // that were added
	waiting      []history.Turn
	size         int
	together     int // as history.MaxTogether counts
}

const groupBytes = 512 << 10

func (g *group) add(t *history.Turn) error {
	size, n := history.SizeOf(t), 1+len(t.Pack.Nodes)+len(t.Parts)+len(t.Usage)+len(t.Labels)
	if len(g.waiting) > 0 && (g.size+size > groupBytes || g.together+n > history.MaxTogether) {
		if err := g.flush(); err != nil {
			return err
		}
	}
	g.waiting, g.size, g.together = append(g.waiting, *t), g.size+size, g.together+n
	g.turns, g.nodes = g.turns+1, g.nodes+uint64(len(t.Pack.Nodes))
	for i := range t.Pack.Nodes {
		g.b.written.Content += int64(len(t.Pack.Nodes[i].Inline))
	}
	return nil
}

func (g *group) flush() error {
	if len(g.waiting) == 0 {
		return nil
	}
	if err := g.b.frames.write(kindTurns, history.EncodeTurns(g.waiting, g.base)); err != nil {
		return err
	}
	last := &g.waiting[len(g.waiting)-1]
	g.base, g.waiting, g.size, g.together = last.Base(last.ID), nil, 0, 0
	return nil
}

// end writes the end of the section.
func (g *group) end() error {
	return g.b.frames.write(kindEnd, (&end{g.turns, g.nodes, g.base}).encode())
}

// writeContents writes the blobs that a turn refers to, and the versions of checkpoint parts that it sets, as far as the
// other side needs them.
func (b *writer) writeContents(ctx context.Context, s *source, t *history.Turn) error {
	for i := range t.Pack.Nodes {
		n := &t.Pack.Nodes[i]
		if !n.Blob.IsZero() {
			if err := b.writeBlob(ctx, n.Blob, n.Size); err != nil {
				return err
			}
		}
		for _, a := range n.Attachments {
			if err := b.writeBlob(ctx, a.ID, a.Size); err != nil {
				return err
			}
		}
	}
	for _, p := range t.Parts {
		if p.Set != t.Revision || !s.needed(p) {
			continue
		}
		var err error
		if head.IsDelta(p) {
			err = b.writeVersion(ctx, s, p)
		} else {
			err = b.writeBlob(ctx, p.Blob, p.Size)
		}
		if err != nil {
			return err
		}
		s.current[p.Name] = p
	}
	return nil
}

// writeBlob writes a blob, unless the bundle has it.
func (b *writer) writeBlob(ctx context.Context, id blob.ID, size int64) error {
	if b.sent[id] {
		return nil
	}
	b.sent[id] = true
	b.written.Blobs++
	b.written.Content += size
	if err := b.frames.write(kindBlob, blobFrame(id, size)); err != nil {
		return err
	}
	n, err := b.Blobs.WriteTo(ctx, pieces{&b.frames}, id)
	if err == nil && n != size {
		err = codec.Corrupt(fmt.Errorf("%w: %d bytes, not %d", damage.ErrMalformed, n, size), "blob %s", id)
	}
	return err
}

// pieces writes content as frames.
type pieces struct{ *frameWriter }

func (p pieces) Write(content []byte) (int, error) { return len(content), p.data(content) }

// writeVersion writes a version that a session stores itself: as the delta that it is, if the other side has what that is
// relative to, or else whole.
func (b *writer) writeVersion(ctx context.Context, s *source, p head.Part) error {
	out := version{part: p.Name, revision: p.Set, base: p.Set}
	var data []byte
	for v, err := range b.Blobs.Versions(ctx, s.Chain(p.Name), uint64(p.Set), uint64(p.Set)) {
		if err != nil {
			return err
		}
		if base, has := s.current[p.Name]; v.IsDelta() && has && base.Set == head.Revision(v.Base) {
			data, out.base, out.baseID = v.Data(), base.Set, base.Blob
		}
	}
	if data == nil {
		content, _, err := s.ReadPart(ctx, p)
		if err != nil {
			return err
		}
		data = codec.Plain(content)
	}
	out.size = int64(len(data))
	b.written.Content += p.Size
	if err := b.frames.write(kindVersion, out.encode()); err != nil {
		return err
	}
	return b.frames.data(data)
}

// writeRecords writes the records of a session.
func (b *writer) writeRecords(ctx context.Context, s *source) error {
	const most = 1 << 20 // bytes of a frame
	var some []*session.Record
	size := 0
	flush := func() error {
		if len(some) == 0 {
			return nil
		}
		err := b.frames.write(kindRecords, encodeRecords(some))
		some, size = nil, 0
		return err
	}
	for p, err := range b.Engine.Scan(ctx, b.Space.Of(keys.Record, s.Inc)) {
		if err != nil {
			return err
		}
		_, fields, _ := b.Space.Fields(p.Key)
		_, text := keys.RecordFields(fields)
		r, err := session.DecodeRecord(p.Key, text, p.Value)
		if err != nil {
			return codec.Corrupt(err, "record %q of %s", text, s.Name)
		}
		if n := len(r.Key) + len(r.Value) + 64; len(some) == listed || size+n > most {
			if err := flush(); err != nil {
				return err
			}
		}
		some, size = append(some, r), size+len(r.Key)+len(r.Value)+64
	}
	return flush()
}

// writeCopy writes a copy of what sessions inherit.
func (b *writer) writeCopy(ctx context.Context, c *inherited) error {
	stones, err := c.of.Tombstones(ctx)
	if err != nil {
		return err
	}
	unseen := func(id graph.ID) bool {
		return !slices.ContainsFunc(c.viewers, func(s *source) bool { return !s.hidden.Has(id) })
	}
	if err := b.frames.write(kindSection, (&section{copy: true}).encode()); err != nil {
		return err
	}
	b.sections++
	c.number = b.sections
	var list []commit.Stone
	for id, s := range stones {
		list = append(list, commit.Stone{ID: id, Tombstone: s})
	}
	slices.SortFunc(list, func(a, b commit.Stone) int {
		return cmp.Or(bytes.Compare(a.ID[:], b.ID[:]), cmp.Compare(a.Epoch, b.Epoch))
	})
	for some := range slices.Chunk(list, listed) {
		for i := range some {
			some[i].Epoch = 0 // Those of several ancestors say nothing together.
		}
		if err := b.frames.write(kindStones, encodeStones(some)); err != nil {
			return err
		}
	}
	end := head.Begin(head.Incarnation{}, nil)
	g := group{b: b, base: end.Base}
	err = c.of.Turns(ctx, func(ctx context.Context, t *history.Turn, parts []head.Part, cut int) error {
		out := history.Copied(t, parts, cut, &end, unseen)
		for i := range out.Pack.Nodes {
			n := &out.Pack.Nodes[i]
			if n.Erased && !unseen(n.ID) {
				return erased(c.viewers[0].ID, n.ID)
			}
			if !n.Blob.IsZero() {
				if err := b.writeBlob(ctx, n.Blob, n.Size); err != nil {
					return err
				}
			}
			for _, a := range n.Attachments {
				if err := b.writeBlob(ctx, a.ID, a.Size); err != nil {
					return err
				}
			}
		}
		next, err := end.Then(&out.Commit, out.ID)
		if err != nil {
			return err
		}
		end = next
		return g.add(&out)
	})
	if err == nil {
		err = g.flush()
	}
	if err != nil {
		return err
	}
	b.written.Nodes += int(g.nodes)
	return g.end()
}
