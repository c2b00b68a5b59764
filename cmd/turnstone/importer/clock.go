package importer

import (
	"sync/atomic"
	"time"
)

// A Clock gives a store the times of imported files. A host passes Now to the store as
// turnstone.Options.Now, and the Clock to Load as Options.Clock. While Load writes events
// that have a time in their file, Now returns that time. Otherwise it returns the present.
type Clock struct {
	// Present returns the present. The default is time.Now.
	Present func() time.Time

	at atomic.Pointer[time.Time] // what Now returns; nil for the present
}

// Now returns the time of the events that Load is writing, or the present.
func (c *Clock) Now() time.Time {
	if t := c.at.Load(); t != nil {
		return *t
	}
	if c.Present != nil {
		return c.Present()
	}
	return time.Now()
}

// set makes Now return t until the next call of set. The zero time is the present.
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
