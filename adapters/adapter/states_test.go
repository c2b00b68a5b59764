package adapter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/memory"
)

func stateStore(t *testing.T) turnstone.Factory {
	t.Helper()
	store, err := turnstone.Open(t.Context(), memory.New(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return store.Factory()
}

func set(key string, value []byte) turnstone.RecordChange {
	return turnstone.RecordChange{Key: key, Value: value}
}

// Values of all sizes are what was set last, whoever sets and reads them, and what is replaced leaves nothing behind.
func TestST1_StatesHaveValuesOfAllSizes(t *testing.T) {
	store := stateStore(t)
	both := [2]*States{NewStates(store, "g"), NewStates(store, "g")}
	want := map[string][]byte{}
	r, random := rand.New(rand.NewPCG(1, 2)), rand.NewChaCha8([32]byte{1})
	for range 150 {
		change := StateChange{ID: "s"}
		for _, key := range r.Perm(4)[:1+r.IntN(2)] {
			k := fmt.Sprint("k", key)
			if r.IntN(5) == 0 {
				delete(want, k)
				change.Values = append(change.Values, turnstone.RecordChange{Key: k, Action: turnstone.DeleteRecord})
				continue
			}
			value := make([]byte, []int{0, 10, turnstone.MaxRecord, turnstone.MaxRecord + 1, 300_000, 850_000}[r.IntN(6)])
			_, _ = random.Read(value) // It never fails.
			want[k] = value
			change.Values = append(change.Values, set(k, value))
		}
		if _, err := both[r.IntN(2)].Commit(t.Context(), []StateChange{change}); err != nil {
			t.Fatal(err)
		}
		got, err := both[r.IntN(2)].Read(t.Context(), "s")
		if err != nil || !maps.EqualFunc(got, want, bytes.Equal) {
			t.Fatalf("%d values, want %d: %v", len(got), len(want), err)
		}
	}
	for k := range want {
		want[k] = nil
	}
	for k := range want {
		if _, err := both[0].Commit(t.Context(), []StateChange{{ID: "s", Values: []turnstone.RecordChange{set(k, nil)}}}); err != nil {
			t.Fatal(err)
		}
	}
	h, err := store.Session(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	page, err := h.Records(t.Context(), turnstone.RecordQuery{Prefix: partPrefix, Limit: turnstone.MaxPage})
	if err != nil || len(page.Records) > 0 {
		t.Errorf("%d parts are left behind: %v", len(page.Records), err)
	}
}

// The largest value is stored, and a larger one refused before a session is made.
func TestST2_AValueHasALimit(t *testing.T) {
	store := stateStore(t)
	states := NewStates(store, "g")
	var limit *turnstone.LimitError
	_, err := states.Commit(t.Context(), []StateChange{{ID: "s", Values: []turnstone.RecordChange{set("k", make([]byte, MaxState+1))}}})
	if !errors.As(err, &limit) || limit.Max != MaxState {
		t.Error(err)
	}
	if _, err := store.Session(t.Context(), "s"); !Gone(err) {
		t.Error(err)
	}
	noise := make([]byte, turnstone.MaxCommitBytes+1)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(noise) // It never fails.
	if _, err := states.Commit(t.Context(), []StateChange{{ID: "noise", Values: []turnstone.RecordChange{set("k", noise)}}}); !errors.As(err, &limit) || limit.Max != turnstone.MaxCommitBytes {
		t.Error(err)
	}
	for _, value := range [][]byte{noise[:1<<20], noise[len(noise)-1<<20:]} {
		if _, err := states.Commit(t.Context(), []StateChange{{ID: "noise", Values: []turnstone.RecordChange{set("k", value)}}}); err != nil {
			t.Fatal(err)
		}
		if got, err := states.Read(t.Context(), "noise"); err != nil || !bytes.Equal(got["k"], value) {
			t.Error(len(got["k"]), err)
		}
	}
	for key, want := range map[string]string{strings.Repeat("k", 507): "key bytes", "a\x00": `state "a\x00": the key has a zero byte`, "\xff": `state "\xff": the key is not UTF-8`} {
		_, err := states.Commit(t.Context(), []StateChange{{ID: "s", Values: []turnstone.RecordChange{set(key, nil)}}})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "record") {
			t.Error(err)
		}
	}
	full := make([]turnstone.RecordChange, turnstone.MaxRecords)
	for i := range full {
		full[i] = set(fmt.Sprint(i), nil)
	}
	if _, err := states.Commit(t.Context(), []StateChange{{ID: "s", Values: full}}); !errors.As(err, &limit) || limit.Where != "state" {
		t.Error(err)
	}
	if _, err := states.Commit(t.Context(), []StateChange{{ID: "other", Values: full[1:]}}); err != nil {
		t.Error(err)
	}
	for _, value := range [][]byte{make([]byte, MaxState), bytes.Repeat([]byte("y"), MaxState), make([]byte, 60*turnstone.MaxRecord), make([]byte, MaxState), []byte(strings.Repeat("x", 3))} {
		if _, err := states.Commit(t.Context(), []StateChange{{ID: "s", Values: []turnstone.RecordChange{set("k", value)}}}); err != nil {
			t.Fatal(err)
		}
		if got, err := states.Read(t.Context(), "s"); err != nil || !bytes.Equal(got["k"], value) {
			t.Error(len(got["k"]), err)
		}
	}
}

// A check of a value changes nothing, whatever its size. It fails if the value is another one, and nothing else is stored then.
func TestST6_ACheckOfAValueChangesNothing(t *testing.T) {
	states := NewStates(stateStore(t), "g")
	values := map[string][]byte{"large": bytes.Repeat([]byte("x"), 3*turnstone.MaxRecord), "small": []byte("x")}
	for key, value := range values {
		if _, err := states.Commit(t.Context(), []StateChange{{ID: "s", Values: []turnstone.RecordChange{set(key, value)}}}); err != nil {
			t.Fatal(err)
		}
	}
	for key := range values {
		versions, err := states.Versions(t.Context(), "s")
		if err != nil {
			t.Fatal(err)
		}
		check := turnstone.RecordChange{Key: key, Action: turnstone.CheckRecord, Expect: versions[key]}
		if _, err := states.Commit(t.Context(), []StateChange{{ID: "s", Values: []turnstone.RecordChange{check, set("other", []byte(key))}}}); err != nil {
			t.Fatal(err)
		}
		if after, err := states.Versions(t.Context(), "s"); err != nil || after[key] != versions[key] {
			t.Errorf("%s: %q, %v", key, after, err)
		}
		check.Expect = turnstone.NoRecord
		if _, err := states.Commit(t.Context(), []StateChange{{ID: "s", Values: []turnstone.RecordChange{check, set("other", nil)}}}); !errors.Is(err, turnstone.ErrRecordConflict) {
			t.Errorf("%s: %v", key, err)
		}
		if got, err := states.Read(t.Context(), "s"); err != nil || !bytes.Equal(got[key], values[key]) || string(got["other"]) != key {
			t.Errorf("%s: %d bytes, %q, %v", key, len(got[key]), got["other"], err)
		}
	}
}

// Of changes at once none is mixed with another, and readers see whole values.
func TestST3_LargeStatesAreChangedAtOnce(t *testing.T) {
	store := stateStore(t)
	first := []turnstone.RecordChange{set("a", []byte("x")), set("b", []byte("x"))}
	if _, err := NewStates(store, "g").Commit(t.Context(), []StateChange{{ID: "s", Values: first}}); err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	for w := range 4 {
		states := NewStates(store, "g")
		writers.Go(func() {
			for i := range 25 {
				var values []turnstone.RecordChange
				for _, k := range []string{"a", "b", fmt.Sprint("own", w)} {
					values = append(values, set(k, bytes.Repeat([]byte{byte('0' + w)}, 1+(i+w)%3*100_000)))
				}
				if _, err := states.Commit(t.Context(), []StateChange{{ID: "s", Values: values}}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { writers.Wait(); close(done) }()
	reader := NewStates(store, "g")
	for more := true; more; {
		select {
		case <-done:
			more = false
		default:
		}
		got, err := reader.Read(t.Context(), "s")
		if err != nil {
			t.Fatal(err)
		}
		for k, v := range got {
			if len(bytes.Trim(v, string(v[:1]))) > 0 || len(v)%100_000 != 1 {
				t.Fatalf("%s is mixed: %d bytes", k, len(v))
			}
		}
		if len(got["a"]) == 0 || len(got["b"]) == 0 {
			t.Fatalf("a or b is not there: %d values", len(got))
		}
	}
}

// A conflict that leaves open whether the change stands is not tried again: the change could be made twice.
func TestKT2_AChangeThatMayStandIsNotMadeAgain(t *testing.T) {
	store := &unsure{Factory: stateStore(t)}
	states := NewStates(store, "g")
	_, err := states.Commit(t.Context(), []StateChange{{ID: "s", Values: []turnstone.RecordChange{set("k", make([]byte, turnstone.MaxRecord+1))}}})
	if !errors.Is(err, turnstone.ErrOutcomeUnknown) || store.calls != 1 {
		t.Errorf("%d calls, %v", store.calls, err)
	}
}

// unsure makes each change, and answers as if somebody else had been faster, or this call.
type unsure struct {
	turnstone.Factory
	calls int
}

func (u *unsure) CommitAll(ctx context.Context, commits ...turnstone.SessionCommit) ([]turnstone.Result, error) {
	u.calls++
	if _, err := u.Factory.CommitAll(ctx, commits...); err != nil {
		return nil, err
	}
	return nil, fmt.Errorf("%w: %w", turnstone.ErrOutcomeUnknown, &turnstone.RecordConflictError{Key: "state-large"})
}
