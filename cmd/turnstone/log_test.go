package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

// In a drawn graph every commit is below the commits that go on from it, and a column
// leads from these to it.
func TestGraphOfBranches(t *testing.T) {
	var all []*vertex
	at := func(revision int, parents ...*vertex) *vertex {
		v := &vertex{session: "s", order: len(all), parents: parents, subject: fmt.Sprint("commit ", revision)}
		v.Revision, v.Nodes, v.Time = head.Revision(revision), 1, time.Date(2026, 1, 1, 0, revision, 0, 0, time.UTC)
		all = append(all, v)
		return v
	}
	one := at(1)
	two := at(2, one)
	three := at(3, one)
	four := at(4, two)
	five := at(5, three, four)
	at(6, one)
	at(7, five)
	at(8)
	var out bytes.Buffer
	r := reader{printer: printer{w: &out}, columns: 60}
	r.graph(newestFirst(all), false)
	var got []string
	for _, l := range strings.Split(strings.TrimRight(out.String(), "\n"), "\n") {
		mark, _, _ := strings.Cut(l, "  2026")
		got = append(got, strings.TrimRight(mark, " "))
	}
	want := []string{
		"*    8",
		"*    7",
		"│ *    6",
		"* │    5",
		"├─┼─╮",
		"│ │ *    4",
		"* │ │    3",
		"│ │ *    2",
		"├─┴─╯",
		"*    1",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("\n%s", out.String())
	}
	// A commit is below the commits that go on from it even if the clock went back.
	two.Time = one.Time.Add(-time.Hour)
	order := newestFirst(all)
	place := map[*vertex]int{}
	for i, v := range order {
		place[v] = i
	}
	for _, v := range all {
		for _, p := range v.parents {
			if place[p] < place[v] {
				t.Errorf("%d stands above %d", p.Revision, v.Revision)
			}
		}
	}
	if len(order) != len(all) {
		t.Errorf("%d of %d", len(order), len(all))
	}
}

func TestLogOfWhatIsTombstonedAndPruned(t *testing.T) {
	url := build(t, func(st *turnstone.Store) {
		s := create(t, st, turnstone.Request{ID: "s"})
		for i := range 3 {
			commit(t, s, turnstone.Commit{Expected: head.Revision(i), Nodes: []turnstone.NewNode{{Kind: "user", Key: fmt.Sprint(i), Payload: fmt.Append(nil, "text ", i)}}})
		}
		commit(t, s, turnstone.Commit{Expected: 3, Leaf: turnstone.RefNone()})
		n, err := s.NodeByKey(t.Context(), "1")
		if err == nil {
			err = s.Tombstone(t.Context(), n.ID)
		}
		if err == nil {
			_, err = s.Prune(t.Context(), 2)
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	out := must(t, "log", "s", "--graph", "--store", url)
	for _, want := range []string{"emptied the conversation", "user: text 2", "tombstoned since", "user: text 0", "pruned"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if out := must(t, "log", "s", "-n", "1", "--store", url); strings.Count(out, "\n") != 1 {
		t.Error(out)
	}
}
