package tests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/backup"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// noted returns the last run of each operation.
func noted(t *testing.T, st *turnstone.Store) map[string]head.Maintenance {
	t.Helper()
	s, err := st.Stats(ctx)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]head.Maintenance{}
	for _, m := range s.Maintenance {
		out[m.Operation] = m
	}
	return out
}

// What a store maintains by itself is noted, and what a caller notes. A run that went as the one before is noted again an
// hour later.
func TestVF10_StatsTellHowMaintenanceWentLast(t *testing.T) {
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	var mu sync.Mutex
	clock := func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		now = now.Add(time.Second)
		return now
	}
	e := memory.New()
	st := openStore(t, e, &turnstone.Options{Now: clock})
	create(t, st, turnstone.Request{ID: "secret name"}, []byte("a"), []byte("b"))
	if len(noted(t, st)) > 0 {
		t.Error("a new store had maintenance")
	}
	stop, err := st.Maintain(turnstone.MaintainOptions{Every: time.Millisecond, VacuumEvery: 2 * time.Millisecond, Prune: gc.PruneOptions{Revisions: 1}})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "all are noted", func() bool { return len(noted(t, st)) == 3 })
	stop()
	n := noted(t, st)
	if n["gc"].Took <= 0 || n["gc"].Problem != "" || n["gc"].Ended.IsZero() || n["vacuum"].Took <= 0 || n["prune"].Took <= 0 {
		t.Errorf("%+v", n)
	}
	note := func(problem error) head.Maintenance {
		t.Helper()
		if err := st.NoteMaintenance(ctx, turnstone.OpVerify, time.Second, verify(t, st), problem); err != nil {
			t.Fatal(err)
		}
		return noted(t, st)["verify"]
	}
	first := note(nil)
	if first.Numbers["nodes"] != 2 || first.Problem != "" {
		t.Errorf("%+v", first)
	}
	if again := note(nil); !again.Ended.Equal(first.Ended) {
		t.Error("a run that went as the one a moment before was noted again")
	}
	if other := note(fmt.Errorf("%w: secret", turnstone.ErrConflict)); other.Problem != "conflict" || !other.Ended.After(first.Ended) {
		t.Errorf("%+v", other)
	}
	first = note(nil)
	now = now.Add(time.Hour)
	if again := note(nil); !again.Ended.After(first.Ended) {
		t.Error("a run that went as the one an hour before was not noted")
	}
}

// body returns what a record encodes.
func body(t *testing.T, p engine.Pair) []byte {
	t.Helper()
	b, err := codec.Decode(p.Key, p.Value, p.Key[4])
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Clone(b)
}

// unnoted refuses notes of maintenance.
type unnoted struct{ engine.Engine }

var errDisk = errors.New("the disk is full")

func (u unnoted) Apply(ctx context.Context, b *engine.Batch) error {
	for _, p := range b.Sets {
		if p.Key[4] == keys.Maintenance {
			return errDisk
		}
	}
	return u.Engine.Apply(ctx, b)
}

// A note that can't be read counts as none, and one that can't be written is no problem of the maintenance.
func TestVF10_MaintenanceThatCantBeNotedIsDoneAllTheSame(t *testing.T) {
	e := memory.New()
	st := openStore(t, unnoted{e}, nil)
	var done atomic.Int64
	create(t, st, turnstone.Request{ID: "a"}, []byte("a"))
	stop, err := st.Maintain(turnstone.MaintainOptions{Every: time.Millisecond, Report: func(m turnstone.Maintained) {
		if m.Err != nil {
			t.Error(m.Err)
		}
		done.Add(1)
	}})
	if err != nil {
		t.Fatal(err)
	}
	testkit.Until(t, "maintenance is done", func() bool { return done.Load() > 2 })
	stop()
	if n := noted(t, st); len(n) > 0 {
		t.Errorf("%v", n)
	}
	if err := st.NoteMaintenance(ctx, "backup", time.Second, nil, nil); !errors.Is(err, errDisk) {
		t.Error(err)
	}
	sound := openStore(t, e, nil)
	if err := sound.NoteMaintenance(ctx, "backup", time.Second, nil, nil); err != nil {
		t.Fatal(err)
	}
	for _, p := range pairs(t, e) {
		if p.Key[4] == keys.Maintenance {
			p.Value = codec.Encode(p.Key, keys.Maintenance, append(body(t, p), 0)) // Its checksum is right.
			if err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{p}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := noted(t, sound); len(n) > 0 {
		t.Errorf("%v", n)
	}
	if err := sound.NoteMaintenance(ctx, "backup", time.Second, nil, nil); err != nil || len(noted(t, sound)) != 1 {
		t.Error("a note was not written over one that can't be read")
	}
}

func TestVF10_WhatIsNotedHasLimits(t *testing.T) {
	e := memory.New()
	st := openStore(t, e, nil)
	const at = time.Second
	many := map[string]int{}
	for i := range head.MaxMaintenanceNumbers + 1 {
		many[fmt.Sprint(i)] = i
	}
	var invalid *turnstone.InvalidError
	var limit *turnstone.LimitError
	if err := st.NoteMaintenance(ctx, "", at, nil, nil); !errors.As(err, &invalid) {
		t.Error(err)
	}
	if err := st.NoteMaintenance(ctx, strings.Repeat("x", turnstone.MaxLabel+1), at, nil, nil); !errors.As(err, &limit) {
		t.Error(err)
	}
	if err := st.NoteMaintenance(ctx, "a", at, many, nil); !errors.As(err, &invalid) {
		t.Error(err)
	}
	if n := noted(t, st); len(n) > 0 {
		t.Errorf("%v", n)
	}
	for i := range head.MaxMaintenance + 1 {
		report := map[string]any{"n": 1 << 50, "name": "secret", "negative": -1, "list": []int{1}, "huge": 1e300, strings.Repeat("long", 100): 1}
		if err := st.NoteMaintenance(ctx, string(rune('a'+i)), at, report, fmt.Errorf("%w: secret", turnstone.ErrConflict)); err != nil {
			t.Fatal(err)
		}
	}
	n := noted(t, st)
	if _, first := n["a"]; first || len(n) != head.MaxMaintenance || !maps.Equal(n["b"].Numbers, map[string]uint64{"n": 1 << 50}) || n["b"].Problem != "conflict" {
		t.Errorf("%v", n)
	}
	for _, p := range pairs(t, e) {
		if p.Key[4] == keys.Maintenance && bytes.Contains(p.Value, []byte("secret")) {
			t.Error("the note has a text of a caller")
		}
	}
}

// A run whose context has ended is noted as well.
func TestVF10_WhatWasCutOffIsNoted(t *testing.T) {
	_, st := onMemory(t, nil)
	create(t, st, turnstone.Request{ID: "a"}, []byte("a"))
	to := backup.Directory(t.TempDir())
	backedUp(t, st, to, backup.Options{})
	create(t, st, turnstone.Request{ID: "b"}, []byte("b"))
	gone, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := backup.Run(gone, st, to, backup.Options{}); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if b := noted(t, st)["backup"]; b.Problem != "canceled" {
		t.Errorf("%+v", b)
	}
}
