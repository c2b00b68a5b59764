package foreign

import (
	"fmt"
	"slices"
	"strings"
)

// Read reads the namespace of a name from all pairs of an engine.
func Read(pairs map[string][]byte, namespace string) (*Store, error) {
	sum := derived("namespace", []byte(namespace))
	s := &Store{Sessions: map[string]*Session{}, pairs: pairs, prefix: string(sum[:4])}
	b, err := s.must("A")
	if err != nil {
		return nil, err
	}
	r := bodyOf(b, 7)
	r.uint() // format
	r.fixed(make([]byte, 16), false)
	if name := r.text(); name != namespace {
		return nil, fmt.Errorf("the namespace is called %q", name)
	}
	r.fixed(s.secret[:], false)
	if r.err != nil {
		return nil, fmt.Errorf("store record: %w", r.err)
	}
	counts, edges := map[string]uint64{}, map[string]uint64{}
	for key, v := range pairs {
		if !strings.HasPrefix(key, s.prefix) {
			continue
		}
		b, err := body(key, v)
		if err != nil {
			return nil, err
		}
		switch key := key[4:]; key[0] {
		case 'h':
			edges[key[1:17]]++
			if key[17] == 'b' && string(b) != "\x01" {
				return nil, fmt.Errorf("edge %x of a list is %x", key, b)
			}
		case 'j':
			n := reader{b: b}
			counts[key[1:]] = n.uvarint()
		case 'a':
			one, err := s.session(key[1:], b)
			if err != nil {
				return nil, fmt.Errorf("session of metadata %x: %w", key, err)
			}
			s.Sessions[one.ID] = one
		}
	}
	for blob, n := range edges {
		if counts[blob] != n {
			return nil, fmt.Errorf("blob %x has %d edges, and their number says %d", blob, n, counts[blob])
		}
	}
	if len(counts) != len(edges) {
		return nil, fmt.Errorf("%d blobs have edges, and %d a number of them", len(edges), len(counts))
	}
	return s, nil
}

// session reads the session whose metadata are at H(session id).
func (s *Store) session(hash string, about []byte) (*Session, error) {
	plain, err := expand(about, nil)
	if err != nil {
		return nil, err
	}
	var parent [16]byte
	a := bodyOf(plain, 17)
	out := &Session{ID: a.text(), Parts: map[string][]byte{}, Records: map[string][]byte{}, Kept: map[string]uint64{}}
	a.fixed(out.Inc[:], false)
	out.Name, out.Model, out.Cwd, out.Group = a.text(), a.text(), a.text(), a.text()
	a.fixed(parent[:], true)
	a.ref()
	detached := a.uint() == 1
	a.uint()
	out.Retention, out.Labels = a.uint(), a.labels()
	a.uint()
	a.uint()
	if c := a.next(); c != nil {
		out.Custom, _ = c.([]byte)
	}
	for _, t := range []*uint64{&out.HostCreated, &out.HostUpdated} {
		if n := a.next(); n != nil {
			*t, _ = n.(uint64)
		}
	}
	if a.err != nil {
		return nil, a.err
	}
	if s.h('s', []byte(out.ID)) != hash {
		return nil, fmt.Errorf("%q is not the id of its key", out.ID)
	}
	b, err := s.must("s" + hash)
	if err != nil {
		return nil, err
	}
	h := bodyOf(b, 16)
	var inc [16]byte
	h.fixed(inc[:], false)
	out.Revision, out.Commit = h.uint(), h.id()
	out.Leaf, _ = h.ends()
	depth := h.uint()
	h.uint() // checkpoint revision
	h.uint() // time
	parts := h.parts()
	out.Usage = h.usage()
	counted := h.uint()
	for range 4 {
		h.uint()
	}
	if h.err != nil || inc != out.Inc {
		return nil, fmt.Errorf("head of incarnation %x, metadata of %x: %w", inc, out.Inc, h.err)
	}
	nodes := map[ID]*Node{}
	genesis := [][]byte{out.Inc[:]}
	views := []view{{out.Inc, 1<<63 - 1}}
	// The store that this package reads has no session that came in a bundle: only forks have an origin.
	if parent != ([16]byte{}) && !detached {
		origin, err := s.must("o" + string(out.Inc[:]))
		if err != nil {
			return nil, err
		}
		genesis = append(genesis, origin)
		shared, err := s.inherited(origin, nodes)
		if err != nil {
			return nil, fmt.Errorf("origin: %w", err)
		}
		views = append(views, shared...)
	}
	last := derived("genesis", genesis...)
	if out.Commits, err = s.commits(out.Inc, out.Revision, last); err != nil {
		return nil, err
	}
	own := uint64(0)
	for i := range out.Commits {
		c := &out.Commits[i]
		if last = c.ID; c.Revision != uint64(i+1) {
			return nil, fmt.Errorf("commit %d at place %d", c.Revision, i)
		}
		own += uint64(len(c.Nodes))
		for j := range c.Nodes {
			nodes[c.Nodes[j].ID] = &c.Nodes[j]
		}
	}
	if own != counted {
		return nil, fmt.Errorf("there are %d nodes, and the head says %d", own, counted)
	}
	if last != out.Commit {
		return nil, fmt.Errorf("the last commit is %x, and the head names %x", last, out.Commit)
	}
	if err := s.path(out, nodes, views); err != nil {
		return nil, err
	}
	if depth != uint64(len(out.Path)) {
		return nil, fmt.Errorf("the path has %d nodes, and the head says %d", len(out.Path), depth)
	}
	lengths := map[ID]uint64{{}: 0}
	for i := range out.Commits {
		c := &out.Commits[i]
		if n := length(c.Leaf, nodes, lengths); n != c.Depth {
			return nil, fmt.Errorf("the path to the leaf of commit %d has %d nodes, and the commit says %d", c.Revision, n, c.Depth)
		}
	}
	for _, p := range parts {
		if out.Parts[p.Name], err = s.part(out, p); err != nil {
			return nil, fmt.Errorf("part %q: %w", p.Name, err)
		}
	}
	return out, s.besides(out)
}

// length returns how many nodes the path to a node has, and notes it for all nodes of the path.
func length(id ID, nodes map[ID]*Node, known map[ID]uint64) uint64 {
	var way []ID
	for nodes[id] != nil {
		if _, ok := known[id]; ok {
			break
		}
		way, id = append(way, id), nodes[id].Parent
	}
	n := known[id]
	for _, id := range slices.Backward(way) {
		n++
		known[id] = n
	}
	return n
}

// besides reads the session's own records and the revisions that it keeps.
func (s *Store) besides(out *Session) error {
	for key, v := range s.pairs {
		below, mine := strings.CutPrefix(key, s.prefix)
		if !mine || len(below) < 17 || below[1:17] != string(out.Inc[:]) {
			continue
		}
		b, err := body(key, v)
		if err != nil {
			return err
		}
		switch below[0] {
		case 'R':
			r := reader{b: b}
			r.take(24)
			if out.Records[below[17:]], err = expand(r.b, nil); err != nil {
				return fmt.Errorf("record %q: %w", below[17:], err)
			}
		case 'r':
			k := bodyOf(b, 2)
			name := k.text()
			if out.Kept[name] = k.uint(); k.err != nil {
				return k.err
			}
		}
	}
	return nil
}

// A view is an incarnation, and up to which epoch its tombstones count.
type view struct {
	inc   [16]byte
	epoch uint64
}

// inherited adds the nodes that a fork shares of its ancestors, and returns the incarnations whose
// tombstones count.
func (s *Store) inherited(origin []byte, nodes map[ID]*Node) (views []view, err error) {
	o := bodyOf(origin, 4)
	o.each(func(a *row) {
		var inc [16]byte
		a.fixed(inc[:], false)
		revision := a.uint()
		a.ref()
		a.ref()
		shared := a.uint()
		views = append(views, view{inc, a.uint()})
		if a.err != nil {
			return
		}
		commits, cerr := s.segments(inc, revision)
		if cerr != nil {
			a.fail(fmt.Errorf("ancestor %x: %w", inc, cerr))
			return
		}
		for i := range commits {
			c := &commits[i]
			n := len(c.Nodes)
			if c.Revision == revision && shared > 0 {
				n = int(shared)
			}
			for j := range min(n, len(c.Nodes)) {
				nodes[c.Nodes[j].ID] = &c.Nodes[j]
			}
		}
	}, 6)
	return views, o.err
}

// path follows the parents from the leaf, and reads payloads that are blobs.
func (s *Store) path(out *Session, nodes map[ID]*Node, views []view) error {
	for at := out.Leaf; at != (ID{}); {
		n := nodes[at]
		if n == nil {
			return fmt.Errorf("node %x is on the path, and not there", at)
		}
		one := *n
		for _, v := range views {
			b, err := s.record("t" + string(v.inc[:]) + string(at[:8]))
			if err != nil {
				return err
			}
			r := reader{b: b}
			one.Hidden = one.Hidden || b != nil && r.uvarint()>>1 <= v.epoch
		}
		if n.large != nil && !one.Hidden {
			var err error
			if one.Payload, err = s.blob(n.large.blob, n.large.size); err != nil {
				return fmt.Errorf("payload of node %x: %w", at, err)
			}
		}
		out.Path = append(out.Path, one)
		at = n.Parent
	}
	slices.Reverse(out.Path)
	return nil
}

// part returns the content of a version of a checkpoint part.
func (s *Store) part(of *Session, p Part) ([]byte, error) {
	content, err := s.version(of, p)
	if err == nil && (derived("blob", content) != p.Blob || uint64(len(content)) != p.Size) {
		err = fmt.Errorf("version %d has another content", p.Set)
	}
	return content, err
}

func (s *Store) version(of *Session, p Part) ([]byte, error) {
	key := "P" + string(of.Inc[:]) + s.h('p', []byte(p.Name)) + be(p.Set)
	b, err := s.record(key + "\x00")
	if err != nil {
		return nil, err
	}
	if b == nil {
		return s.blob(p.Blob, p.Size)
	}
	r := reader{b: b}
	back, values := r.uvarint(), r.uvarint()
	data := r.b
	for v := uint64(1); v < values; v++ {
		more, err := s.must(key + string(byte(v)))
		if err != nil {
			return nil, err
		}
		data = append(data, more...)
	}
	var base []byte
	if back > 0 {
		set := p.Set - back
		if set == 0 || set > uint64(len(of.Commits)) {
			return nil, fmt.Errorf("version %d is a delta of version %d", p.Set, set)
		}
		i := slices.IndexFunc(of.Commits[set-1].Parts, func(q Part) bool { return q.Name == p.Name && q.Set == set })
		if i < 0 {
			return nil, fmt.Errorf("commit %d did not set the part", set)
		}
		if base, err = s.version(of, of.Commits[set-1].Parts[i]); err != nil {
			return nil, err
		}
	}
	return expand(data, base)
}
