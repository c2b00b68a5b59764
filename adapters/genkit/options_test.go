package genkit_test

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/firebase/genkit/go/ai/exp"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/genkit"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

// Snapshots of one prefix are those of its calls only, whatever the names, and beside a store without a prefix.
func TestGK7_APrefixHasItsOwnSnapshots(t *testing.T) {
	type key struct{}
	store := storetest.Memory(t)
	of := genkit.NewStore[custom](store, genkit.Options{Prefix: func(ctx context.Context) string { p, _ := ctx.Value(key{}).(string); return p }})
	prefixes := []string{"a", "a/b", "a%2Fb", "b"}
	at := func(ctx context.Context) string { // With "a" before it, it is the same as another one with "a/b".
		return map[bool]string{true: "one", false: "b/one"}[ctx.Value(key{}) == "a/b"]
	}
	plain := genkit.NewStore[custom](store, genkit.Options{})
	save := func(ctx context.Context, s *genkit.Store[custom], counter int) error {
		_, err := s.SaveSnapshot(ctx, at(ctx), func(old *snapshot) (*snapshot, error) {
			if old != nil {
				return nil, fmt.Errorf("there is one with the counter %d", old.State.Custom.Counter)
			}
			return &snapshot{SessionID: at(ctx), CreatedAt: begin, State: &state{Custom: custom{Counter: counter}}}, nil
		})
		return err
	}
	read := func(ctx context.Context, s *genkit.Store[custom], want int) {
		t.Helper()
		for _, read := range []func() (*snapshot, error){
			func() (*snapshot, error) { return s.GetSnapshot(ctx, at(ctx)) },
			func() (*snapshot, error) { return s.GetLatestSnapshot(ctx, at(ctx)) },
		} {
			got, err := read()
			if err != nil || (got == nil) != (want < 0) || got != nil && got.State.Custom.Counter != want {
				t.Errorf("%v: %+v, %v; want %d", ctx.Value(key{}), got, err, want)
			}
		}
	}
	for i, p := range prefixes {
		in := context.WithValue(ctx, key{}, p)
		read(in, of, -1)
		if err := save(in, of, i); err != nil {
			t.Error(err)
		}
	}
	read(ctx, plain, -1)
	if err := save(ctx, plain, 9); err != nil {
		t.Error(err)
	}
	for i, p := range prefixes {
		in := context.WithValue(ctx, key{}, p)
		read(in, of, i)
		if got := <-of.OnSnapshotStatusChange(in, at(in)); got != exp.SnapshotStatusCompleted {
			t.Error(got)
		}
	}
	read(ctx, plain, 9)
	if page, err := store.List(ctx, turnstone.ListOptions{Group: "genkit-of/a%2Fb"}); err != nil || len(page.Sessions) != 1 {
		t.Errorf("%d sessions of a prefix: %v", len(page.Sessions), err)
	}
	for _, bad := range []string{"", "\xff"} {
		if err := save(context.WithValue(ctx, key{}, bad), of, 1); err == nil {
			t.Errorf("%q is a prefix", bad)
		}
	}
}

// A chain has so many snapshots at most, those that branch off as well, and each is whole after a prune.
func TestGK7_AChainHasSoManySnapshotsAtMost(t *testing.T) {
	for most := 1; most < 4; most++ {
		st := storetest.URL(t, "mem:")
		s := snapshots{T: t, Store: genkit.NewStore[custom](st.Factory(), genkit.Options{MaxChain: most})}
		var messages []string
		save := func(id, parent string, n int) {
			t.Helper()
			s.parent = parent
			s.save(id, "s", n, exp.SnapshotStatusCompleted, n, messages...)
		}
		there := func() (out []string) {
			t.Helper()
			for _, id := range []string{"0", "1", "2", "3", "4", "x", "y"} {
				got, err := s.GetSnapshot(ctx, id)
				if err != nil {
					t.Error(err)
				}
				if got != nil {
					out = append(out, id)
				}
			}
			return out
		}
		for n := range 5 {
			messages = append(messages, fmt.Sprint("message ", n))
			parent := ""
			if n > 0 {
				parent = fmt.Sprint(n - 1)
			}
			save(fmt.Sprint(n), parent, n)
		}
		want := []string{"0", "1", "2", "3", "4"}[5-most:]
		if got := there(); !slices.Equal(got, want) {
			t.Errorf("%d: %q", most, got)
		}
		messages = append(messages[:3:3], "another")
		save("x", "3", 5) // of a chain that had its rest deleted, or of none
		if got := there(); !slices.Contains(got, "x") || !slices.Contains(got, "4") {
			t.Errorf("%d: %q", most, got)
		}
		h, err := st.Session(ctx, "genkit/s")
		if err != nil {
			t.Fatal(err)
		}
		for _, prefix := range []string{"genkit/", ".genkit-created/"} {
			if listed, err := h.Records(ctx, turnstone.RecordQuery{Prefix: prefix}); err != nil || len(listed.Records) != len(there()) {
				t.Errorf("%d: %d records for %d snapshots: %v", most, len(listed.Records), len(there()), err)
			}
		}
		save("y", "z", 6) // and two that name each other
		save("z", "y", 7)
		save("end", "z", 8)
		if _, err := st.Prune(ctx, gc.PruneOptions{Revisions: 1}); err != nil {
			t.Fatal(err)
		}
		last, err := s.GetLatestSnapshot(ctx, "s")
		if err != nil || last == nil || last.SnapshotID != "end" || len(last.State.Messages) != 4 || last.State.Messages[3].Text() != "another" {
			t.Errorf("%d: %+v, %v", most, last, err)
		}
	}
}
