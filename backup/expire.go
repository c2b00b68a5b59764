package backup

import (
	"context"
	"errors"
	"slices"
	"sort"
	"strings"
	"time"
)

// A Generation is a copy of all sessions, with the changes that follow it.
type Generation struct {
	Name     string    `json:"name"`
	Runs     int       `json:"runs"`
	Complete int       `json:"complete"` // the last run that can be restored; 0 if there is none yet
	First    time.Time `json:"first"`    // the earliest time that can be restored
	Last     time.Time `json:"last"`     // the latest one
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
		if err != nil {
			return nil, err
		}
		if g.Runs > 0 {
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
	g.Complete = last.Complete
	if last.Run != last.Complete {
		if last, err = readHeader(ctx, of, name, last.Complete); err != nil {
			return g, err
		}
	}
	g.Last = last.Time
	first, err := search(ctx, of, name, g.Complete, func(h *header) bool { return h.Complete > 0 })
	if err == nil {
		g.First = first.Time
	}
	return g, err
}

// search returns the header of the first run up to last that has a property, which all runs after it have as well. That
// of run last has it.
func search(ctx context.Context, of Target, generation string, last int, has func(*header) bool) (found header, err error) {
	n := sort.Search(last-1, func(i int) bool {
		if err != nil {
			return false
		}
		var h header
		if h, err = readHeader(ctx, of, generation, i+1); err != nil {
			return false
		}
		return has(&h)
	})
	if err != nil {
		return found, err
	}
	return readHeader(ctx, of, generation, n+1)
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
// the newest one that can be restored.
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
		if err != nil && !errors.Is(err, ErrTarget) {
			return removed, err
		}
		reached = err == nil && g.Complete > 0 && !g.First.After(before)
	}
	return removed, nil
}

// remove removes a generation. What is left of it, if remove is cut off, is a generation that ends earlier, or none.
func remove(ctx context.Context, of Target, generation string) error {
	for _, dir := range []string{"/runs/", "/packs/"} {
		var names []string
		for name, err := range of.List(ctx, generation+dir) {
			if err != nil {
				return err
			}
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range slices.Backward(names) {
			if err := of.Delete(ctx, generation+dir+name); err != nil {
				return err
			}
		}
	}
	return nil
}
