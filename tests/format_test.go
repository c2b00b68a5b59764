package tests

import (
	"encoding/hex"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/tests/internal/foreign"
)

// example reads a block of docs/format.md: what follows "key" and "value", up
// to two spaces, is hex.
func example(t *testing.T, doc, name string) (key, value []byte) {
	t.Helper()
	_, block, ok := strings.Cut(doc, "```hex "+name+"\n")
	if !ok {
		t.Fatalf("no block %q", name)
	}
	block, _, _ = strings.Cut(block, "```")
	into := &key
	for _, l := range strings.Split(strings.TrimRight(block, "\n"), "\n") {
		if strings.HasPrefix(l, "value") {
			into = &value
		}
		digits, _, _ := strings.Cut(l[8:], "  ")
		b, err := hex.DecodeString(strings.ReplaceAll(digits, " ", ""))
		if err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		*into = append(*into, b...)
	}
	return key, value
}

// The records of the example in docs/format.md are read as the document says.
func TestTheWorkedExampleOfTheFormatIsRight(t *testing.T) {
	data, err := os.ReadFile("../docs/format.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(data)
	space := keys.New("", [codec.HashSize]byte{}) // the example's keys hold no H(x)
	inc := keys.Incarnation{0xaa, 0xbb}

	key, value := example(t, doc, "turn")
	if string(key) != string(space.Segment(inc, 1, 0)) {
		t.Errorf("key of the turn: %x", key)
	}
	e := memory.New()
	if err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: key, Value: value}}}); err != nil {
		t.Fatal(err)
	}
	segment, err := history.Reader{Engine: e, Space: space}.At(ctx, inc, "", 1)
	if err != nil {
		t.Fatal(err)
	}
	turn := segment.Turn(1)
	n, id := turn.Pack.Nodes, turn.ID
	if len(n) != 2 || n[0].Kind != "user" || n[0].Key != "m1" || string(n[0].Inline) != "hi" || n[1].Kind != "assistant" || n[1].Parent != n[0].ID {
		t.Errorf("nodes %+v", n)
	}
	if turn.Leaf != n[1].ID || turn.Previous != head.Genesis(inc, nil) || turn.Turn != "t1" || turn.Nodes != 2 {
		t.Errorf("commit %+v", turn.Commit)
	}
	for _, s := range []string{n[0].ID.String(), n[1].ID.String(), id.String()} {
		if !strings.Contains(doc, s) {
			t.Errorf("the page does not name %s", s)
		}
	}

	theirs, err := foreign.Commits(map[string][]byte{string(key): value}, "", inc, 1)
	if err != nil || len(theirs) != 1 {
		t.Fatalf("a stranger reads %+v, %v", theirs, err)
	}
	c := theirs[0]
	if c.ID != [32]byte(id) || c.Leaf != [32]byte(turn.Leaf) || c.Turn != "t1" || c.Time != uint64(turn.Time.UnixNano()) || len(c.Nodes) != 2 || len(c.Usage) != 1 {
		t.Errorf("a stranger reads the commit %+v", c)
	}
	for i, node := range c.Nodes {
		if node.ID != [32]byte(n[i].ID) || node.Kind != n[i].Kind || node.Key != n[i].Key || string(node.Payload) != string(n[i].Inline) {
			t.Errorf("a stranger reads node %d as %+v", i, node)
		}
	}
}

// Every key of the code has its row, and the other way round.
func TestTheTableOfKeysIsComplete(t *testing.T) {
	data, err := os.ReadFile("../docs/format.md")
	if err != nil {
		t.Fatal(err)
	}
	golden, err := os.ReadFile("../internal/keys/testdata/keys.golden")
	if err != nil {
		t.Fatal(err)
	}
	var rows, letters string
	for _, m := range regexp.MustCompile("(?m)^\\| `([A-Za-z])`").FindAllStringSubmatch(string(data), -1) {
		rows += m[1]
	}
	for _, l := range strings.Split(strings.TrimSpace(string(golden)), "\n") {
		if !strings.Contains(letters, l[:1]) { // There may be several keys of one letter.
			letters += l[:1]
		}
	}
	sorted := func(s string) string {
		b := []byte(s)
		slices.Sort(b)
		return string(b)
	}
	if rows, letters = sorted(rows), sorted(letters); rows != letters {
		t.Errorf("rows %s, keys %s", rows, letters)
	}
}

// Each kind of record is encoded and decoded by one package, which the table of
// docs/format.md names.
func TestFV4_EachKindOfRecordHasOneOwner(t *testing.T) {
	source, err := os.ReadFile("../internal/keys/keys.go")
	if err != nil {
		t.Fatal(err)
	}
	letters := map[string]string{} // by the name of the constant
	for _, m := range regexp.MustCompile(`(?m)^\t(\w+)\s+= '(\w)'`).FindAllStringSubmatch(string(source), -1) {
		letters[m[1]] = m[2]
	}
	owners := map[string]map[string]bool{} // by letter
	codecs := regexp.MustCompile(`codec\.(?:Encode|Decode)\(.*\bkeys\.(\w+)`)
	for _, pattern := range []string{"../*.go", "../*/*.go", "../*/*/*.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			dir := filepath.Base(filepath.Dir(name))
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range codecs.FindAllStringSubmatch(string(text), -1) {
				letter := letters[m[1]]
				if owners[letter] == nil {
					owners[letter] = map[string]bool{}
				}
				owners[letter][dir] = true
			}
		}
	}
	doc, err := os.ReadFile("../docs/format.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([A-Za-z])`.*\\| (\\w+) \\|$").FindAllStringSubmatch(string(doc), -1) {
		rows[m[1]] = m[2]
	}
	for name, letter := range letters {
		have := slices.Sorted(maps.Keys(owners[letter]))
		if len(have) != 1 || have[0] != rows[letter] {
			t.Errorf("%s (%s) is encoded or decoded by %v, the table names %q", name, letter, have, rows[letter])
		}
	}
}
