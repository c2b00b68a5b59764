package trpc_test

import (
	"cmp"
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
	"github.com/turnstonedb/turnstone/adapters/adapter/adaptertest"
	"github.com/turnstonedb/turnstone/adapters/trpc"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

// said is what a saver returns, as text that can be compared.
func said(v any, err error) (any, error) {
	text, jerr := json.Marshal(v)
	if string(text) == "[]" {
		return "null", err
	}
	return string(text), cmp.Or(err, jerr)
}

// The saver does what the kit's saver in memory does, on every engine and through a server.
func TestTR9_CheckpointsAreThoseOfTheKitInMemory(t *testing.T) {
	ctx := t.Context()
	pick := func(r *rand.Rand) (config map[string]any, lineage, id string) {
		lineage, id = []string{"l", "a/b%2F", strings.Repeat("é", 300)}[r.IntN(3)], fmt.Sprint("c", r.IntN(20))
		return graph.CreateCheckpointConfig(lineage, id, []string{"", "sub", "x/y"}[r.IntN(3)]), lineage, id
	}
	at := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	put := func(s graph.CheckpointSaver, r *rand.Rand) (any, error) {
		config, _, id := pick(r)
		c := graph.NewCheckpoint(map[string]any{"n": 1.5, "list": []any{"é", nil}, "r": r.Float64()}, map[string]int64{"n": r.Int64N(9)}, map[string]map[string]int64{"node": {"n": 1}})
		c.ID, c.Timestamp = id, at.Add(time.Duration(r.Int64N(1e12)))
		if r.IntN(2) == 0 {
			c.ParentCheckpointID = fmt.Sprint("c", r.IntN(20))
		}
		m := graph.NewCheckpointMetadata("loop", r.IntN(9))
		m.Extra["k"] = []string{"v", "w"}[r.IntN(2)]
		// The kit's saver forgets the writes of a checkpoint that is put again only if it is given others.
		w := []graph.PendingWrite{{TaskID: "own", Channel: "n", Value: r.Float64(), Sequence: 2}, {TaskID: "own", Channel: "m", Value: "x", Sequence: 3}}
		return said(s.PutFull(ctx, graph.PutFullRequest{Config: config, Checkpoint: c, Metadata: m, PendingWrites: w}))
	}
	get := func(s graph.CheckpointSaver, r *rand.Rand) (any, error) {
		config, lineage, _ := pick(r)
		if r.IntN(2) == 0 {
			config = graph.CreateCheckpointConfig(lineage, "", graph.GetNamespace(config))
		}
		tuple, err := s.GetTuple(ctx, config)
		if err != nil {
			return nil, err
		}
		checkpoint, err := s.Get(ctx, config)
		return said([]any{tuple, checkpoint, config}, err)
	}
	list := func(s graph.CheckpointSaver, r *rand.Rand) (any, error) {
		config, lineage, _ := pick(r)
		filter := &graph.CheckpointFilter{Limit: r.IntN(4)}
		if r.IntN(2) == 0 {
			filter.Metadata = map[string]any{"k": "v"}
		}
		if graph.GetNamespace(config) != "" && r.IntN(2) == 0 {
			filter.Before = config
		}
		return said(s.List(ctx, graph.CreateCheckpointConfig(lineage, "", graph.GetNamespace(config)), filter))
	}
	storetest.Each(t, func(t *testing.T, open func(*testing.T) turnstone.Factory) {
		savers := []graph.CheckpointSaver{trpc.NewCheckpoints(open(t), trpc.CheckpointOptions{}), inmemory.NewSaver().WithMaxCheckpointsPerLineage(10_000)}
		adaptertest.Alike(t, savers, 200, 49, map[string]adaptertest.Call[graph.CheckpointSaver]{
			"put": put, "put more": put, "get": get, "get more": get, "list": list,
			"put writes": func(s graph.CheckpointSaver, r *rand.Rand) (any, error) {
				config, _, _ := pick(r)
				w := []graph.PendingWrite{{TaskID: "own", Channel: "c", Value: r.Float64(), Sequence: 1}, {TaskID: "own", Channel: "d", Value: nil, Sequence: 2}}
				return nil, s.PutWrites(ctx, graph.PutWritesRequest{Config: config, Writes: w, TaskID: "own"})
			},
			"delete": func(s graph.CheckpointSaver, r *rand.Rand) (any, error) {
				_, lineage, _ := pick(r)
				if r.IntN(3) > 0 {
					return nil, nil
				}
				return nil, s.DeleteLineage(ctx, lineage)
			},
		})
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

// A host whose clock is behind puts a checkpoint after one that has a later time. When a prune takes that one, the checkpoint
// that is left with the latest time is the latest.
func TestTR9_WhenTheLatestCheckpointIsPrunedTheNextOneIs(t *testing.T) {
	store := storetest.Memory(t)
	s := trpc.NewCheckpoints(store, trpc.CheckpointOptions{})
	at := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	put := func(id string, after time.Duration) {
		t.Helper()
		c := graph.NewCheckpoint(map[string]any{"id": id}, nil, nil)
		c.ID, c.Timestamp = id, at.Add(after)
		if _, err := s.Put(t.Context(), graph.PutRequest{Config: graph.CreateCheckpointConfig("l", "", "ns"), Checkpoint: c}); err != nil {
			t.Fatal(err)
		}
	}
	is := func(want string) {
		t.Helper()
		config := graph.CreateCheckpointConfig("l", "", "ns")
		got, err := s.GetTuple(t.Context(), config)
		if err != nil || got == nil || got.Checkpoint.ID != want || got.Checkpoint.ChannelValues["id"] != want || graph.GetCheckpointID(config) != want {
			t.Errorf("%+v, %v; want %q", got, err, want)
		}
	}
	put("a", 0)
	put("b", 9*time.Second)
	put("c", 3*time.Second)
	is("b")
	if _, err := store.(turnstone.Operator).Prune(t.Context(), gc.PruneOptions{Revisions: 1}); err != nil {
		t.Fatal(err)
	}
	is("c")
	if got, err := s.GetTuple(t.Context(), graph.CreateCheckpointConfig("l", "b", "ns")); got != nil || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	put("d", 10*time.Second)
	is("d")
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
		for _, task := range []string{"t", "u", "v"} {
			write := graph.PutWritesRequest{Config: graph.CreateCheckpointConfig("l", c.ID, "ns"), TaskID: task, Writes: []graph.PendingWrite{{Channel: "c", Value: "w"}}}
			if err := s.PutWrites(t.Context(), write); err != nil {
				t.Fatal(err)
			}
		}
	}
	again := graph.NewCheckpoint(map[string]any{"n": 4.0}, nil, nil)
	again.ID, again.Timestamp = "4", at.Add(4*time.Second)
	if _, err := s.Put(t.Context(), graph.PutRequest{Config: config, Checkpoint: again, Metadata: graph.NewCheckpointMetadata("loop", 4)}); err != nil {
		t.Fatal(err)
	}
	for _, o := range []gc.PruneOptions{{}, {Revisions: 1}} {
		if _, err := store.(turnstone.Operator).Prune(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if _, err := store.Vacuum(t.Context(), gc.VacuumOptions{}); err != nil {
			t.Fatal(err)
		}
		all, err := s.List(t.Context(), config, nil)
		if err != nil || len(all) != 1 || all[0].Checkpoint.ID != "4" || len(all[0].PendingWrites) != 3 {
			t.Fatalf("%+v, %v", all, err)
		}
		if last, err := s.GetTuple(t.Context(), graph.CreateCheckpointConfig("l", "", "ns")); err != nil || last == nil || len(last.PendingWrites) != 3 {
			t.Errorf("%+v, %v", last, err)
		}
	}
	h, err := store.Session(t.Context(), "trpc-graph/l/ns")
	if err != nil {
		t.Fatal(err)
	}
	if st, err := h.Load(t.Context(), turnstone.Scope{Full: true}); err != nil || len(st.Nodes) != 3 {
		t.Errorf("%d nodes are left, %v", len(st.Nodes), err)
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
