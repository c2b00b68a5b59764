package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/zeebo/blake3"
)

// VerifyOptions of Verify.
type VerifyOptions struct {
	Progress func(done string) // if set, is called with the name of each object that was read
	Dir      string            // see RestoreOptions
}

// A Verified says what Verify has read and found.
type Verified struct {
	Generations []Generation `json:"generations"` // those that can be read
	Sessions    int          `json:"sessions"`    // that were restored, those of each generation's last complete run
	Bundles     int          `json:"bundles"`     // whose hashes were computed
	Bytes       int64        `json:"bytes"`       // of them
	Problems    []error      `json:"-"`
}

// Err returns the problems.
func (v *Verified) Err() error { return errors.Join(v.Problems...) }

// Verify reads all that a target has, and computes every hash. Each run has the hash of the run before, so nothing can
// be missing in between. Of each generation it also restores all sessions of the last run into stores of its own, and
// compares where they stand with what the run says. What is damaged is in the report. The error says that Verify could not go on; the
// report is never nil.
func Verify(ctx context.Context, of Target, o VerifyOptions) (*Verified, error) {
	v := &Verified{}
	if of == nil {
		return v, invalid("the target is nil")
	}
	names, err := generations(ctx, of)
	if err == nil && len(names) == 0 {
		err = ErrNoBackup
	}
	if err != nil {
		return v, err
	}
	for _, name := range names {
		if err := v.generation(ctx, of, name, &o); err != nil && !errors.Is(err, ErrTarget) {
			return v, err
		} else if err != nil {
			v.Problems = append(v.Problems, err)
		}
	}
	return v, nil
}

// generation verifies a generation.
func (v *Verified) generation(ctx context.Context, of Target, name string, o *VerifyOptions) error {
	g, err := generationOf(ctx, of, name)
	if err != nil || g.Runs == 0 {
		return err
	}
	v.Generations = append(v.Generations, *g)
	done := func(object string) {
		if o.Progress != nil {
			o.Progress(object)
		}
	}
	var before header
	var last sum
	bundles := map[string][]extent{} // by their packs
	for run := 1; run <= g.Runs; run++ {
		seen := map[extent]bool{}
		h, total, err := readRun(ctx, of, name, run, func(e *entry) error {
			if e.Run == run && !e.Gone && !seen[e.Bundle] {
				seen[e.Bundle] = true
				bundles[e.Bundle.Pack] = append(bundles[e.Bundle.Pack], e.Bundle)
			}
			return nil
		}, nil)
		if err != nil {
			return err
		}
		if h.Before != last || !h.Time.After(before.Time) || h.Complete != run && h.Complete != before.Complete {
			return fmt.Errorf("%w: %s does not follow the run before", ErrTarget, runName(name, run))
		}
		before, last = h, total
		done(runName(name, run))
	}
	for _, pack := range slices.Sorted(maps.Keys(bundles)) {
		if err := v.pack(ctx, of, packPath(name, pack), bundles[pack]); err != nil {
			if !errors.Is(err, ErrTarget) {
				return err
			}
			v.Problems = append(v.Problems, err)
		}
		done(packPath(name, pack))
	}
	if g.Complete == 0 {
		return nil
	}
	x, err := readIndex(ctx, of, name, g.Complete)
	if err != nil {
		return err
	}
	ids := x.named()
	r := newRestoring(of, x, ids)
	r.check, r.o.Dir = true, o.Dir
	v.Sessions += len(ids)
	failed, err := r.all(ctx, slices.Collect(maps.Values(ids)))
	v.Problems = append(v.Problems, failed...)
	return err
}

// pack computes the hashes of the bundles of a pack.
func (v *Verified) pack(ctx context.Context, of Target, name string, bundles []extent) error {
	slices.SortFunc(bundles, func(a, b extent) int { return int(a.Offset - b.Offset) })
	r, err := of.Get(ctx, name, 0, -1)
	if err != nil {
		return lacking(err)
	}
	defer r.Close()
	at := int64(0)
	for _, b := range bundles {
		if b.Offset < at {
			return fmt.Errorf("%w: %s: bundles overlap", ErrTarget, name)
		}
		hash := blake3.New()
		_, err := io.CopyN(io.Discard, r, b.Offset-at)
		if err == nil {
			_, err = io.CopyN(hash, r, b.Size)
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if err != nil || sum(hash.Sum(nil)) != b.Sum {
			return fmt.Errorf("%w: %s: the bundle of %d bytes at %d has another hash", ErrTarget, name, b.Size, b.Offset)
		}
		at = b.Offset + b.Size
		v.Bundles++
		v.Bytes += b.Size
	}
	return nil
}
