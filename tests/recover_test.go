package tests

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/storetest"
	"github.com/turnstonedb/turnstone/internal/testkit"
	"github.com/turnstonedb/turnstone/recovery"
)

// recovered recovers what e has.
func recovered(t *testing.T, e engine.Scanner) (*turnstone.Store, *recovery.Report) {
	t.Helper()
	_, to := onMemory(t, nil)
	r, err := recovery.Run(ctx, e, to, recovery.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatalf("%v, %+v", err, r)
	}
	verify(t, to)
	return to, r
}

// shown returns the nodes that a session shows, with their contents.
func shown(t *testing.T, st *turnstone.Store, id string) map[graph.ID]string {
	t.Helper()
	state, err := session(t, st, id).Load(ctx, turnstone.Scope{Full: true})
	must(t, err)
	out := map[graph.ID]string{}
	for _, n := range state.Nodes {
		out[n.ID] = fmt.Sprintf("%s %s %x %v", n.Kind, n.Key, n.Payload, n.Attachments)
	}
	return out
}

// compareRecovered fails the test if a recovered session has what the original has not, or lacks something that no loss
// is named for.
func compareRecovered(t *testing.T, what string, original, got *turnstone.Store, texts map[string]string, r *recovery.Report) {
	t.Helper()
	lost := map[string][]string{}
	for _, l := range r.Lost {
		lost[l.Session] = append(lost[l.Session], l.What)
	}
	there := aliveIn(t, got)
	var missing []string
	for id, text := range texts {
		if there[id] == "" {
			if !slices.ContainsFunc(r.Lost, func(l recovery.Loss) bool { return strings.Contains(l.What, "all of it") && l.Session == id }) {
				missing = append(missing, id)
			}
			continue
		}
		if parent := parentIn(text); parent != "" && there[parent] == "" { // It has another id, or is gone.
			text, there[id] = withoutParent(text), withoutParent(there[id])
		}
		if prunedIsNoMatter(there[id]) != prunedIsNoMatter(text) && len(lost[id]) == 0 {
			a, b := strings.Split(prunedIsNoMatter(text), "\n"), strings.Split(prunedIsNoMatter(there[id]), "\n")
			for i := range min(len(a), len(b)) {
				if a[i] != b[i] {
					t.Errorf("%s: session %q is another one, and nothing of it is lost: got\n%.1500s\nwant\n%.1500s", what, id, around(b[i], a[i]), around(a[i], b[i]))
				}
			}
		}
		had := shown(t, original, id)
		if slices.ContainsFunc(lost[id], func(l string) bool { return strings.Contains(l, "tombstones") }) {
			continue
		}
		for n, content := range shown(t, got, id) {
			if had[n] != content {
				t.Errorf("%s: session %q shows node %s, %.80s, which was %.80s", what, id, n, content, had[n])
			}
		}
	}
	if len(missing) > len(unnamed(r)) {
		t.Errorf("%s: sessions %q are missing: %v", what, missing, r.Lost)
	}
	for _, piece := range r.Pieces {
		had := map[string]bool{}
		if texts[piece.Of] == "" {
			continue // Its id is lost.
		}
		for _, content := range shown(t, original, piece.Of) {
			had[content] = true
		}
		for n, content := range shown(t, got, piece.Session) {
			if !had[content] {
				t.Errorf("%s: piece %q shows node %s, %.80s", what, piece.Session, n, content)
			}
		}
	}
	for id := range there {
		if texts[id] == "" && !strings.HasPrefix(id, "recovered-") && !strings.Contains(id, "/from-") {
			t.Errorf("%s: session %q is there", what, id)
		}
	}
}

// around returns the part of a text where it is not like another one.
func around(text, other string) string {
	at := 0
	for at < min(len(text), len(other)) && text[at] == other[at] {
		at++
	}
	return text[max(0, at-150):min(len(text), at+300)]
}

// unnamed returns the sessions whose ids are lost.
func unnamed(r *recovery.Report) map[string]bool {
	out := map[string]bool{}
	for _, l := range r.Lost {
		if strings.HasPrefix(l.Session, "recovered-") {
			out[l.Session] = true
		}
	}
	return out
}

var inParent = regexp.MustCompile(`"parent":"([^"]*)",`)

// parentIn returns the parent that the first line of a session's text names, or "".
func parentIn(text string) string {
	info, _, _ := strings.Cut(text, "\n")
	if m := inParent.FindStringSubmatch(info); m != nil {
		return m[1]
	}
	return ""
}

func withoutParent(text string) string {
	info, rest, _ := strings.Cut(text, "\n")
	return inParent.ReplaceAllString(info, "") + "\n" + rest
}

// A whole store is recovered as it is.
func TestRV1_AWholeStoreIsRecoveredAsItIs(t *testing.T) {
	e := full(t)
	st := openStore(t, e, &turnstone.Options{NoAutoSeal: true})
	want := aliveIn(t, st)
	got, r := recovered(t, e)
	sameAlive(t, want, aliveIn(t, got))
	if len(r.Lost) > 0 || r.Damaged > 0 || r.Gaps > 0 || len(r.Sessions) != len(want) {
		t.Errorf("%+v", r)
	}
}

// Whichever record of a store is removed or altered: all sessions come, with nothing that they did not have, and what
// they lack is named.
func TestRV2_WhatCanBeReadIsRecoveredAndTheRestIsNamed(t *testing.T) {
	e := full(t)
	st := openStore(t, e, &turnstone.Options{NoAutoSeal: true})
	texts := aliveIn(t, st)
	original := memory.New()
	for _, p := range pairs(t, e) {
		must(t, original.Apply(ctx, &engine.Batch{Sets: []engine.Pair{p}}))
	}
	whole := openStore(t, original, &turnstone.Options{NoAutoSeal: true})
	named := map[byte]int{}
	of := map[byte]int{} // how many records of a letter there were
	for _, p := range pairs(t, e) {
		letter := p.Key[4]
		if of[letter]++; of[letter]%testkit.Pick(1, 3, 40) != 1%testkit.Pick(1, 3, 40) {
			continue
		}
		for how, corrupt := range map[string]engine.Batch{
			"removed": {Deletes: [][]byte{p.Key}},
			"altered": {Sets: []engine.Pair{{Key: p.Key, Value: flipped(p.Value)}}},
		} {
			if how == "removed" && letter == keys.Record && strings.Contains(string(p.Key), ".own") {
				continue // No other record tells of it.
			}
			must(t, e.Apply(ctx, &corrupt))
			what := fmt.Sprintf("%s %s %x", how, string(letter), p.Key[5:])
			_, to := onMemory(t, nil)
			r, err := recovery.Run(ctx, e, to, recovery.Options{Dir: t.TempDir()})
			must(t, e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{p}}))
			if err != nil {
				t.Errorf("%s: %v", what, err)
				continue
			}
			verify(t, to)
			compareRecovered(t, what, whole, to, texts, r)
			if letter == keys.Store {
				sameAlive(t, texts, aliveIn(t, to))
			}
			if len(r.Lost) > 0 {
				named[letter]++
			}
		}
	}
	t.Log(named)
	for _, letter := range []byte{keys.Store, keys.About, keys.Blob, keys.Segment, keys.Version, keys.Ref, keys.Record, keys.Tombstone, keys.Origin} {
		if named[letter] == 0 && testkit.Long() {
			t.Errorf("no loss is named where a record %q is damaged", letter)
		}
	}
}

func flipped(v []byte) []byte {
	v = bytes.Clone(v)
	v[len(v)/2] ^= 4
	return v
}

// ticking is a clock that says the same in each run.
func ticking() func() time.Time {
	now := time.Unix(1_800_000_000, 0)
	return func() time.Time {
		now = now.Add(time.Second)
		return now
	}
}

// Many records are lost at once, in random histories.
func TestRV3_ManyLosses(t *testing.T) {
	for seed := range uint64(cmp.Or(*histories, testkit.Pick(30, 15, 3))) {
		r := rand.New(rand.NewPCG(seed, 48))
		e, st := onMemory(t, &turnstone.Options{NoAutoSeal: true, Random: rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 48}), Now: ticking()})
		p := newPast(t, st, seed)
		for range 60 {
			p.step()
		}
		texts := aliveIn(t, st)
		original := memory.New()
		must(t, copyPairs(t, e, original))
		var gone engine.Batch
		for _, p := range pairs(t, e) {
			if p.Key[4] == keys.Listing || r.IntN(12) > 0 { // Nothing else tells of a record.
				continue
			}
			if r.IntN(2) == 0 && !bytes.Contains(p.Key, []byte(".record")) { // No other record tells of one that is not listed.
				gone.Delete(p.Key)
			} else {
				gone.Set(p.Key, flipped(p.Value))
			}
		}
		must(t, e.Apply(ctx, &gone))
		got, report := recovered(t, e)
		compareRecovered(t, fmt.Sprint("seed ", seed), openStore(t, original, &turnstone.Options{NoAutoSeal: true}), got, texts, report)
		again, err := recovery.Run(ctx, e, got, recovery.Options{Dir: t.TempDir()})
		if err != nil || len(again.Report.Sessions) > 0 {
			t.Errorf("again: %v, %+v", err, again.Report)
		}
		if t.Failed() {
			t.Fatal("seed ", seed)
		}
	}
}

func copyPairs(t *testing.T, from, to engine.Engine) (err error) {
	t.Helper()
	for _, p := range pairs(t, from) {
		err = errors.Join(err, to.Apply(ctx, &engine.Batch{Sets: []engine.Pair{p}}))
	}
	return err
}

// On every engine, and to every engine.
func TestRV4_BetweenAllEngines(t *testing.T) {
	for name, start := range storetest.Engines {
		t.Run(name, func(t *testing.T) {
			e, err := start(t)()
			must(t, err)
			t.Cleanup(func() { e.Close() })
			st := openStore(t, e, &turnstone.Options{NoAutoSeal: true})
			rich(t, st)
			texts := aliveIn(t, st)
			original := memory.New()
			must(t, copyPairs(t, e, original))
			var gone engine.Batch
			for i, p := range pairs(t, e) {
				if i%9 == 5 {
					gone.Set(p.Key, flipped(p.Value))
				}
			}
			must(t, e.Apply(ctx, &gone))
			before := pairs(t, e)
			other, err := start(t)()
			must(t, err)
			t.Cleanup(func() { other.Close() })
			to := openStore(t, other, nil)
			r, err := recovery.Run(ctx, e, to, recovery.Options{Dir: t.TempDir()})
			if err != nil || r.Damaged == 0 || len(r.Lost) == 0 {
				t.Fatalf("%v, %+v", err, r)
			}
			verify(t, to)
			compareRecovered(t, name, openStore(t, original, &turnstone.Options{NoAutoSeal: true}), to, texts, r)
			if !slices.EqualFunc(pairs(t, e), before, func(a, b engine.Pair) bool { return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.Value, b.Value) }) {
				t.Error("the damaged store was changed")
			}
		})
	}
}

// What does not fit into memory goes into a directory, which is removed, also after an error. An error of the store that
// is recovered to, or of the context, is no loss.
func TestRV6_ErrorsOfOthersAreNoLosses(t *testing.T) {
	e, st := onMemory(t, nil)
	s := create(t, st, turnstone.Request{ID: "large"})
	for i := range testkit.Pick(70, 70, 3) { // More than 64 MiB are too many, and with the race detector too slow.
		commitTo(t, s, turnstone.Commit{Nodes: saying(random(1<<20, uint64(i)))})
	}
	dir := t.TempDir()
	empty := func() {
		t.Helper()
		left, err := os.ReadDir(dir)
		if err != nil || len(left) > 0 {
			t.Errorf("left behind: %v, %v", left, err)
		}
	}
	fault := enginetest.Fault{}
	faulty := &enginetest.Faulty{Engine: memory.New(), Plan: func(c enginetest.Call) enginetest.Fault {
		if c.Op == "Apply" {
			return fault
		}
		return enginetest.Fault{}
	}}
	full := openStore(t, faulty, nil)
	fault.Err = engine.ErrNoSpace
	if r, err := recovery.Run(ctx, e, full, recovery.Options{Dir: dir}); !errors.Is(err, engine.ErrNoSpace) || len(r.Lost) > 0 {
		t.Errorf("%v, %v", err, r.Lost)
	}
	empty()
	stopped, cancel := context.WithCancel(ctx)
	cancel()
	_, to := onMemory(t, nil)
	if r, err := recovery.Run(stopped, e, to, recovery.Options{Dir: dir}); !errors.Is(err, context.Canceled) || len(r.Lost) > 0 {
		t.Errorf("%v, %v", err, r.Lost)
	}
	empty()
	r, err := recovery.Run(ctx, e, to, recovery.Options{Dir: dir})
	if err != nil || len(r.Lost) > 0 || len(r.Sessions) != 1 {
		t.Errorf("%v, %+v", err, r)
	}
	empty()
	must(t, e.Apply(ctx, &engine.Batch{Deletes: [][]byte{keys.StoreKey("")}}))
	if r, err = recovery.Run(ctx, e, to, recovery.Options{Dir: dir}); err != nil || r.Same != 1 {
		t.Errorf("%v, %+v", err, r)
	}
	empty()
	if _, err := recovery.Run(ctx, memory.New(), to, recovery.Options{}); !errors.Is(err, turnstone.ErrStoreNotFound) {
		t.Error(err)
	}
	for _, wrong := range []func() (*recovery.Report, error){
		func() (*recovery.Report, error) { return recovery.Run(ctx, nil, to, recovery.Options{}) },
		func() (*recovery.Report, error) { return recovery.Run(ctx, e, nil, recovery.Options{}) },
	} {
		if r, err := wrong(); !errors.Is(err, turnstone.ErrInvalid) || r == nil {
			t.Errorf("%v, %v", r, err)
		}
	}
}
