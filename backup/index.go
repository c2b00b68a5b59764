package backup

import (
	"bufio"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/zeebo/blake3"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/sealed"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// This file has the object of a run: lines of JSON, compressed, of which the first is a header, then come entries and
// erasures, and the last is the hash of those before it.

// A header is the first line of a run.
type header struct {
	Format   int              `json:"format"` // 1
	Run      int              `json:"run"`
	Time     time.Time        `json:"time"`              // when it ended, after that of the run before
	Complete int              `json:"complete"`          // the last run, this one included, at which a pass over the sessions had ended; 0 if there is none
	Store    string           `json:"store"`             // turnstone.Store.ID
	Cursor   turnstone.Cursor `json:"feed,omitempty"`    // up to which the feed has been followed
	Switches uint64           `json:"switches,omitzero"` // turnstone.Feed.Switches then
	Lacking  int              `json:"lacking,omitzero"`  // sessions of the store that could not be read, and of which the generation has nothing
	Before   sum              `json:"before"`            // the hash of the run before
	Entries  int              `json:"entries"`           // how many follow
	Erased   int              `json:"erased,omitzero"`   // how many follow these
}

// An entry says where a session stands, and where its last bundle is.
type entry struct {
	Session  string        `json:"session"` // its incarnation
	ID       string        `json:"id,omitempty"`
	Run      int           `json:"run"` // that has made the entry
	Gone     bool          `json:"gone,omitzero"`
	Genesis  head.CommitID `json:"genesis,omitzero"`
	Revision head.Revision `json:"revision,omitzero"`
	Commit   head.CommitID `json:"commit,omitzero"`
	Rest     string        `json:"rest,omitempty"`
	Bundle   extent        `json:"bundle,omitzero"`
	Expanded int64         `json:"expanded,omitzero"` // bytes of the bundle before compression
	Exact    bool          `json:"exact,omitzero"`    // The session stood like this before and after the bundle was written.
	Before   int           `json:"before,omitzero"`   // the run with the bundle that this one goes on from; 0 if it has all of the session
	Parent   *parent       `json:"parent,omitempty"`  // the session that has to be there before the bundle
}

// A parent is the session that a fork was made of, in the bundle of the fork.
type parent struct {
	Session string `json:"session"`
	ID      string `json:"id"`
	Run     int    `json:"run"` // whose bundle of it comes before
}

// An extent is a part of a pack.
type extent struct {
	Pack   string `json:"pack"`
	Offset int64  `json:"offset"`
	Size   int64  `json:"size"`
	Sum    sum    `json:"sum"`
}

// An erasure is something that was erased in a store.
type erasure struct {
	turnstone.Erased
	Store  string `json:"store"`
	Run    int    `json:"run"`             // the first one that knows of it
	During bool   `json:"during,omitzero"` // It was erased while that run was made, which may have what was erased.
}

// what is what was erased.
func (e *erasure) what() erasedKey { return erasedKey{e.Store, e.Incarnation, e.Genesis, e.Node} }

type erasedKey struct {
	store, session string
	genesis        head.CommitID
	node           graph.ID
}

// A sum is a BLAKE3 hash.
type sum [32]byte

// MarshalText returns the hexadecimal digits.
func (s sum) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, s[:]), nil }

// UnmarshalText reads them.
func (s *sum) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(s)) {
		return fmt.Errorf("a hash of %d digits", len(text))
	}
	_, err := hex.Decode(s[:], text)
	return err
}

// An index says where all sessions stood at a run of a generation.
type index struct {
	header
	generation string
	sum        sum               // of the run
	sessions   map[string]*entry // by their incarnations
	ids        map[string]string // the incarnations of those that are there, by their ids; of two of one id, that of the later entry
	erased     map[erasedKey]*erasure
	made       map[int]map[string]*entry // those of sessions, by the run that has made them
}

func newIndex(generation string) *index {
	return &index{generation: generation, sessions: map[string]*entry{}, erased: map[erasedKey]*erasure{}, made: map[int]map[string]*entry{}, ids: map[string]string{}}
}

// alive returns the entry of a session that is there, or nil.
func (x *index) alive(session string) *entry {
	if e := x.sessions[session]; e != nil && !e.Gone {
		return e
	}
	return nil
}

// set makes e the entry of its session.
func (x *index) set(e *entry) {
	if was := x.sessions[e.Session]; was != nil {
		delete(x.made[was.Run], e.Session)
		if x.ids[was.ID] == e.Session {
			delete(x.ids, was.ID)
		}
	}
	x.sessions[e.Session] = e
	if x.made[e.Run] == nil {
		x.made[e.Run] = map[string]*entry{}
	}
	x.made[e.Run][e.Session] = e
	if old := x.alive(x.ids[e.ID]); !e.Gone && (old == nil || old.Run <= e.Run) {
		x.ids[e.ID] = e.Session
	}
}

func runName(generation string, run int) string { return fmt.Sprintf("%s/runs/%08d", generation, run) }

// span returns after which run the entries of a run begin: it has those of the runs behind it.
func span(run int) int { return run - run&-run }

const (
	maxLine      = 16 << 10 // bytes of a line
	maxExpansion = 64       // how many times larger than the object its lines are at most
)

// writeRun stores the object of the run behind x, with those entries of x that belong in it, and makes x that of the
// run.
func (x *index) writeRun(ctx context.Context, to Target, h header) error {
	h.Format, h.Run, h.Before = 1, x.Run+1, x.sum
	var entries []*entry
	for run := span(h.Run) + 1; run <= h.Run; run++ {
		entries = slices.AppendSeq(entries, maps.Values(x.made[run]))
	}
	slices.SortFunc(entries, func(a, b *entry) int { return strings.Compare(a.Session, b.Session) })
	var erased []*erasure
	for _, e := range x.erased {
		if e.Run > span(h.Run) {
			erased = append(erased, e)
		}
	}
	for _, e := range entries {
		if err := e.check(h.Run); err != nil { // rather than when it is read
			return err
		}
	}
	h.Entries, h.Erased = len(entries), len(erased)
	hash := blake3.New()
	r, w := io.Pipe()
	go func() {
		z, err := zstd.NewWriter(w, zstd.WithEncoderConcurrency(1))
		if err == nil {
			lines := json.NewEncoder(io.MultiWriter(z, hash))
			err = lines.Encode(&h)
			for i := 0; i < len(entries) && err == nil; i++ {
				err = lines.Encode(entries[i])
			}
			for i := 0; i < len(erased) && err == nil; i++ {
				err = lines.Encode(erased[i])
			}
		}
		if err == nil {
			err = json.NewEncoder(z).Encode(sum(hash.Sum(nil)))
		}
		if err == nil {
			err = z.Close()
		}
		_ = w.CloseWithError(err)
	}()
	name := runName(x.generation, h.Run)
	err := to.Put(ctx, name, r)
	_ = r.CloseWithError(errEnded)
	if err != nil {
		return err
	}
	got, total, err := readRun(ctx, to, x.generation, h.Run, nil, nil)
	if err == nil && (total != sum(hash.Sum(nil)) || got.Run != h.Run) {
		err = fmt.Errorf("%w: %s is not what was written", ErrTarget, name)
	}
	x.header, x.sum = h, total
	return err
}

// errEnded ends the writing of what nobody reads any more.
var errEnded = errors.New("the reader has ended")

// readRun reads the object of a run, and calls the functions, if they are not nil, for what is in it.
func readRun(ctx context.Context, from Target, generation string, run int, session func(*entry) error, erased func(*erasure)) (h header, total sum, err error) {
	name := runName(generation, run)
	o, err := from.Get(ctx, name, 0, -1)
	if err != nil {
		return h, total, lacking(err)
	}
	defer o.Close()
	fail := func(err error) (header, sum, error) { return h, total, fmt.Errorf("%w: %s: %w", ErrTarget, name, err) }
	in := bufio.NewReader(o)
	if begin, err := in.Peek(1); err == nil && sealed.Encrypted(begin) {
		return h, total, fmt.Errorf("%w: %s", engine.ErrEncrypted, name)
	}
	kept := &failing{r: in}
	expanded := 0 // bytes of lines
	z, err := zstd.NewReader(kept, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(64<<20))
	if err != nil {
		return fail(err)
	}
	defer z.Close()
	hash := blake3.New()
	lines := bufio.NewScanner(z)
	lines.Buffer(nil, maxLine)
	next := func(into any) error {
		if !lines.Scan() {
			switch err := lines.Err(); {
			case kept.err != nil: // of the connection
				return kept.err
			case err != nil:
				return fmt.Errorf("%w: %w", ErrTarget, err)
			}
			return fmt.Errorf("%w: it ends too early", ErrTarget)
		}
		if expanded += len(lines.Bytes()); int64(expanded) > maxLine+maxExpansion*kept.n { // Most of a line are hashes.
			return fmt.Errorf("%w: it expands to more than %d times its size", ErrTarget, maxExpansion)
		}
		d := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		d.DisallowUnknownFields()
		if err := d.Decode(into); err != nil {
			return fmt.Errorf("%w: %w", ErrTarget, err)
		}
		return nil
	}
	line := func(into any) error {
		err := next(into)
		_, _ = hash.Write(lines.Bytes())
		_, _ = hash.Write([]byte{'\n'})
		return err
	}
	if err := line(&h); err != nil {
		return h, total, fmt.Errorf("%s: %w", name, err)
	}
	switch {
	case h.Format != 1:
		return fail(fmt.Errorf("of format %d, and this version of Turnstone knows 1", h.Format))
	case h.Run != run || h.Complete < 0 || h.Complete > run || h.Entries < 0 || h.Erased < 0:
		return fail(errors.New("its header is that of another run, or contradicts itself"))
	}
	for range h.Entries {
		e := &entry{}
		err := line(e)
		if err == nil {
			err = e.check(run)
		}
		if err == nil && session != nil {
			err = session(e)
		}
		if err != nil {
			return h, total, fmt.Errorf("%s: %w", name, err)
		}
	}
	for range h.Erased {
		e := &erasure{}
		if err := line(e); err != nil {
			return h, total, fmt.Errorf("%s: %w", name, err)
		}
		if erased != nil {
			erased(e)
		}
	}
	total = sum(hash.Sum(nil))
	var said sum
	if err := next(&said); err != nil {
		return h, total, fmt.Errorf("%s: %w", name, err)
	}
	if said != total || lines.Scan() {
		return fail(errors.New("its hash is another one"))
	}
	return h, total, nil
}

// check reports what no backup writes.
func (e *entry) check(run int) error {
	p := e.Parent
	switch {
	case len(e.Session) != 32, e.Run <= span(run), e.Run > run, e.Before < 0, e.Before >= e.Run, len(e.Rest) > 64,
		!e.Gone && (e.ID == "" || !named(e.Bundle.Pack) || e.Bundle.Offset < 0 || e.Bundle.Size <= 0 || e.Bundle.Size > 1<<50 || e.Expanded <= 0 || e.Expanded > 1<<50),
		len(e.ID) > turnstone.MaxSessionID,
		p != nil && (len(p.Session) != 32 || p.Session == e.Session || p.ID == "" || len(p.ID) > turnstone.MaxSessionID || p.Run < 1 || p.Run > e.Run || e.Before > 0):
		return fmt.Errorf("%w: the entry of session %.64q", ErrTarget, e.Session)
	}
	return nil
}

// named reports whether a text may be the name of a pack.
func named(pack string) bool {
	return len(pack) == len("00000001-5d0e77c2") && strings.Trim(pack, "0123456789abcdef-") == ""
}

// A failing remembers the error with which a reader failed.
type failing struct {
	r   io.Reader
	n   int64 // bytes that were read
	err error
}

func (f *failing) Read(b []byte) (int, error) {
	n, err := f.r.Read(b)
	f.n += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
	}
	return n, err
}

// readHeader reads the first line of a run.
func readHeader(ctx context.Context, from Target, generation string, run int) (header, error) {
	errFirst := errors.New("only the first line")
	h, _, err := readRun(ctx, from, generation, run, func(*entry) error { return errFirst }, nil)
	if errors.Is(err, errFirst) {
		err = nil
	}
	return h, err
}

// readIndex reads where all sessions stand at a run.
func readIndex(ctx context.Context, from Target, generation string, run int) (*index, error) {
	x := newIndex(generation)
	for at := run; at > 0; at = span(at) {
		h, total, err := readRun(ctx, from, generation, at, func(e *entry) error {
			if x.sessions[e.Session] == nil {
				x.set(e)
			}
			return nil
		}, func(e *erasure) { x.erased[e.what()] = e })
		if err != nil {
			return nil, err
		}
		if at == run {
			x.header, x.sum = h, total
		}
	}
	return x, nil
}

// runsOf returns how many runs a generation has: their numbers begin at 1. If one is missing, the error matches
// ErrTarget, and the number is that of the runs before it.
func runsOf(ctx context.Context, from Target, generation string) (last int, err error) {
	there := map[int]bool{}
	for name, err := range from.List(ctx, generation+"/runs/") {
		if err != nil {
			return 0, err
		}
		if n, err := strconv.Atoi(name); err == nil && runName(generation, n) == generation+"/runs/"+name {
			there[n] = true
		}
	}
	for there[last+1] {
		last++
	}
	if last < len(there) {
		return last, fmt.Errorf("%w: %s is missing", ErrTarget, runName(generation, last+1))
	}
	return last, nil
}
