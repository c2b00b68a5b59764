package turnstone

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
)

// noteAgain is how old a note has to be before another run with the same outcome replaces it. Otherwise a store that
// nobody uses would be written to with every run.
const noteAgain = time.Hour

// NoteMaintenance notes how a run of an operation went that has just ended, in place of the last run of the same
// operation, for Stats to tell. Of report it notes the numbers, by their names in JSON, and of problem the kind; both may
// be nil. Maintain, package backup, the server and the command note what they do. A run that went as the last one did is
// noted once an hour. NoteMaintenance has five seconds, also if ctx has ended: what was cut off is noted as well. A
// report of more than head.MaxMaintenanceNumbers numbers is an *InvalidError.
func (s *Store) NoteMaintenance(ctx context.Context, operation string, took time.Duration, report any, problem error) error {
	if _, err := s.usable(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	m := head.Maintenance{Operation: operation, Ended: s.now().UTC(), Took: max(0, took), Problem: KindOf(problem).Name, Numbers: numbers(report)}
	c := checker{of: "maintenance"}
	c.text("operation", operation, 1, MaxLabel)
	switch {
	case c.err != nil:
		return c.err
	case len(m.Numbers) > head.MaxMaintenanceNumbers:
		return invalid("maintenance", "its report has %d numbers", len(m.Numbers))
	}
	key := s.space.Maintenance()
	return public(history.Settle(ctx, s.engine, func(change *history.Change) error {
		vs, err := s.engine.Get(ctx, key)
		if err != nil {
			return err
		}
		runs, _ := head.DecodeMaintenance(key, vs[0]) // One that can't be read is overwritten.
		if !replace(&runs, m) {
			return nil
		}
		var b engine.Batch
		b.Guard(key, vs[0])
		b.Set(key, head.EncodeMaintenance(key, runs))
		return change.Apply(ctx, &b)
	}))
}

// note is NoteMaintenance for Maintain, which goes on if it fails: a store that may only be read has no notes. That
// Maintain was stopped is no problem to note.
func (s *Store) note(ctx context.Context, operation string, began time.Time, report any, problem error) {
	if ctx.Err() == nil {
		_ = s.NoteMaintenance(ctx, operation, time.Since(began), report, problem)
	}
}

// replace puts a run in place of the last one of its operation. It reports false if that went the same, not long ago.
func replace(runs *[]head.Maintenance, r head.Maintenance) bool {
	for i, before := range *runs {
		if before.Operation != r.Operation {
			continue
		}
		if before.Problem == r.Problem && maps.Equal(before.Numbers, r.Numbers) && r.Ended.Sub(before.Ended).Abs() < noteAgain {
			return false
		}
		(*runs)[i] = r
		return true
	}
	*runs = append(*runs, r)
	slices.SortFunc(*runs, func(a, b head.Maintenance) int { return b.Ended.Compare(a.Ended) })
	*runs = (*runs)[:min(len(*runs), head.MaxMaintenance)]
	return true
}

// maintained returns the runs that were noted. A note that can't be read counts as none.
func (s *Store) maintained(ctx context.Context) ([]head.Maintenance, error) {
	key := s.space.Maintenance()
	vs, err := s.engine.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	runs, _ := head.DecodeMaintenance(key, vs[0])
	return runs, nil
}

// numbers returns the numbers of a report by their names in JSON, but not how long it took.
func numbers(report any) map[string]uint64 {
	text, err := json.Marshal(report)
	var fields map[string]any
	if err != nil || json.Unmarshal(text, &fields) != nil {
		return nil
	}
	out := map[string]uint64{}
	for name, value := range fields {
		if n, ok := value.(float64); ok && n >= 0 && n < 1<<63 && len(name) <= MaxLabel && name != "nanoseconds" {
			out[name] = uint64(n)
		}
	}
	return out
}
