package history

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/cache"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// This file has the stored part of an index: runs, each of which has the entries of consecutive
// revisions. A run is sorted by hash and cut into pages of equal ranges of hashes, so that a
// reader needs one page of each run. Runs are merged as in a log-structured merge tree (O'Neil,
// Cheng, Gawlick and O'Neil, 1996): a new run takes in those before it that are not larger. So
// there are few runs, and an entry is written few times. A batch has a bound, so a run of
// 1<<head.MaxRunBits pages is not merged any more: a long history has at most one run for
// every pageEntries<<(head.MaxRunBits-1) entries, and a few.
//
// An entry has a part of a hash only. It says where to look, and what is found there decides.
// Entries never become wrong while their session lives: a revision never changes, and erasure
// leaves ids and keys.

// An EntryKind says what an entry of an index is about.
type EntryKind byte

// The kinds of entries.
const (
	NodeEntry EntryKind = iota // a node, by its id
	KeyEntry                   // a node, by its event key
	TurnEntry                  // a commit, by its turn id
	LeafEntry                  // a commit whose leaf is a node that another commit added, by the id of that node
)

// An Entry maps a hash to the position of a node or of a commit.
type Entry struct {
	Hash uint32
	Kind EntryKind
	At   graph.Position // The index is 0 for a commit.
}

func (e Entry) compare(f Entry) int {
	return cmp.Or(cmp.Compare(e.Hash, f.Hash), cmp.Compare(e.Kind, f.Kind), cmp.Compare(e.At.Revision, f.At.Revision), cmp.Compare(e.At.Index, f.At.Index))
}

// hashID returns the hash of a node id in an entry.
func hashID(id graph.ID) uint32 { return binary.BigEndian.Uint32(id[:]) }

// hashName returns the hash of an event key or a turn id in an entry.
func hashName(h keys.Hash) uint32 { return binary.BigEndian.Uint32(h[:]) }

// movesLeaf reports whether the turn made a node the leaf that another one added.
func (t *Turn) movesLeaf() bool {
	n := len(t.Pack.Nodes)
	return !t.Leaf.IsZero() && (n == 0 || t.Leaf != t.Pack.Nodes[n-1].ID)
}

// Entries appends the entries of a turn to dst.
func Entries(dst []Entry, space *keys.Space, t *Turn) []Entry {
	revision := uint64(t.Revision)
	for i := range t.Pack.Nodes {
		n, at := &t.Pack.Nodes[i], graph.Position{Revision: revision, Index: i}
		dst = append(dst, Entry{hashID(n.ID), NodeEntry, at})
		if n.Key != "" {
			dst = append(dst, Entry{hashName(space.EventKey(n.Key)), KeyEntry, at})
		}
	}
	at := graph.Position{Revision: revision}
	if t.Turn != "" {
		dst = append(dst, Entry{hashName(space.Turn(t.Turn)), TurnEntry, at})
	}
	if t.movesLeaf() {
		dst = append(dst, Entry{hashID(t.Leaf), LeafEntry, at})
	}
	return dst
}

// pageEntries is how many entries a page has at most, but for chance and the limit of a run.
const pageEntries = 2048

// A run is a head.Run with its first revision.
type run struct {
	inc         head.Incarnation
	first, last head.Revision
	bits        int
}

// runsOf returns the runs of a session's index, the oldest first.
func runsOf(inc head.Incarnation, runs []head.Run) []run {
	out := make([]run, len(runs))
	first := head.Revision(1)
	for i, r := range runs {
		out[i] = run{inc, first, r.Last, r.Bits}
		first = r.Last + 1
	}
	return out
}

// page returns the number of the page that has the entries of a hash.
func (u *run) page(hash uint32) int { return int(uint64(hash) >> (32 - u.bits)) }

// key returns the key of a page.
func (u *run) key(space *keys.Space, page int) []byte {
	return space.Index(u.inc, uint64(u.last), page)
}

// encode returns the record of a page with some entries, which are sorted: the first revision of the
// run, its bits, and of each entry the step from the hash before, four times the number of
// revisions after the first plus the kind, and for a node its index; all uvarints.
func (u *run) encode(key []byte, entries []Entry) []byte {
	b := binary.AppendUvarint(make([]byte, 0, 16+8*len(entries)), uint64(u.first))
	b = binary.AppendUvarint(b, uint64(u.bits))
	hash := uint32(0)
	for _, e := range entries {
		b = binary.AppendUvarint(b, uint64(e.Hash-hash))
		b = binary.AppendUvarint(b, (e.At.Revision-uint64(u.first))<<2|uint64(e.Kind))
		if e.Kind <= KeyEntry {
			b = binary.AppendUvarint(b, uint64(e.At.Index))
		}
		hash = e.Hash
	}
	return codec.Encode(key, keys.Index, b)
}

// errStaleRun says that a page is of another run than the one that is looked for: runs were merged
// meanwhile.
var errStaleRun = fmt.Errorf("%w: page of another run", damage.ErrMissing)

// decode decodes a page.
func (u *run) decode(key, value []byte) (entries []Entry, err error) {
	b, err := codec.Decode(key, value, keys.Index)
	if err != nil {
		return nil, err
	}
	next := func() (v uint64) {
		v, n := codec.Uvarint(b)
		if n <= 0 {
			err, b = fmt.Errorf("%w: index", damage.ErrMalformed), nil
			return 0
		}
		b = b[n:]
		return v
	}
	if first, bits := next(), next(); err == nil && (first != uint64(u.first) || bits != uint64(u.bits)) {
		return nil, errStaleRun
	}
	hash := uint64(0)
	entries = make([]Entry, 0, len(b)/5)
	for len(b) > 0 && err == nil {
		step, at := next(), next()
		if step > 1<<32-1 || at>>2 > uint64(u.last-u.first) {
			return nil, fmt.Errorf("%w: index", damage.ErrMalformed)
		}
		hash += step
		e := Entry{Hash: uint32(hash), Kind: EntryKind(at & 3), At: graph.Position{Revision: uint64(u.first) + at>>2}}
		if e.Kind <= KeyEntry {
			e.At.Index = int(next() & (1<<31 - 1))
		}
		if hash > 1<<32-1 || e.At.Index >= graph.MaxNodes || len(entries) > 0 && e.compare(entries[len(entries)-1]) <= 0 {
			err = fmt.Errorf("%w: index", damage.ErrMalformed)
		}
		entries = append(entries, e)
	}
	return entries, err
}

// Pages keeps pages of indexes. Pages never change, unless their run is merged; then no index
// names it any more.
type Pages = cache.Cache[pageName, []Entry]

type pageName struct {
	run
	page int
}

// NewPages returns an empty cache within a budget.
func NewPages(b *cache.Budget) *Pages { return cache.New[pageName, []Entry](b) }

// entryBytes is what an entry takes in memory.
const entryBytes = 24

// find returns the positions of the entries of a kind and a hash in some runs. It calls the engine
// at most once.
func (r Reader) find(ctx context.Context, runs []run, kind EntryKind, hash uint32) (out []graph.Position, err error) {
	var ks [][]byte
	var missing []pageName
	for _, u := range runs {
		name := pageName{u, u.page(hash)}
		if entries, ok := r.Pages.Get(name); ok {
			out = appendFound(out, entries, kind, hash)
		} else {
			ks, missing = append(ks, u.key(r.Space, name.page)), append(missing, name)
		}
	}
	if len(ks) == 0 {
		return out, nil
	}
	values, err := r.Engine.Get(ctx, ks...)
	if err != nil {
		return nil, err
	}
	for i, name := range missing {
		entries, err := name.decode(ks[i], values[i])
		if err != nil {
			return nil, codec.Corrupt(err, "index at key %x", ks[i])
		}
		r.Pages.Put(name, entries, entryBytes*len(entries))
		out = appendFound(out, entries, kind, hash)
	}
	return out, nil
}

// appendFound appends the positions of the entries of a kind and a hash.
func appendFound(out []graph.Position, entries []Entry, kind EntryKind, hash uint32) []graph.Position {
	at, _ := slices.BinarySearchFunc(entries, hash, func(e Entry, h uint32) int { return cmp.Compare(e.Hash, h) })
	for ; at < len(entries) && entries[at].Hash == hash; at++ {
		if entries[at].Kind == kind {
			out = append(out, entries[at].At)
		}
	}
	return out
}

// Runs returns all entries of the runs of an index, in no particular order.
func (r Reader) Runs(ctx context.Context, inc head.Incarnation, runs []head.Run) (out []Entry, err error) {
	for _, u := range runsOf(inc, runs) {
		entries, _, err := r.pages(ctx, u)
		if err != nil {
			return nil, err
		}
		out = append(out, entries...)
	}
	return out, nil
}

// pages returns the entries of a run, and the keys of its pages.
func (r Reader) pages(ctx context.Context, u run) (entries []Entry, ks [][]byte, err error) {
	for page := range 1 << u.bits {
		ks = append(ks, u.key(r.Space, page))
	}
	values, err := r.Engine.Get(ctx, ks...)
	if err != nil {
		return nil, nil, err
	}
	for i := range ks {
		some, err := u.decode(ks[i], values[i])
		if err != nil {
			return nil, nil, codec.Corrupt(err, "index at key %x", ks[i])
		}
		entries = append(entries, some...)
	}
	return entries, ks, nil
}

// mostEntry is how many bytes an entry takes in a page at most, in a session of less than 2^26 revisions.
const mostEntry = 10

// mostBatch is how many bytes a batch may take with the pages of an index, which every engine takes.
const mostBatch = 2 << 20

// Append makes b add the entries of turns to the index of a session, and life name the runs that
// there are then. The turns are those after the last revision of the index. Runs stay as they are if
// b, which has the segment of the turns already, would become larger than every engine accepts.
func (r Reader) Append(ctx context.Context, b *engine.Batch, inc head.Incarnation, life *head.Life, turns []Turn) error {
	var entries []Entry
	for i := range turns {
		entries = Entries(entries, r.Space, &turns[i])
	}
	u := run{inc: inc, first: life.Indexed() + 1, last: turns[len(turns)-1].Revision}
	runs := runsOf(inc, life.Runs)
	old := map[string]bool{}
	for u.bits = bitsOf(len(entries)); len(runs) > 0; {
		before := runs[len(runs)-1]
		if before.bits > u.bits || before.bits == head.MaxRunBits ||
			b.Bytes()+mostEntry*(len(entries)+pageEntries<<before.bits) > mostBatch {
			break
		}
		some, ks, err := r.pages(ctx, before)
		if err != nil {
			return err
		}
		for _, k := range ks {
			old[string(k)] = true
		}
		entries = append(entries, some...)
		u.first, u.bits, runs = before.first, bitsOf(len(entries)), runs[:len(runs)-1]
	}
	slices.SortFunc(entries, Entry.compare)
	life.Runs = append(life.Runs[:len(runs)], head.Run{Last: u.last, Bits: u.bits})
	for page := range 1 << u.bits {
		n, _ := slices.BinarySearchFunc(entries, page, func(e Entry, page int) int {
			if u.page(e.Hash) <= page {
				return -1
			}
			return 1
		})
		key := u.key(r.Space, page)
		b.Set(key, u.encode(key, entries[:n]))
		delete(old, string(key))
		entries = entries[n:]
	}
	for k := range old {
		b.Delete([]byte(k))
	}
	return nil
}

// bitsOf returns the bits of a run of n entries.
func bitsOf(n int) int {
	return min(bits.Len(uint(max(n-1, 0)/pageEntries)), head.MaxRunBits)
}
