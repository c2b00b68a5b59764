package backup

import (
	"context"
	"errors"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/turnstonedb/turnstone/engine/sealed"
)

// A Generation is a copy of all sessions, with the changes that follow it.
type Generation struct {
	Name     string    `json:"name"`
	Runs     int       `json:"runs"`
	Complete int       `json:"complete"`          // the last run that can be restored; 0 if there is none yet
	First    time.Time `json:"first"`             // the earliest time that can be restored
	Last     time.Time `json:"last"`              // the latest one
	Problem  string    `json:"problem,omitempty"` // what is damaged, or ""; then Complete, First and Last are zero, though earlier runs may be there
}

// Generations returns what a target has, the oldest first.
func Generations(ctx context.Context, of Target) ([]Generation, error) {
	names, err := generations(ctx, of)
	if err != nil {
		return nil, err
	}
	var out []Generation
	for _, name := range names {
		g, err := generationOf(ctx, of, name)
		if errors.Is(err, ErrTarget) || errors.Is(err, sealed.ErrKey) {
			g.Problem = err.Error()
		} else if err != nil {
			return nil, err
		}
		if g.Runs > 0 || g.Problem != "" {
			out = append(out, *g)
		}
	}
	return out, nil
}

func generationOf(ctx context.Context, of Target, name string) (*Generation, error) {
	g := &Generation{Name: name}
	var err error
	if g.Runs, err = runsOf(ctx, of, name); err != nil || g.Runs == 0 {
		return g, err
	}
	last, err := readHeader(ctx, of, name, g.Runs)
	if err != nil || last.Complete == 0 {
		return g, err
	}
	complete := last.Complete
	if last.Run != complete {
		if last, err = readHeader(ctx, of, name, complete); err != nil {
			return g, err
		}
	}
	run, err := searchRuns(complete-1, func(run int) (bool, error) {
		h, err := readHeader(ctx, of, name, run)
		return h.Complete > 0, err
	})
	if err != nil {
		return g, err
	}
	first, err := readHeader(ctx, of, name, run+1) // The one behind those that have none.
	if err == nil {
		g.Complete, g.First, g.Last = complete, first.Time, last.Time
	}
	return g, err
}

// searchRuns returns the last run up to last that does not have a property, which all runs after it have, or 0.
func searchRuns(last int, has func(run int) (bool, error)) (run int, err error) {
	n := sort.Search(last, func(i int) bool {
		if err != nil {
			return true
		}
		var found bool
		found, err = has(i + 1)
		return found
	})
	return n, err
}

// generations returns the names of the generations, the oldest first.
func generations(ctx context.Context, of Target) (names []string, _ error) {
	for name, err := range of.List(ctx, "") {
		if err != nil {
			return nil, err
		}
		if name, ok := strings.CutSuffix(name, "/"); ok {
			if _, err := began(name); err == nil {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// began returns when a generation began, as its name has it.
func began(generation string) (time.Time, error) {
	if len(generation) != len(generationTime)+9 {
		return time.Time{}, errors.New("no generation")
	}
	return time.Parse(generationTime, generation[:len(generationTime)])
}

// Expire removes the generations that are not needed to restore a time from before on, and returns how many. It keeps
// the newest one that can be restored, and that lacks no session of the store because it was damaged.
func Expire(ctx context.Context, of Target, before time.Time) (removed int, err error) {
	names, err := generations(ctx, of)
	if err != nil {
		return 0, err
	}
	reached := false // a generation that begins early enough
	for _, name := range slices.Backward(names) {
		if reached {
			if err := remove(ctx, of, name); err != nil {
				return removed, err
			}
			removed++
			continue
		}
		g, err := generationOf(ctx, of, name)
		if err == nil && g.Complete > 0 && !g.First.After(before) && name != names[0] {
			var x *index
			x, err = readIndex(ctx, of, name, g.Complete)
			reached = err == nil && x.Lacking == 0 // Else an earlier generation may have what it lacks.
		}
		if err != nil && !errors.Is(err, ErrTarget) && !errors.Is(err, sealed.ErrKey) {
			return removed, err
		}
	}
	return removed, nil
}

// remove removes a generation. If it is cut off, what is left is a generation that ends earlier, or has no runs.
func remove(ctx context.Context, of Target, generation string) error {
	runs, err := runsOf(ctx, of, generation)
	if err != nil && !errors.Is(err, ErrTarget) && !errors.Is(err, sealed.ErrKey) {
		return err
	}
	for run := runs; run > 0; run-- {
		if err := of.Delete(ctx, runName(generation, run)); err != nil {
			return err
		}
	}
	return of.Delete(ctx, generation+"/")
}
