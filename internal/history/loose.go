package history

import (
	"encoding/binary"
	"hash/maphash"
	"slices"

	"github.com/turnstonedb/turnstone/graph"
)

// A looseTable has the entries of loose segments, found by their hashes. It is a hash table with open
// addressing and linear probing, which takes a third of the memory of a map: there is one for each
// session that is at work.
type looseTable struct {
	entries []looseEntry // in the order of their revisions
	slots   []int32      // the number of an entry, from 1 on, or 0. There are 2^n slots, and at most 3/4 of them are taken.
}

// A looseEntry is the hash of a name, and the revision times graph.MaxNodes plus the index.
type looseEntry struct{ hash, at uint64 }

// looseBytes is what an entry takes in memory, with its slots.
const looseBytes = 28

func (e *looseEntry) position() graph.Position {
	return graph.Position{Revision: e.at / graph.MaxNodes, Index: int(e.at % graph.MaxNodes)}
}

var seed = maphash.MakeSeed()

// loose returns the hash of a name in a looseTable.
func (n *Name) loose() uint64 {
	const mix = 0x9e3779b97f4a7c15 // an odd number without pattern, 2^64 by the golden ratio
	if n.Kind == KeyEntry || n.Kind == TurnEntry {
		return maphash.String(seed, n.Text) + uint64(n.Kind)*mix
	}
	return binary.LittleEndian.Uint64(n.ID[:]) + uint64(n.Kind)*mix
}

// addTurn adds the entries of a turn.
func (t *looseTable) addTurn(of *Turn) {
	revision := uint64(of.Revision) * graph.MaxNodes
	for i := range of.Pack.Nodes {
		n := &of.Pack.Nodes[i]
		t.add(Name{Kind: NodeEntry, ID: n.ID}, revision+uint64(i))
		if n.Key != "" {
			t.add(Name{Kind: KeyEntry, Text: n.Key}, revision+uint64(i))
		}
	}
	if of.Turn != "" {
		t.add(Name{Kind: TurnEntry, Text: of.Turn}, revision)
	}
	if of.movesLeaf() {
		t.add(Name{Kind: LeafEntry, ID: of.Leaf}, revision)
	}
}

func (t *looseTable) add(n Name, at uint64) {
	t.entries = append(t.entries, looseEntry{n.loose(), at})
	if 4*len(t.entries) > 3*len(t.slots) {
		t.grow()
		return
	}
	t.place(len(t.entries) - 1)
}

// place puts an entry into the first free slot from the one of its hash on.
func (t *looseTable) place(entry int) {
	mask := uint64(len(t.slots) - 1)
	at := t.entries[entry].hash & mask
	for t.slots[at] != 0 {
		at = (at + 1) & mask
	}
	t.slots[at] = int32(entry + 1)
}

// grow makes new slots for all entries.
func (t *looseTable) grow() {
	n := 16
	for 2*n < 4*len(t.entries) {
		n *= 2
	}
	t.slots = make([]int32, n)
	for i := range t.entries {
		t.place(i)
	}
}

// find returns the positions of the entries of a hash, those of the newest revisions first.
func (t *looseTable) find(hash uint64) (out []graph.Position) {
	if len(t.slots) == 0 {
		return nil
	}
	mask := uint64(len(t.slots) - 1)
	for at := hash & mask; t.slots[at] != 0; at = (at + 1) & mask {
		if e := &t.entries[t.slots[at]-1]; e.hash == hash {
			out = append(out, e.position())
		}
	}
	slices.Reverse(out)
	return out
}

// after returns a table of the entries of later revisions than one.
func (t *looseTable) after(revision uint64) looseTable {
	i := slices.IndexFunc(t.entries, func(e looseEntry) bool { return e.at/graph.MaxNodes > revision })
	if i < 0 {
		return looseTable{}
	}
	next := looseTable{entries: slices.Clone(t.entries[i:])}
	next.grow()
	return next
}

// A Name is what an entry is looked for by: the id of a node, or an event key or a turn id.
type Name struct {
	Kind EntryKind
	ID   graph.ID // of NodeEntry and LeafEntry
	Text string   // of KeyEntry and TurnEntry
}

// stored returns the hash of a name in runs.
func (n *Name) stored(r Reader) uint32 {
	switch n.Kind {
	case KeyEntry:
		return hashName(r.Space.EventKey(n.Text))
	case TurnEntry:
		return hashName(r.Space.Turn(n.Text))
	}
	return hashID(n.ID)
}
