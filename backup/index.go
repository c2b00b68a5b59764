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
	"github.com/turnstonedb/turnstone/head"
)

// This file has the object of a run: lines of JSON, compressed, of which the first is a header, then come entries and
// erasures, and the last is the hash of those before it.

// A header is the first line of a run.
type header struct {
	Format   int              `json:"format"` // 1
	Run      int              `json:"run"`
	Time     time.Time        `json:"time"`            // when it ended, after that of the run before
	Complete int              `json:"complete"`        // the last run, this one included, at which a pass over the sessions had ended; 0 if there is none
	Cursor   turnstone.Cursor `json:"feed,omitempty"`  // up to which the feed has been followed at that run
	Before   sum              `json:"before"`          // the hash of the run before
	Entries  int              `json:"entries"`         // how many follow
	Erased   int              `json:"erased,omitzero"` // how many follow these
}

// An entry says where a session stands, and where its last bundle is.
type entry struct {
	ID       string        `json:"id"`
	Run      int           `json:"run"` // that has made the entry
	Gone     bool          `json:"gone,omitzero"`
	Genesis  head.CommitID `json:"genesis,omitzero"`
	Revision head.Revision `json:"revision,omitzero"`
	Commit   head.CommitID `json:"commit,omitzero"`
	Rest     string        `json:"rest,omitempty"`
	Bundle   extent        `json:"bundle,omitzero"`
	Before   int           `json:"before,omitzero"`  // the run with the bundle that this one goes on from; 0 if it has all of the session
	Was      string        `json:"was,omitempty"`    // the id at that run, if it was another one
	Parent   string        `json:"parent,omitempty"` // the session that has to be there, as of this run, before the bundle
}

// An extent is a part of a pack.
type extent struct {
	Pack   string `json:"pack"`
	Offset int64  `json:"offset"`
	Size   int64  `json:"size"`
	Sum    sum    `json:"sum"`
}

// An erasure says of which run on the backup knows that something was erased in the store.
type erasure struct {
	turnstone.Erased
	Run int `json:"run"`
}

// what is what was erased.
func (e *erasure) what() erasedKey { return erasedKey{e.Genesis, e.Node} }

type erasedKey struct{ genesis, node [32]byte }

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

// An index says where all sessions stand at a run of a generation.
type index struct {
	header
	generation string
	sum        sum // of the run
	sessions   map[string]*entry
	erased     map[erasedKey]*erasure
	made       map[int]map[string]*entry // those of sessions, by the run that has made them
	by         map[head.CommitID]string  // ids of sessions, by their geneses
}

func newIndex(generation string) *index {
	return &index{generation: generation, sessions: map[string]*entry{}, erased: map[erasedKey]*erasure{}, made: map[int]map[string]*entry{}, by: map[head.CommitID]string{}}
}

// alive returns the entry of a session that is there, or nil.
func (x *index) alive(id string) *entry {
	if e := x.sessions[id]; e != nil && !e.Gone {
		return e
	}
	return nil
}

// set makes e the entry of its session.
func (x *index) set(e *entry) {
	if was := x.sessions[e.ID]; was != nil {
		delete(x.made[was.Run], e.ID)
	}
	x.sessions[e.ID] = e
	if x.made[e.Run] == nil {
		x.made[e.Run] = map[string]*entry{}
	}
	x.made[e.Run][e.ID] = e
	if !e.Gone {
		x.by[e.Genesis] = e.ID
	}
}

func runName(generation string, run int) string { return fmt.Sprintf("%s/runs/%08d", generation, run) }

// span returns after which run the entries of a run begin: it has those of the runs behind it.
func span(run int) int { return run - run&-run }

const maxLine = 64 << 10 // bytes of a line

// writeRun stores the object of the run behind x, with those entries of x that belong in it, and makes x that of the run.
func (x *index) writeRun(ctx context.Context, to Target, h header) error {
	h.Format, h.Run, h.Before = 1, x.Run+1, x.sum
	var entries []*entry
	for run := span(h.Run) + 1; run <= h.Run; run++ {
		entries = slices.AppendSeq(entries, maps.Values(x.made[run]))
	}
	slices.SortFunc(entries, func(a, b *entry) int { return strings.Compare(a.ID, b.ID) })
	var erased []*erasure
	for _, e := range x.erased {
		if e.Run > span(h.Run) {
			erased = append(erased, e)
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
	kept := &failing{r: o}
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
	switch {
	case e.ID == "", e.Run <= span(run), e.Run > run, e.Before < 0, e.Before >= e.Run, e.Parent == e.ID, e.Was != "" && e.Before == 0,
		!e.Gone && (e.Bundle.Pack == "" || strings.ContainsAny(e.Bundle.Pack, "/.") || e.Bundle.Offset < 0 || e.Bundle.Size <= 0):
		return fmt.Errorf("%w: the entry of session %.100q", ErrTarget, e.ID)
	}
	return nil
}

// A failing remembers the error with which a reader failed.
type failing struct {
	r   io.Reader
	err error
}

func (f *failing) Read(b []byte) (int, error) {
	n, err := f.r.Read(b)
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
			if x.sessions[e.ID] == nil {
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

// runsOf returns the numbers of the runs of a generation, which are those from 1 up to the last one.
func runsOf(ctx context.Context, from Target, generation string) (last int, err error) {
	var all []int
	for name, err := range from.List(ctx, generation+"/runs/") {
		if err != nil {
			return 0, err
		}
		n, err := strconv.Atoi(name)
		if err != nil || runName(generation, n) != generation+"/runs/"+name {
			return 0, fmt.Errorf("%w: %s/runs/%s is no run", ErrTarget, generation, name)
		}
		all = append(all, n)
	}
	slices.Sort(all)
	for i, n := range all {
		if n != i+1 {
			return 0, fmt.Errorf("%w: %s is missing", ErrTarget, runName(generation, i+1))
		}
	}
	return len(all), nil
}
