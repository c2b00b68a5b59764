package tests

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
)

// Clocks that differ do not change the order of a session's commits, nor put anything behind its deletion.
func TestWA9_TheOrderOfASessionDoesNotDependOnClocks(t *testing.T) {
	e, first := onMemory(t, &turnstone.Options{NoAutoSeal: true})
	begin := startFeed(t, first)
	var stores []*turnstone.Store
	for _, apart := range []time.Duration{0, -time.Hour, 20 * time.Minute, -3 * time.Hour} {
		stores = append(stores, openStore(t, e, &turnstone.Options{NoAutoSeal: true, Now: func() time.Time { return time.Now().Add(apart) }}))
	}
	create(t, first, turnstone.Request{ID: "s"})
	want := []string{"created s"}
	for i := range 100 {
		commitTo(t, session(t, stores[i%4], "s"), turnstone.Commit{})
		want = append(want, fmt.Sprint("committed s ", i+1))
	}
	if got := toldBy(t, first, begin); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	middle := feedOf(t, first).End
	commitTo(t, session(t, stores[3], "s"), turnstone.Commit{})
	if err := session(t, stores[2], "s").SaveMetadata(ctx, head.Metadata{Name: "n"}); err != nil {
		t.Fatal(err)
	}
	remove(t, stores[3], "s")
	if got := toldBy(t, first, middle); !slices.Equal(got, []string{"committed s 101", "saved s", "deleted s"}) {
		t.Errorf("%q", got)
	}
}

// Whoever else reads the feed, or erases a session, while changes get their numbers: each gets one, and no erased id
// is left.
func TestWA13_ChangesGetOneNumberWhoeverIsAtIt(t *testing.T) {
	for name, other := range map[string]func(*turnstone.Store) error{
		"read": func(st *turnstone.Store) error {
			if _, err := changes(st, ""); err != nil {
				return err
			}
			commitTo(t, session(t, st, "secret"), turnstone.Commit{})
			return nil
		},
		"erase": func(st *turnstone.Store) error {
			_, err := st.Erase(ctx, "secret", turnstone.KeepChildren, turnstone.EraseOptions{})
			return err
		},
	} {
		besideEachCall(t,
			func(st *turnstone.Store) {
				startFeed(t, st)
				s := create(t, st, turnstone.Request{ID: "secret"})
				for range 5 {
					commitTo(t, s, turnstone.Commit{})
				}
			},
			func(st *turnstone.Store) error {
				_, err := st.Feed(ctx)
				return err
			},
			func(st *turnstone.Store) {
				if err := other(st); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			},
			func(st *turnstone.Store, e engine.Engine, err error) error {
				if err != nil {
					return err
				}
				all, err := changes(st, "")
				last := head.Revision(0)
				for _, c := range all {
					if c.Kind == turnstone.ChangeCommitted {
						if last++; c.Revision != last {
							return fmt.Errorf("%s: revision %d is told in place of %d", name, c.Revision, last)
						}
					}
				}
				if last < 5 || err != nil {
					return fmt.Errorf("%s: %d commits are told, %w", name, last, err)
				}
				for _, p := range pairs(t, e) {
					if _, gone := st.Session(ctx, "secret"); gone != nil && strings.Contains(string(p.Value), "secret") {
						return fmt.Errorf("the record at %x has the id of the erased session", p.Key)
					}
				}
				verify(t, st)
				return nil
			})
	}
}

// The feed tells each rename and each change of metadata in its order, even when their clock is behind that of the
// last commit.
func TestWA9_NothingIsLostByAClockThatIsBehind(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	ahead := now.Add(time.Second)
	e, st := onMemory(t, at(&now))
	begin := startFeed(t, st)
	nodes := commitTo(t, create(t, st, turnstone.Request{ID: "a"}), turnstone.Commit{Nodes: slices.Repeat(saying(nil), 3)}).Nodes
	commitTo(t, session(t, openStore(t, e, at(&ahead)), "a"), turnstone.Commit{})
	for _, r := range [][2]string{{"a", "b"}, {"b", "c"}, {"c", "d"}} {
		if err := rename(ctx, st, r[0], r[1]); err != nil {
			t.Fatal(err)
		}
	}
	commitTo(t, session(t, st, "d"), turnstone.Commit{})
	want := []string{"created a", "committed a 1", "committed a 2", "renamed a b", "renamed b c", "renamed c d", "committed d 3"}
	for i, node := range nodes {
		if err := errors.Join(session(t, st, "d").SaveMetadata(ctx, head.Metadata{Name: fmt.Sprint(i)}), session(t, st, "d").Tombstone(ctx, node)); err != nil {
			t.Fatal(err)
		}
		want = append(want, "saved d")
	}
	want = append(want, "tombstoned d", "tombstoned d", "tombstoned d")
	if got := toldBy(t, st, begin); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// A deletion comes after what was told of its session by a clock that is ahead, also when more than a page waits.
func TestWA9_NothingFollowsADeletionHoweverMuchWaits(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	ahead := now.Add(time.Minute)
	e, st := onMemory(t, at(&now))
	begin := startFeed(t, st)
	create(t, st, turnstone.Request{ID: "a"})
	other := create(t, st, turnstone.Request{ID: "o"})
	if err := session(t, openStore(t, e, at(&ahead)), "a").SaveMetadata(ctx, head.Metadata{Name: "n"}); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Millisecond)
	remove(t, st, "a")
	for range 200 {
		now = now.Add(time.Millisecond)
		commitTo(t, other, turnstone.Commit{})
	}
	got := toldBy(t, st, begin)
	if d, s := slices.Index(got, "deleted a"), slices.Index(got, "saved a"); s < 0 || d < s || len(got) != 204 {
		t.Errorf("%d changes, deleted at %d, saved at %d", len(got), d, s)
	}
}

// Who starts the feed with a clock that is ahead does not put the commits of all sessions out of their order.
func TestWA9_TheClockOfWhoStartsTheFeedDoesNotCount(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	ahead := now.Add(time.Hour)
	e, st := onMemory(t, at(&now))
	a, b := create(t, st, turnstone.Request{ID: "a"}), create(t, st, turnstone.Request{ID: "b"})
	begin := startFeed(t, openStore(t, e, at(&ahead)))
	for _, s := range []*turnstone.Session{a, a, a, b} {
		now = now.Add(time.Minute)
		commitTo(t, s, turnstone.Commit{})
	}
	if got := toldBy(t, st, begin); !slices.Equal(got, []string{"committed a 1", "committed a 2", "committed a 3", "committed b 1"}) {
		t.Errorf("%q", got)
	}
}

// A tombstone of a commit and one of a call are two changes, also by a clock that is behind.
func TestWA9_TombstonesOfCommitsAndCallsAreToldEach(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	ahead := now.Add(time.Minute)
	e, st := onMemory(t, at(&now))
	begin := startFeed(t, st)
	nodes := commitTo(t, create(t, st, turnstone.Request{ID: "a"}), turnstone.Commit{Nodes: slices.Repeat(saying(nil), 3)}).Nodes
	commitTo(t, session(t, openStore(t, e, at(&ahead)), "a"), turnstone.Commit{Tombstone: nodes[:1]})
	if err := session(t, st, "a").Tombstone(ctx, nodes[1]); err != nil {
		t.Fatal(err)
	}
	if got := toldBy(t, st, begin); !slices.Equal(got, []string{"created a", "committed a 1", "committed a 2", "tombstoned a", "tombstoned a"}) {
		t.Errorf("%q", got)
	}
}

func TestWA9_NothingFollowsADeletionOfMoreThanABatch(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	ahead := now.Add(time.Hour)
	e, st := onMemory(t, at(&now))
	begin := startFeed(t, st)
	create(t, st, turnstone.Request{ID: "a"})
	s := session(t, openStore(t, e, at(&ahead)), "a")
	for i := range 1200 {
		ahead = ahead.Add(time.Millisecond)
		if err := s.SaveMetadata(ctx, head.Metadata{Name: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(time.Millisecond)
	remove(t, st, "a")
	if got := toldBy(t, st, begin); len(got) != 1202 || got[1201] != "deleted a" {
		t.Errorf("%d changes, deleted at %d", len(got), slices.Index(got, "deleted a"))
	}
}

// A change of a record comes after the creation of its session and before its deletion, whatever the clock of who changes
// it says.
func TestWA19_ChangesOfRecordsAreWithinTheLifeOfTheirSession(t *testing.T) {
	for _, skew := range []time.Duration{-time.Second, time.Second} {
		e := memory.New()
		st := openStore(t, e, nil)
		other := openStore(t, e, &turnstone.Options{Now: func() time.Time { return time.Now().Add(skew) }})
		if err := st.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour, Records: true}); err != nil {
			t.Fatal(err)
		}
		begin := feedOf(t, st).End
		create(t, st, turnstone.Request{ID: "s"})
		change(t, session(t, other, "s"), turnstone.RecordChange{Key: "k", Value: []byte("v")})
		if err := st.Delete(ctx, "s", turnstone.KeepChildren); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(toldBy(t, st, begin)); got != "[created s record s deleted s]" {
			t.Errorf("by a clock that differs by %v: %s", skew, got)
		}
	}
}
