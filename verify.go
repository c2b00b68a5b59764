package turnstone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A Verification is what Verify found.
type Verification struct {
	Sessions, Commits, Nodes int
	Blobs                    int // stored
	Unreferenced             int // blobs that nothing refers to: garbage, no damage
	Condemned                int // blobs that a collector was about to delete
	Records                  int // all records, each with its checksum checked
	Problems                 []error
	More                     int // problems beyond the first 1,000
}

// OK reports whether nothing is wrong.
func (v *Verification) OK() bool { return len(v.Problems) == 0 }

// Verify checks every hash, link, checksum and reference of the namespace and
// names what is wrong: usually a *CorruptError. It reads everything and changes
// nothing. It may run beside commits; a session that changes meanwhile is
// checked as it was when Verify came to it. The returned error says that Verify
// itself could not go on.
//
// The progress callback, if not nil, is called with the number of sessions and
// blobs done, from the calling goroutine.
func (s *Store) Verify(ctx context.Context, progress func(done int)) (*Verification, error) {
	return observed(ctx, s, OpVerify, "", func(ctx context.Context) (*Verification, error) { return s.verify(ctx, progress) },
		func(v *Verification, o *Outcome) {
			if o.Items = len(v.Problems) + v.More; !v.OK() {
				o.Err = v.Problems[0]
			}
		})
}

func (s *Store) verify(ctx context.Context, progress func(done int)) (*Verification, error) {
	for attempt := 0; ; attempt++ {
		v := &verifier{s: s, progress: progress, blobs: map[blob.ID]bool{}, incs: map[head.Incarnation]bool{}}
		for _, step := range []func(context.Context) error{v.records, v.sessions, v.orphans, v.contents, v.index} {
			if err := step(ctx); err != nil {
				return &v.Verification, err
			}
		}
		// What maintenance removed meanwhile looks like missing: look again.
		if attempt == 2 || v.More > 0 || !slices.ContainsFunc(v.Problems, func(err error) bool { return errors.Is(err, codec.ErrMissing) }) {
			return &v.Verification, nil
		}
	}
}

type verifier struct {
	Verification
	s        *Store
	progress func(int)
	done     int
	blobs    map[blob.ID]bool          // referred to by sessions
	incs     map[head.Incarnation]bool // whose history was checked
}

func (v *verifier) problem(err error, format string, args ...any) {
	if err == nil {
		return
	}
	if len(v.Problems) == 1000 {
		v.More++
		return
	}
	v.Problems = append(v.Problems, codec.Corrupt(err, format, args...))
}

func (v *verifier) step() {
	if v.done++; v.progress != nil {
		v.progress(v.done)
	}
}

// stopped reports errors that end Verify, as opposed to what it looks for.
func stopped(err error) bool {
	var damage *CorruptError
	return err != nil && !errors.As(err, &damage) && !errors.Is(err, ErrFormat) &&
		!errors.Is(err, ErrNodeNotFound) && !errors.Is(err, ErrSessionNotFound) && !errors.Is(err, ErrSessionDeleted)
}

// records checks the checksum of every record, in whatever place it is, and
// that each blob has a mark and the other way round.
func (v *verifier) records(ctx context.Context) error {
	var lastBlob, blobs, marks []byte // hashes, 16 bytes each, ascending
	for p, err := range v.s.engine.Scan(ctx, v.s.space.Everything()) {
		if err != nil {
			return err
		}
		v.Records++
		letter, fields, ok := v.s.space.Fields(p.Key)
		if !ok {
			v.problem(fmt.Errorf("%w: no key of the format", codec.ErrMalformed), "record at key %x", p.Key)
			continue
		}
		if _, err := codec.Open(p.Key, p.Value, letter); err != nil {
			v.problem(err, "record at key %x", p.Key)
		}
		switch letter {
		case keys.Blob:
			if h := fields[:16]; !bytes.Equal(h, lastBlob) {
				lastBlob = h
				blobs = append(blobs, h...)
			}
		case keys.Mark:
			marks = append(marks, fields...)
			if m, err := blob.OpenMark(p.Key, p.Value); err == nil && m.Condemned {
				v.Condemned++
			}
		}
	}
	v.Blobs = len(blobs) / 16
	for len(blobs) > 0 || len(marks) > 0 {
		var odd keys.Hash
		switch c := bytes.Compare(blobs[:min(16, len(blobs))], marks[:min(16, len(marks))]); {
		case len(marks) == 0 || len(blobs) > 0 && c < 0:
			odd, blobs = keys.Hash(blobs[:16]), blobs[16:]
		case len(blobs) == 0 || c > 0:
			odd, marks = keys.Hash(marks[:16]), marks[16:]
		default:
			blobs, marks = blobs[16:], marks[16:]
			continue
		}
		// Pages of the scan are of different moments: look at both at once.
		vs, err := v.s.engine.Get(ctx, v.s.space.Blob(odd, 0), v.s.space.Mark(odd))
		if err != nil {
			return err
		}
		if (vs[0] == nil) != (vs[1] == nil) {
			v.problem(codec.ErrMissing, "blob or mark at %x: one is there without the other", odd)
		}
	}
	return nil
}

// sessions checks every session: those that have a head, and those that only
// forks still hold.
func (v *verifier) sessions(ctx context.Context) error {
	for p, err := range v.s.engine.Scan(ctx, v.s.space.All(keys.About)) {
		if err != nil {
			return err
		}
		about, err := head.OpenAbout(p.Key, p.Value)
		if err != nil {
			v.problem(err, "metadata at key %x", p.Key)
			continue
		}
		if err := v.byID(ctx, about.ID); err != nil {
			return err
		}
	}
	// A head without metadata would be in no list; and what was renamed
	// meanwhile is found here.
	for p, err := range v.s.engine.Scan(ctx, v.s.space.All(keys.Head)) {
		if err != nil {
			return err
		}
		h, err := head.OpenHead(p.Key, p.Value)
		_, fields, ok := v.s.space.Fields(p.Key)
		if err != nil || !ok {
			v.problem(err, "head at key %x", p.Key)
			continue
		}
		if v.incs[h.Incarnation] {
			continue
		}
		key := v.s.space.About(keys.Hash(fields))
		vs, err := v.s.engine.Get(ctx, key, p.Key)
		if err != nil {
			return err
		}
		if vs[1] == nil {
			continue // deleted meanwhile
		}
		about, err := head.OpenAbout(key, vs[0])
		if err != nil {
			v.problem(err, "metadata of the session with head at key %x", p.Key)
			continue
		}
		if err := v.byID(ctx, about.ID); err != nil {
			return err
		}
	}
	return nil
}

// orphans looks for sessions that live by their lifecycle record and have no
// head: it, or the way to it, was lost.
func (v *verifier) orphans(ctx context.Context) error {
	for p, err := range v.s.engine.Scan(ctx, v.s.space.All(keys.Life)) {
		if err != nil {
			return err
		}
		life, err := head.OpenLife(p.Key, p.Value)
		_, fields, ok := v.s.space.Fields(p.Key)
		if err != nil || !ok || life.State != head.Live || v.incs[head.Incarnation(fields)] {
			continue // records has named what is damaged
		}
		vs, err := v.s.engine.Get(ctx, v.s.space.Head(life.Session), p.Key)
		if err != nil {
			return err
		}
		if vs[0] == nil && string(vs[1]) == string(p.Value) {
			v.problem(codec.ErrMissing, "head of incarnation %x", fields)
		}
	}
	return nil
}

// byID checks the session of an id, if it is still there.
func (v *verifier) byID(ctx context.Context, id string) error {
	ses, err := v.s.Session(ctx, id)
	if err == nil && !v.incs[ses.inc] {
		v.Sessions++
		v.incs[ses.inc] = true
		err = v.session(ctx, ses)
	}
	if stopped(err) {
		return err
	}
	if !errors.Is(err, ErrSessionNotFound) && !errors.Is(err, ErrSessionDeleted) { // deleted or renamed meanwhile
		v.problem(err, "session %q", id)
	}
	v.step()
	return nil
}

// session checks one session from its head down to the bytes of its nodes.
func (v *verifier) session(ctx context.Context, ses *Session) error {
	h, _, err := ses.readHead(ctx)
	if err != nil {
		return err
	}
	if ses.origin != nil {
		for i, a := range ses.origin.Ancestors {
			if err := v.ancestor(ctx, ses, i, a); err != nil {
				return err
			}
		}
	}
	parts, err := v.parts(ctx, ses)
	if err != nil {
		return err
	}
	usage, nodes := []Usage(nil), uint64(0)
	err = ses.commits(ctx, 0, h.Revision, func(c *head.Commit, _ CommitID) error {
		v.Commits++
		usage, nodes = head.Sum(usage, c.Usage), nodes+uint64(c.Nodes)
		if err := v.turn(ctx, ses, c); err != nil {
			return err
		}
		parts.at(c)
		if c.Revision != h.Revision {
			return nil
		}
		at, err := ses.partsAt(ctx, c)
		if err == nil && fmt.Sprint(at) != fmt.Sprint(h.Parts) {
			err = fmt.Errorf("checkpoint differs from commit %d", c.Revision)
		}
		return codec.Corrupt(err, "head of session %q", ses.id)
	})
	if err != nil {
		return err
	}
	for _, p := range h.Parts {
		v.blobs[p.Blob] = true
	}
	if fmt.Sprint(usage) != fmt.Sprint(h.Usage) || nodes != h.Nodes {
		v.problem(errors.New("totals differ from the sum of the commits"), "head of session %q", ses.id)
	}
	own := ses.layers(h.Revision)
	own[len(own)-1].commit = h.Commit
	if err := v.history(ctx, ses, own[len(own)-1]); err != nil {
		return err
	}
	return v.order(ctx, ses)
}

// parts follows a session's checkpoint through its commits and refers to the
// blobs of the revisions that are retained.
type parts struct {
	v     *verifier
	floor Revision
	refs  map[Revision]bool
	now   map[string]blob.ID
}

func (v *verifier) parts(ctx context.Context, ses *Session) (*parts, error) {
	p := &parts{v: v, refs: map[Revision]bool{}, now: map[string]blob.ID{}}
	if ses.origin != nil {
		for _, part := range ses.origin.Parts {
			p.now[part.Name] = part.Blob
		}
	}
	return retried(ctx, ses, func() (*parts, error) {
		life, _, err := ses.life(ctx)
		if err != nil {
			return nil, err
		}
		p.floor = life.Floor
		refs, err := head.Refs(ctx, v.s.engine, v.s.space, ses.inc, life)
		for _, r := range refs {
			p.refs[r.Revision] = true
		}
		return p, err
	})
}

func (p *parts) at(c *head.Commit) {
	changed := c.PartsAt == c.Revision
	if changed {
		next := make(map[string]blob.ID, len(c.Parts))
		for _, part := range c.Parts {
			if next[part.Name] = part.Blob; part.Blob.IsZero() {
				next[part.Name] = p.now[part.Name]
			}
		}
		p.now = next
	}
	if changed && c.Revision >= p.floor || c.Revision == p.floor || p.refs[c.Revision] {
		for _, id := range p.now {
			p.v.blobs[id] = true
		}
	}
}

// ancestor checks what a fork shares of another session.
func (v *verifier) ancestor(ctx context.Context, ses *Session, i int, a head.Ancestor) error {
	key := v.s.space.Fork(a.Incarnation, ses.inc)
	vs, err := v.s.engine.Get(ctx, key, v.s.space.Life(a.Incarnation))
	if err != nil {
		return err
	}
	for j, what := range []string{"fork entry", "lifecycle"} {
		if vs[j] == nil {
			v.problem(codec.ErrMissing, "%s of ancestor %x of session %q", what, a.Incarnation, ses.id)
		}
	}
	if a.Revision == 0 {
		return nil
	}
	_, id, err := v.s.commitAt(ctx, a.Incarnation, a.Revision)
	if err == nil && id != a.Commit {
		err = codec.Corrupt(codec.ErrHash, "commit %d of ancestor %x of session %q", a.Revision, a.Incarnation, ses.id)
	}
	if err != nil || v.incs[a.Incarnation] {
		return err
	}
	// Reading all of it derives and checks every id; its own session, if it
	// lives, is checked for the rest.
	layers := ses.layers(0)
	nodes, err := v.read(ctx, ses, layers[i])
	v.refer(nodes)
	return err
}

// read reads and checks a layer, beside maintenance.
func (v *verifier) read(ctx context.Context, ses *Session, l layer) ([]found, error) {
	return retried(ctx, ses, func() ([]found, error) {
		nodes, err := ses.read(ctx, l, 0, nil)
		if err == nil {
			err = ses.checkLayer(ctx, l, nodes)
		}
		return nodes, err
	})
}

func (v *verifier) refer(nodes []found) {
	for i := range nodes {
		if !nodes[i].Blob.IsZero() {
			v.blobs[nodes[i].Blob] = true
		}
		for _, a := range nodes[i].Attachments {
			v.blobs[a.ID] = true
		}
	}
}

// history checks the nodes of a session against its commits and its index.
func (v *verifier) history(ctx context.Context, ses *Session, l layer) error {
	nodes, err := v.read(ctx, ses, l)
	if err != nil {
		return err
	}
	v.refer(nodes)
	index, err := v.entries(ctx, ses)
	if err != nil {
		return err
	}
	known := map[NodeID]bool{}
	position := 0
	for i := range nodes {
		n := &nodes[i]
		v.Nodes++
		known[n.ID] = true
		if position++; i == 0 || nodes[i-1].revision != n.revision {
			position = 0
		}
		if err := v.place(ctx, ses, n, position, index); err != nil {
			return err
		}
		if p := n.Parent; !p.IsZero() && !known[p] && p != l.first {
			if _, err := ses.find(ctx, l.last, p); stopped(err) {
				return err
			} else if err != nil {
				v.problem(err, "parent of node %s of session %q", n.ID, ses.id)
			}
		}
	}
	return nil
}

// entries returns where the index of a session says that its nodes are.
func (v *verifier) entries(ctx context.Context, ses *Session) (map[graph.Entry]bool, error) {
	out := map[graph.Entry]bool{}
	for e, err := range graph.Index(ctx, v.s.engine, v.s.space, ses.inc) {
		if stopped(err) {
			return nil, err
		}
		if err != nil {
			v.problem(err, "index of session %q", ses.id)
			break
		}
		out[e] = true
	}
	return out, nil
}

// place checks the index entries of a node.
func (v *verifier) place(ctx context.Context, ses *Session, n *found, position int, index map[graph.Entry]bool) error {
	ks := [][]byte{v.s.space.EventKey(ses.inc, n.Key)}
	for _, a := range n.Attachments {
		ks = append(ks, v.s.space.Attachment(ses.inc, v.s.space.BlobHash(a.ID)))
	}
	vs, err := v.s.engine.Get(ctx, ks...)
	if err != nil {
		return err
	}
	here := graph.Place{Revision: uint64(n.revision), Position: position}
	check := func(p graph.Place, err error, what string) {
		if err == nil && p != here {
			err = fmt.Errorf("points to node %d of revision %d", p.Position, p.Revision)
		}
		v.problem(err, "%s of node %s of session %q", what, n.ID, ses.id)
	}
	if !index[graph.Entry{Prefix: graph.PrefixOf(n.ID), Place: here}] {
		// Sealing moves entries: the session's own reader looks again.
		at, err := retried(ctx, ses, func() (spot, error) {
			at, err := ses.place(ctx, AnyRevision, n.ID)
			return at, linked(err, n.ID)
		})
		if stopped(err) {
			return err
		}
		check(graph.Place{Revision: uint64(at.revision), Position: at.position}, err, "index entry")
	}
	if n.Key != "" {
		p, err := graph.OpenPlace(ks[0], vs[0], keys.EventKey)
		check(p, err, "event key")
	}
	for i := range n.Attachments {
		if vs[1+i] == nil {
			v.problem(codec.ErrMissing, "attachment entry of node %s of session %q", n.ID, ses.id)
		}
	}
	return nil
}

// turn checks the index entry of a commit's turn id.
func (v *verifier) turn(ctx context.Context, ses *Session, c *head.Commit) error {
	if c.Turn == "" {
		return nil
	}
	key := v.s.space.Turn(ses.inc, c.Turn)
	vs, err := v.s.engine.Get(ctx, key)
	if err != nil {
		return err
	}
	body, err := codec.Open(key, vs[0], keys.Turn)
	if r, _ := codec.Uvarint(body); err == nil && Revision(r) != c.Revision {
		err = fmt.Errorf("points to revision %d", r)
	}
	v.problem(err, "turn %q of session %q", c.Turn, ses.id)
	return nil
}

// order checks that a session is where List looks for it.
func (v *verifier) order(ctx context.Context, ses *Session) error {
	for range 3 { // it may move meanwhile
		vs, err := v.s.engine.Get(ctx, v.s.space.Bucket(ses.inc))
		if err != nil {
			return err
		}
		if at, ok := v.s.bucketOf(ses.inc, vs[0]); ok {
			if vs, err = v.s.engine.Get(ctx, v.s.space.Order(at, ses.inc)); err != nil || vs[0] != nil {
				return err
			}
		}
	}
	if _, _, err := ses.readHead(ctx); err != nil {
		return err // gone meanwhile
	}
	v.problem(codec.ErrMissing, "place in the order of sessions of session %q", ses.id)
	return nil
}

// contents reads every blob that is referred to, directly or by another one,
// and counts those that are not.
func (v *verifier) contents(ctx context.Context) error {
	reached := map[blob.ID]bool{}
	var visit func(id blob.ID) error
	visit = func(id blob.ID) error {
		if reached[id] {
			return nil
		}
		reached[id] = true
		refs, err := v.s.blobs.References(ctx, id)
		// What is referred to is read as a whole; the items of a list once more
		// only where they are something's own.
		if err == nil && (len(refs) <= 1 || v.blobs[id]) {
			_, err = v.s.blobs.WriteTo(ctx, discard{}, id)
		}
		if stopped(err) {
			return err
		}
		if err != nil {
			v.problem(err, "blob %s", id)
		}
		for _, r := range refs {
			if err := visit(r); err != nil {
				return err
			}
		}
		v.step()
		return nil
	}
	for id := range v.blobs {
		if err := visit(id); err != nil {
			return err
		}
	}
	v.Unreferenced = max(0, v.Blobs-len(reached))
	return nil
}

// index checks the collector's index: every blob has as many edges as are
// counted, and what has edges is stored.
func (v *verifier) index(ctx context.Context) error {
	before := len(v.Problems)
	if rebuilding, err := gc.Rebuilding(ctx, v.s.engine, v.s.space); err != nil || rebuilding {
		return err // the next collection derives it anew
	}
	if err := v.counts(ctx); err != nil || len(v.Problems) == before {
		return err
	}
	rebuilding, err := gc.Rebuilding(ctx, v.s.engine, v.s.space)
	if rebuilding {
		v.Problems = v.Problems[:before]
	}
	return err
}

// counts compares the edges of blobs with their numbers.
func (v *verifier) counts(ctx context.Context) error {
	check := func(h keys.Hash, edges uint64) error {
		if edges == 0 {
			return nil
		}
		for attempt := 0; ; attempt++ { // a collector may be at work
			key := v.s.space.Count(h)
			vs, err := v.s.engine.Get(ctx, key, v.s.space.Mark(h))
			if err != nil {
				return err
			}
			n, cerr := uint64(0), error(nil)
			if vs[0] != nil {
				var body []byte
				if body, cerr = codec.Open(key, vs[0], keys.Count); cerr == nil {
					n, _ = codec.Uvarint(body)
				}
			}
			if cerr == nil && n == edges && vs[1] != nil {
				return nil
			}
			if attempt == 3 {
				v.problem(fmt.Errorf("%d edges, counted as %d, stored: %v: run a full collection", edges, n, vs[1] != nil), "collector's index of the blob at %x", h)
				return nil
			}
			if edges, err = v.edges(ctx, h); err != nil || edges == 0 && n == 0 {
				return err
			}
		}
	}
	var at keys.Hash
	n := uint64(0)
	for p, err := range v.s.engine.Scan(ctx, v.s.space.All(keys.Edge)) {
		if err != nil {
			return err
		}
		_, fields, ok := v.s.space.Fields(p.Key)
		if !ok {
			continue // records has named it
		}
		if h := keys.Hash(fields); h != at {
			if err := check(at, n); err != nil {
				return err
			}
			at, n = h, 0
		}
		n++
	}
	if err := check(at, n); err != nil {
		return err
	}
	for p, err := range v.s.engine.Scan(ctx, v.s.space.All(keys.Count)) {
		if err != nil {
			return err
		}
		_, fields, ok := v.s.space.Fields(p.Key)
		if !ok {
			continue
		}
		n, err := v.edges(ctx, keys.Hash(fields))
		if err != nil {
			return err
		}
		if n > 0 {
			continue // compared above
		}
		if vs, err := v.s.engine.Get(ctx, p.Key); err != nil {
			return err
		} else if vs[0] != nil && bytes.Equal(vs[0], p.Value) {
			v.problem(errors.New("edges are counted, and there are none: run a full collection"), "collector's index of the blob at %x", fields)
		}
	}
	return nil
}

func (v *verifier) edges(ctx context.Context, h keys.Hash) (n uint64, err error) {
	for _, err := range v.s.engine.Scan(ctx, v.s.space.Of(keys.Edge, h)) {
		if err != nil {
			return 0, err
		}
		n++
	}
	return n, nil
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
