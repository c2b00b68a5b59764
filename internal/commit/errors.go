package commit

import (
	"fmt"

	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
)

// The typed errors of a commit. The root package gives them their public names: each is
// converted to the public type with the same fields.

// A Conflict says that the head is not at the revision that the request expects.
type Conflict struct {
	Session  string
	Expected head.Revision
	Revision head.Revision
	Leaf     graph.ID
	Commit   head.CommitID
}

func (e *Conflict) Error() string { return "conflict" }

// A TurnConflict says that the turn id was committed before with other content.
type TurnConflict struct {
	Session  string
	Turn     string
	Revision head.Revision
	Commit   head.CommitID
}

func (e *TurnConflict) Error() string { return "turn conflict" }

// ErrUploadExpired: the commit refers to an attachment that the session does not have.
var ErrUploadExpired = fmt.Errorf("%w: no upload of it stands", history.ErrBlobNotFound)
