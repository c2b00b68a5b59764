package tests

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// Prune and a collection remove the checkpoints before the last three, but for those of revisions
// that are kept by name, until they are released.
func TestRetentionPrunesWhatIsOlderAndNotKept(t *testing.T) {
	e, st := onMemory(t, nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	var parts [][]byte
	for i := range 10 {
		parts = append(parts, random(9000, uint64(i)))
		commitAt(t, s, turnstone.Commit{Expected: head.Revision(i), Nodes: saying(fmt.Append(nil, i)), Checkpoint: map[string][]byte{"p": parts[i]}})
	}
	if err := errors.Join(s.Keep(ctx, "good", 4), s.Keep(ctx, "good", 4), s.Keep(ctx, "head", 0)); err != nil {
		t.Fatal(err)
	}
	if err := s.Keep(ctx, "good", 5); !errors.Is(err, turnstone.ErrExists) {
		t.Error(err)
	}
	collect(t, st, gc.Options{})
	for _, want := range []gc.PruneReport{{Sessions: 1, Revisions: 8}, {}} {
		if r, err := st.Prune(ctx, gc.PruneOptions{Revisions: 3}); err != nil || !reflect.DeepEqual(*r, want) {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	check := func(want ...int) {
		t.Helper()
		for r := 1; r <= 10; r++ {
			got, err := s.Checkpoint(ctx, head.Revision(r))
			kept := false
			for _, w := range want {
				kept = kept || w == r
			}
			if kept && (err != nil || !bytes.Equal(got["p"], parts[r-1])) || !kept && !errors.Is(err, turnstone.ErrRevisionPruned) {
				t.Errorf("revision %d: %v", r, err)
			}
			if holds(t, e, parts[r-1][:64]) != kept {
				t.Errorf("bytes of revision %d: %v", r, !kept)
			}
		}
		if st, err := s.Load(ctx, turnstone.Scope{}); err != nil || len(st.Nodes) != 10 {
			t.Error(err)
		}
		verify(t, st)
	}
	if r := collect(t, st, gc.Options{}); r.Deleted != 6 {
		t.Errorf("%+v", r)
	}
	check(4, 8, 9, 10)
	if err := s.Keep(ctx, "lost", 5); !errors.Is(err, turnstone.ErrRevisionPruned) {
		t.Error(err)
	}
	if err := errors.Join(s.Release(ctx, "good"), s.Release(ctx, "good")); err != nil {
		t.Fatal(err)
	}
	if r := collect(t, st, gc.Options{}); r.Deleted != 1 {
		t.Errorf("%+v", r)
	}
	check(8, 9, 10)
	if r := collect(t, st, gc.Options{Full: true}); r.Deleted != 0 || r.Repaired {
		t.Errorf("%+v", r)
	}
}

// A session that has a retention of its own is pruned by that.
func TestASessionsOwnRetentionComesFirst(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	for id, own := range map[string]head.Retention{"default": 0, "all": head.KeepAll, "four": 4} {
		s := create(t, st, turnstone.Request{ID: id, Metadata: head.Metadata{Retention: own}})
		for i := range 6 {
			commitAt(t, s, turnstone.Commit{Expected: head.Revision(i), Checkpoint: map[string][]byte{"p": {byte(i)}}})
		}
	}
	if r, err := st.Prune(ctx, gc.PruneOptions{Revisions: 2}); err != nil || r.Sessions != 2 {
		t.Fatal(r, err)
	}
	for id, oldest := range map[string]head.Revision{"default": 5, "all": 1, "four": 3} {
		s := session(t, st, id)
		for r := head.Revision(1); r <= 6; r++ {
			_, err := s.Checkpoint(ctx, r)
			if r >= oldest && err != nil || r < oldest && !errors.Is(err, turnstone.ErrRevisionPruned) {
				t.Errorf("%s, revision %d: %v", id, r, err)
			}
		}
	}
}

// A side branch goes when no retained revision leads to it and no fork holds it, with its
// attachments.
func TestSideBranchesArePruned(t *testing.T) {
	e, st := onMemory(t, nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	commit := func(i uint64, leaf turnstone.Ref, parent turnstone.Ref) graph.ID {
		t.Helper()
		a := upload(t, s, random(500, 100+i))
		return commitTo(t, s, turnstone.Commit{Leaf: leaf, Nodes: []turnstone.NewNode{
			{Kind: "u", Parent: parent, Payload: random(9000, i), Attachments: []blob.Attachment{a}},
		}}).Nodes[0]
	}
	root := commit(0, turnstone.Ref{}, turnstone.Ref{})
	commit(1, turnstone.Ref{}, turnstone.Ref{})
	held := commit(2, turnstone.Ref{}, turnstone.RefTo(root))
	create(t, st, turnstone.Request{ID: "f", Parent: "s", ForkNode: held})
	main := commit(3, turnstone.Ref{}, turnstone.RefTo(root))
	commit(4, turnstone.RefTo(main), turnstone.RefTo(main))
	commit(5, turnstone.Ref{}, turnstone.RefTo(main))
	if err := s.Seal(ctx); err != nil {
		t.Fatal(err)
	}
	prune(t, s, 1)
	// The fork holds all of the first three turns, its own side branch included.
	if r := vacuum(t, st); r.Nodes != 1 {
		t.Errorf("%+v", r)
	}
	remove(t, st, "f")
	commitTo(t, s, turnstone.Commit{})
	prune(t, s, 1)
	if r := vacuum(t, st); r.Nodes != 2 {
		t.Errorf("%+v", r)
	}
	state, err := s.Load(ctx, turnstone.Scope{Full: true})
	if err != nil || len(state.Nodes) != 3 {
		t.Error(err, len(state.Nodes))
	}
	for i := range uint64(6) {
		want := i == 0 || i == 3 || i == 5
		if holds(t, e, random(9000, i)[:64]) != want || holds(t, e, random(500, 100+i)[:64]) != want {
			t.Errorf("payload %d is there: %v", i, !want)
		}
		var w bytes.Buffer
		_, err := s.Load(ctx, turnstone.Scope{})
		if _, rerr := s.ReadAttachment(ctx, &w, blob.Sum(random(500, 100+i))); err != nil || (rerr == nil) != want || rerr != nil && !errors.Is(rerr, turnstone.ErrBlobNotFound) {
			t.Errorf("attachment %d: %v", i, rerr)
		}
	}
	verify(t, st)
	if r := collect(t, st, gc.Options{Full: true}); r.Deleted != 0 || r.Repaired {
		t.Errorf("full: %+v", r)
	}
}

// A side branch that no retained revision leads to stays while a fork, or a kept revision, holds
// it, and no longer.
func TestG10_ASideBranchGoesWithWhatHeldIt(t *testing.T) {
	for _, how := range []string{"fork", "keep"} {
		t.Run(how, func(t *testing.T) {
			e, st := onMemory(t, nil)
			p := create(t, st, turnstone.Request{ID: "p"})
			root := commitTo(t, p, turnstone.Commit{Nodes: saying([]byte("root"))}).Leaf
			commitTo(t, p, turnstone.Commit{Nodes: saying(random(100, 2))})
			if how == "fork" {
				create(t, st, turnstone.Request{ID: "f", Parent: "p"})
			} else if err := p.Keep(ctx, "x", 2); err != nil {
				t.Fatal(err)
			}
			commitTo(t, p, turnstone.Commit{Nodes: sayingAfter(root, []byte("main"))})
			prune(t, p, 1)
			vacuum(t, st)
			if !holds(t, e, random(100, 2)[:64]) {
				t.Fatal("held")
			}
			if how == "fork" {
				remove(t, st, "f")
			} else if err := p.Release(ctx, "x"); err != nil {
				t.Fatal(err)
			}
			vacuum(t, st)
			vacuum(t, st)
			if holds(t, e, random(100, 2)[:64]) {
				t.Error("a side branch that no retained revision leads to is there")
			}
		})
	}
}

// A clock is the time of a store, for a test to set.
type clock struct{ now time.Time }

func (c *clock) options() *turnstone.Options {
	c.now = time.Unix(1_700_000_000, 0)
	return &turnstone.Options{Now: func() time.Time { return c.now }, NoAutoSeal: true}
}

// pruned runs a prune, and before it a dry run, which must say the same and change nothing.
func pruned(t *testing.T, e engine.Engine, st *turnstone.Store, o gc.PruneOptions, want gc.PruneReport) {
	t.Helper()
	before := dump(t, e)
	for _, o.DryRun = range []bool{true, false} {
		if r, err := st.Prune(ctx, o); err != nil || !reflect.DeepEqual(*r, want) {
			t.Fatalf("dry run %v: %+v, %v; want %+v", o.DryRun, r, err, want)
		}
		if o.DryRun && dump(t, e) != before {
			t.Fatal("a dry run changes the store")
		}
	}
}

func TestK3_AgePrunesRevisionsButTheLastOne(t *testing.T) {
	var c clock
	e, st := onMemory(t, c.options())
	for id, own := range map[string]head.Retention{"a": 0, "all": head.KeepAll, "two": 2, "young": 0} {
		c.now = time.Unix(1_700_000_000, 0)
		if id == "young" {
			c.now = c.now.Add(5 * 24 * time.Hour)
		}
		s := create(t, st, turnstone.Request{ID: id, Metadata: head.Metadata{Retention: own}})
		if id == "young" {
			continue
		}
		for i := range 6 { // a day between them
			c.now = time.Unix(1_700_000_000, 0).Add(time.Duration(i) * 24 * time.Hour)
			commitAt(t, s, turnstone.Commit{Expected: head.Revision(i), Nodes: saying(fmt.Append(nil, i)), Checkpoint: map[string][]byte{"p": {byte(i)}}})
			if id == "a" && i == 3 {
				if err := s.Seal(ctx); err != nil {
					t.Fatal(err)
				}
			}
		}
		if id == "a" {
			if err := s.Keep(ctx, "k", 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	c.now = time.Unix(1_700_000_000, 0)
	create(t, st, turnstone.Request{ID: "empty"})
	create(t, st, turnstone.Request{ID: "fork", Parent: "two"}) // Neither was committed to.
	c.now = time.Unix(1_700_000_000, 0).Add(5 * 24 * time.Hour)
	commitAt(t, session(t, st, "young"), turnstone.Commit{})
	oldest := func(id string, want head.Revision) {
		t.Helper()
		s := session(t, st, id)
		for r := head.Revision(1); r <= 6; r++ {
			_, err := s.Checkpoint(ctx, r)
			readable := r >= want || id == "a" && r == 1
			if readable && err != nil || !readable && !errors.Is(err, turnstone.ErrRevisionPruned) {
				t.Errorf("%s, revision %d: %v", id, r, err)
			}
		}
	}
	day := 24 * time.Hour
	pruned(t, e, st, gc.PruneOptions{Age: 10 * day}, gc.PruneReport{Sessions: 1, Revisions: 5}) // only the one with a number of its own
	oldest("two", 5)
	oldest("a", 1)
	pruned(t, e, st, gc.PruneOptions{Age: 2*day + time.Hour}, gc.PruneReport{Sessions: 1, Revisions: 4}) // what was committed two days ago stays
	oldest("a", 4)
	oldest("all", 1)
	oldest("two", 5)
	pruned(t, e, st, gc.PruneOptions{Age: 2*day + time.Hour}, gc.PruneReport{})
	c.now = c.now.Add(100 * day)
	pruned(t, e, st, gc.PruneOptions{Age: day, Revisions: 5}, gc.PruneReport{Sessions: 3, Revisions: 2 + 1 + 1})
	oldest("a", 6)
	oldest("two", 6)
	oldest("all", 1)
	collect(t, st, gc.Options{})
	vacuum(t, st)
	create(t, st, turnstone.Request{ID: "fork of the fork", Parent: "fork"})
	for _, id := range []string{"a", "two", "fork", "fork of the fork"} {
		if got, err := session(t, st, id).Load(ctx, turnstone.Scope{}); err != nil || len(got.Nodes) != 6 {
			t.Errorf("the conversation of %s is cut: %v", id, err)
		}
	}
	verify(t, st)
}

func TestK4_InactiveSessionsAreDeleted(t *testing.T) {
	var c clock
	e, st := onMemory(t, c.options())
	for _, id := range []string{"old", "held", "committed", "renamed", "said", "queue", "parent"} {
		m := head.Metadata{}
		if id == "held" {
			m.Retention = head.KeepAll
		}
		commitAt(t, create(t, st, turnstone.Request{ID: id, Metadata: m}), turnstone.Commit{Nodes: saying([]byte("text of " + id)), Checkpoint: map[string][]byte{"p": []byte("part")}})
	}
	fork := create(t, st, turnstone.Request{ID: "fork", Parent: "parent"})
	c.now = c.now.Add(20 * time.Hour)
	commitAt(t, fork, turnstone.Commit{Nodes: saying([]byte("own"))})
	commitAt(t, session(t, st, "committed"), turnstone.Commit{Expected: 1})
	if err := session(t, st, "said").SaveMetadata(ctx, head.Metadata{Name: "n"}); err != nil {
		t.Fatal(err)
	}
	if _, err := session(t, st, "queue").ChangeRecords(ctx, turnstone.RecordChange{Key: "k"}); err != nil {
		t.Fatal(err)
	}
	c.now = c.now.Add(10 * time.Hour)
	pruned(t, e, st, gc.PruneOptions{Inactive: 31 * time.Hour}, gc.PruneReport{})
	// A rename is no activity, and a deleted parent leaves its fork whole.
	if err := rename(ctx, st, "renamed", "moved"); err != nil {
		t.Fatal(err)
	}
	size := uint64(len("text of old") + len("text of renamed") + len("text of parent") + 3*len("part"))
	o := gc.PruneOptions{Inactive: 30 * time.Hour}
	dry := o
	dry.DryRun = true
	would, err := st.Prune(ctx, dry)
	if err != nil {
		t.Fatal(err)
	}
	done, err := st.Prune(ctx, o)
	if err != nil || !reflect.DeepEqual(would, done) {
		t.Fatalf("%+v, %+v, %v", would, done, err)
	}
	slices.Sort(done.Deleted)
	if !slices.Equal(done.Deleted, []string{"moved", "old", "parent"}) || done.Bytes != size {
		t.Errorf("%+v, want %d bytes", done, size)
	}
	collect(t, st, gc.Options{})
	vacuum(t, st)
	if got, err := fork.Load(ctx, turnstone.Scope{}); err != nil || len(got.Nodes) != 2 {
		t.Errorf("the fork: %v", err)
	}
	verify(t, st)
	for _, bad := range []gc.PruneOptions{{Age: -1}, {Inactive: -1}, {Bytes: -1}, {Group: "a//b", Revisions: 1}} {
		if _, err := st.Prune(ctx, bad); !errors.Is(err, turnstone.ErrInvalid) {
			t.Error(err)
		}
		if _, err := st.Maintain(turnstone.MaintainOptions{Prune: bad}); !errors.Is(err, turnstone.ErrInvalid) {
			t.Error(err)
		}
	}
}

func TestK5_TheLeastRecentlyUpdatedGoUntilTheRestFits(t *testing.T) {
	var c clock
	e, st := onMemory(t, c.options())
	for i := range 1200 { // more than a page of the list
		id := fmt.Sprintf("s%04d", i)
		m := head.Metadata{}
		if i == 3 {
			m.Retention = head.KeepAll
		}
		size := 100
		if i == 5 {
			size = 1 // it fits, but is older than one that does not
		}
		commitAt(t, create(t, st, turnstone.Request{ID: id, Metadata: m}), turnstone.Commit{Nodes: saying(make([]byte, size))})
		c.now = c.now.Add(time.Second)
	}
	pruned(t, e, st, gc.PruneOptions{Bytes: 119_901}, gc.PruneReport{})
	pruned(t, e, st, gc.PruneOptions{Bytes: 119_900}, gc.PruneReport{Deleted: []string{"s0000"}, Bytes: 100})
	// The one that is retained counts, and stays.
	pruned(t, e, st, gc.PruneOptions{Bytes: 119_601}, gc.PruneReport{Deleted: []string{"s0002", "s0001"}, Bytes: 200})
	if r, err := st.Prune(ctx, gc.PruneOptions{Bytes: 50}); err != nil || len(r.Deleted) != 1196 {
		t.Errorf("%d, %v", len(r.Deleted), err)
	}
	session(t, st, "s0003")
	verify(t, st)
}

func TestK7_APruneOfAGroupLeavesTheOthers(t *testing.T) {
	var c clock
	e, st := onMemory(t, c.options())
	for _, id := range []string{"a", "a/b", "ab", "b/a", "b", "none"} {
		group := id
		if id == "none" {
			group = ""
		}
		c.now = c.now.Add(time.Second)
		s := create(t, st, turnstone.Request{ID: id, Metadata: head.Metadata{Group: group}})
		for i := range head.Revision(3) {
			commitAt(t, s, turnstone.Commit{Expected: i, Nodes: saying(make([]byte, 100))})
		}
	}
	c.now = c.now.Add(2 * time.Hour)
	pruned(t, e, st, gc.PruneOptions{Group: "a", Revisions: 1}, gc.PruneReport{Sessions: 2, Revisions: 6})
	pruned(t, e, st, gc.PruneOptions{Group: "a/b", Age: time.Hour}, gc.PruneReport{})
	pruned(t, e, st, gc.PruneOptions{Group: "ab", Age: time.Hour}, gc.PruneReport{Sessions: 1, Revisions: 3})
	pruned(t, e, st, gc.PruneOptions{Group: "a", Bytes: 599}, gc.PruneReport{Deleted: []string{"a"}, Bytes: 300})
	if r, err := st.Prune(ctx, gc.PruneOptions{Group: "b", Inactive: time.Hour}); err != nil || len(r.Deleted) != 2 || r.Bytes != 600 {
		t.Errorf("%+v, %v", r, err)
	}
	pruned(t, e, st, gc.PruneOptions{Group: "nobody", Inactive: time.Hour}, gc.PruneReport{})
	for _, id := range []string{"a/b", "ab", "none"} {
		session(t, st, id)
	}
	verify(t, st)
}

// Whatever is done to a session while it is about to be deleted, it is deleted without it, or stays with it.
func TestK6_ASessionThatIsUpdatedMeanwhileStays(t *testing.T) {
	for name, touch := range map[string]func(*turnstone.Session) error{
		"commit": func(s *turnstone.Session) error {
			_, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: saying([]byte("more"))})
			return err
		},
		"metadata": func(s *turnstone.Session) error { return s.SaveMetadata(ctx, head.Metadata{Name: "n"}) },
		"retention": func(s *turnstone.Session) error {
			return s.SaveMetadata(ctx, head.Metadata{Retention: head.KeepAll})
		},
	} {
		var touched error
		stayed, deleted := 0, 0
		besideEachCall(t,
			func(st *turnstone.Store) { create(t, st, turnstone.Request{ID: "s"}, []byte("text")) },
			func(st *turnstone.Store) error {
				r, err := st.Prune(ctx, gc.PruneOptions{Inactive: time.Nanosecond})
				if err == nil {
					deleted += len(r.Deleted)
				}
				return err
			},
			func(st *turnstone.Store) {
				s, err := st.Session(ctx, "s")
				if touched = err; err == nil {
					touched = touch(s)
				}
			},
			func(st *turnstone.Store, _ engine.Engine, err error) error {
				_, gone := st.Session(ctx, "s")
				if touched == nil && gone == nil {
					stayed++
				}
				if touched == nil && gone != nil {
					return fmt.Errorf("%s: what was done is gone: %w", name, gone)
				}
				return err
			})
		if stayed == 0 || deleted == 0 {
			t.Errorf("%s: it stayed %d times, and was deleted %d times", name, stayed, deleted)
		}
	}
}
