package bundle

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/commit"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/session"
)

// This file checks a bundle before anything of it is visible. It computes all hashes, stores the blobs, which an upload
// pins, and spools the other frames. links.go then checks what nodes refer to, and apply.go applies the spool.

// Options of Read.
type Options struct {
	As       string // the id of the only session of the bundle here, unless it is ""
	MaxBytes int64  // that the bundle may expand to, or 0
	// Checks refuse what a caller of this store could not have stored.
	CheckID     func(string) error
	CheckAbout  func(*head.About) error
	CheckTurn   func(*history.Turn) error
	CheckRecord func(*session.Record) error
}

// maxSections bounds the sessions and copies of a bundle, and roomFor what is kept of them in memory: tombstones, erased
// nodes, blobs, and nodes that others refer to out of turn.
const (
	maxSections = 100_000
	roomFor     = 4 << 20
	roomBytes   = 16 // of a section for which as much room is taken as for a node
)

// A room counts what a bundle makes the process keep in memory.
type room struct{ left int }

func (r *room) take(n int) error {
	if r.left -= n; r.left < 0 {
		return &history.LimitError{Limit: "tombstones, erased nodes, blobs and branches", Where: "bundle", Have: roomFor + 1, Max: roomFor}
	}
	return nil
}

// An Error says which session of a bundle is wrong, and why.
type Error struct {
	Session string // or "" if it is none's
	Err     error
}

func (e *Error) Error() string {
	if e.Session == "" {
		return fmt.Sprintf("turnstone: bundle: %v", e.Err)
	}
	return fmt.Sprintf("turnstone: bundle: session %q: %v", e.Session, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// An incoming is a section that was received.
type incoming struct {
	*section
	number int
	id     string // of the session here
	end    end
	kept   []head.Kept
	stones map[[8]byte]uint64 // the epochs of the tombstones
	erased []erasedNode       // nodes without content

	target *history.Session // the session that exists, or nil
	here   head.Base        // where it stands
	meets  head.CommitID    // what the bundle says of the revision at which it stands, or zero if it does not have that
	made   bool             // this call has made the session
}

// An erasedNode is a node without content.
type erasedNode struct {
	at graph.Position
	id [8]byte
}

// A Point is a commit of a session.
type Point struct {
	Revision head.Revision
	Commit   head.CommitID
}

func pointOf(b head.Base) Point { return Point{b.Revision, b.Commit} }

// Diverged says that a session here and the one in the bundle have gone different ways.
type Diverged struct {
	Session     string
	Here, There Point // where they stand
	Common      Point // the last commit that both have, or zero if the bundle does not have it
}

func (e *Diverged) Error() string {
	common := "before what the bundle has"
	if e.Common != (Point{}) {
		common = fmt.Sprintf("after revision %d, commit %s", e.Common.Revision, e.Common.Commit)
	}
	return fmt.Sprintf("session %q has diverged %s: here it is at revision %d, commit %s, there at %d, %s", e.Session, common, e.Here.Revision, e.Here.Commit, e.There.Revision, e.There.Commit)
}

// name is what errors call the session of the section.
func (in *incoming) name() string {
	if in.copy {
		return ""
	}
	return in.about.ID
}

// A reader is one call of Read.
type reader struct {
	*commit.Lifecycle
	options  Options
	frames   *frameReader
	stock    stock
	spool    *spool
	spooled  frameWriter
	room     room
	sections []*incoming
	now      *checker // of the section that is received
	contents contents
	copies   map[int]*commit.Arrival // by the numbers of their sections
	received []Received
	changed  bool // something is visible

	wanted map[graph.ID]bool    // nodes that are named out of turn
	found  map[graph.ID][]place // those of them that were found
	ends   map[revisionOf]bool  // where forks leave their parents
	ids    map[string]bool      // of the sessions
	users  map[int][]*incoming  // the sessions that inherit from a copy, by the number of its section
	twins  twins
	left   map[revisionOf]leaving // what is there

	suspects map[suspect]int // how often they were found
	views    int             // how many nodes without content were looked at
}

// received reads a bundle to its end.
func (r *reader) receive(ctx context.Context, from io.Reader) error {
	source := &sourceReader{r: from}
	magic := make([]byte, len(Magic))
	_, err := io.ReadFull(source, magic)
	switch {
	case source.err != nil:
		return source.err
	case err != nil || string(magic) != Magic:
		return malformed("it does not begin with %q", Magic)
	}
	z, err := expander(source)
	if err != nil {
		return err
	}
	defer z.Close()
	limited := &limitedReader{r: z, source: source, max: r.options.MaxBytes}
	r.frames = &frameReader{r: bufio.NewReaderSize(limited, 64<<10), sum: codec.BundleHash.New()}
	for done := false; !done; {
		if err := ctx.Err(); err != nil {
			return err
		}
		if done, err = r.frame(ctx); err != nil {
			return cut(err)
		}
	}
	if _, _, err := r.frames.next(); !errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errors.Join(malformed("more after its end"), err)
	}
	return r.stock.flush(ctx)
}

// A sourceReader remembers the error that reading ended with.
type sourceReader struct {
	r   io.Reader
	err error // not io.EOF
}

func (s *sourceReader) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		s.err = err
	}
	return n, err
}

// A limitedReader reads what is expanded, up to max bytes if that is not 0.
type limitedReader struct {
	r         io.Reader
	source    *sourceReader
	read, max int64
}

func (l *limitedReader) Read(p []byte) (int, error) {
	n, err := l.r.Read(p)
	l.read += int64(n)
	switch {
	case l.max > 0 && l.read > l.max:
		return 0, &history.LimitError{Limit: "bytes", Where: "bundle", Have: l.read, Max: l.max}
	case err == nil || errors.Is(err, io.EOF):
		return n, err
	case l.source.err != nil:
		return n, l.source.err
	case errors.Is(err, io.ErrUnexpectedEOF):
		return n, err
	}
	return n, malformed("%v", err)
}

// frame takes the next frame, and reports whether it was the last one.
func (r *reader) frame(ctx context.Context) (done bool, err error) {
	kind, body, err := r.frames.next()
	if err != nil {
		return false, err
	}
	if r.now == nil {
		switch kind {
		case kindSection:
			return false, r.begin(ctx, body)
		case kindBundleEnd:
			sum := r.frames.sum.Sum()
			r.frames.sum = nil
			return true, checkBundleEnd(body, len(r.sections), sum)
		}
		return false, malformed("frame of kind %q between sections", kind)
	}
	if kind != kindBlob {
		if err := r.spooled.write(kind, body); err != nil {
			return false, err
		}
	}
	in := r.now.in
	return false, r.of(in, r.inSection(ctx, kind, body))
}

// of says which session err is about, if that is wrong with the bundle.
func (r *reader) of(in *incoming, err error) error {
	var already *Error
	if err == nil || errors.As(err, &already) || !isWrong(err) {
		return err
	}
	return &Error{in.name(), err}
}

// isWrong reports whether err says that a bundle is damaged, or that a session of it can't be made. Else it is about the
// store, or the call.
func isWrong(err error) bool {
	var corrupt *damage.CorruptError
	if errors.As(err, &corrupt) { // a record of the store
		return false
	}
	for _, of := range []error{
		damage.ErrMalformed, damage.ErrHash, damage.ErrMissing, io.ErrUnexpectedEOF, history.ErrLimit, history.ErrInvalid, commit.ErrExists,
		history.ErrSessionNotFound, history.ErrRevisionNotFound, history.ErrRevisionPruned,
	} {
		if errors.Is(err, of) {
			return true
		}
	}
	return false
}

// inSection takes a frame of the section that is received.
func (r *reader) inSection(ctx context.Context, kind byte, body []byte) error {
	c := r.now
	switch kind {
	case kindStones:
		stones, err := decodeStones(body)
		if err == nil {
			err = c.takeStones(stones)
		}
		return err
	case kindKept:
		kept, err := decodeKept(body)
		if err == nil && (len(c.in.kept) > 0 || c.in.copy || c.turns > 0) {
			err = malformed("kept revisions twice, or behind turns")
		}
		c.in.kept = kept
		return errors.Join(err, r.room.take(len(body)/roomBytes))
	case kindBlob:
		id, size, err := decodeBlobFrame(body)
		if err != nil {
			return err
		}
		return r.blob(ctx, id, size)
	case kindVersion:
		v, err := decodeVersion(body)
		if err != nil {
			return err
		}
		return c.version(ctx, v)
	case kindTurns:
		return c.takeTurns(ctx, body)
	case kindRecords:
		records, err := decodeRecords(body)
		if err != nil {
			return err
		}
		return c.takeRecords(records)
	case kindEnd:
		n, err := decodeEnd(body)
		if err != nil {
			return err
		}
		r.now = nil
		return c.finish(ctx, n)
	}
	return malformed("frame of kind %q in a section", kind)
}

// blob stores a blob.
func (r *reader) blob(ctx context.Context, id blob.ID, size int64) error {
	if size > blob.MaxBytes {
		return malformed("blob of %d bytes", size)
	}
	if size <= pieceBytes {
		var content bytes.Buffer
		err := r.frames.content(size, func(b []byte) error { content.Write(b); return nil })
		if err != nil {
			return err
		}
		got, err := r.stock.put(ctx, content.Bytes())
		if err == nil && got != id {
			err = fmt.Errorf("%w: content of blob %s is that of %s", damage.ErrHash, id, got)
		}
		return err
	}
	from, to := io.Pipe()
	stored := make(chan error, 1)
	go func() {
		err := r.stock.write(ctx, from, id, size)
		_ = from.CloseWithError(cmpErr(err))
		stored <- err
	}()
	err := r.frames.content(size, func(b []byte) error { _, err := to.Write(b); return err })
	_ = to.CloseWithError(err) // nil: the end
	if serr := <-stored; serr != nil {
		return serr
	}
	return err
}

// cmpErr returns err, or an error that says that nobody reads any more.
func cmpErr(err error) error {
	if err == nil {
		return io.ErrClosedPipe
	}
	return err
}

// begin begins a section.
func (r *reader) begin(ctx context.Context, body []byte) error {
	if len(r.sections) == maxSections {
		return &history.LimitError{Limit: "sessions", Where: "bundle", Have: maxSections + 1, Max: maxSections}
	}
	s, err := decodeSection(body, len(r.sections))
	if err != nil {
		return err
	}
	if err := r.room.take(1 + len(body)/roomBytes); err != nil {
		return err
	}
	in := &incoming{section: s, number: len(r.sections), stones: map[[8]byte]uint64{}}
	r.sections = append(r.sections, in)
	if err := r.spooled.write(kindSection, body); err != nil {
		return err
	}
	r.now = &checker{reader: r, in: in, twins: &r.twins}
	r.twins.clear()
	if s.copy {
		r.now.state = head.Begin(head.Incarnation{}, nil)
		return nil
	}
	return r.of(in, r.now.begin(ctx))
}

// A checker checks a section as it is received.
type checker struct {
	*reader
	in      *incoming
	state   head.State // after the turns that were received
	nodes   uint64
	turns   uint64
	lacking map[string]bool   // the parts whose current version is not at hand
	given   map[partSet]given // the versions that were received, and that no turn has set yet
	known   map[blob.ID]head.Part
	record  string // the key of the last record
	twins   *twins
}

// begin finds the session that the section brings forward, and what the turns build on.
func (c *checker) begin(ctx context.Context) error {
	in := c.in
	in.id = in.about.ID
	if c.options.As != "" {
		in.id = c.options.As
	}
	if err := errors.Join(c.options.CheckID(in.id), c.options.CheckAbout(in.about)); err != nil {
		return err
	}
	if c.ids[in.id] {
		return malformed("session %q twice", in.id)
	}
	c.ids[in.id] = true
	if in.copied > 0 {
		c.users[in.copied-1] = append(c.users[in.copied-1], in)
	}
	if err := c.relatives(); err != nil {
		return err
	}
	c.lacking, c.given, c.known = map[string]bool{}, map[partSet]given{}, map[blob.ID]head.Part{}
	target, state, err := c.OpenSession(ctx, in.id)
	switch {
	case errors.Is(err, history.ErrSessionNotFound):
	case err != nil:
		return err
	default:
		if head.Genesis(target.Inc, target.Origin) != in.genesis {
			return fmt.Errorf("%w: another session is called %q here", commit.ErrExists, in.id)
		}
		in.target, in.here = target, state.Head.Base
	}
	if in.since.Revision > 0 {
		return c.goOn(ctx)
	}
	o := in.origin
	if o == nil {
		o = &head.Origin{}
	}
	c.state = head.Begin(head.Incarnation{}, &head.Origin{Genesis: in.genesis, Depth: o.Depth, Parts: o.Parts})
	c.state.Leaf = o.Node()
	c.state.Last = c.state.Leaf
	c.wanted[o.Node()] = true
	for _, p := range o.Parts {
		c.lacking[p.Name] = true // until the first turn: see settle
	}
	return nil
}

// relatives checks that the sections that this one names are what it says.
func (c *checker) relatives() error {
	in := c.in
	if n := in.copied; n > 0 && !c.sections[n-1].copy {
		return malformed("section %d is no copy", n-1)
	}
	if n := in.parent; n > 0 && c.sections[n-1].copy {
		return malformed("section %d is a copy, and no parent", n-1)
	}
	if in.sees == nil {
		return nil
	}
	// It inherits what its parent inherits, and a part of the parent.
	p := c.sections[in.parent-1]
	if p.since.Revision == 0 {
		var of []head.Ancestor
		if p.origin != nil {
			of = p.origin.Ancestors
		}
		if len(of) != len(in.origin.Ancestors)-1 {
			return malformed("fork of %q with other ancestors", p.about.ID)
		}
	}
	if a := in.own(); a.Revision == 0 || a.Revision > p.end.last.Revision || a.Epoch > p.epoch {
		return malformed("fork of %q at revision %d of %d, epoch %d of %d", p.about.ID, a.Revision, p.end.last.Revision, a.Epoch, p.epoch)
	}
	return nil
}

// goOn begins with what the other side is said to have.
func (c *checker) goOn(ctx context.Context) error {
	in := c.in
	if in.target == nil {
		return fmt.Errorf("%w: %q, and the bundle goes on from its revision %d", history.ErrSessionNotFound, in.id, in.since.Revision)
	}
	if in.since.Revision > in.here.Revision {
		return fmt.Errorf("%w: the bundle goes on from revision %d, and the session is at %d", history.ErrRevisionNotFound, in.since.Revision, in.here.Revision)
	}
	state, err := in.target.StateAt(ctx, in.since.Revision)
	if err != nil {
		return err
	}
	if state.Base != in.since {
		return &Diverged{Session: in.id, Here: pointOf(in.here), There: pointOf(in.since)}
	}
	if in.since.Revision == in.here.Revision {
		in.meets = in.since.Commit
	}
	c.state = state
	for _, p := range state.Parts {
		c.known[p.Blob] = p
	}
	return nil
}

// takeStones takes tombstones.
func (c *checker) takeStones(stones []commit.Stone) error {
	if c.turns > 0 {
		return malformed("tombstones behind turns")
	}
	for _, s := range stones {
		if _, twice := c.in.stones[s.ID]; twice || !c.in.copy && s.Epoch > c.in.epoch {
			return malformed("tombstone of %x, of epoch %d", s.ID, s.Epoch)
		}
		c.in.stones[s.ID] = s.Epoch
	}
	return c.room.take(len(stones))
}

// retained reports whether the checkpoint of a revision has to be at hand.
func (c *checker) retained(r head.Revision) bool {
	if r >= c.in.floor {
		return true
	}
	for _, k := range c.in.kept {
		if k.Revision == r {
			return true
		}
	}
	return false
}

// settle checks the checkpoint of the revision at which the section stands.
func (c *checker) settle() error {
	if len(c.lacking) > 0 && c.retained(c.state.Revision) {
		for name := range c.lacking {
			return fmt.Errorf("%w: checkpoint part %q of revision %d", damage.ErrMissing, name, c.state.Revision)
		}
	}
	return nil
}

// atBegin looks which parts that a fork begins with are at hand, once the blobs before the first turn are there.
func (c *checker) atBegin(ctx context.Context) error {
	if c.turns > 0 || c.in.copy || c.in.since.Revision > 0 {
		return nil
	}
	for _, p := range c.state.Parts {
		if err := c.partBlob(ctx, p); err != nil {
			return err
		}
	}
	return c.settle()
}

// partBlob notes whether the content of a part that is a blob is at hand.
func (c *checker) partBlob(ctx context.Context, p head.Part) error {
	sizes, err := c.stock.sizes(ctx, []blob.ID{p.Blob})
	switch {
	case err != nil:
		return err
	case sizes[0] < 0:
		c.lacking[p.Name] = true
		return nil
	case sizes[0] != p.Size:
		return malformed("checkpoint part %q is of %d bytes, not of %d", p.Name, sizes[0], p.Size)
	}
	delete(c.lacking, p.Name)
	return c.stock.pin(ctx, p.Blob, p.Size)
}

// takeTurns takes a frame of turns.
func (c *checker) takeTurns(ctx context.Context, raw []byte) error {
	if err := c.atBegin(ctx); err != nil {
		return err
	}
	turns, err := history.DecodeTurns(raw, c.state.Base)
	if err != nil {
		return err
	}
	if len(turns) == 0 {
		return malformed("frame without turns")
	}
	for i := range turns {
		if err := c.turn(ctx, &turns[i]); err != nil {
			return fmt.Errorf("commit %d: %w", turns[i].Revision, err)
		}
	}
	return nil
}

// turn checks a turn.
func (c *checker) turn(ctx context.Context, t *history.Turn) error {
	if err := c.options.CheckTurn(t); err != nil {
		return err
	}
	before := c.state.Base
	next, err := c.state.Then(&t.Commit, t.ID)
	if err != nil {
		return err
	}
	if len(next.Usage) > head.MaxModels || len(next.Parts) > head.MaxParts {
		return malformed("%d models, %d checkpoint parts", len(next.Usage), len(next.Parts))
	}
	c.turns, c.nodes = c.turns+1, c.nodes+uint64(len(t.Pack.Nodes))
	if err := c.checkNodes(ctx, t); err != nil {
		return err
	}
	if err := c.checkSize(t); err != nil {
		return err
	}
	if err := c.checkTwins(ctx, t); err != nil {
		return err
	}
	for _, id := range namedBy(t, &before) {
		if !c.wanted[id] {
			c.wanted[id] = true
			if err := c.room.take(1); err != nil {
				return err
			}
		}
	}
	if !c.in.copy {
		if err := c.checkParts(ctx, t); err != nil {
			return err
		}
	}
	c.state = next
	if c.in.target != nil && t.Revision == c.in.here.Revision {
		c.in.meets = t.ID
	}
	if c.in.copy {
		return nil
	}
	for name := range c.lacking {
		if !hasPart(next.Parts, name) {
			delete(c.lacking, name)
		}
	}
	return c.settle()
}

func hasPart(parts []head.Part, name string) bool {
	for _, p := range parts {
		if p.Name == name {
			return true
		}
	}
	return false
}

// namedBy returns the nodes that a turn names out of turn: not one of its own, nor the leaf or the last node before it.
func namedBy(t *history.Turn, before *head.Base) (ids []graph.ID) {
	add := func(id graph.ID, own []graph.Node) {
		if id.IsZero() || id == before.Leaf || id == before.Last {
			return
		}
		for i := range own {
			if own[len(own)-1-i].ID == id {
				return
			}
		}
		ids = append(ids, id)
	}
	for i := range t.Pack.Nodes {
		add(t.Pack.Nodes[i].Parent, t.Pack.Nodes[:i])
	}
	add(t.Leaf, t.Pack.Nodes)
	return ids
}

// checkNodes checks that the nodes of a turn have their blobs, or are hidden.
func (c *checker) checkNodes(ctx context.Context, t *history.Turn) error {
	var ids []blob.ID
	var want []int64
	for i := range t.Pack.Nodes {
		n := &t.Pack.Nodes[i]
		if n.Erased {
			if _, hidden := c.in.stones[[8]byte(n.ID[:])]; !hidden && !c.in.copy {
				return fmt.Errorf("%w: content of node %s", damage.ErrMissing, n.ID)
			}
			c.in.erased = append(c.in.erased, erasedNode{graph.Position{Revision: uint64(t.Revision), Index: i}, [8]byte(n.ID[:])})
			if err := c.room.take(1); err != nil {
				return err
			}
			continue
		}
		if !n.Blob.IsZero() {
			ids, want = append(ids, n.Blob), append(want, n.Size)
		}
		for _, a := range n.Attachments {
			ids, want = append(ids, a.ID), append(want, a.Size)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	sizes, err := c.stock.sizes(ctx, ids)
	if err != nil {
		return err
	}
	for i, id := range ids {
		switch {
		case sizes[i] < 0:
			return fmt.Errorf("%w: blob %s", damage.ErrMissing, id)
		case sizes[i] != want[i]:
			return malformed("blob %s is of %d bytes, not of %d", id, sizes[i], want[i])
		}
		if err := c.stock.pin(ctx, id, sizes[i]); err != nil {
			return err
		}
	}
	return nil
}

// checkSize checks that a turn fits a batch, as the commit that made it did.
func (c *checker) checkSize(t *history.Turn) error {
	most := c.Store.Limits.Bytes
	size := 0
	for _, v := range c.given {
		if v.revision == t.Revision && v.base != v.revision {
			size += int(v.size)
		}
	}
	if n := history.SizeOf(t); n+size <= most {
		return nil
	}
	_, vs, err := history.EncodeTurn(c.Space, head.Incarnation{}, t.Body(), &t.Pack)
	if err != nil {
		return malformed("%v", err)
	}
	for _, v := range vs {
		size += len(v)
	}
	if size > most {
		return &history.LimitError{Limit: "bytes", Where: "commit", Have: int64(size), Max: int64(most)}
	}
	return nil
}

// checkTwins notes nodes and turn ids that the section may have had before.
func (c *checker) checkTwins(ctx context.Context, t *history.Turn) error {
	for i := range t.Pack.Nodes {
		if c.twins.maybe(t.Pack.Nodes[i].ID) {
			if err := c.suspect(t.Pack.Nodes[i].ID); err != nil {
				return err
			}
		}
	}
	if t.Turn != "" {
		if id := turnTwin(t.Turn); c.twins.maybe(id) {
			if err := c.suspect(id); err != nil {
				return err
			}
		}
	}
	if c.in.since.Revision == 0 {
		return nil
	}
	if t.Turn != "" {
		if old, err := c.in.target.FindTurn(ctx, c.in.since.Revision, t.Turn); err != nil || old != nil {
			return errors.Join(err, malformed("turn id %q of two commits", t.Turn))
		}
	}
	for i := range t.Pack.Nodes {
		_, _, err := c.in.target.Find(ctx, c.in.since.Revision, t.Pack.Nodes[i].ID)
		if err == nil {
			return malformed("node %s twice", t.Pack.Nodes[i].ID)
		}
		if !errors.Is(err, history.ErrNodeNotFound) {
			return err
		}
	}
	return nil
}

func (c *checker) suspect(id [32]byte) error {
	c.suspects[suspect{c.in.number, id}] = 0
	return c.room.take(1)
}

// A suspect is a node or a turn id that a section may have twice.
type suspect struct {
	section int
	id      [32]byte
}

// turnTwin stands for a turn id among twins.
func turnTwin(turn string) [32]byte { return codec.BundleHash.Sum([]byte(turn)) }

// twins is a set of ids in little memory (Bloom, CACM 1970): it may take an id for one that it has.
type twins struct {
	bits []uint64
	set  []uint32 // the first words that are not zero
}

const (
	twinBits = 1 << 25
	twinSet  = 1 << 12
)

func (w *twins) clear() {
	switch {
	case w.bits == nil:
		w.bits = make([]uint64, twinBits/64)
	case len(w.set) == twinSet:
		clear(w.bits)
	}
	for _, at := range w.set {
		w.bits[at] = 0
	}
	w.set = w.set[:0]
}

// maybe adds an id, and reports whether it may have been there.
func (w *twins) maybe(id [32]byte) bool {
	there := true
	for i := range 4 {
		bit := binary.LittleEndian.Uint32(id[4*i:]) % twinBits
		there = there && w.bits[bit/64]&(1<<(bit%64)) != 0
		if w.bits[bit/64] == 0 && len(w.set) < twinSet {
			w.set = append(w.set, bit/64)
		}
		w.bits[bit/64] |= 1 << (bit % 64)
	}
	return there
}

// checkParts checks the versions of checkpoint parts that a turn sets.
func (c *checker) checkParts(ctx context.Context, t *history.Turn) error {
	for _, p := range t.Parts {
		if p.Set != t.Revision {
			continue
		}
		if !head.IsDelta(p) {
			if err := c.partBlob(ctx, p); err != nil {
				return err
			}
			continue
		}
		key := partSet{p.Name, p.Set}
		v, given := c.given[key]
		if err := c.chained(&p); err != nil {
			return err
		}
		switch {
		case !given:
			c.lacking[p.Name] = true
		case v.id != p.Blob || v.length != p.Size:
			return fmt.Errorf("%w: checkpoint part %q", damage.ErrHash, p.Name)
		case v.base != p.Set && !c.follows(p.Name, v.version):
			return fmt.Errorf("%w: what version %d of checkpoint part %q is relative to", damage.ErrMissing, p.Set, p.Name)
		default:
			delete(c.lacking, p.Name)
			delete(c.given, key)
		}
	}
	return nil
}

// A given is a version that was received, with the id of its content.
type given struct {
	*version
	id     blob.ID
	length int64
}

// chained checks that a part that is set as a delta goes on with the chain of its version before.
func (c *checker) chained(p *head.Part) error {
	for i := range c.state.Parts {
		if before := &c.state.Parts[i]; before.Name == p.Name && (before.Whole == p.Whole) {
			return nil // The whole version that it began with is its own Whole.
		}
	}
	return malformed("checkpoint part %q of revision %d is a delta of another chain", p.Name, p.Set)
}

// follows reports whether a part has, before the turn that is checked, the version that v is relative to.
func (c *checker) follows(name string, v *version) bool {
	return !c.lacking[name] && slices.ContainsFunc(c.state.Parts, func(p head.Part) bool {
		return p.Name == name && p.Set == v.base && p.Blob == v.baseID
	})
}

// version takes a version of a checkpoint part, whose data follow.
func (c *checker) version(ctx context.Context, v *version) error {
	if c.in.copy || len(v.part) > 64 || v.revision <= c.state.Revision {
		return malformed("version %d of checkpoint part %.80q", v.revision, v.part)
	}
	key := partSet{v.part, v.revision}
	if _, twice := c.given[key]; twice || len(c.given) > 1<<16 {
		return malformed("version %d of checkpoint part %q twice", v.revision, v.part)
	}
	var data bytes.Buffer
	err := c.frames.content(v.size, func(b []byte) error {
		data.Write(b)
		return c.spooled.write(kindData, b)
	})
	if err != nil {
		return err
	}
	var base []byte
	if !v.baseID.IsZero() {
		if base, err = c.content(ctx, v.baseID); err != nil {
			return err
		}
	}
	content, err := codec.Decompress(data.Bytes(), base, 64<<20)
	if err != nil {
		return err
	}
	id := blob.Sum(content)
	c.given[key] = given{v, id, int64(len(content))}
	return c.contents.keep(ctx, &c.stock, id, content)
}

// content returns the content of a version before.
func (c *checker) content(ctx context.Context, id blob.ID) ([]byte, error) {
	if content, ok := c.contents.by[id]; ok {
		return content, nil
	}
	sizes, err := c.stock.sizes(ctx, []blob.ID{id})
	if err != nil {
		return nil, err
	}
	if sizes[0] >= 0 && sizes[0] <= 64<<20 {
		if err := c.stock.flush(ctx); err != nil {
			return nil, err
		}
		return c.Blobs.Read(ctx, id)
	}
	if p, known := c.known[id]; known {
		retained, err := c.in.target.RetainedNow(ctx)
		if err != nil {
			return nil, err
		}
		if !retained(c.in.since.Revision) {
			return nil, fmt.Errorf("%w: %d, from which the bundle goes on", history.ErrRevisionPruned, c.in.since.Revision)
		}
		content, _, err := c.in.target.ReadPart(ctx, p)
		return content, err
	}
	return nil, fmt.Errorf("%w: what a version of a checkpoint part is relative to", damage.ErrMissing)
}

// contents keeps the contents of versions, which later ones may be relative to.
type contents struct {
	by    map[blob.ID][]byte
	order []blob.ID
	bytes int
}

const contentsBytes = 64 << 20

// keep keeps content, and stores what it has no room for any more as blobs.
func (k *contents) keep(ctx context.Context, to *stock, id blob.ID, content []byte) error {
	if _, known := k.by[id]; known {
		return nil
	}
	k.by[id], k.order, k.bytes = content, append(k.order, id), k.bytes+len(content)
	for k.bytes > contentsBytes && len(k.order) > 1 {
		old := k.order[0]
		gone := k.by[old]
		delete(k.by, old)
		k.order, k.bytes = k.order[1:], k.bytes-len(gone)
		if err := to.write(ctx, bytes.NewReader(gone), old, int64(len(gone))); err != nil {
			return err
		}
	}
	return nil
}

// takeRecords checks records.
func (c *checker) takeRecords(records []*session.Record) error {
	if c.in.copy {
		return malformed("records of a copy")
	}
	for _, r := range records {
		if err := c.options.CheckRecord(r); err != nil {
			return err
		}
		if r.Key <= c.record {
			return malformed("record %.80q behind record %.80q", r.Key, c.record)
		}
		c.record = r.Key
	}
	return nil
}

// finish checks the end of a section.
func (c *checker) finish(ctx context.Context, n end) error {
	in := c.in
	if err := c.atBegin(ctx); err != nil {
		return err
	}
	if n.turns != c.turns || n.nodes != c.nodes {
		return malformed("%d turns and %d nodes, and there are %d and %d", n.turns, n.nodes, c.turns, c.nodes)
	}
	said := c.state.Base
	if said.Revision == 0 {
		said = head.Base{}
	}
	if n.last != said {
		return fmt.Errorf("%w: it ends with another commit than it says", damage.ErrHash)
	}
	if len(c.given) > 0 {
		return malformed("%d versions of checkpoint parts that no commit sets", len(c.given))
	}
	in.end = n
	if in.copy {
		return nil
	}
	if in.floor > n.last.Revision {
		return malformed("floor %d", in.floor)
	}
	names := map[string]bool{}
	for _, k := range in.kept {
		if k.Revision > n.last.Revision || names[k.Name] || k.Name == "" || len(k.Name) > 256 {
			return malformed("revision %d kept as %.80q", k.Revision, k.Name)
		}
		names[k.Name] = true
	}
	return nil
}
