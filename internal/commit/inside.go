package commit

import (
	"context"

	"github.com/turnstonedb/turnstone/internal/history"
)

// Inside is what the tests of the store in other directories reach of it beside its public methods. Package turnstone
// sets these functions; their first argument is its *Store, *Session or *Options.
var Inside struct {
	// Histories returns what reads the records of a store, without its cache.
	Histories func(store any) history.Store
	// Opened returns the session of a handle.
	Opened func(session any) *history.Session
	// Seal seals a session as the background does.
	Seal func(ctx context.Context, session any) error
	// SetLimits sets the limits of a store's forks.
	SetLimits func(store any, l LifecycleLimits)
	// SetFormats makes options those of a version of Turnstone that knows other formats.
	SetFormats func(options any, oldest, newest uint64)
}
