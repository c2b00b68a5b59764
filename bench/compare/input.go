package main

import (
	"bufio"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/head"
)

// A Turn is what one commit stores: the nodes that a turn of a conversation
// adds, or a step of an agent that works alone.
type Turn struct {
	Nodes []Node
	Part  []byte // the checkpoint part, or nil
	Usage []head.Usage
	Label string // that the first turn gives the session, or ""
}

// A Node is one message or event.
type Node struct {
	Kind    string
	Payload []byte // JSON
	Key     string // the host's name for the event, or ""
}

// Bytes is the length of the payloads and the part.
func (t *Turn) Bytes() int {
	n := len(t.Part)
	for i := range t.Nodes {
		n += len(t.Nodes[i].Payload)
	}
	return n
}

// An Input draws conversations. It is deterministic: the same seed gives the
// same turns.
type Input struct {
	rand      *rand.Rand
	templates [][]Turn // conversations
	text      []byte   // all payloads, for checkpoint parts
}

// loadTemplates returns the conversations of the corpus in dir, or without one
// such as have the same distributions.
func loadTemplates(dir string) (templates [][]Turn, err error) {
	if dir == "" {
		return synthetic(), nil
	}
	convs, err := readCorpus(dir)
	if err != nil {
		return nil, err
	}
	for i, c := range convs {
		var turns []Turn
		for j, e := range c.Events {
			// A coding agent works alone for long and commits steps; of the other
			// conversations, every other one does.
			if j == 0 || e.Turn || e.Step && (i%2 == 0 || c.Format != "chat" && c.Format != "tau-bench") {
				turns = append(turns, Turn{})
			}
			t := &turns[len(turns)-1]
			t.Nodes = append(t.Nodes, Node{Kind: e.Kind, Payload: e.Payload})
			t.Usage = head.AddUsage(t.Usage, e.Usage)
		}
		if len(turns) > 0 {
			templates = append(templates, turns)
		}
	}
	return templates, nil
}

// saveTemplates writes templates for the processes that measure.
func saveTemplates(file string, templates [][]Turn) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(gob.NewEncoder(f).Encode(templates), f.Close())
}

func openTemplates(file string) (templates [][]Turn, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return templates, gob.NewDecoder(bufio.NewReaderSize(f, 1<<20)).Decode(&templates)
}

// readCorpus parses every transcript of dir.
func readCorpus(dir string) ([]importer.Conversation, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.gz"))
	if err == nil && len(files) == 0 {
		err = fmt.Errorf("no transcripts in %s", dir)
	}
	var convs []importer.Conversation
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		data, err := importer.Read(context.Background(), f)
		f.Close()
		if err != nil {
			return nil, err
		}
		found, _, err := importer.Parse(context.Background(), filepath.Base(file), data, nil) // what is no transcript is left out
		if err != nil {
			return nil, err
		}
		convs = append(convs, found...)
	}
	return convs, err
}

// The distributions of the corpus: every tenth percentile, from 0 to 100, as
// "go run . -describe" prints them.
var shape = struct{ Turns, Nodes, Bytes []int }{
	Turns: []int{1, 4, 5, 6, 8, 9, 11, 14, 18, 25, 400},
	Nodes: []int{1, 1, 1, 2, 2, 2, 2, 3, 3, 5, 119},
	Bytes: []int{10, 100, 145, 190, 245, 309, 400, 560, 900, 1733, 60000},
}

// describeInput returns the shape of conversations.
func describeInput(templates [][]Turn) string {
	var turns, nodes, bytes []int
	for _, c := range templates {
		turns = append(turns, len(c))
		for _, t := range c {
			nodes = append(nodes, len(t.Nodes))
			for _, n := range t.Nodes {
				bytes = append(bytes, len(n.Payload))
			}
		}
	}
	var b strings.Builder
	for _, v := range []struct {
		name   string
		values []int
	}{{"Turns", turns}, {"Nodes", nodes}, {"Bytes", bytes}} {
		slices.Sort(v.values)
		fmt.Fprintf(&b, "%s: []int{", v.name)
		for i := range 11 {
			if i > 0 {
				b.WriteString(", ")
			}
			fmt.Fprint(&b, v.values[i*(len(v.values)-1)/10])
		}
		b.WriteString("},\n")
	}
	return b.String()
}

// synthetic returns conversations of the shape above, in words whose
// frequencies fall as those of a language do.
func synthetic() [][]Turn {
	r := rand.New(rand.NewPCG(1, 2))
	draw := func(deciles []int) int {
		i := r.IntN(10)
		low, high := deciles[i], deciles[i+1]
		if i == 9 { // the tail is steep
			f := r.Float64()
			return low + int(f*f*f*f*float64(high-low))
		}
		return low + r.IntN(high-low+1)
	}
	words := make([]string, 4000)
	for i := range words {
		b := make([]byte, 2+r.IntN(9))
		for j := range b {
			b[j] = "etaoinshrdlucmfwypvbgk"[min(r.IntN(22), r.IntN(22))]
		}
		words[i] = string(b)
	}
	zipf := rand.NewZipf(r, 1.1, 3, uint64(len(words)-1))
	payload := func(kind string, size int) []byte {
		b := fmt.Appendf(nil, `{"role":%q,"id":"msg_%016x%08x","content":"`, kind, r.Uint64(), r.Uint32())
		for len(b) < size {
			if r.IntN(12) == 0 {
				b = fmt.Appendf(b, "%d ", r.IntN(1e6))
			}
			b = append(append(b, words[zipf.Uint64()]...), ' ')
		}
		return append(b, `"}`...)
	}
	out := make([][]Turn, 435)
	for i := range out {
		for range draw(shape.Turns) {
			var t Turn
			for j := range draw(shape.Nodes) {
				kind := [3]string{"user", "assistant", "tool"}[min(j, 1+j%2)]
				t.Nodes = append(t.Nodes, Node{Kind: kind, Payload: payload(kind, draw(shape.Bytes))})
			}
			t.Usage = []head.Usage{{Model: "model", Input: 1200, Output: 80}}
			out[i] = append(out[i], t)
		}
	}
	return out
}

func newInput(templates [][]Turn, seed uint64) *Input {
	in := &Input{rand: rand.New(rand.NewPCG(seed, 7)), templates: templates}
	for _, c := range templates {
		for _, t := range c {
			for _, n := range t.Nodes {
				if len(in.text) < 4<<20 && len(n.Payload) < 20_000 {
					in.text = append(append(in.text, n.Payload...), ',')
				}
			}
		}
	}
	return in
}

// Conversation draws a conversation: one of the templates, in which everything
// that looks like a number or an id is another one. What is the same in many
// real conversations, such as a system prompt, stays the same.
func (in *Input) Conversation() []Turn {
	t := in.templates[in.rand.IntN(len(in.templates))]
	out := make([]Turn, len(t))
	for i := range t {
		out[i] = Turn{Nodes: make([]Node, len(t[i].Nodes)), Usage: t[i].Usage}
		for j, n := range t[i].Nodes {
			out[i].Nodes[j] = Node{Kind: n.Kind, Payload: in.vary(n.Payload)}
		}
	}
	return out
}

// Long draws a conversation of exactly so many nodes.
func (in *Input) Long(nodes int) []Turn {
	var out []Turn
	for nodes > 0 {
		for _, t := range in.Conversation() {
			t.Nodes = t.Nodes[:min(len(t.Nodes), nodes)]
			if len(t.Nodes) > 0 {
				out = append(out, t)
			}
			nodes -= len(t.Nodes)
		}
	}
	return out
}

// vary copies a payload with other digits in runs of four hexadecimal digits and
// more that hold a decimal one.
func (in *Input) vary(payload []byte) []byte {
	out := slices.Clone(payload)
	hex := func(c byte) bool { return c >= '0' && c <= '9' || c >= 'a' && c <= 'f' }
	for i := 0; i < len(out); i++ {
		j, decimal := i, false
		for ; j < len(out) && hex(out[j]); j++ {
			decimal = decimal || out[j] <= '9'
		}
		if j-i >= 4 && decimal && (i == 0 || out[i-1] != '\\' && out[i-1] != 'u') {
			var bits uint64
			for k := i; k < j; k++ {
				if bits < 16 {
					bits = in.rand.Uint64()
				}
				if out[k] <= '9' {
					out[k] = '1' + byte(bits%9) // no leading zero: it stays JSON
				} else {
					out[k] = 'a' + byte(bits%6)
				}
				bits /= 16
			}
		}
		i = max(i, j)
	}
	return out
}

// partBytes is the length of the checkpoint part.
const partBytes = 200 << 10

// A Part is a checkpoint part that changes a little with every turn: five
// places get other text, and as much text as a short message is appended,
// while the part keeps its length.
type Part struct {
	in    *Input
	state []byte
}

func (in *Input) Part() *Part {
	p := &Part{in: in, state: []byte(`{"version":1,"messages":[`)}
	for len(p.state) < partBytes {
		p.state = append(p.state, in.piece(1000)...)
	}
	p.state = p.state[:partBytes]
	return p
}

func (in *Input) piece(n int) []byte {
	at := in.rand.IntN(len(in.text) - n)
	return in.vary(in.text[at : at+n])
}

// Next returns the state of the next turn.
func (p *Part) Next() []byte {
	next := slices.Clone(p.state)
	for range 5 {
		copy(next[p.in.rand.IntN(len(next)-100):], p.in.piece(40+p.in.rand.IntN(60)))
	}
	more := p.in.piece(100 + p.in.rand.IntN(400))
	gone := p.in.rand.IntN(len(next) - 2*len(more))
	p.state = append(slices.Delete(next, gone, gone+len(more)), more...)
	return p.state
}

// compactJSON is what a store of JSON text would keep of v.
func compactJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // of our own types
	}
	return b
}
