package bundle

import (
	"context"
	"encoding/binary"
	"errors"

	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
)

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
