package importer

import (
	"sync/atomic"
	"time"
)

// A Clock gives a store the times of what is imported: a host passes Now as
// turnstone.Options.Now, and the Clock to Load as Options.Clock. While Load writes
// what a file gives a time for, that is the time; otherwise it is the present.
type Clock struct {
	// Present, if set, is the clock for everything else; default time.Now.
	Present func() time.Time

	at atomic.Pointer[time.Time]
}

// Now returns the time of what is being written.
func (c *Clock) Now() time.Time {
	if t := c.at.Load(); t != nil {
		return *t
	}
	if c.Present != nil {
		return c.Present()
	}
	return time.Now()
}

// set makes t the time until the next call; the zero time is the present.
func (c *Clock) set(t time.Time) {
	if c == nil {
		return
	}
	if t.IsZero() {
		c.at.Store(nil)
		return
	}
	c.at.Store(&t)
}
