package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone/engine/sealed"
	"github.com/zeebo/blake3"
)

// VerifyOptions of Verify.
type VerifyOptions struct {
	Progress func(done string) // if set, is called with the name of each object that was read
	Dir      string            // see RestoreOptions
}

// A Verified says what Verify has read and found.
type Verified struct {
	Generations []Generation `json:"generations"` // those in which every run and every bundle is whole
	Sessions    int          `json:"sessions"`    // that were restored, those of each generation's last complete run
	Bundles     int          `json:"bundles"`     // whose hashes were computed
	Bytes       int64        `json:"bytes"`       // of them
	Problems    []error      `json:"-"`
}

// Err returns the problems.
func (v *Verified) Err() error { return errors.Join(v.Problems...) }

// Verify reads all that a target has, and computes every hash. Each run has the hash of the run before, so nothing can
// be missing in between. Of each generation it also restores all sessions of the last complete run into stores of its
// own, and compares where they stand with what the run says. What is damaged is in the report. An error says that
// Verify could not go on. The report is never nil.
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
		if err := v.generation(ctx, of, name, &o); err != nil {
			return v, err
		}
	}
	return v, nil
}

// note notes an error that says what is damaged. It returns others.
func (v *Verified) note(err error) error {
	if err == nil || !errors.Is(err, ErrTarget) && !errors.Is(err, sealed.ErrKey) {
		return err
	}
	v.Problems = append(v.Problems, err)
	return nil
}

// generation verifies a generation.
func (v *Verified) generation(ctx context.Context, of Target, name string, o *VerifyOptions) error {
	done := func(object string) {
		if o.Progress != nil {
			o.Progress(object)
		}
	}
	runs, err := runsOf(ctx, of, name)
	if err := v.note(err); err != nil || runs == 0 {
		return err
	}
	found := len(v.Problems)
	complete := 0
	bundles := map[string][]extent{} // by their packs
	var before *header               // of the run before, if it can be read
	var last sum
	for run := 1; run <= runs; run++ {
		seen := map[extent]bool{}
		h, total, err := readRun(ctx, of, name, run, func(e *entry) error {
			if e.Run == run && !e.Gone && !seen[e.Bundle] {
				seen[e.Bundle] = true
				bundles[e.Bundle.Pack] = append(bundles[e.Bundle.Pack], e.Bundle)
			}
			return nil
		}, nil)
		done(runName(name, run))
		if err != nil {
			if err := v.note(err); err != nil {
				return err
			}
			before = nil
			continue
		}
		if run == 1 {
			before = &header{}
		}
		if before != nil && (h.Before != last || !h.Time.After(before.Time) || h.Complete != run && h.Complete != before.Complete) {
			v.Problems = append(v.Problems, fmt.Errorf("%w: %s does not follow the run before", ErrTarget, runName(name, run)))
		}
		before, last, complete = &h, total, h.Complete
	}
	for _, pack := range slices.Sorted(maps.Keys(bundles)) {
		if err := v.note(v.pack(ctx, of, packPath(name, pack), bundles[pack])); err != nil {
			return err
		}
		done(packPath(name, pack))
	}
	if len(v.Problems) == found {
		g, err := generationOf(ctx, of, name)
		if err != nil {
			return v.note(err)
		}
		v.Generations = append(v.Generations, *g)
	}
	if complete == 0 {
		return nil
	}
	x, err := readIndex(ctx, of, name, complete)
	if err != nil {
		return v.note(err)
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
	slices.SortFunc(bundles, func(a, b extent) int { return cmp.Compare(a.Offset, b.Offset) })
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
