package gc_test

import (
	"fmt"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

var (
	blobSum     = blob.Sum
	blobExpired = blob.ErrExpired
)

// A model derives from the records alone which of them must be there and which must not. It
// shares no code with package gc but the decoding of records.
type model struct {
	e     engine.Engine
	space *keys.Space
	want  map[keys.Hash]string // blobs that must be there, and why
	root  map[keys.Hash]string // those that a chain of deltas begins with
	vers  map[string]string    // keys of versions of checkpoint parts that sessions store, and why
	sess  map[head.Incarnation]bool
	views []*view
	packs map[head.Incarnation][]graph.Pack // that were read
}

// reachable checks that everything that must be there is; with exact, also that
// nothing else is.
func reachable(e engine.Engine, exact bool) error {
	space, err := spaceOf(e)
	if err != nil {
		return err
	}
	m := &model{
		e: e, space: space, want: map[keys.Hash]string{}, root: map[keys.Hash]string{}, vers: map[string]string{},
		sess: map[head.Incarnation]bool{}, packs: map[head.Incarnation][]graph.Pack{},
	}
	if err := m.each(keys.Head, m.session); err != nil {
		return err
	}
	if err := m.contents(exact); err != nil {
		return err
	}
	if err := m.uploads(exact); err != nil {
		return err
	}
	if err := m.records(exact); err != nil {
		return err
	}
	if err := m.blobs(exact); err != nil || !exact {
		return err
	}
	return m.strays()
}

// records checks that each record and its entry in the list of all are both there, and belong to an
// incarnation that has a lifecycle record; if exact, to a session that lives.
func (m *model) records(exact bool) error {
	live := map[head.Incarnation]bool{}
	err := m.each(keys.Head, func(p engine.Pair, _ []byte) error {
		h, err := head.DecodeHead(p.Key, p.Value)
		if err == nil {
			live[h.Incarnation] = true
		}
		return err
	})
	if err != nil {
		return err
	}
	both := func(inc head.Incarnation, name string) error {
		vs, err := m.e.Get(ctx, m.space.Record(inc, name), m.space.Listing(name, inc), m.space.Life(inc))
		switch {
		case err != nil:
			return err
		case vs[0] == nil || vs[1] == nil || vs[2] == nil:
			return fmt.Errorf("record %q of session %x: record %v, listing %v, lifecycle %v", name, inc[:4], vs[0] != nil, vs[1] != nil, vs[2] != nil)
		case exact && !live[inc]:
			return fmt.Errorf("record %q of session %x is left behind", name, inc[:4])
		}
		return nil
	}
	err = m.each(keys.Record, func(_ engine.Pair, fields []byte) error { return both(keys.RecordFields(fields)) })
	if err != nil {
		return err
	}
	return m.each(keys.Listing, func(_ engine.Pair, fields []byte) error {
		name, inc := keys.ListingFields(fields)
		return both(inc, name)
	})
}

// uploads adds the blobs that uploads pin to those that have to be there.
func (m *model) uploads(exact bool) error {
	uploads := map[head.Incarnation]bool{}
	return m.each(keys.Upload, func(p engine.Pair, fields []byte) error {
		pin, err := blob.DecodePin(p.Key, p.Value)
		inc := head.Incarnation(fields[:16])
		switch pin.Kind {
		case blob.Uploading:
			uploads[inc] = true
		case blob.Grant:
			m.want[keys.Hash(fields[16:])] = "grant"
		case blob.Pinned:
			if uploads[inc] {
				m.want[keys.Hash(fields[16:])] = "upload"
			} else if exact {
				return fmt.Errorf("what a finished upload pinned is there")
			}
		}
		return err
	})
}

// blobs checks that every wanted blob is there, and wants the items of lists, too.
func (m *model) blobs(exact bool) error {
	for h, why := range m.root {
		if m.want[h] == "" && exact {
			return fmt.Errorf("blob %x is there for a delta only, of %s", h[:4], why)
		}
		m.want[h] = why + ", a delta of it"
	}
	queue := make([]keys.Hash, 0, len(m.want))
	for h := range m.want {
		queue = append(queue, h)
	}
	for len(queue) > 0 {
		h := queue[0]
		queue = queue[1:]
		key := m.space.Blob(h, 0)
		vs, err := m.e.Get(ctx, m.space.Mark(h), key)
		if err != nil {
			return err
		}
		if vs[0] == nil || vs[1] == nil {
			return fmt.Errorf("blob %x of %s is gone: mark %v, bytes %v", h[:4], m.want[h], vs[0] != nil, vs[1] != nil)
		}
		body, err := codec.Decode(key, vs[1], keys.Blob)
		if err != nil {
			return err
		}
		d := codec.Decoder{B: body}
		d.Shape(5)
		d.ID()
		d.Uint() // size
		d.Uint() // number of values
		items := 0
		if !d.Null() {
			items = d.Array(1000)
		}
		for range items {
			d.Shape(2)
			item := m.space.BlobHash(d.ID())
			d.Uint()
			if m.want[item] == "" {
				m.want[item] = fmt.Sprintf("%x, which is of %s", h[:4], m.want[h])
				queue = append(queue, item)
			}
		}
		if err := d.Err(); err != nil {
			return err
		}
	}
	return nil
}

// strays returns an error if there is a record that nothing wants.
func (m *model) strays() error {
	if err := m.strayPacks(); err != nil {
		return err
	}
	for _, letter := range []byte{keys.Mark, keys.Blob} {
		err := m.each(letter, func(_ engine.Pair, fields []byte) error {
			if m.want[keys.Hash(fields)] == "" {
				return fmt.Errorf("record %q of blob %x is left behind", letter, fields[:4])
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	err := m.each(keys.Version, func(p engine.Pair, fields []byte) error {
		first := append(append([]byte(nil), p.Key[:len(p.Key)-1]...), 0)
		if m.vers[string(first)] == "" {
			return fmt.Errorf("version %x of a checkpoint part of session %x is left behind", fields[32:], fields[:4])
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, letter := range []byte{keys.Segment, keys.Life, keys.Index, keys.Origin, keys.Bookmark} {
		err := m.each(letter, func(_ engine.Pair, fields []byte) error {
			if !m.sess[head.Incarnation(fields)] {
				return fmt.Errorf("record %q of session %x is left behind", letter, fields[:4])
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, letter := range []byte{keys.Candidate, keys.Detached, keys.Dirty, keys.Stale, keys.Loose} {
		err := m.each(letter, func(_ engine.Pair, fields []byte) error {
			return fmt.Errorf("record %q of %x is left behind", letter, fields[:4])
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func spaceOf(e engine.Engine) (*keys.Space, error) {
	key := keys.StoreKey("")
	vs, err := e.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	body, err := codec.Decode(key, vs[0], keys.Store)
	if err != nil {
		return nil, err
	}
	d := codec.Decoder{B: body}
	var id [16]byte
	var secret [codec.HashSize]byte
	d.Shape(7)
	d.Uint()
	d.Fixed(id[:])
	d.Text()
	d.Fixed(secret[:])
	return keys.New("", secret), d.Err()
}

func (m *model) each(letter byte, f func(engine.Pair, []byte) error) error {
	for p, err := range m.e.Scan(ctx, m.space.All(letter)) {
		if err != nil {
			return err
		}
		_, fields, ok := m.space.Fields(p.Key)
		if !ok {
			return fmt.Errorf("key %x", p.Key)
		}
		if err := f(p, fields); err != nil {
			return err
		}
	}
	return nil
}

// session wants the blobs and versions that a session that lives refers to.
func (m *model) session(p engine.Pair, _ []byte) error {
	h, err := head.DecodeHead(p.Key, p.Value)
	if err != nil {
		return err
	}
	inc := h.Incarnation
	m.sess[inc] = true
	why := fmt.Sprintf("session %x", inc[:4])
	lifeKey, originKey := m.space.Life(inc), m.space.Origin(inc)
	vs, err := m.e.Get(ctx, lifeKey, originKey)
	if err != nil {
		return err
	}
	life, err := head.DecodeLife(lifeKey, vs[0])
	if err != nil {
		return fmt.Errorf("lifecycle of %s: %w", why, err)
	}
	now := map[string]head.Part{}
	v := &view{inc: inc, floor: life.Floor, last: h.Revision, stones: map[[8]byte]bool{}}
	m.views = append(m.views, v)
	if vs[1] != nil {
		o, err := head.DecodeOrigin(originKey, vs[1])
		if err != nil {
			return err
		}
		for _, part := range o.Parts {
			now[part.Name] = part
			if h.Revision == 0 || life.Floor == 0 { // else only its own revisions can be read
				m.want[m.space.BlobHash(part.Blob)] = why + " (at its fork)"
			}
		}
		for _, a := range o.Ancestors {
			m.sess[a.Incarnation] = true
			v.ancestors = append(v.ancestors, a)
			if err := m.commits(a.Incarnation, a.Revision, why+" (inherited)"); err != nil {
				return err
			}
		}
	}
	refs := map[head.Revision]bool{}
	err = m.each(keys.Ref, func(p engine.Pair, fields []byte) error {
		r, err := head.DecodeKept(p.Key, p.Value)
		if err == nil && head.Incarnation(fields[:16]) == inc {
			refs[r.Revision] = true
			v.named = max(v.named, r.Revision)
		}
		return err
	})
	if err != nil {
		return err
	}
	for _, part := range h.Parts {
		if err := m.part(inc, part, why+" (now)"); err != nil {
			return err
		}
	}
	for r := head.Revision(1); r <= h.Revision; r++ {
		c, err := m.commit(inc, r)
		if err != nil {
			return fmt.Errorf("commit %d of %s: %w", r, why, err)
		}
		if c.PartsAt == r {
			next := map[string]head.Part{}
			for _, part := range c.Parts {
				if next[part.Name] = part; part.Blob.IsZero() {
					next[part.Name] = now[part.Name]
				}
			}
			now = next
		}
		if r >= life.Floor {
			v.leaves = append(v.leaves, c.Leaf)
		}
		if r >= life.Floor || refs[r] {
			for _, part := range now {
				if err := m.part(inc, part, fmt.Sprintf("%s (revision %d)", why, r)); err != nil {
					return err
				}
			}
		}
	}
	return m.commits(inc, h.Revision, why)
}

// part wants a version of a checkpoint part: the blob, or what the session stores of it.
func (m *model) part(inc head.Incarnation, part head.Part, why string) error {
	if part.Whole == part.Set {
		m.want[m.space.BlobHash(part.Blob)] = why
		return nil
	}
	name := m.space.PartHash(part.Name)
	m.vers[string(m.space.Version(inc, name, uint64(part.Set), 0))] = why
	for at := uint64(part.Set); at != uint64(part.Whole); {
		key := m.space.Version(inc, name, at, 0)
		vs, err := m.e.Get(ctx, key)
		if err != nil {
			return err
		}
		body, err := codec.Decode(key, vs[0], keys.Version)
		if err != nil {
			return fmt.Errorf("version %d of part %q, for version %d of %s: %w", at, part.Name, part.Set, why, err)
		}
		distance, _ := codec.Uvarint(body)
		if distance == 0 {
			return nil
		}
		at -= distance
	}
	var from []head.Part
	if part.Whole == 0 {
		key := m.space.Origin(inc)
		vs, err := m.e.Get(ctx, key)
		if err != nil {
			return err
		}
		o, err := head.DecodeOrigin(key, vs[0])
		if err != nil {
			return err
		}
		from = o.Parts
	} else {
		c, err := m.commit(inc, part.Whole)
		if err != nil {
			return err
		}
		from = c.Parts
	}
	for _, root := range from {
		if root.Name == part.Name {
			m.root[m.space.BlobHash(root.Blob)] = why
		}
	}
	return nil
}

func (m *model) commit(inc head.Incarnation, r head.Revision) (*history.Turn, error) {
	s, err := history.Reader{Engine: m.e, Space: m.space}.At(ctx, inc, "", r)
	if err != nil {
		return nil, err
	}
	return s.Turn(r), nil
}

// history wants the nodes of a session up to a revision.
func (m *model) commits(inc head.Incarnation, last head.Revision, why string) error {
	packs, err := m.packsOf(inc)
	if err != nil {
		return err
	}
	nodes := map[uint64]int{}
	for i := range packs {
		p := &packs[i]
		nodes[p.Revision] += len(p.Nodes)
		for j := range p.Nodes {
			for _, id := range p.Nodes[j].Blobs() {
				if p.Revision <= uint64(last) {
					m.want[m.space.BlobHash(id)] = why
				}
			}
		}
	}
	for r := head.Revision(1); r <= last; r++ {
		c, err := m.commit(inc, r)
		if err != nil {
			return fmt.Errorf("commit %d of %x, of %s: %w", r, inc[:4], why, err)
		}
		if c.Nodes != nodes[uint64(r)] {
			return fmt.Errorf("%d of %d nodes of commit %d of %x, of %s", nodes[uint64(r)], c.Nodes, r, inc[:4], why)
		}
	}
	return nil
}
