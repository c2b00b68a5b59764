package gc_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/head"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/gc"
)

var ctx = context.Background()

// noise returns n bytes that compression does not shorten.
func noise(n int, seed uint64) []byte {
	b := make([]byte, n)
	rng := rand.New(rand.NewPCG(seed, 7))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// version returns the i-th version of a checkpoint part. It differs little from the version
// before, so a commit stores it as a delta.
func version(i int) []byte {
	return append(noise(6000, 77), noise(100, uint64(1000+i))...)
}

var epoch = time.Unix(1_700_000_000, 0)

// A world is a store that a party of a scenario has open: each has its own, as
// another process would.
type world struct {
	*turnstone.Store
	ctx  context.Context // of all that the party does
	keep head.Retention  // of prune
}

// prune prunes all sessions.
func (w *world) prune() error {
	_, err := w.Prune(w.ctx, gc.PruneOptions{Revisions: uint64(w.keep)})
	return err
}

// open opens the store on e. Its random numbers depend on seed. Its clock stands, later than
// epoch.
func open(e engine.Engine, seed byte, later time.Duration, keep head.Retention) (*world, error) {
	st, err := turnstone.Open(ctx, e, &turnstone.Options{
		InlineBytes: 1, // so that there are blobs
		NoAutoSeal:  true, TakeOverAfter: -1, Now: func() time.Time { return epoch.Add(later) }, UploadTTL: time.Hour,
		Random: rand.NewChaCha8([32]byte{seed}),
	})
	if err != nil {
		return nil, err
	}
	return &world{st, ctx, keep}, nil
}

func (w *world) create(r turnstone.Request) (*turnstone.Session, error) {
	s, _, err := w.Create(w.ctx, r)
	return s, err
}

func (w *world) rename(from, to string) error {
	s, err := w.Session(w.ctx, from)
	if err == nil {
		err = s.Rename(w.ctx, to)
	}
	return err
}

// commit commits to a session. Errors that other parties may cause are left out.
func (w *world) commit(id string, c turnstone.Commit) error {
	s, err := w.Session(w.ctx, id)
	if err != nil {
		return fair(err)
	}
	c.Expected = turnstone.AnyRevision
	_, err = s.Commit(w.ctx, c)
	return fair(err)
}

// fair returns err, or nil if it is an error that other parties may cause.
func fair(err error) error {
	for _, ok := range []error{
		turnstone.ErrSessionNotFound, turnstone.ErrSessionDeleted, turnstone.ErrRevisionPruned, turnstone.ErrUploadExpired,
		turnstone.ErrHasChildren, turnstone.ErrNodeNotFound,
	} {
		if errors.Is(err, ok) {
			return nil
		}
	}
	return err
}

func says(payloads ...[]byte) turnstone.Commit {
	var c turnstone.Commit
	for _, p := range payloads {
		c.Nodes = append(c.Nodes, turnstone.NewNode{Kind: "u", Payload: p})
	}
	return c
}

func saves(part []byte) turnstone.Commit {
	return turnstone.Commit{Checkpoint: map[string][]byte{"p": part}}
}

// uploaded makes the session a, with an upload that no commit refers to and that a collection
// has seen.
func uploaded(w *world) error {
	s, err := w.create(turnstone.Request{ID: "a"})
	if err == nil {
		_, err = s.PutAttachment(w.ctx, bytes.NewReader(upload), -1, "", "")
	}
	return both(err, collect(w))
}

// collect collects. Another collector may take over.
func collect(w *world) error {
	_, err := w.GC(w.ctx, gc.Options{})
	if err != nil && strings.Contains(err.Error(), "taken over") {
		return nil
	}
	return err
}

func vacuum(w *world) error {
	_, err := w.Vacuum(w.ctx, gc.VacuumOptions{})
	if err != nil && strings.Contains(err.Error(), "taken over") {
		return nil
	}
	return err
}

func both(errs ...error) error { return errors.Join(errs...) }

func isCorrupt(err error) bool {
	var corrupt *damage.CorruptError
	return errors.As(err, &corrupt)
}

// openAt opens the store on e, whose clock is now. Its uploads expire after an hour.
func openAt(t testing.TB, e engine.Engine, now func() time.Time) *turnstone.Store {
	t.Helper()
	st, err := turnstone.Open(ctx, e, &turnstone.Options{InlineBytes: 1, NoAutoSeal: true, TakeOverAfter: -1, Now: now, UploadTTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// fixed is a clock that stands still.
func fixed() time.Time { return epoch }

// create creates a session.
func create(t testing.TB, st *turnstone.Store, r turnstone.Request) *turnstone.Session {
	t.Helper()
	s, _, err := st.Create(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// commit commits c, whatever the revision of the head is.
func commit(t testing.TB, s *turnstone.Session, c turnstone.Commit) turnstone.Result {
	t.Helper()
	c.Expected = turnstone.AnyRevision
	r, err := s.Commit(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// keep keeps a revision by a name.
func keep(t testing.TB, s *turnstone.Session, name string, r head.Revision) {
	t.Helper()
	if err := s.Keep(ctx, name, r); err != nil {
		t.Fatal(err)
	}
}

// prune prunes s to its last revision.
func prune(t testing.TB, s *turnstone.Session) {
	t.Helper()
	if _, err := s.Prune(ctx, 1); err != nil {
		t.Fatal(err)
	}
}

// collected runs a collection.
func collected(t testing.TB, st *turnstone.Store, o gc.Options) *gc.Report {
	t.Helper()
	r, err := st.GC(ctx, o)
	if err != nil {
		t.Fatal("gc:", err)
	}
	return r
}

// vacuumed runs a vacuum.
func vacuumed(t testing.TB, st *turnstone.Store) *gc.VacuumReport {
	t.Helper()
	r, err := st.Vacuum(ctx, gc.VacuumOptions{})
	if err != nil {
		t.Fatal("vacuum:", err)
	}
	return r
}

// healthy fails the test unless Verify finds no problem in st.
func healthy(t testing.TB, st *turnstone.Store) {
	t.Helper()
	v, err := st.Verify(ctx, turnstone.VerifyOptions{})
	if err != nil || !v.OK() {
		t.Error("verify:", err, v.Problems)
	}
}

// holds reports whether any value of e contains b.
func holds(e engine.Engine, b []byte) bool {
	for p := range e.Scan(ctx, engine.Range{}) {
		if bytes.Contains(p.Value, b) {
			return true
		}
	}
	return false
}

// hooked returns an engine on e, before the calls of which something happens.
func hooked(e engine.Engine, what func(enginetest.Call)) engine.Engine {
	return &enginetest.Faulty{Engine: e, Plan: func(c enginetest.Call) enginetest.Fault {
		what(c)
		return enginetest.Fault{}
	}}
}

// atCall returns an engine on e, before the n-th call of which f is called.
func atCall(e engine.Engine, n int, f func()) engine.Engine {
	return hooked(e, func(c enginetest.Call) {
		if c.N == n {
			f()
		}
	})
}

// gets is an engine before whose reads of keys something happens. The plan of an
// enginetest.Faulty does not see the keys.
type gets struct {
	engine.Engine
	on func(ks [][]byte)
}

func (g *gets) Get(ctx context.Context, ks ...[]byte) ([][]byte, error) {
	g.on(ks)
	return g.Engine.Get(ctx, ks...)
}

// withVersions makes a session with n commits, each of which sets the part p to another version.
func withVersions(t testing.TB, st *turnstone.Store, id string, n int) *turnstone.Session {
	t.Helper()
	s := create(t, st, turnstone.Request{ID: id})
	for i := range n {
		commit(t, s, saves(version(i)))
	}
	return s
}
