package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func compact(t *testing.T, payload []byte) string {
	t.Helper()
	var b bytes.Buffer
	if err := json.Compact(&b, payload); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func same(t *testing.T, what string, got Path, want []Node) {
	t.Helper()
	if len(got.Payloads) != len(want) || len(got.IDs) != len(want) {
		t.Fatalf("%s: %d nodes, %d ids, want %d", what, len(got.Payloads), len(got.IDs), len(want))
	}
	for i := range want {
		if compact(t, got.Payloads[i]) != compact(t, want[i].Payload) {
			t.Fatalf("%s: node %d differs", what, i)
		}
	}
}

// What is measured is what was asked for: every contestant that takes turns gives
// them back, also after it was opened again.
func TestContestantsKeepWhatTheyAreGiven(t *testing.T) {
	in := newInput(synthetic(), 1)
	turns := keyed(in.Long(60))
	turns[0].Label = "a label"
	part := in.Part()
	for i := range turns {
		turns[i].Part = part.Next()
	}
	var nodes []Node
	for _, turn := range turns {
		nodes = append(nodes, turn.Nodes...)
	}
	for _, c := range contestants {
		if c.Only != "" {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			dir := t.TempDir() + "/store"
			for _, bulk := range []bool{false, true} {
				st, err := c.Open(dir, bulk)
				if err != nil {
					t.Fatal(err)
				}
				id := fmt.Sprint("chat-", bulk)
				if err := commitAll(st, id, turns); err != nil {
					t.Fatal(err)
				}
				if c.Name != "adk sqlite" { // which has no such thing
					if err := st.Commit(id, 1, &turns[3]); err == nil {
						t.Error("a commit on a stale revision succeeds")
					}
				}
				if onDisk(&c) {
					if err := st.Close(); err != nil {
						t.Fatal(err)
					}
					if st, err = c.Open(dir, false); err != nil {
						t.Fatal(err)
					}
				}
				from := st.(Reader)
				all, err := from.Load(id)
				if err != nil {
					t.Fatal(err)
				}
				same(t, "all", all, nodes)
				last, err := from.Last(id, 20)
				if err != nil {
					t.Fatal(err)
				}
				same(t, "last 20", last, nodes[len(nodes)-20:])
				one, err := from.One(id, all.IDs[7])
				if err != nil || compact(t, one) != compact(t, nodes[7].Payload) {
					t.Errorf("one node: %v", err)
				}
				if err := from.Fork(id, id+"-fork"); !errors.Is(err, errLeftOut) {
					if err != nil {
						t.Fatal(err)
					}
					fork, err := from.Load(id + "-fork")
					if err != nil {
						t.Fatal(err)
					}
					same(t, "fork", fork, nodes)
				}
				if k, ok := st.(KeyReader); ok {
					got, err := k.ByKey(id, keyOf(41))
					if err != nil || compact(t, got) != compact(t, nodes[41].Payload) {
						t.Errorf("the node by its key: %v", err)
					}
					if _, err := k.ByKey(id, "another"); err == nil {
						t.Error("there is a node by a key that was never given")
					}
				}
				if p, ok := st.(PartReader); ok {
					for _, commits := range []int{1, len(turns) / 2, len(turns)} {
						if got, err := p.PartAt(id, commits); err != nil || !bytes.Equal(got, turns[commits-1].Part) {
							t.Errorf("the part after %d commits: %v", commits, err)
						}
					}
				}
				if h, ok := st.(Historian); ok {
					got, err := h.LastAt(id, len(turns)-1, 5)
					if err != nil {
						t.Fatal(err)
					}
					before := nodes[:len(nodes)-len(turns[len(turns)-1].Nodes)]
					same(t, "the last 5 before the last commit", got, before[len(before)-5:])
				}
				if l, ok := st.(LabelLister); ok {
					ids, err := l.ListLabel("a label", 50)
					if err != nil || !slices.Contains(ids, id) {
						t.Errorf("sessions of the label: %v, %v", ids, err)
					}
					if ids, err := l.ListLabel("another", 50); err != nil || len(ids) > 0 {
						t.Errorf("sessions of a label that none has: %v, %v", ids, err)
					}
				}
				if l, ok := st.(Lister); ok {
					ids, _, err := l.List("", 50)
					if err != nil || !slices.Contains(ids, id) {
						t.Errorf("list %v, %v", ids, err)
					}
				}
				if d, ok := st.(Reclaimer); ok {
					if err := errors.Join(d.Delete(id), d.Reclaim()); err != nil {
						t.Fatal(err)
					}
					if p, err := from.Load(id); err == nil && len(p.IDs) > 0 {
						t.Error("it is there after it was deleted")
					}
				}
				if c, ok := st.(Compacter); ok {
					if err := c.Compact(); err != nil {
						t.Fatal(err)
					}
				}
				if err := st.Close(); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

func TestVariationsAreJSONOfTheSameLength(t *testing.T) {
	templates := synthetic()
	if dir := os.Getenv("TURNSTONE_CORPUS"); dir != "" {
		real, err := loadTemplates(dir)
		if err != nil {
			t.Fatal(err)
		}
		templates = append(templates, real...)
	}
	in := newInput(templates, 1)
	changed := 0
	for _, c := range templates {
		for _, turn := range c {
			for _, n := range turn.Nodes {
				if !json.Valid(n.Payload) {
					continue
				}
				v := in.vary(n.Payload)
				if len(v) != len(n.Payload) || !json.Valid(v) {
					t.Fatalf("%.200s became %.200s", n.Payload, v)
				}
				if !bytes.Equal(v, n.Payload) {
					changed++
				}
			}
		}
	}
	if changed < 1000 {
		t.Errorf("%d payloads vary", changed)
	}
}

func TestInputIsTheSameForAll(t *testing.T) {
	templates := synthetic()
	draw := func(seed uint64) string { return fmt.Sprint(newInput(templates, seed).Long(50)) }
	if first, again := draw(1), draw(1); first != again || first == draw(2) {
		t.Error("conversations do not go by the seed")
	}
	n := 0
	for _, turn := range newInput(templates, 3).Long(1234) {
		n += len(turn.Nodes)
	}
	if n != 1234 {
		t.Errorf("%d nodes", n)
	}
	if p := newInput(templates, 1).Part(); len(p.Next()) != partBytes || bytes.Equal(p.Next(), p.Next()) {
		t.Error("the checkpoint part does not change, or its length does")
	}
}

// Every workload of a quick run measures something, on a contestant of each sort.
func TestWorkloadsRun(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a minute")
	}
	input := t.TempDir() + "/input"
	if err := saveTemplates(input, synthetic()); err != nil {
		t.Fatal(err)
	}
	templates, err := openTemplates(input)
	if err != nil {
		t.Fatal(err)
	}
	scale := Scale{
		Seconds: 0.08, Turns: 2000, Repeats: 1, Sessions: 200, Hot: 640, Growth: []int{100, 200},
		Steps: 40, Commits: 100, Many: 150, Busy: 0.1, Rewrite: 3, Slow: 100,
	}
	corpus := os.Getenv("TURNSTONE_CORPUS")
	results := &Results{Scale: scale, Rounds: 1}
	if testing.Short() {
		scale.Turns = 1000
	}
	names := []string{us, "sqlite full", "langgraph sqlite full", "working log"}
	if !testing.Short() { // all that targets name
		names = append(names, "turnstone pebble process", "turnstone badger", "turnstone memory", "sqlite normal", "json lines")
	}
	for _, w := range workloads {
		for _, name := range names {
			c, err := contestant(name)
			if err != nil {
				t.Fatal(err)
			}
			if w.Full || w.Real && corpus == "" || !w.takes(c) {
				continue
			}
			r := &run{Cell: Cell{Workload: w.Name, Contestant: name, Dir: t.TempDir(), Scale: scale}, contestant: c, templates: templates, out: Metrics{}}
			if w.Real {
				r.Corpus = corpus
			}
			if err := w.Run(r); err != nil {
				t.Errorf("%s, %s: %v", w.Name, name, err)
			}
			if len(r.out) == 0 {
				t.Errorf("%s, %s measured nothing", w.Name, name)
			}
			results.Cells = append(results.Cells, Result{Workload: w.Name, Contestant: name, Metrics: r.out})
		}
	}
	for _, target := range targets {
		if testing.Short() {
			break
		}
		left := corpus == "" && (strings.Contains(target.name, "SWE-smith") || strings.Contains(target.name, "Claude Code"))
		if v, ok := target.get(results); ok == left || ok && !(v > 0) {
			t.Errorf("%s: %v, %v", target.name, v, ok)
		}
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "benchmarks.md")
	if err := os.WriteFile(file, []byte("# Before\n"+beginMark+"old\n"+endMark+"after\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := results.write(dir); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	tables, err := os.ReadFile(filepath.Join(dir, "benchmarks", "tables.txt"))
	if err != nil {
		t.Fatal(err)
	}
	for text, wants := range map[string][]string{
		string(data):   {"# Before\n", "after\n", "Commits of 64 concurrent sessions", ".svg)", "commits/s"},
		string(tables): {"Commits of 64 concurrent sessions", "turnstone pebble", "commits/s"},
	} {
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("the report lacks %q", want)
			}
		}
	}
	if strings.Contains(string(data), "old\n") {
		t.Error("the old report is still there")
	}
	for _, cell := range strings.Split(string(data), "(benchmarks/")[1:] {
		name, _, _ := strings.Cut(cell, ")")
		if info, err := os.Stat(filepath.Join(dir, "benchmarks", name)); err != nil || info.Size() < 500 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTargetsAreJudgedByMedians(t *testing.T) {
	r := &Results{Scale: Scale{Growth: []int{1, 10}}}
	add := func(contestant string, rates ...float64) {
		for i, v := range rates {
			r.Cells = append(r.Cells, Result{Workload: "commit-64", Contestant: contestant, Round: i, Metrics: Metrics{"commits/s": v}})
		}
	}
	add(us, 1000, 5000, 9000)
	add("sqlite full", 700, 714, 50_000)
	add("working log", 10_000)
	rows := r.reached()
	text := fmt.Sprint(rows)
	if !strings.Contains(text, "7× 7× reached") || !strings.Contains(text, "0.5× **missed**") || len(rows) != 3 {
		t.Errorf("%v", rows)
	}
}

// slowStore is a store whose commits end after the time of a workload.
type slowStore struct{ Store }

func (slowStore) Commit(string, int, *Turn) error {
	time.Sleep(20 * time.Millisecond)
	return nil
}

func TestAWorkloadWaitsForACommitWhenTheDiskStalls(t *testing.T) {
	took, count, elapsed, err := together(slowStore{}, []*script{{turns: make([]scripted, 10)}}, time.Millisecond)
	if err != nil || len(took) != 1 || count != 1 || elapsed < 18*time.Millisecond {
		t.Errorf("%v, %d commits in %v, %v", took, count, elapsed, err)
	}
}
