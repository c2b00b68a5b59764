// Package maintain decides when maintenance runs.
package maintain

import (
	"context"
	"time"
)

// Loop calls maintain until ctx ends, one call at a time. It asks for a collection when the
// time every has passed since the last call ended, and for a vacuum at intervals of
// vacuumEvery, if that is positive.
func Loop(ctx context.Context, every, vacuumEvery time.Duration, maintain func(vacuum bool)) {
	collect := time.NewTimer(every)
	defer collect.Stop()
	vacuum, stop := ticks(vacuumEvery)
	defer stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-collect.C:
			maintain(false)
		case <-vacuum:
			maintain(true)
		}
		if ctx.Err() != nil {
			return
		}
		collect.Reset(every) // Other processes have time for their own maintenance until then.
	}
}

// ticks returns a channel that delivers a tick at intervals of d, or never if d is not
// positive.
func ticks(d time.Duration) (c <-chan time.Time, stop func()) {
	if d <= 0 {
		return nil, func() {}
	}
	t := time.NewTicker(d)
	return t.C, t.Stop
}
