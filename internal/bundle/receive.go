package bundle

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

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
	ID       func(string) string // returns the id that a session gets here, by the one in the bundle
	Branch   string              // under which name what a session has got that has diverged is kept as a branch, unless it is ""
	MaxBytes int64               // that the bundle may expand to, or 0
	Exact    bool                // A session that is brought forward loses the records and the names of revisions that the bundle does not have.
	// These refuse what no caller of this store could have stored.
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

	target  *history.Session // the session that exists, or nil
	here    head.Base        // where it stands
	meets   head.CommitID    // what the bundle says of the revision at which it stands, or zero if it does not have that
	made    bool             // this call has made the session
	altered bool             // this call has made it or changed something of it

	branches  bool          // it has diverged, and becomes a branch of the one here
	common    head.Revision // of the last commit that both have, if it branches
	branchEnd head.Revision // the revision here that is kept

	decided, reported bool          // once decide and report have come to it
	from              head.Revision // where it stood first
}

// An erasedNode is a node without content.
type erasedNode struct {
	at graph.Position
	id [8]byte
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

	ids      map[string]bool        // of the sessions
	users    map[int][]*incoming    // the sessions that inherit from a copy, by the number of its section
	twins    twins                  // of the section that is received
	suspects map[suspect]int        // how often links has come to them
	wanted   map[graph.ID]bool      // nodes that are named out of turn
	found    map[graph.ID][]place   // those of them that links has found
	ends     map[revisionOf]bool    // where forks leave their parents
	left     map[revisionOf]leaving // what is there
	views    int                    // how many nodes without content links has looked at
}

// receive reads a bundle to its end.
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
		_ = from.CloseWithError(cmp.Or(err, io.ErrClosedPipe)) // It reads no more.
		stored <- err
	}()
	err := r.frames.content(size, func(b []byte) error { _, err := to.Write(b); return err })
	_ = to.CloseWithError(err) // nil: the end
	if serr := <-stored; serr != nil {
		return serr
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
