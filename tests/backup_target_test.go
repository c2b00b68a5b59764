package tests

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/backup"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/storetest"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// A fickle target fails in the way that a test wants.
type fickle struct {
	backup.Target
	before func(what string) error // what is asked before each call
	cut    func(what string) int64 // after how many bytes a Put or a Get fails; negative: never
	late   bool                    // a Put that fails has stored all the same
}

var errFickle = errors.New("the network is down")

func (f *fickle) ask(what string) error {
	if f.before == nil {
		return nil
	}
	return f.before(what)
}

func (f *fickle) Put(ctx context.Context, name string, r io.Reader) error {
	err := f.ask("put")
	if err != nil && !f.late {
		return err
	}
	if n := f.after("put"); n >= 0 {
		r = io.MultiReader(io.LimitReader(r, n), iotest.ErrReader(errFickle))
	}
	return cmp.Or(f.Target.Put(ctx, name, r), err)
}

func (f *fickle) after(what string) int64 {
	if f.cut == nil {
		return -1
	}
	return f.cut(what)
}

func (f *fickle) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	if err := f.ask("get"); err != nil {
		return nil, err
	}
	r, err := f.Target.Get(ctx, name, offset, length)
	if n := f.after("get"); err == nil && n >= 0 {
		return struct {
			io.Reader
			io.Closer
		}{io.MultiReader(io.LimitReader(r, n), iotest.ErrReader(errFickle)), r}, nil
	}
	return r, err
}

func (f *fickle) List(ctx context.Context, dir string) iter.Seq2[string, error] {
	if err := f.ask("list"); err != nil {
		return func(yield func(string, error) bool) { yield("", err) }
	}
	return f.Target.List(ctx, dir)
}

func (f *fickle) Delete(ctx context.Context, name string) error {
	return cmp.Or(f.ask("delete"), f.Target.Delete(ctx, name))
}

// A meanwhile does something while a pack is written, once.
type meanwhile struct {
	backup.Target
	after int // bytes of the pack
	do    func()
}

func (m *meanwhile) Put(ctx context.Context, name string, r io.Reader) error {
	if m.do != nil && strings.Contains(name, "/packs/") {
		r = &hooked{r: r, of: m}
	}
	return m.Target.Put(ctx, name, r)
}

type hooked struct {
	r  io.Reader
	of *meanwhile
	n  int
}

func (h *hooked) Read(b []byte) (int, error) {
	n, err := h.r.Read(b)
	if h.n += n; h.of.do != nil && h.n > h.of.after {
		do := h.of.do
		h.of.do = nil
		do()
	}
	return n, err
}

// An altering target stores other bytes than it is given.
type altering struct {
	backup.Target
	of string
}

func (a *altering) Put(ctx context.Context, name string, r io.Reader) error {
	content, err := io.ReadAll(r)
	if err == nil && strings.Contains(name, a.of) {
		content[len(content)/2]++
	}
	if err != nil {
		return err
	}
	return a.Target.Put(ctx, name, bytes.NewReader(content))
}

// A counting target counts what is read.
type counting struct {
	backup.Target
	n int
}

func (c *counting) Get(ctx context.Context, name string, offset, length int64) (io.ReadCloser, error) {
	r, err := c.Target.Get(ctx, name, offset, length)
	if err != nil {
		return nil, err
	}
	return struct {
		io.Reader
		io.Closer
	}{io.TeeReader(r, c), r}, nil
}

func (c *counting) Write(b []byte) (int, error) {
	c.n += len(b)
	return len(b), nil
}

// At each call of the target that fails, or was done and says that it was not, a run has changed nothing of what can be
// restored, or is complete, and the next one goes on. So does a restoring.
func TestBK2_ARunThatIsCutOffChangesNothing(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprint("late ", late), func(t *testing.T) {
			dir := backup.Directory(t.TempDir() + "/backup")
			_, st := onMemory(t, nil)
			p := newPast(t, st, 7)
			var last map[string]string
			var before time.Time
			for n := range testkit.Pick(12, 12, 4) {
				for range 4 {
					p.step()
				}
				calls := 0
				to := &fickle{Target: dir, late: late, before: func(string) error {
					if calls++; calls == n+1 {
						return errFickle
					}
					return nil
				}}
				_, err := backup.Run(ctx, st, to, backup.Options{NewGeneration: n%4 == 3})
				if calls > n && !errors.Is(err, errFickle) {
					t.Fatalf("call %d: %v", n, err)
				}
				if last != nil && err != nil {
					got, r := restored(t, dir, backup.RestoreOptions{})
					if r.Time.Equal(before) {
						sameAlive(t, last, aliveIn(t, got))
					} else { // It was complete before the call that failed.
						sameAlive(t, aliveIn(t, st), aliveIn(t, got))
					}
				}
				r := backedUp(t, st, dir, backup.Options{})
				last, before = aliveIn(t, st), r.Time
				verified(t, dir)
				_, to2 := onMemory(t, nil)
				for failing := 0; ; failing++ {
					calls := 0
					from := &fickle{Target: dir, before: func(string) error {
						if calls++; calls == failing+1 {
							return errFickle
						}
						return nil
					}}
					got, err := backup.Restore(ctx, from, to2, backup.RestoreOptions{At: r.Time})
					if err == nil {
						break
					}
					if !errors.Is(err, errFickle) {
						t.Fatal(err)
					}
					for _, s := range got.Sessions {
						if !s.Created {
							t.Errorf("%+v", s)
						}
					}
				}
				sameAlive(t, last, aliveIn(t, to2))
				verify(t, to2)
			}
		})
	}
}

// Connections that end after a few kB are a failure, and never a backup with less in it.
func TestBK2_ObjectsThatAreCutOffAreNotTakenForWhole(t *testing.T) {
	dir := backup.Directory(t.TempDir() + "/backup")
	_, st := onMemory(t, nil)
	p := newPast(t, st, 8)
	r := rand.New(rand.NewPCG(8, 8))
	done := 0
	for n := 0; done < testkit.Pick(12, 6, 4); n++ {
		p.step()
		to := &fickle{Target: dir, cut: func(string) int64 {
			if r.IntN(3) == 0 {
				return r.Int64N(20_000)
			}
			return -1
		}}
		if _, err := backup.Run(ctx, st, to, backup.Options{}); err != nil {
			if !errors.Is(err, errFickle) {
				t.Fatal(err)
			}
			continue
		}
		done++
		want := aliveIn(t, st)
		_, got := onMemory(t, nil)
		for {
			_, err := backup.Restore(ctx, to, got, backup.RestoreOptions{})
			if err == nil {
				break
			}
			if !errors.Is(err, errFickle) {
				t.Fatal(err)
			}
		}
		sameAlive(t, want, aliveIn(t, got))
	}
	verified(t, dir)
}

// What a target stores otherwise than it was told is noticed by the run that wrote it.
func TestBK2_WhatIsStoredOtherwiseIsNoticed(t *testing.T) {
	for _, of := range []string{"/packs/", "/runs/"} {
		_, st, to, _ := telling(t)
		create(t, st, turnstone.Request{ID: "s"}, random(1000, 1))
		if r, err := backup.Run(ctx, st, &altering{to, of}, backup.Options{}); !errors.Is(err, backup.ErrTarget) {
			t.Errorf("%s: %+v, %v", of, r, err)
		}
		backedUp(t, st, to, backup.Options{})
		got, _ := restoredAnyway(t, to)
		sameAlive(t, aliveIn(t, st), aliveIn(t, got))
	}
}

// A restoring goes to a server over connections that are cut all the time, also one of a session beside the one that is
// there.
func TestBK2_ARestoringGoesToAServer(t *testing.T) {
	cuts := int64(0)
	budget := func() (up, down int64) { return 1000 + rand.Int64N(60_000), 1000 + rand.Int64N(60_000) }
	for seed := range testkit.Pick[uint64](20, 6, 3) {
		_, st := onMemory(t, nil)
		to := backup.Directory(t.TempDir() + "/backup")
		p := newPast(t, st, seed)
		p.forgets = true
		for range 3 {
			for range 12 {
				p.step()
			}
			backedUp(t, st, to, backup.Options{})
		}
		e, there := onMemory(t, nil)
		far, cut := storetest.Behind(t, e, budget)
		restore := func(o backup.RestoreOptions) {
			for {
				_, err := backup.Restore(ctx, to, far, o)
				if err == nil {
					return
				}
				if !errors.Is(err, engine.ErrUnavailable) && !errors.Is(err, turnstone.ErrOutcomeUnknown) {
					t.Fatal(err)
				}
			}
		}
		restore(backup.RestoreOptions{})
		sameAlive(t, aliveIn(t, st), aliveIn(t, there))
		id := ids(t, st)[0]
		restore(backup.RestoreOptions{Sessions: []string{id}, As: "beside"})
		if a, b := nodesOf(t, session(t, there, id)), nodesOf(t, session(t, there, "beside")); !maps.Equal(a, b) {
			t.Errorf("%d nodes, want %d", len(b), len(a))
		}
		verify(t, there)
		cuts += cut.Cuts.Load()
	}
	if cuts < 3 {
		t.Errorf("only %d connections were cut", cuts)
	}
}
