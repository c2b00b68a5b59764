// Package maintain says when maintenance runs.
package maintain

import (
	"context"
	"time"
)

// Loop calls run until ctx ends: for a collection this long after the last call ended, and
// for a vacuum at intervals of vacuumEvery, if that is positive. Calls follow each other.
func Loop(ctx context.Context, every, vacuumEvery time.Duration, run func(vacuum bool)) {
	collect := time.NewTimer(every)
	defer collect.Stop()
	var vacuum <-chan time.Time
	if vacuumEvery > 0 {
		t := time.NewTicker(vacuumEvery)
		defer t.Stop()
		vacuum = t.C
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-collect.C:
			run(false)
		case <-vacuum:
			run(true)
		}
		if ctx.Err() != nil {
			return
		}
		collect.Reset(every) // from now on: the maintenance of others has its turn meanwhile
	}
}
