package foreign

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Commits reads the commits of an incarnation that is no fork from its segments alone, up to a revision.
func Commits(pairs map[string][]byte, namespace string, inc [16]byte, revision uint64) ([]Commit, error) {
	sum := derived("namespace", []byte(namespace))
	s := &Store{pairs: pairs, prefix: string(sum[:4])}
	return s.commits(inc, revision, derived("genesis", inc[:]))
}

// commits returns the commits of an incarnation up to a revision, and checks that they are a chain from genesis on.
func (s *Store) commits(inc [16]byte, revision uint64, genesis ID) ([]Commit, error) {
	all, err := s.segments(inc, revision)
	if err != nil {
		return nil, err
	}
	before := genesis
	for i := range all {
		if c := &all[i]; c.Previous != before {
			return nil, fmt.Errorf("commit %d follows %x, and not %x", c.Revision, c.Previous, before)
		}
		before = all[i].ID
	}
	return all, nil
}

// A state is what the first turn of a sealed segment builds on, or where the session stood after the last one.
type state struct {
	commit, leaf, last ID
	depth              uint64
	partsAt, time      uint64
}

func (r *row) state() (s state) {
	s.commit = r.id()
	s.leaf, s.last = r.ends()
	s.depth = r.uint()
	s.partsAt, s.time = r.uint(), r.uint()
	return s
}

// segments reads the commits of an incarnation up to a revision.
func (s *Store) segments(inc [16]byte, revision uint64) (out []Commit, err error) {
	var lasts []uint64
	begin := s.prefix + "p" + string(inc[:])
	for key := range s.pairs {
		if rest, ok := strings.CutPrefix(key, begin); ok && rest[8] == 0 {
			lasts = append(lasts, binary.BigEndian.Uint64([]byte(rest[:8])))
		}
	}
	slices.Sort(lasts)
	for _, last := range lasts {
		if uint64(len(out)) >= revision {
			break
		}
		if out, err = s.segment(inc, last, out); err != nil {
			return nil, fmt.Errorf("segment that ends with revision %d: %w", last, err)
		}
	}
	return out, nil
}

// segment appends the commits of a segment to those before.
func (s *Store) segment(inc [16]byte, last uint64, out []Commit) ([]Commit, error) {
	key := "p" + string(inc[:]) + be(last)
	b, err := s.must(key + "\x00")
	if err != nil {
		return nil, err
	}
	r := reader{b: b}
	first := last - r.uvarint()
	values := r.uvarint()
	level := values & 3
	values >>= 2
	if first != uint64(len(out))+1 && len(out) > 0 {
		return nil, fmt.Errorf("it begins with revision %d after %d", first, len(out))
	}
	front := r.b
	if level == 0 {
		front = r.take(r.uvarint())
	} else {
		r.b = nil
	}
	if r.err != nil {
		return nil, r.err
	}
	data := slices.Clone(r.b)
	for v := uint64(1); v < values; v++ {
		more, err := s.must(key + string(byte(v)))
		if err != nil {
			return nil, err
		}
		data = append(data, more...)
	}
	var structure, payloads []byte
	if len(data) > 0 {
		plain, err := expand(data, nil)
		if err != nil {
			return nil, err
		}
		p := reader{b: plain}
		structure = p.take(p.uvarint())
		if payloads = p.b; p.err != nil {
			return nil, p.err
		}
	}
	if level == 0 {
		c, err := loose(front, structure, payloads)
		return append(out, c), err
	}
	return s.sealed(inc, first, last, front, structure, payloads, out)
}

// loose reads a segment that one commit wrote.
func loose(front, structure, payloads []byte) (c Commit, err error) {
	r := bodyOf(front, 12)
	c.ID = derived("commit", front)
	c.Revision, c.Previous = r.uint(), r.id()
	c.Leaf, c.Last = r.ends()
	c.Depth = r.uint()
	count := r.uint()
	if d := r.ref(); d != (ID{}) {
		c.digest = &d
	}
	checkpoint := r.next()
	if at, ok := checkpoint.(uint64); ok {
		c.PartsAt = at
	} else {
		c.PartsAt = c.Revision
		r.items = append([]any{checkpoint}, r.items...)
		c.Parts = r.changed(c.Revision)
	}
	c.Usage, c.Turn, c.Labels, c.Time = r.usage(), r.text(), r.labels(), r.uint()
	if r.err != nil || count == 0 {
		return c, r.err
	}
	i, err := items(structure, 2)
	if err != nil {
		return c, err
	}
	if payloads, err = c.nodes(i[0], i[1], payloads, ID{}); err == nil && (len(payloads) > 0 || uint64(len(c.Nodes)) != count) {
		err = fmt.Errorf("%d nodes of %d, and %d bytes of payloads are left", len(c.Nodes), count, len(payloads))
	}
	if err == nil && c.chain() != (c.digest == nil) {
		err = errors.New("a node digest is there where the leaf vouches for the nodes, or is not there")
	}
	if err == nil && c.digest != nil && *c.digest != c.sum() {
		err = errors.New("the node digest does not match")
	}
	return c, err
}

// changed takes the checkpoint of a commit that changed it.
func (r *row) changed(revision uint64) []Part {
	out := []Part{}
	r.each(func(p *row) {
		one := Part{Name: p.text(), Set: p.uint()}
		if one.Set == revision {
			one.Blob, one.Size, one.Before = p.id(), p.uint(), p.uint()
		} else {
			for range 3 {
				if i := p.next(); i != nil {
					p.fail(fmt.Errorf("%v of a part that carries over", i))
				}
			}
		}
		out = append(out, one)
	}, 5)
	return out
}

// chain reports whether the nodes are one chain that ends in the leaf.
func (c *Commit) chain() bool {
	for i := range c.Nodes {
		if i > 0 && c.Nodes[i].Parent != c.Nodes[i-1].ID {
			return false
		}
	}
	return len(c.Nodes) == 0 || c.Nodes[len(c.Nodes)-1].ID == c.Leaf
}

func (c *Commit) sum() ID {
	var all [][]byte
	for i := range c.Nodes {
		all = append(all, c.Nodes[i].ID[:])
	}
	return derived("node", all...)
}

// sealed reads a segment that was made of others, and checks that it ends where it says.
func (s *Store) sealed(inc [16]byte, first, last uint64, front, structure, payloads []byte, out []Commit) ([]Commit, error) {
	e := bodyOf(front, 10)
	end := e.state()
	if e.err != nil {
		return nil, e.err
	}
	i, err := items(structure, 2)
	if err != nil {
		return nil, err
	}
	before := state{commit: derived("genesis", inc[:])}
	if i[0] != nil {
		b := array(i[0], 6)
		if before = b.state(); b.err != nil {
			return nil, b.err
		}
	} else if first != 1 {
		return nil, errors.New("it builds on nothing, and does not begin with revision 1")
	}
	turns := array(i[1], int(last-first+1))
	for r := first; r <= last && turns.err == nil; r++ {
		t := array(turns.next(), 9)
		leaf, longer, checkpoint := t.next(), t.signed(), t.next()
		c := Commit{Revision: r, Previous: before.commit, Depth: before.depth + uint64(longer), PartsAt: before.partsAt}
		if checkpoint != nil {
			p := row{items: []any{checkpoint}}
			c.Parts, c.PartsAt = p.changed(r), r
			t.fail(p.err)
		}
		c.Usage, c.Turn, c.Labels = t.usage(), t.text(), t.labels()
		c.Time = before.time + uint64(t.signed())
		salt, list := t.next(), t.next()
		if t.err != nil {
			return nil, fmt.Errorf("turn %d: %w", r, t.err)
		}
		if payloads, err = c.nodes(salt, list, payloads, before.last); err != nil {
			return nil, fmt.Errorf("turn %d: %w", r, err)
		}
		if c.Last = before.last; len(c.Nodes) > 0 {
			c.Last = c.Nodes[len(c.Nodes)-1].ID
		}
		switch l := leaf.(type) {
		case nil:
		case uint64:
			if c.Leaf = c.Last; l == 1 {
				c.Leaf = before.leaf
			}
		case []byte:
			c.Leaf = ID(l)
		}
		if c.Last == (ID{}) {
			c.Last = c.Leaf // the first leaf that the session had
		}
		c.ID = derived("commit", c.body())
		before = state{c.ID, c.Leaf, c.Last, c.Depth, c.PartsAt, c.Time}
		out = append(out, c)
	}
	if turns.err != nil || len(payloads) > 0 {
		return nil, fmt.Errorf("%d bytes of payloads are left: %w", len(payloads), turns.err)
	}
	if before != end {
		return nil, fmt.Errorf("it ends with %x, and not with %x", before.commit, end.commit)
	}
	return out, nil
}

// body encodes the commit, of which nodes are derived.
func (c *Commit) body() []byte {
	null := func(id ID) any {
		if id == (ID{}) {
			return nil
		}
		return id[:]
	}
	last := null(c.Last)
	if c.Last == c.Leaf {
		last = nil
	}
	var digest any
	if !c.chain() {
		d := c.sum()
		digest = d[:]
	}
	var checkpoint any = c.PartsAt
	if c.PartsAt == c.Revision {
		list := []any{}
		for _, p := range c.Parts {
			if p.Set == c.Revision {
				list = append(list, []any{p.Name, p.Set, p.Blob[:], p.Size, p.Before})
			} else {
				list = append(list, []any{p.Name, p.Set, nil, nil, nil})
			}
		}
		checkpoint = list
	}
	usage := []any{}
	for _, u := range c.Usage {
		usage = append(usage, []any{u.Model, u.Counts[0], u.Counts[1], u.Counts[2], u.Counts[3], u.Counts[4], u.Counts[5]})
	}
	labels := []any{}
	names := make([]string, 0, len(c.Labels))
	for name := range c.Labels {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		labels = append(labels, name, c.Labels[name])
	}
	return encoded([]any{c.Revision, c.Previous[:], null(c.Leaf), last, c.Depth, uint64(len(c.Nodes)), digest, checkpoint, usage, c.Turn, labels, c.Time})
}

// nodes reads the commit's nodes and derives their ids. before is the last node of the session before the commit.
func (c *Commit) nodes(salt, list any, payloads []byte, before ID) ([]byte, error) {
	all := array(list, -1)
	rest := reader{b: payloads}
	for i := 0; len(all.items) > 0 && all.err == nil; i++ {
		own, erased := nodeSalt(salt, i)
		size := 5
		if erased {
			size = 4
		}
		r := array(all.next(), size)
		n := Node{Erased: erased}
		switch p := r.next().(type) {
		case nil:
		case uint64:
			switch {
			case p < uint64(i):
				n.Parent = c.Nodes[i-1-int(p)].ID
			case p == uint64(i):
				n.Parent = before
			default:
				r.fail(fmt.Errorf("parent %d of node %d", p, i))
			}
		case []byte:
			n.Parent = ID(p)
		}
		n.Kind, n.Key = r.text(), r.text()
		var digest ID
		if erased {
			digest = r.id()
		} else {
			content := r.next()
			if l, ok := content.(uint64); ok {
				n.Payload = rest.take(l)
				content = n.Payload
				if len(n.Payload) > 5<<10 {
					sum := derived("blob", n.Payload)
					content = []any{sum[:], l}
				}
			} else {
				b := array(content, 2)
				n.large = &large{b.id(), b.uint()}
				r.fail(b.err)
			}
			attachments := r.items
			n.Attachments = r.attachments()
			if len(attachments) > 0 {
				digest = derived("salted content", own[:], encoded(content, attachments[0]))
			}
		}
		if r.err != nil || rest.err != nil {
			return nil, fmt.Errorf("node %d: %w", i, errors.Join(r.err, rest.err))
		}
		var parent any
		if n.Parent != (ID{}) {
			parent = n.Parent[:]
		}
		n.ID = derived("node", encoded([]any{parent, n.Kind, n.Key, digest[:]}))
		c.Nodes = append(c.Nodes, n)
	}
	return rest.b, all.err
}

// nodeSalt returns the salt of a node, and whether the node was erased.
func nodeSalt(salt any, position int) (own ID, erased bool) {
	if each, ok := salt.([]any); ok {
		if position >= len(each) || each[position] == nil {
			return own, true
		}
		b, _ := each[position].([]byte)
		copy(own[:], b)
		return own, false
	}
	b, _ := salt.([]byte)
	return derived("node salt", bytes.Clone(b), binary.AppendUvarint(nil, uint64(position))), false
}
