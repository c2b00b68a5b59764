package trpc_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"trpc.group/trpc-go/trpc-agent-go/graph"
	"trpc.group/trpc-go/trpc-agent-go/graph/checkpoint/inmemory"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/trpc"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

// said is what a saver returns, as text that can be compared.
func said(v any, err error) string {
	if err != nil {
		return "an error"
	}
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// The saver does what the kit's saver in memory does, on every engine and through a server.
func TestTR9_CheckpointsAreThoseOfTheKitInMemory(t *testing.T) {
	storetest.Each(t, func(t *testing.T, open func(*testing.T) turnstone.Factory) {
		ours := []*trpc.Checkpoints{}
		store := open(t)
		for range 2 {
			ours = append(ours, trpc.NewCheckpoints(store, trpc.CheckpointOptions{}))
		}
		theirs := inmemory.NewSaver().WithMaxCheckpointsPerLineage(10_000)
		r := rand.New(rand.NewPCG(49, 1))
		at := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
		lineages, namespaces := []string{"l", "a/b%2F", strings.Repeat("é", 300)}, []string{"", "sub", "x/y"}
		ids := map[string][]string{}
		ctx := t.Context()
		for step := range 150 {
			lineage, ns := lineages[r.IntN(3)], namespaces[r.IntN(3)]
			known := ids[lineage+"|"+ns]
			id := ""
			if len(known) > 0 && r.IntN(3) > 0 {
				id = known[r.IntN(len(known))]
			}
			var got [2]string
			for i, s := range []graph.CheckpointSaver{ours[r.IntN(2)], theirs} {
				pick := rand.New(rand.NewPCG(uint64(step), 7))
				config := graph.CreateCheckpointConfig(lineage, id, ns)
				switch pick.IntN(8) {
				case 0, 1, 2:
					c := graph.NewCheckpoint(map[string]any{"n": 1.5, "list": []any{"é", nil}, "step": float64(step)}, map[string]int64{"n": int64(step)}, map[string]map[string]int64{"node": {"n": 1}})
					c.ID, c.Timestamp, c.ParentCheckpointID = fmt.Sprint("c", step), at.Add(time.Duration(step)*time.Second), id
					m := graph.NewCheckpointMetadata("loop", step)
					m.Extra["k"] = []string{"v", "w"}[pick.IntN(2)]
					full := graph.PutFullRequest{Config: config, Checkpoint: c, Metadata: m}
					if pick.IntN(2) == 0 {
						full.PendingWrites = []graph.PendingWrite{{TaskID: "t1", Channel: "n", Value: "x", Sequence: 2}, {TaskID: "t2", Channel: "m", Value: 1.0, Sequence: 3}}
					}
					got[i] = said(s.PutFull(ctx, full))
					if i == 0 {
						ids[lineage+"|"+ns] = append(known, c.ID)
					}
				case 3:
					if id == "" || len(known) == 0 {
						continue
					}
					// The kit's saver replaces the writes of all tasks.
					if before, err := theirs.GetTuple(ctx, graph.CreateCheckpointConfig(lineage, id, ns)); err == nil && before != nil && len(before.PendingWrites) > 0 && before.PendingWrites[0].TaskID != "own" {
						continue
					}
					w := []graph.PendingWrite{{TaskID: "own", Channel: "c", Value: pick.Float64(), Sequence: 1}, {TaskID: "own", Channel: "d", Value: nil, Sequence: 2}}
					got[i] = said(nil, s.PutWrites(ctx, graph.PutWritesRequest{Config: config, Writes: w, TaskID: "own"}))
				case 4, 5:
					got[i] = said(s.GetTuple(ctx, config)) + said(s.Get(ctx, config))
				case 6:
					filter := &graph.CheckpointFilter{Limit: pick.IntN(4)}
					if pick.IntN(2) == 0 {
						filter.Metadata = map[string]any{"k": "v"}
					}
					if id != "" && ns != "" && pick.IntN(2) == 0 {
						filter.Before = config
					}
					got[i] = said(s.List(ctx, graph.CreateCheckpointConfig(lineage, "", ns), filter))
				default:
					if pick.IntN(6) > 0 {
						continue
					}
					got[i] = said(nil, s.DeleteLineage(ctx, lineage))
					for _, ns := range namespaces {
						delete(ids, lineage+"|"+ns)
					}
				}
			}
			if got[0] == "[]" {
				got[0] = "null"
			}
			if got[1] == "[]" {
				got[1] = "null"
			}
			if got[0] != got[1] {
				t.Fatalf("step %d:\n%s\nwant\n%s", step, got[0], got[1])
			}
		}
	})
}

// Of checkpoints that are put at once, none is lost, and the latest is the one of the latest time.
func TestTR9_CheckpointsAtOnceAreAllThere(t *testing.T) {
	store := storetest.Memory(t)
	at := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	var putting sync.WaitGroup
	for w := range 4 {
		s := trpc.NewCheckpoints(store, trpc.CheckpointOptions{})
		putting.Go(func() {
			for i := range 10 {
				c := graph.NewCheckpoint(nil, nil, nil)
				c.ID, c.Timestamp = fmt.Sprint(w, "-", i), at.Add(time.Duration(i*4+w)*time.Second)
				if _, err := s.Put(context.Background(), graph.PutRequest{Config: graph.CreateCheckpointConfig("l", "", ""), Checkpoint: c}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	putting.Wait()
	s := trpc.NewCheckpoints(store, trpc.CheckpointOptions{})
	all, err := s.List(t.Context(), graph.CreateCheckpointConfig("l", "", ""), nil)
	if err != nil || len(all) != 40 {
		t.Fatalf("%d checkpoints, %v", len(all), err)
	}
	if c, err := s.Get(t.Context(), graph.CreateCheckpointConfig("l", "", "")); err != nil || c.ID != "3-9" {
		t.Errorf("%+v, %v", c, err)
	}
}

// After a prune the latest checkpoint and its writes are there, and older ones are not listed.
func TestTR9_APruneLeavesTheLatestCheckpoint(t *testing.T) {
	store := storetest.Memory(t)
	s := trpc.NewCheckpoints(store, trpc.CheckpointOptions{Retention: 2})
	at := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	config := graph.CreateCheckpointConfig("l", "", "ns")
	for i := range 5 {
		c := graph.NewCheckpoint(map[string]any{"n": float64(i)}, nil, nil)
		c.ID, c.Timestamp = fmt.Sprint(i), at.Add(time.Duration(i)*time.Second)
		if _, err := s.Put(t.Context(), graph.PutRequest{Config: config, Checkpoint: c, Metadata: graph.NewCheckpointMetadata("loop", i)}); err != nil {
			t.Fatal(err)
		}
		if err := s.PutWrites(t.Context(), graph.PutWritesRequest{Config: graph.CreateCheckpointConfig("l", c.ID, "ns"), TaskID: "t", Writes: []graph.PendingWrite{{Channel: "c", Value: "w"}}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := store.(turnstone.Operator).Prune(t.Context(), gc.PruneOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Vacuum(t.Context(), gc.VacuumOptions{}); err != nil {
		t.Fatal(err)
	}
	all, err := s.List(t.Context(), config, nil)
	if err != nil || len(all) != 1 || all[0].Checkpoint.ID != "4" || len(all[0].PendingWrites) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	if c, err := s.Get(t.Context(), graph.CreateCheckpointConfig("l", "1", "ns")); c != nil || err != nil {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestTR9_WhatNamesNothingIsRefused(t *testing.T) {
	s := trpc.NewCheckpoints(storetest.Memory(t), trpc.CheckpointOptions{})
	none, some := map[string]any{}, graph.CreateCheckpointConfig("l", "", "")
	for name, err := range map[string]error{
		"get": second(s.Get(t.Context(), none)), "list": second(s.List(t.Context(), none, nil)),
		"put":         second(s.Put(t.Context(), graph.PutRequest{Config: none, Checkpoint: graph.NewCheckpoint(nil, nil, nil)})),
		"put nothing": second(s.Put(t.Context(), graph.PutRequest{Config: some})), "put without id": second(s.Put(t.Context(), graph.PutRequest{Config: some, Checkpoint: &graph.Checkpoint{}})),
		"writes":    s.PutWrites(t.Context(), graph.PutWritesRequest{Config: some}),
		"not UTF-8": second(s.Put(t.Context(), graph.PutRequest{Config: some, Checkpoint: graph.NewCheckpoint(map[string]any{"x": "\xff"}, nil, nil)})),
	} {
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if c, err := s.Get(t.Context(), some); c != nil || err != nil {
		t.Errorf("%+v, %v", c, err)
	}
}

func second[T any](_ T, err error) error { return err }
