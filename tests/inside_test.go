package tests

import (
	"context"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/commit"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// historiesOf returns the histories of st. Reading them uses no cache.
func historiesOf(st *turnstone.Store) history.Store { return commit.Inside.Histories(st) }

// spaceOf returns the keys of the namespace of st.
func spaceOf(st *turnstone.Store) *keys.Space { return historiesOf(st).Space }

// blobsOf returns the blobs of st.
func blobsOf(st *turnstone.Store) *blob.Store { return historiesOf(st).Blobs }

// engineOf returns the engine of st.
func engineOf(st *turnstone.Store) engine.Engine { return historiesOf(st).Engine }

// incarnationOf returns the incarnation of s.
func incarnationOf(s *turnstone.Session) head.Incarnation { return commit.Inside.Opened(s).Inc }

// flattenFrom makes st flatten forks of more ancestors than n.
func flattenFrom(st *turnstone.Store, n int) {
	commit.Inside.SetLimits(st, commit.LifecycleLimits{Ancestors: n, Labels: turnstone.MaxLabels})
}

// sealFast seals s as the background does.
func sealFast(ctx context.Context, s *turnstone.Session) error { return commit.Inside.Seal(ctx, s) }

// withFormats returns the options of a version of Turnstone that knows other formats.
func withFormats(o turnstone.Options, oldest, newest uint64) *turnstone.Options {
	commit.Inside.SetFormats(&o, oldest, newest)
	return &o
}
