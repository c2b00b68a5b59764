package pack

import (
	"context"
	"encoding/binary"
	"fmt"
	"iter"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/record"
)

// prefixBytes is how many bytes of a node's id the index has. A record for each node would take
// 35 bytes and what the engine adds, and would double what a commit writes. A loose pack has
// the prefixes in front of its data; a sealed segment has a record of them (SealIndex). Looking
// up a node reads all these records, about 6 bytes a node, and the loose packs. In a session of
// a million nodes, a node shares its prefix with another one with a probability of 0.02 %; then
// both are read.
const prefixBytes = 4

// A Prefix is what an index knows of a node's id.
type Prefix [prefixBytes]byte

// PrefixOf returns the prefix of id.
func PrefixOf(id graph.ID) Prefix { return Prefix(id[:]) }

// SealIndex returns the record that says which nodes packs have, which are the
// segment of inc that ends with the last of them.
func SealIndex(space *keys.Space, inc keys.Incarnation, packs []Pack) (key, value []byte) {
	key = space.Index(inc, packs[len(packs)-1].Revision)
	var body []byte
	before := uint64(0)
	for i := range packs {
		body = binary.AppendUvarint(body, packs[i].Revision-before)
		body = packs[i].appendPrefixes(body)
		before = packs[i].Revision
	}
	return key, codec.Seal(key, keys.Index, body)
}

// appendPrefixes appends the number of p's nodes and their prefixes.
func (p *Pack) appendPrefixes(dst []byte) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(p.Nodes)))
	for i := range p.Nodes {
		dst = append(dst, p.Nodes[i].ID[:prefixBytes]...)
	}
	return dst
}

// cutPrefixes takes what appendPrefixes appended off body.
func cutPrefixes(body []byte) (prefixes, rest []byte, err error) {
	count, n := codec.Uvarint(body)
	if n <= 0 || count > MaxNodes || len(body) < n+int(count)*prefixBytes {
		return nil, nil, fmt.Errorf("%w: prefixes of node ids", record.ErrMalformed)
	}
	end := n + int(count)*prefixBytes
	return body[n:end], body[end:], nil
}

// An Entry says where a node is whose id begins so.
type Entry struct {
	Prefix   Prefix
	Position Position
}

// Index yields the entries of a session's nodes, in order. An error ends it.
func Index(ctx context.Context, e engine.Engine, space *keys.Space, inc keys.Incarnation) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		x := indexer{ctx: ctx, e: e, space: space, inc: inc, yield: yield}
		// Packs are sealed meanwhile: then their record is read after all.
		for again := true; again; {
			again = x.sealed() && x.loose()
		}
	}
}

// An indexer reads an index.
type indexer struct {
	ctx   context.Context
	e     engine.Engine
	space *keys.Space
	inc   keys.Incarnation
	yield func(Entry, error) bool

	done uint64 // the entries up to this revision were yielded
	met  uint64 // last revision of the sealed segment that was met among the loose packs
}

// entries yields the entries of a pack.
func (x *indexer) entries(revision uint64, prefixes []byte) bool {
	if revision <= x.done {
		return true
	}
	for i := 0; i*prefixBytes < len(prefixes); i++ {
		if !x.yield(Entry{Prefix(prefixes[i*prefixBytes:]), Position{revision, i}}, nil) {
			return false
		}
	}
	x.done = revision
	return true
}

func (x *indexer) fail(err error, what string, key []byte) bool {
	x.yield(Entry{}, codec.Corrupt(err, "%s at key %x", what, key))
	return false
}

// sealed reads the records of sealed segments, and reports whether to go on.
func (x *indexer) sealed() bool {
	r := engine.Range{Start: x.space.Index(x.inc, x.done+1), End: x.space.Of(keys.Index, x.inc).End}
	for p, err := range x.e.Scan(x.ctx, r) {
		if err != nil {
			x.yield(Entry{}, err)
			return false
		}
		body, err := codec.Open(p.Key, p.Value, keys.Index)
		for revision := uint64(0); err == nil && len(body) > 0; {
			step, n := codec.Uvarint(body)
			if n <= 0 {
				err = fmt.Errorf("%w: index", record.ErrMalformed)
				break
			}
			revision += step
			var prefixes []byte
			if prefixes, body, err = cutPrefixes(body[n:]); err == nil && !x.entries(revision, prefixes) {
				return false
			}
		}
		if err != nil {
			return x.fail(err, "index of nodes", p.Key)
		}
	}
	return true
}

// loose reads the loose packs behind the sealed segments, and reports whether
// one was sealed meanwhile.
func (x *indexer) loose() (again bool) {
	r := engine.Range{Start: x.space.Pack(x.inc, x.done+1, 0), End: x.space.Of(keys.Pack, x.inc).End}
	for p, err := range x.e.Scan(x.ctx, r) {
		if err != nil {
			x.yield(Entry{}, err)
			return false
		}
		_, fields, ok := x.space.Fields(p.Key)
		var last uint64
		if ok {
			var value int
			if last, value = keys.PackFields(fields); value > 0 {
				continue
			}
		}
		body, err := codec.Open(p.Key, p.Value, keys.Pack)
		var h segmentHead
		if err == nil {
			h, _, err = openHead(body)
		}
		if err == nil && !ok {
			err = fmt.Errorf("%w: key", record.ErrMalformed)
		}
		if err != nil {
			return x.fail(err, "pack", p.Key)
		}
		if h.level != codec.Fast && last != x.met {
			x.met = last
			return true
		}
		if !x.entries(last, h.prefixes) {
			return false
		}
	}
	return false
}
