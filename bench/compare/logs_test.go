package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// loggedTurns fills a new store of a contestant with turns of two sessions, and
// closes it.
func loggedTurns(t *testing.T, name string) (dir string, turns []Turn) {
	t.Helper()
	c, err := contestant(name)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir() + "/store"
	st, err := c.Open(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	turns = newInput(synthetic(), 2).Long(40)
	for i := range turns {
		if err := errors.Join(st.Commit("one", i, &turns[i]), st.Commit("two", i, &turns[i])); err != nil {
			t.Fatal(err)
		}
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	return dir, turns
}

// loadsAll opens a store again, and reports the first error of that and of
// loading the session that was filled.
func loadsAll(name, dir string) (int, error) {
	c, err := contestant(name)
	if err != nil {
		return 0, err
	}
	st, err := c.Open(dir, false)
	if err != nil {
		return 0, err
	}
	p, err := st.(Reader).Load("one")
	return len(p.IDs), errors.Join(err, st.Close())
}

// A working log that has lost a turn, or a bit of one, does not read as if it were
// whole.
func TestWorkingLogThatLosesATurnIsNoticed(t *testing.T) {
	dir, turns := loggedTurns(t, "working log")
	file := filepath.Join(dir, "log")
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var records [][]byte
	for rest := whole; len(rest) > 0; {
		n := int(binary.LittleEndian.Uint32(rest)) + 4
		if sum := crc32.Checksum(rest[:n-4], crc32.MakeTable(crc32.Castagnoli)); binary.LittleEndian.Uint32(rest[n-4:]) != sum {
			t.Fatal("a record ends with something else than the CRC-32C of what is before")
		}
		records, rest = append(records, rest[:n]), rest[n:]
	}
	if len(records) != 2*len(turns) {
		t.Fatalf("%d records of %d turns", len(records), 2*len(turns))
	}
	nodes := 0
	for _, turn := range turns {
		nodes += len(turn.Nodes)
	}
	if n, err := loadsAll("working log", dir); n != nodes || err != nil {
		t.Fatalf("%d nodes of %d: %v", n, nodes, err)
	}
	damaged := map[string][]byte{
		"a turn is missing":       bytes.Join(append(append([][]byte{}, records[:4]...), records[5:]...), nil),
		"two turns are exchanged": bytes.Join(append([][]byte{records[2], records[1], records[0]}, records[3:]...), nil),
		"the last one is torn":    whole[:len(whole)-3],
		"a bit is another one":    append(append([]byte{}, whole[:len(whole)/2]...), append([]byte{whole[len(whole)/2] ^ 4}, whole[len(whole)/2+1:]...)...),
	}
	for what, data := range damaged {
		if err := os.WriteFile(file, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := loadsAll("working log", dir); err == nil {
			t.Errorf("%s, and nothing is noticed", what)
		}
	}
}

// A record whose checksum is right but whose content is another one than the ids
// were made of is noticed: the log does hash what it stores.
func TestWorkingLogHashesWhatItStores(t *testing.T) {
	var b logBuffers
	h := logHead{}
	turn := Turn{Nodes: []Node{{Kind: "user", Payload: []byte(`{"a":1}`)}, {Kind: "tool", Payload: []byte(`{"b":2}`)}}, Part: []byte("part")}
	next := b.build("s", &h, &turn)
	read := func() *logRecord {
		r := &logRecord{}
		if err := r.decode(bytes.Clone(b.record[4 : len(b.record)-4])); err != nil {
			t.Fatal(err)
		}
		return r
	}
	got := h
	if err := read().follow(&got); err != nil || got != next {
		t.Fatalf("%+v, want %+v: %v", got, next, err)
	}
	for name, change := range map[string]func(*logRecord){
		"a payload":           func(r *logRecord) { r.Nodes[len(r.Nodes)-1] ^= 1 },
		"the salt":            func(r *logRecord) { r.Salt[3] ^= 1 },
		"the part":            func(r *logRecord) { r.Part[0] ^= 1 },
		"the commit's ids":    func(r *logRecord) { r.Body[len(r.Body)-1] ^= 1 },
		"the commit before":   func(r *logRecord) { r.Body[0] ^= 1 },
		"the commit's number": func(r *logRecord) { r.Body[32]++ },
	} {
		r, at := read(), h
		change(r)
		if err := r.follow(&at); err == nil {
			t.Errorf("%s is another one, and nothing is noticed", name)
		}
	}
}

// Lines of JSON that have lost a turn, or the end of one, do not read as if they
// were whole.
func TestJSONLinesThatLoseATurnAreNoticed(t *testing.T) {
	dir, turns := loggedTurns(t, "json lines")
	file := filepath.Join(dir, "one.jsonl")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	all := strings.SplitAfter(strings.TrimSuffix(string(data), "\n"), "\n")
	begin, end := len(turns[0].Nodes)+1, len(turns[0].Nodes)+len(turns[1].Nodes)+2 // of the second turn
	for what, text := range map[string]string{
		"a turn is missing":            strings.Join(all[:begin], "") + strings.Join(all[end:], ""),
		"the last turn has no end":     strings.Join(all[:len(all)-1], ""),
		"the last line is torn":        string(data[:len(data)-7]),
		"the end of a turn is missing": strings.Join(all[:end-1], "") + strings.Join(all[end:], ""),
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := loadsAll("json lines", dir); err == nil {
			t.Errorf("%s, and nothing is noticed", what)
		}
	}
}

// LangGraph's tables hold what its saver would have put there: a whole state and
// the messages of each step, in WAL mode, synced as SQLite does by default.
func TestLangGraphKeepsEveryStateWhole(t *testing.T) {
	for name, synchronous := range map[string]int{"langgraph sqlite full": 2, "langgraph sqlite normal": 1} {
		c, err := contestant(name)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir() + "/store"
		st, err := c.Open(dir, false)
		if err != nil {
			t.Fatal(err)
		}
		g := newInput(synthetic(), 3).Growing()
		var states [][]byte
		for i := range 12 {
			turn := g.Next()
			states = append(states, turn.Part)
			if err := st.Commit("thread", i, &turn); err != nil {
				t.Fatal(err)
			}
			if i == 6 {
				if err := st.Close(); err != nil {
					t.Fatal(err)
				}
				if st, err = c.Open(dir, false); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := st.Commit("thread", 5, &Turn{Part: []byte("[]")}); err == nil {
			t.Error("a step on a stale checkpoint succeeds")
		}
		for i, want := range states {
			if got, err := st.(PartReader).PartAt("thread", i+1); err != nil || !bytes.Equal(got, want) {
				t.Errorf("the state after step %d: %v", i+1, err)
			}
		}
		l := st.(*langGraph)
		for query, want := range map[string]any{
			`SELECT COUNT(*) FROM checkpoints`: int64(12),
			`SELECT COUNT(*) FROM checkpoints c JOIN checkpoints p ON p.checkpoint_id = c.parent_checkpoint_id`: int64(11),
			`SELECT COUNT(*) FROM writes JOIN checkpoints USING (thread_id, checkpoint_ns, checkpoint_id)`:      int64(11),
			`PRAGMA journal_mode`: "wal",
			`PRAGMA synchronous`:  int64(synchronous),
		} {
			var got any
			if err := l.conn.QueryRowContext(ctx, query).Scan(&got); err != nil || got != want {
				t.Errorf("%s: %s: %v, %v", name, query, got, err)
			}
		}
		if err := st.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// Every version of a growing part is a list of JSON messages that begins with the
// one before, and a step is about as long as the others.
func TestAGrowingPartExtendsTheOneBefore(t *testing.T) {
	g := newInput(synthetic(), 4).Growing()
	last := []byte("[")
	for range 40 {
		turn := g.Next()
		grown := len(turn.Part) - len(last)
		if !json.Valid(turn.Part) || !bytes.HasPrefix(turn.Part, last) || grown < growingBytes || grown > 3*growingBytes+2 {
			t.Fatalf("%d bytes after %d", len(turn.Part), len(last))
		}
		if n := len(turn.Nodes); n == 0 || !bytes.HasSuffix(bytes.TrimSuffix(turn.Part, []byte("]")), turn.Nodes[n-1].Payload) {
			t.Fatal("the messages of the step are not at the end")
		}
		last = bytes.TrimSuffix(turn.Part, []byte("]"))
	}
}
