package importer_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/engine/pebble"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/internal/storetest"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// corpus returns the directory of real transcripts, which are not part of the project.
func corpus(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("TURNSTONE_CORPUS")
	if dir == "" {
		t.Skip("no corpus of transcripts: set TURNSTONE_CORPUS to a folder of them")
	}
	return dir
}

type counts struct{ sessions, empty, turns, nodes int }

// sources reads the description of the corpus' files.
func sources(t *testing.T, dir string) map[string]counts {
	data, err := os.ReadFile(filepath.Join(dir, "SOURCES.md"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]counts{}
	row := regexp.MustCompile(`^\| (\S+\.gz) \|.*?\| (\d+)(?: \(\+(\d+) empty\))? \| (\d+) \| (\d+) \| \d+ \| \d+ \|`)
	for _, l := range strings.Split(string(data), "\n") {
		if m := row.FindStringSubmatch(l); m != nil {
			n := func(i int) int { v, _ := strconv.Atoi(m[i]); return v }
			out[m[1]] = counts{n(2), n(3), n(4), n(5)}
		}
	}
	if len(out) < 30 {
		t.Fatalf("%d rows of SOURCES.md understood", len(out))
	}
	return out
}

func read(t *testing.T, path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data, err := importer.Read(ctx, f)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// all parses the message files of the corpus.
func all(t *testing.T, dir string) []importer.Conversation {
	var convs []importer.Conversation
	for file := range sources(t, dir) {
		cs, bad := parseFile(t, file, read(t, filepath.Join(dir, file)))
		for _, b := range bad {
			t.Error(b)
		}
		convs = append(convs, cs...)
	}
	return convs
}

func TestCorpus(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it imports the whole corpus")
	}
	dir := corpus(t)
	want := sources(t, dir)
	convs := all(t, dir)
	for name, open := range storetest.Embedded {
		t.Run(name, func(t *testing.T) {
			if !testkit.Long() && name != "pebble" {
				t.Skip("on the default engine alone; with TURNSTONE_LONG=1 on Pebble as well")
			}
			path := t.TempDir() + "/store"
			e, err := open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { e.Close() }()
			st := openStore(t, e)
			got := map[string]counts{}
			for _, r := range load(t, st, convs, importer.Options{}, importer.Imported) {
				c := got[r.Conversation.File]
				if r.Nodes == 0 {
					c.empty++
				} else {
					c.sessions++
				}
				if r.Nodes > 0 {
					c.turns++ // events before the first user message count as its turn
				}
				for _, e := range r.Conversation.Events {
					if e.Turn {
						c.turns++
					}
				}
				c.nodes += r.Nodes
				got[r.Conversation.File] = c
			}
			for file, w := range want {
				if got[file] != w {
					t.Errorf("%s: %+v, SOURCES.md counts %+v", file, got[file], w)
				}
			}
			load(t, st, convs, importer.Options{}, importer.Unchanged)
			if err := st.Close(); err != nil {
				t.Fatal(err)
			}
			if err := e.Close(); err != nil {
				t.Fatal(err)
			}
			if e, err = open(path); err != nil {
				t.Fatal(err)
			}
			st = openStore(t, e)
			defer st.Close()
			verify(t, st)
			exportsAreTheFiles(t, dir, st, convs)
			claudeUsage(t, dir, st)
			family(t, st)
		})
	}
}

// An export of imported JSON lines has the same bytes in the same order.
func exportsAreTheFiles(t *testing.T, dir string, st *turnstone.Store, convs []importer.Conversation) {
	files := 0
	for i := range convs {
		c := &convs[i]
		if c.Format != "claude-code" && c.Format != "pi" {
			continue
		}
		if exported(t, st, c.ID) != string(read(t, filepath.Join(dir, c.File))) {
			t.Errorf("%s is exported as other bytes", c.File)
		}
		files++
	}
	if files < 20 {
		t.Errorf("%d files compared", files)
	}
}

// Usage is counted once per response: summing every line counts 1.96 times.
func claudeUsage(t *testing.T, dir string, st *turnstone.Store) {
	var naive, once uint64
	files, err := filepath.Glob(filepath.Join(dir, "claude-*.gz"))
	if err != nil {
		t.Fatal(err)
	}
	type tokens struct {
		Input  uint64 `json:"input_tokens"`
		Output uint64 `json:"output_tokens"`
		Create uint64 `json:"cache_creation_input_tokens"`
		Read   uint64 `json:"cache_read_input_tokens"`
	}
	for _, f := range files {
		last := map[string]uint64{}
		for _, l := range bytes.Split(read(t, f), []byte("\n")) {
			var r struct {
				Message struct {
					ID    string
					Usage *tokens
				}
			}
			if json.Unmarshal(l, &r) == nil && r.Message.Usage != nil {
				u := r.Message.Usage
				sum := u.Input + u.Output + u.Create + u.Read
				naive += sum
				last[r.Message.ID] = sum
			}
		}
		for _, n := range last {
			once += n
		}
	}
	var stored uint64
	page, err := st.List(ctx, turnstone.ListOptions{Limit: 1000, Labels: map[string]string{".import.format": "claude-code"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range page.Sessions {
		for _, u := range i.Usage {
			stored += u.Input + u.Output
		}
	}
	ratio := float64(naive) / float64(stored)
	if stored != once || ratio < 1.9 || ratio > 2.1 {
		t.Errorf("stored %d tokens, %d used; naive summing gives %.2f times", stored, once, ratio)
	}
	t.Logf("naive summing gives %.2f times the tokens", ratio)
}

// The forks and the sub-agent sessions of the corpus are found.
func family(t *testing.T, st *turnstone.Store) {
	const parent = "ef958aa1-0e93-49f0-bb71-150f63befcd1"
	page, err := st.List(ctx, turnstone.ListOptions{Parent: parent})
	if err != nil {
		t.Fatal(err)
	}
	if len(page.Sessions) != 6 {
		t.Errorf("%d sub-agents, want 6", len(page.Sessions))
	}
	p := session(t, st, parent)
	for _, i := range page.Sessions {
		n, err := p.Node(ctx, i.ForkNode)
		if err != nil || !i.Detached || !bytes.Contains(n.Payload, []byte(`"tool_use"`)) {
			t.Errorf("sub-agent %s begins at %v: %v", i.ID, i.ForkNode, err)
		}
	}
	// There are two branches, of 16 and 21 nodes below the node where they part.
	ideas := session(t, st, "03eb5929-52b3-4b13-ada3-b93ae35806b8")
	state := loaded(t, ideas, turnstone.Scope{Full: true})
	below := map[graph.ID]int{}
	children := map[graph.ID][]turnstone.Node{}
	for i := len(state.Nodes) - 1; i >= 0; i-- {
		n := state.Nodes[i]
		if n.Key == "" {
			continue // a line beside the tree
		}
		below[n.ID]++
		below[n.Parent] += below[n.ID]
		children[n.Parent] = append(children[n.Parent], n)
	}
	found := false
	for parent, kids := range children {
		if len(kids) == 2 && !parent.IsZero() {
			a, b := below[kids[0].ID], below[kids[1].ID]
			found = found || min(a, b) == 16 && max(a, b) == 21
		}
	}
	if !found {
		t.Error("the two branches of 16 and 21 nodes are not there")
	}
}

// The prompts of every step of SWE-smith, stored as versions of one checkpoint
// part, take at most 1.5 times what the last one takes alone.
func TestGrowingPrompts(t *testing.T) {
	testkit.Slow(t)
	dir := corpus(t)
	files, err := filepath.Glob(filepath.Join(dir, "swesmith-*.gz"))
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		convs, bad := parseFile(t, f, read(t, f))
		if len(bad) > 0 || len(convs) != 1 {
			t.Fatal(bad)
		}
		versions, last := 0, []byte(nil)
		only := convs[0]
		only.Events, only.Outside = nil, nil
		for _, e := range convs[0].Events {
			e.Payload = nil // the test measures checkpoints only
			if p := e.Checkpoint["prompt"]; p != nil {
				versions, last = versions+1, p
			}
			only.Events = append(only.Events, e)
		}
		blobs := func(c importer.Conversation) uint64 {
			st := openStore(t, memory.New())
			defer st.Close()
			load(t, st, []importer.Conversation{c}, importer.Options{BySteps: true}, importer.Imported)
			verify(t, st)
			s, err := st.Stats(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(partsOf(t, session(t, st, c.ID))["prompt"], last) {
				t.Fatal("the last prompt differs")
			}
			return s.ByKind["blobs"].Total()
		}
		every := blobs(only)
		alone := only
		alone.Events = []importer.Event{{Kind: "assistant", Before: -1, Checkpoint: map[string][]byte{"prompt": last}}}
		one := blobs(alone)
		ratio := float64(every) / float64(one)
		t.Logf("%s: %d versions take %d bytes, the last alone %d: %.2f times", filepath.Base(f), versions, every, one, ratio)
		if versions < 15 || ratio > 1.5 {
			t.Errorf("%.2f times", ratio)
		}
	}
}

// A vacuumed and closed store with the corpus, except for its two image files, takes at
// most 1/4.5 of the size of the files without insignificant white space.
func TestCorpusOnDisk(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it measures the space of the whole corpus")
	}
	dir := corpus(t)
	var convs []importer.Conversation
	raw := 0
	for file := range sources(t, dir) {
		if strings.HasPrefix(file, "claude-image-message") || strings.HasPrefix(file, "claude-ccl-0d3a8e6f") {
			continue
		}
		data := read(t, filepath.Join(dir, file))
		cs, bad := parseFile(t, file, data)
		if len(bad) > 0 {
			t.Fatal(bad)
		}
		convs = append(convs, cs...)
		var b bytes.Buffer
		if json.Compact(&b, data) == nil { // it is one value
			raw += b.Len()
		} else {
			raw += len(data)
		}
	}
	path := t.TempDir() + "/store"
	e, err := pebble.Open(path, &pebble.Options{Durability: pebble.Process})
	if err != nil {
		t.Fatal(err)
	}
	st := openStore(t, e)
	load(t, st, convs, importer.Options{}, importer.Imported)
	if _, err := st.Vacuum(ctx, gc.VacuumOptions{}); err != nil {
		t.Fatal(err)
	}
	verify(t, st)
	if err := errors.Join(st.Close(), e.Close()); err != nil {
		t.Fatal(err)
	}
	taken, err := open.Allocated(path)
	if err != nil {
		t.Fatal(err)
	}
	ratio := float64(raw) / float64(taken)
	t.Logf("%d bytes of files take %d on disk: %.2f times smaller", raw, taken, ratio)
	if ratio < 4.5 {
		t.Errorf("%.2f times smaller, want 4.5", ratio)
	}
}
