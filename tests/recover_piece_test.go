package tests

import (
	"bytes"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testkit"
	"github.com/turnstonedb/turnstone/recovery"
)

// What came after a gap is in a session of its own: payloads, attachments, checkpoints, usage, labels, turn ids and times.
func TestRV7_WhatCameAfterAGapIsAPiece(t *testing.T) {
	e, st := onMemory(t, &turnstone.Options{SealBytes: 3000, NoAutoSeal: true})
	s := create(t, st, turnstone.Request{ID: "s", Metadata: head.Metadata{Name: "n", Labels: map[string]string{"k": "v"}}})
	var hidden graph.ID
	var second []graph.ID // a conversation of its own
	commitTo(t, s, turnstone.Commit{Checkpoint: map[string][]byte{"once": []byte("set once"), "gone": []byte("dropped later")}})
	for i := range 40 {
		att, err := s.PutAttachment(ctx, bytes.NewReader(random(300, uint64(i))), -1, "image/png", "x")
		must(t, err)
		if i == 35 {
			commitTo(t, s, turnstone.Commit{Drop: []string{"gone"}})
			second = commitTo(t, s, turnstone.Commit{
				Nodes: []turnstone.NewNode{{Parent: turnstone.RefNone(), Kind: "root", Payload: []byte("another")}, {Kind: "reply", Payload: []byte("to another")}}, Leaf: turnstone.RefTo(hidden),
			}).Nodes
		}
		r := commitTo(t, s, turnstone.Commit{
			Turn: fmt.Sprint("t", i), Usage: []head.Usage{{Model: "m", Input: uint64(i)}}, Labels: map[string]string{"i": fmt.Sprint(i)},
			Nodes: []turnstone.NewNode{
				{Kind: "user", Key: fmt.Sprint("k", i), Payload: random(100, uint64(i)), Attachments: []blob.Attachment{att}},
				{Kind: "assistant", Payload: random(200+200*i, uint64(i))},
				{Kind: "side", Payload: []byte("side")},
			},
			Leaf: turnstone.RefNew(1), Checkpoint: map[string][]byte{"p": random(300+i, 1), "q": random(10, uint64(i))},
		})
		if i == 30 {
			hidden = r.Nodes[1]
		}
		if i == 25 {
			must(t, s.Seal(ctx))
		}
	}
	must(t, s.Tombstone(ctx, hidden))
	if len(second) != 2 {
		t.Fatal(second)
	}
	before, err := s.Load(ctx, turnstone.Scope{Full: true})
	must(t, err)
	path, err := s.Load(ctx, turnstone.Scope{})
	must(t, err)
	end, err := s.Info(ctx)
	must(t, err)
	log := logOf(t, s)
	inc := incarnationOf(s)
	var segments []engine.Pair
	for _, p := range pairs(t, e) {
		if p.Key[4] == keys.Segment && bytes.Equal(p.Key[5:21], inc[:]) {
			segments = append(segments, p)
		}
	}
	for i, p := range segments {
		if i%testkit.Pick(1, 2, 7) != 0 && i < len(segments)-1 {
			continue
		}
		last, value := keys.SegmentFields(p.Key[5:])
		must(t, e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: p.Key, Value: flipped(p.Value)}}}))
		got, r := recovered(t, e)
		must(t, e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{p}}))
		if i == len(segments)-1 {
			if len(r.Pieces) > 0 {
				t.Errorf("%+v", r.Pieces)
			}
			continue
		}
		if len(r.Pieces) != 1 || r.Pieces[0].Of != "s" || r.Pieces[0].Last != end.Revision {
			t.Fatalf("segment to %d, value %d: %+v", last, value, r.Pieces)
		}
		piece := session(t, got, r.Pieces[0].Session)
		have := map[string]bool{}
		state, err := piece.Load(ctx, turnstone.Scope{Full: true})
		must(t, err)
		for _, n := range state.Nodes {
			have[fmt.Sprint(n.Kind, n.Key, n.Payload, n.Attachments, n.Time)] = true
			for _, a := range n.Attachments {
				_, err := piece.ReadAttachment(ctx, io.Discard, a.ID)
				must(t, err)
			}
		}
		expected := 0
		for _, n := range before.Nodes {
			if n.Revision >= r.Pieces[0].First {
				expected++
				if !have[fmt.Sprint(n.Kind, n.Key, n.Payload, n.Attachments, n.Time)] {
					t.Errorf("segment to %d: node of revision %d is missing", last, n.Revision)
				}
			}
		}
		var shows []string // what the path shows of the piece
		for _, n := range path.Nodes {
			if n.Revision >= r.Pieces[0].First {
				shows = append(shows, string(n.Payload))
			}
		}
		pieceState, err := piece.Load(ctx, turnstone.Scope{})
		must(t, err)
		var isShown []string
		for _, n := range pieceState.Nodes {
			isShown = append(isShown, string(n.Payload))
			if n.Kind == "root" || n.Kind == "reply" {
				t.Errorf("two conversations have become one")
			}
		}
		if !slices.Equal(shows, isShown) {
			t.Errorf("segment to %d: the path has %d nodes, not %d", last, len(isShown), len(shows))
		}
		if len(state.Nodes) != expected {
			t.Errorf("%d nodes, not %d", len(state.Nodes), expected)
		}
		for j, entry := range logOf(t, piece) {
			want := log[int(r.Pieces[0].First)-1+j]
			if entry.Turn != want.Turn || !reflect.DeepEqual(entry.Labels, want.Labels) || !reflect.DeepEqual(entry.Usage, want.Usage) || !entry.Time.Equal(want.Time) {
				t.Errorf("got %+v, want %+v", entry, want)
			}
		}
		want, err := s.Checkpoint(ctx, 0)
		must(t, err)
		is, err := piece.Checkpoint(ctx, 0)
		must(t, err)
		for name := range want { // What has set it, or the version that it is a delta of, may be in the gap.
			if is[name] == nil && slices.ContainsFunc(r.Lost, func(l recovery.Loss) bool {
				return l.Session == r.Pieces[0].Session && strings.Contains(l.What, fmt.Sprintf("checkpoint part %q", name))
			}) {
				delete(want, name)
			}
		}
		if !reflect.DeepEqual(want, is) {
			t.Errorf("the checkpoint is another one: %.300v, %.300v; %+v", want, is, r)
		}
		info, err := piece.Info(ctx)
		must(t, err)
		if info.Name != "n" || info.Labels["k"] != "v" || info.Parent != "s" {
			t.Errorf("%+v", info)
		}
	}
}

func logOf(t *testing.T, s *turnstone.Session) (out []turnstone.LogEntry) {
	t.Helper()
	for e, err := range s.Log(ctx, 0) {
		must(t, err)
		out = append(out, e)
	}
	return out
}
