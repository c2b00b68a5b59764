// The calls of a Lifecycle change a session in another way than by a commit. They
// create, fork, rename and delete sessions, save their metadata, tombstone nodes, and keep
// and prune revisions.
//
// Most calls guard the session's lifecycle record and set it: see history.Alter. So they exclude
// each other, sealing and vacuum. A commit that goes on from the head's leaf does not use that
// record. Delete and Rename guard the head, too, and so exclude every commit. Create guards that
// there is no record yet; for a fork it guards and sets those of its ancestors. SaveMetadata
// guards the metadata.

package commit

import (
	"sync/atomic"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/feed"
)

// A Lifecycle is a store whose sessions can be changed.
type Lifecycle struct {
	*Store
	Limits LifecycleLimits
	// Telling is whether the feed was on when it was looked at last.
	Telling atomic.Bool
}

// tell is feed.TellIfOn for the store.
func (st *Lifecycle) tell(b *engine.Batch, value []byte, h *head.Head, c feed.Change, salt uint64, now time.Time) (on bool, err error) {
	on, err = feed.TellIfOn(b, st.Space, value, h, c, salt, now)
	if err == nil {
		st.Telling.Store(on)
	}
	return on, err
}

// LifecycleLimits are the limits that depend on what a session has already.
type LifecycleLimits struct {
	Ancestors int // A fork of more ancestors is flattened.
	Labels    int // How many labels a session may have.
}
