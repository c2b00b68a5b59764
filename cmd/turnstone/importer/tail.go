package importer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash"
	"hash/maphash"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/zeebo/blake3"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
)

// A tail is the state of an import of a file of lines. When the file has grown, a follower goes on from its tail: it
// parses and stores the new lines alone. It reads the others only to compare their hash.
//
// Some files have no tail: a file with a torn line, one with several conversations, and one that does not end in a line
// feed. Nor has a file whose session has nodes that the file has not. New lines can change what was made of earlier
// lines, and other programs can change the session. The follower reads the whole file then.
type tail struct {
	path    string
	secrets Secrets
	size    int64 // of the file, whose last byte is a line feed
	sum     [32]byte

	lines, pieces int
	rest          []byte // behind the last piece
	b             *builder

	// The fields below are those of the conversation that was imported.
	events hash.Cloner // hash of all events
	count  int         // number of events
	torn   int
	asked  bool
	began  time.Time
	name   string
	held   *held // its session; nil if an import has to compare it with the whole file
}

// tailOf returns the tail of a file of lines, or nil if the file has none.
func tailOf(s *splitter, b *builder) *tail {
	if len(b.talks) != 1 || len(s.pieces) < 2 || len(s.mended) > 0 || !bytes.HasSuffix(s.data, []byte("\n")) {
		return nil
	}
	return &tail{lines: s.lines, pieces: len(s.pieces), rest: s.data[s.end:], b: b}
}

// seed is the seed of the hashes that find repeated lines.
var seed = maphash.MakeSeed()

// more adds the entries of new lines to the only conversation of a file. It returns false if they change what was made of
// earlier lines.
func (b *builder) more(entries []*entry) bool {
	k := b.talks[0]
	from := len(k.entries)
	for _, e := range entries {
		if !b.loose(e) && k.key != [2]string{e.session, e.agent} || e.id != "" && k.wanted[e.id] {
			return false
		}
	}
	k.entries = append(k.entries, entries...)
	k.index(from)
	for _, e := range entries {
		if e.id != "" && b.home[e.id] == nil {
			b.home[e.id] = k
		}
	}
	for i := from; i < len(k.entries); i++ {
		b.add(k, i)
	}
	return true
}

// forget removes what the builder does not need to add later lines.
func (k *talk) forget() {
	if k.wanted == nil {
		k.wanted = map[string]bool{}
	}
	for i := len(k.sums); i < len(k.entries); i++ {
		e := k.entries[i]
		if _, here := k.first[e.titleOf]; !here && e.titleOf != "" {
			k.wanted[e.titleOf] = true
		}
		k.sums = append(k.sums, maphash.Bytes(seed, e.raw))
		k.entries[i] = nil
	}
	for i := range k.Events {
		if missing := k.Events[i].missing; missing != "" {
			k.wanted[missing] = true
		}
		k.Events[i].Payload, k.Events[i].Usage = nil, nil
	}
}

// again returns the session of a conversation that goes on from a tail, or nil if the session has changed since the tail
// was made.
func (l *loader) again(ctx context.Context, c *Conversation) (*held, error) {
	h := c.tail.held
	s, err := l.st.SessionByIncarnation(ctx, h.info.Incarnation)
	if err != nil {
		return nil, err
	}
	info, err := s.Info(ctx)
	if err != nil {
		return nil, err
	}
	state, err := s.Load(ctx, turnstone.Scope{After: h.state.Revision, Records: []string{stampKey}})
	if errors.Is(err, turnstone.ErrRevisionNotFound) { // An older copy of the store was put back.
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	last := state.Records[stampKey]
	if info.Labels[IdentityLabel] != c.Identity || state.Revision != h.state.Revision || parseStamp(last.Value) != h.mark {
		return nil, nil
	}
	state.Nodes = h.state.Nodes
	h.session, h.info, h.state, h.marked, h.c = s, info, state, last.Version, c
	if h.same = h.mark == c.stamp; h.same {
		return h, nil
	}
	h.fresh = len(c.Events) - c.since
	h.ids = slices.Concat(h.ids[:c.since], make([]graph.ID, h.fresh))
	h.gone, h.moved = make([]bool, len(c.Events)), make([]bool, len(c.Events))
	return h, nil
}

// keep updates the tail of a conversation after an import. h is its session.
func (c *Conversation) keep(h *held) {
	if c.tail == nil {
		return
	}
	k := c.tail
	k.events, k.count, k.torn, k.asked, k.began, k.name = c.events, len(c.Events), c.torn, c.asked, c.began, strings.Clone(c.Name)
	if k.held = nil; h.state != nil && h.mark == c.stamp && h.other == 0 && !h.linked && len(h.parents) == 0 && !slices.Contains(h.gone, true) {
		k.held = h
	}
}

// whole reads the whole file of a conversation that goes on from a tail.
func (c *Conversation) whole(ctx context.Context) (*Conversation, error) {
	f, err := os.Open(c.tail.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := Read(ctx, f)
	if err != nil {
		return nil, err
	}
	convs, _, err := (&Tails{}).ParseWhole(ctx, c.tail.path, data, c.tail.secrets)
	for i := range convs {
		if convs[i].Identity == c.Identity {
			convs[i].seal()
			return &convs[i], convs[i].check()
		}
	}
	return nil, cmp.Or(err, fmt.Errorf("%s was replaced while it was read", c.File))
}

// Tails keeps the tails of the files that a follower has imported. With them, an import of a file that has grown takes a
// time that depends on the new lines, and not on the size of the file. The methods may be called at the same time. The
// zero value is ready for use.
type Tails struct {
	mu     sync.Mutex
	tails  []*tail // the most recently used is the last
	events int     // of all of them
}

// minTail is the size of the smallest file of which Tails keeps the tail. A smaller file is parsed in a few milliseconds.
var minTail int64 = 256 << 10

// maxEvents is the number of events of all files whose tails are kept. An event takes about a kilobyte.
const maxEvents = 1 << 16

// ParseWhole parses a whole file, as the function Parse does, so that Keep can keep its tail.
func (t *Tails) ParseWhole(ctx context.Context, file string, data []byte, secrets Secrets) ([]Conversation, []*BadInput, error) {
	p := newParser(file, secrets)
	convs, bad, err := p.read(ctx, data)
	if k := p.tail; len(convs) == 1 && k != nil && int64(len(data)) >= minTail && !strings.HasSuffix(file, ".gz") {
		k.path, k.secrets, k.size, k.sum = file, secrets, int64(len(data)), blake3.Sum256(data)
		convs[0].tail = k
	}
	return convs, bad, err
}

// Parse parses the lines that a file has got since Keep kept its tail. It returns nil if there is no tail, or the whole
// file has to be parsed; the caller calls ParseWhole then.
//
// The conversation has all events of the file, but only the new ones have payloads. Load needs no others. If others have
// changed the session, Load reads the whole file.
func (t *Tails) Parse(ctx context.Context, path string) ([]Conversation, error) {
	k := t.take(path)
	if k == nil {
		return nil, nil
	}
	more, err := k.grown(ctx)
	if err != nil || more == nil {
		return nil, ctx.Err() // Whoever reads all of the file meets the error.
	}
	p := newParser(path, k.secrets)
	s := splitter{data: slices.Concat(k.rest, p.redact(more)), begin: len(k.rest), lines: k.lines, before: k.pieces}
	if err := s.split(ctx); err != nil || len(s.mended) > 0 {
		return nil, ctx.Err()
	}
	entries, err := p.entries(ctx, k.b.format, &s)
	if err != nil || !k.b.more(entries) {
		return nil, err
	}
	k.lines, k.pieces, k.rest = s.lines, k.pieces+len(s.pieces), s.data[s.end:]
	c := k.b.talks[0].Conversation
	maps.Copy(c.gaps, s.gaps)
	c.since, c.torn, c.asked, c.began, c.Name = k.count, k.torn, k.asked, k.began, cmp.Or(c.Name, k.name)
	c.Mended, c.tail = maps.Clone(c.Mended), k
	p.out = []Conversation{c}
	convs, bad := p.conversations()
	if len(bad) > 0 {
		return nil, nil
	}
	return convs, nil
}

// grown returns the bytes that were added to the end of the file. It returns nil if the file was changed otherwise.
func (k *tail) grown(ctx context.Context) ([]byte, error) {
	f, err := os.Open(k.path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := blake3.New()
	for left := k.size; left > 0; {
		n, err := io.CopyN(h, f, min(left, maxAtOnce))
		if left -= n; err != nil || ctx.Err() != nil {
			return nil, cmp.Or(ctx.Err(), err)
		}
	}
	if !bytes.Equal(h.Sum(nil), k.sum[:]) {
		return nil, nil
	}
	more, err := io.ReadAll(io.LimitReader(f, maxFile))
	if k.size += int64(len(more)); err != nil || k.size > maxFile || len(more) > 0 && !bytes.HasSuffix(more, []byte("\n")) {
		return nil, err
	}
	_, _ = h.Write(more)
	h.Sum(k.sum[:0])
	return more, nil
}

// maxAtOnce is the number of bytes that grown reads before it looks whether ctx has ended.
const maxAtOnce = 16 << 20

// Keep keeps the tail of a file whose conversations were imported. The caller must not use the conversations any more,
// except their Mended and Redacted.
func (t *Tails) Keep(results []Result) {
	if len(results) != 1 {
		return
	}
	c := results[0].Conversation
	k := c.tail
	if results[0].Err != nil || k == nil || k.held == nil || k.count > maxEvents {
		return
	}
	k.b.talks[0].forget()
	k.held.forget()
	k.rest, k.held.c = bytes.Clone(k.rest), nil
	for n, gap := range c.gaps { // They are parts of the file, which would be kept with them.
		c.gaps[n] = bytes.Clone(gap)
	}
	t.take(k.path)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tails = append(t.tails, k)
	for t.events += k.count; t.events > maxEvents; t.tails = slices.Delete(t.tails, 0, 1) {
		t.events -= t.tails[0].count
	}
}

// take removes and returns the tail of a file, or returns nil if there is none.
func (t *Tails) take(path string) *tail {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(t.tails, func(k *tail) bool { return k.path == path })
	if i < 0 {
		return nil
	}
	k := t.tails[i]
	t.tails = slices.Delete(t.tails, i, i+1)
	t.events -= k.count
	return k
}
