package reclaim_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/record"
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
	ctx context.Context // of all that the party does
}

// open opens the store on e. Its random numbers depend on seed. Its clock stands, later than
// epoch.
func open(e engine.Engine, seed byte, later time.Duration, keep turnstone.Retention) (*world, error) {
	st, err := turnstone.Open(ctx, e, &turnstone.Options{
		NoAutoSeal: true, TakeOverAfter: -1, Now: func() time.Time { return epoch.Add(later) }, UploadTTL: time.Hour, Retention: keep,
		Random: rand.NewChaCha8([32]byte{seed}),
	})
	if err != nil {
		return nil, err
	}
	return &world{st, ctx}, nil
}

func (w *world) create(r turnstone.Request) (*turnstone.Session, error) {
	s, _, err := w.Create(w.ctx, r)
	return s, err
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
	var damage *record.CorruptError
	return errors.As(err, &damage)
}
