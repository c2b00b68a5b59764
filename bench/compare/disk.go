package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/head"
)

// diskCorpus stores every transcript of the corpus but images.
func diskCorpus(r *run) error {
	templates := r.templates
	if r.Corpus != "" {
		templates = nil
		convs, err := readCorpus(r.Corpus)
		if err != nil {
			return err
		}
		for _, c := range convs {
			if hasImages(&c) {
				continue
			}
			var turns []Turn
			for j, e := range c.Events {
				if j == 0 || e.Turn {
					turns = append(turns, Turn{})
				}
				t := &turns[len(turns)-1]
				t.Nodes = append(t.Nodes, Node{Kind: e.Kind, Payload: e.Payload})
				t.Usage = head.AddUsage(t.Usage, e.Usage)
			}
			templates = append(templates, turns)
		}
	}
	for _, c := range templates {
		for i := range c {
			r.out["raw"] += float64(c[i].Bytes())
		}
	}
	return r.disk(templates, nil)
}

// hasImages reports whether a conversation carries images in its payloads.
func hasImages(c *importer.Conversation) bool {
	return slices.ContainsFunc(c.Events, func(e importer.Event) bool {
		return bytes.Contains(e.Payload, []byte(`"media_type":"image/`))
	})
}

// diskParts stores 100 turns with the checkpoint part.
func diskParts(r *run) error {
	in := r.input(3)
	in.rand = rand.New(rand.NewPCG(3, 3))
	turns := make([]Turn, 100)
	for i := range turns { // with little else: it is about the part
		turns[i].Nodes = []Node{{Kind: "assistant", Payload: fmt.Appendf(nil, `{"turn":%d}`, i)}}
	}
	return r.disk([][]Turn{turns}, in.Part())
}

// disk fills a store with conversations, compacts it, and measures what it takes.
func (r *run) disk(conversations [][]Turn, part *Part) error {
	st, dir, remove, err := r.freshStore()
	if err != nil {
		return err
	}
	defer remove()
	s := scriptOf("c", conversations, part)
	for i := range s.turns {
		if _, err := s.commit(st, i); err != nil {
			return err
		}
	}
	if c, ok := st.(Compacter); ok {
		if err := c.Compact(); err != nil {
			return err
		}
	}
	if err := st.Close(); err != nil {
		return err
	}
	taken, err := open.Allocated(dir)
	r.out["bytes"] = float64(taken)
	return err
}

// reclaims deletes every other session and gives back the space.
func reclaims(r *run) error {
	st, _, remove, err := r.freshStore()
	if err != nil {
		return err
	}
	defer remove()
	defer st.Close()
	c, ok := st.(Reclaimer)
	if !ok {
		return errLeftOut
	}
	in := r.input(4)
	in.rand = rand.New(rand.NewPCG(4, 4))
	const n = 400
	for i := range n {
		turns := in.Conversation()
		turns = turns[:min(len(turns), 40)]
		if err := commitAll(st, fmt.Sprint("s", i), turns); err != nil {
			return err
		}
	}
	for i := 0; i < n; i += 2 {
		if err := c.Delete(fmt.Sprint("s", i)); err != nil {
			return err
		}
	}
	start := time.Now()
	if err := c.Reclaim(); err != nil {
		return err
	}
	r.out["reclaim"] = float64(time.Since(start).Microseconds())
	if c, ok := st.(Compacter); ok {
		start = time.Now()
		if err := c.Compact(); err != nil {
			return err
		}
		r.out["compact"] = float64(time.Since(start).Microseconds())
	}
	return nil
}
