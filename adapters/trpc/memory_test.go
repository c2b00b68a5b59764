package trpc_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"trpc.group/trpc-go/trpc-agent-go/memory"
	"trpc.group/trpc-go/trpc-agent-go/memory/inmemory"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter/adaptertest"
	"github.com/turnstonedb/turnstone/adapters/trpc"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

// remembered returns what entries say, without their times.
func remembered(entries []*memory.Entry) (out []string) {
	for _, e := range entries {
		m := *e.Memory
		m.LastUpdated = nil
		out = append(out, fmt.Sprintf("%s %s %s %s %q %.6f", e.ID, e.AppName, e.UserID, m.Memory, m.Topics, e.Score))
		if m.EventTime != nil {
			out = append(out, fmt.Sprint(m.Kind, m.EventTime.UTC(), m.Participants, m.Location))
		}
	}
	return out
}

// The service of memories does what the kit's service in memory does, on every engine and through a server.
func TestTR11_MemoriesAreThoseOfTheKitInMemory(t *testing.T) {
	ctx := t.Context()
	user := func(r *rand.Rand) memory.UserKey {
		return memory.UserKey{AppName: "app", UserID: []string{"u", "u/v%2F", ""}[min(r.IntN(12)/5, 2)]}
	}
	words := strings.Fields("likes green tea trains in Kyoto when rain falls 喜欢 绿茶")
	text := func(r *rand.Rand) string {
		return words[r.IntN(4)] + " " + words[r.IntN(len(words))] + " " + words[r.IntN(len(words))]
	}
	about := func(r *rand.Rand) *memory.Metadata {
		if r.IntN(2) == 0 {
			return nil
		}
		at := time.Date(2026, 1, 1+r.IntN(3), 0, 0, 0, 0, time.FixedZone("", 3600))
		return &memory.Metadata{Kind: memory.KindEpisode, EventTime: &at, Participants: []string{"Ann"}, Location: "Kyoto"}
	}
	one := func(s memory.Service, of memory.UserKey, r *rand.Rand) memory.Key {
		key := memory.Key{AppName: of.AppName, UserID: of.UserID, MemoryID: "none"}
		if all, _ := s.ReadMemories(ctx, of, 0); len(all) > 0 && r.IntN(10) > 0 {
			key.MemoryID = all[r.IntN(len(all))].ID
		}
		return key
	}
	add := func(s memory.Service, r *rand.Rand) (any, error) {
		return nil, s.AddMemory(ctx, user(r), text(r), []string{words[r.IntN(3)]}, memory.WithMetadata(about(r)))
	}
	search := func(s memory.Service, r *rand.Rand) (any, error) {
		found, err := s.SearchMemories(ctx, user(r), text(r), memory.WithSearchOptions(memory.SearchOptions{Query: text(r), MaxResults: r.IntN(4), Kind: []memory.Kind{"", memory.KindEpisode}[r.IntN(2)]}))
		return remembered(found), err
	}
	calls := map[string]adaptertest.Call[memory.Service]{
		"add": add, "add more": add, "add again": add, "search": search,
		"update": func(s memory.Service, r *rand.Rand) (any, error) {
			var got memory.UpdateResult
			err := s.UpdateMemory(ctx, one(s, user(r), r), text(r), []string{"t"}, memory.WithUpdateMetadata(about(r)), memory.WithUpdateResult(&got))
			return got.MemoryID, err
		},
		"delete": func(s memory.Service, r *rand.Rand) (any, error) { return nil, s.DeleteMemory(ctx, one(s, user(r), r)) },
		"read": func(s memory.Service, r *rand.Rand) (any, error) {
			all, err := s.ReadMemories(ctx, user(r), r.IntN(20))
			return remembered(all), err
		},
		"clear": func(s memory.Service, r *rand.Rand) (any, error) {
			if r.IntN(5) > 0 {
				return nil, nil
			}
			return nil, s.ClearMemories(ctx, user(r))
		},
	}
	storetest.Each(t, func(t *testing.T, open func(*testing.T) turnstone.Factory) {
		ours := trpc.NewMemory(open(t), 12)
		services := []memory.Service{ours, inmemory.NewMemoryService(inmemory.WithMemoryLimit(12))}
		adaptertest.Alike(t, services, 200, 49, calls)
		if len(ours.Tools()) != len(services[1].Tools()) || len(ours.Tools()) == 0 {
			t.Errorf("%d tools", len(ours.Tools()))
		}
	})
}

// Of memories that are changed at once none is lost, whichever process changes them, and a user has no more than he may.
func TestTR11_OfMemoriesThatAreChangedAtOnceNoneIsLost(t *testing.T) {
	store := storetest.Memory(t)
	of := memory.UserKey{AppName: "a", UserID: "u"}
	services := []*trpc.Memory{trpc.NewMemory(store, 25), trpc.NewMemory(store, 25)}
	if err := services[0].AddMemory(ctx, of, "doomed", nil); err != nil {
		t.Fatal(err)
	}
	doomed := must(services[1].ReadMemories(ctx, of, 0))[0].ID
	var limit *turnstone.LimitError
	var all sync.WaitGroup
	var refused atomic.Int32
	for i := range 8 {
		all.Go(func() {
			for j := range 4 {
				err := services[i%2].AddMemory(ctx, of, fmt.Sprintf("memory %d of %d", j, i), nil)
				if errors.Is(err, turnstone.ErrLimit) {
					refused.Add(1)
				} else if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Go(func() {
		if err := services[0].UpdateMemory(ctx, memory.Key{AppName: "a", UserID: "u", MemoryID: doomed}, "saved", nil); err != nil {
			t.Error(err)
		}
	})
	all.Wait()
	var got []string
	for _, e := range must(services[0].ReadMemories(ctx, of, 0)) {
		got = append(got, e.Memory.Memory)
	}
	if len(got) != 25 || refused.Load() != 8 || !slices.Contains(got, "saved") || slices.Contains(got, "doomed") {
		t.Errorf("%q", got)
	}
	if err := services[1].AddMemory(ctx, of, "one more", nil); !errors.As(err, &limit) {
		t.Error(err)
	}
	large := strings.Repeat("x", turnstone.MaxRecord)
	if err := trpc.NewMemory(store, 0).AddMemory(ctx, of, large, nil); !errors.As(err, &limit) {
		t.Error(err)
	}
	if after := must(services[0].ReadMemories(ctx, of, 0)); len(after) != 25 {
		t.Errorf("%d", len(after))
	}
}
