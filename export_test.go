package turnstone

import (
	"context"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/turns"
)

// What follows lets the tests of package turnstone_test reach records and call what runs in
// the background. They are functions, not methods, because a test calls every method of a
// Store and a Session with nil.

// SpaceOf returns the keys of the namespace of st.
func SpaceOf(st *Store) *keys.Space { return st.space }

// HistoriesOf returns the histories of st. Reading them uses no cache.
func HistoriesOf(st *Store) history.Store {
	return history.Store{Reader: turns.Reader{Engine: st.engine, Space: st.space}, Blobs: st.blobs}
}

// BlobsOf returns the blobs of st.
func BlobsOf(st *Store) *blobs.Store { return st.blobs }

// IncarnationOf returns the incarnation of s.
func IncarnationOf(s *Session) heads.Incarnation { return s.session.Inc }

// EngineOf returns the engine of st.
func EngineOf(st *Store) engine.Engine { return st.engine }

// FlattenFrom makes st flatten forks of more ancestors than n.
func FlattenFrom(st *Store, n int) { st.lifecycle.Limits.Ancestors = n }

// SealFast seals s as the background does.
func SealFast(ctx context.Context, s *Session) error { return s.seal(ctx, false) }

// WithFormats returns the options of a version of Turnstone that knows other formats.
func WithFormats(o Options, oldest, newest uint64) *Options {
	o.formats = &heads.Formats{Oldest: oldest, Newest: newest}
	return &o
}
