package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/turnstonedb/turnstone/engine/open"
)

// growingBytes is how much the list of messages grows with every step.
const growingBytes = 9 << 10

// A Growing is a checkpoint part that is a whole list of messages: every step of
// an agent appends some, and saves all.
type Growing struct {
	in    *Input
	nodes []Node // that are not in it yet
	state []byte // without the bracket at its end
}

func (in *Input) Growing() *Growing { return &Growing{in: in, state: []byte("[")} }

// Next returns the turn of the next step: its messages as nodes, and the whole list.
func (g *Growing) Next() Turn {
	var t Turn
	for begin := len(g.state); len(g.state)-begin < growingBytes; {
		n := g.message()
		if len(g.state) > 1 {
			g.state = append(g.state, ',')
		}
		g.state = append(g.state, n.Payload...)
		t.Nodes = append(t.Nodes, n)
	}
	t.Part = append(bytes.Clone(g.state), ']')
	return t
}

// message returns the next message. It leaves out messages that are much longer than
// a step, so that all steps have about the same length.
func (g *Growing) message() Node {
	for {
		for len(g.nodes) == 0 {
			for _, t := range g.in.Conversation() {
				g.nodes = append(g.nodes, t.Nodes...)
			}
		}
		n := g.nodes[0]
		if g.nodes = g.nodes[1:]; len(n.Payload) <= 2*growingBytes {
			return n
		}
	}
}

// growing measures steps that save a growing part whole, reading the last version
// of it, and what all versions take.
func growing(r *run) error {
	dir, remove, err := r.fresh()
	if err != nil {
		return err
	}
	defer remove()
	st, err := r.contestant.Open(dir, false)
	if err != nil {
		return err
	}
	defer func() { st.Close() }()
	versions, err := r.growingSteps(st)
	if err != nil {
		return err
	}
	if onDisk(r.contestant) {
		if err := st.Close(); err != nil {
			return err
		}
		if st, err = r.contestant.Open(dir, false); err != nil {
			return err
		}
	}
	if err := r.growingBack(st.(PartReader), versions); err != nil {
		return err
	}
	return r.growingSize(st, dir)
}

// growingSteps commits the steps, and returns some versions of the part, by their
// revisions.
func (r *run) growingSteps(st Store) (map[int][]byte, error) {
	in := r.input(6)
	in.rand = rand.New(rand.NewPCG(6, 6))
	g := in.Growing()
	versions := map[int][]byte{}
	steps := r.Scale.Steps
	took := make([]time.Duration, steps)
	var all time.Duration
	stop, err := r.profile()
	if err != nil {
		return nil, err
	}
	defer stop()
	for i := range took {
		t := g.Next()
		start := time.Now()
		if err := st.Commit("agent", i, &t); err != nil {
			return nil, err
		}
		took[i] = time.Since(start)
		all += took[i]
		if i%50 == 0 || i == steps-1 {
			versions[i+1] = t.Part
		}
	}
	r.out["steps/s"] = float64(steps) / all.Seconds()
	r.out["p50 µs"], r.out["p99 µs"] = quantile(took, 0.5), quantile(took, 0.99)
	r.out["last version"] = float64(len(versions[steps]))
	return versions, nil
}

// growingBack checks versions, and measures how long the last one takes.
func (r *run) growingBack(from PartReader, versions map[int][]byte) error {
	last := 0
	for commits, want := range versions {
		last = max(last, commits)
		got, err := from.PartAt("agent", commits)
		if err != nil {
			return err
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("the part after %d commits is another one", commits)
		}
	}
	back, err := r.median(5, func() error {
		_, err := from.PartAt("agent", last)
		return err
	})
	r.out["read back"] = back
	return err
}

func (r *run) growingSize(st Store, dir string) error {
	if !onDisk(r.contestant) {
		return nil
	}
	taken, err := open.Allocated(dir)
	if err != nil {
		return err
	}
	r.out["bytes"] = float64(taken)
	if err := st.(Compacter).Compact(); err != nil {
		return err
	}
	taken, err = open.Allocated(dir)
	r.out["compacted"] = float64(taken)
	return err
}
