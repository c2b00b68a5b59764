package adapter

import (
	"bytes"

	"github.com/turnstonedb/turnstone"
)

// Brought says what a call of the method Bring did. An adapter with that method brings what its framework has in another
// store. Bring reads what it has brought again, and compares both stores. The next call of Bring goes on where one was cut
// off, and brings what has come since.
//
// A dry run tells what a call would bring, and changes nothing. What the store would refuse is not among Different then.
type Brought struct {
	Found     int // sessions, or snapshots
	Unchanged int // of them, since they were brought
	Brought   int // events, messages or snapshots
	// Different names what can't be read or stored, and what was here already and is not what the source has. Bring leaves
	// both alone.
	Different []string
}

// BringOptions of a method Bring.
type BringOptions struct {
	DryRun bool // See Brought.
}

// Common returns how many nodes at the beginning of a path are those of events: each has the kind and the payload of its
// event.
func Common(path []turnstone.Node, events []turnstone.NewNode) (n int) {
	for n < min(len(path), len(events)) && path[n].Kind == events[n].Kind && bytes.Equal(path[n].Payload, events[n].Payload) {
		n++
	}
	return n
}

// InCommits returns events in the groups that Bring commits: at most 200 events, and 4 MiB by what size says of each,
// unless one event alone has more.
func InCommits[E any](events []E, size func(E) int) (out [][]E) {
	const most, mostBytes = 200, 4 << 20
	total := 0
	for _, e := range events {
		n := size(e)
		if len(out) == 0 || len(out[len(out)-1]) == most || total+n > mostBytes {
			out, total = append(out, nil), 0
		}
		out[len(out)-1] = append(out[len(out)-1], e)
		total += n
	}
	return out
}
