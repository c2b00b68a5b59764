package commit

import (
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/blobs"
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/history"
)

// A Store is what commits are written to.
type Store struct {
	history.Store
	Inline uint64 // payloads of more bytes are blobs
	Bases  *Bases
	Limits Limits
	Now    func() time.Time // whole nanoseconds, UTC
	Random func([]byte)
	// NewUpload returns the upload for what is stored ahead of a batch. The session
	// that commits owns it.
	NewUpload func(owner heads.Incarnation) *blobs.Upload
}

// Limits are those that a commit can only check when it knows the session.
type Limits struct {
	Parts     int // checkpoint parts of a session
	Models    int // models of a session's usage
	NodeBytes int // of a commit's nodes, payloads that are blobs left out
	Writes    int // of a commit's batch
	Bytes     int // of a commit's batch
}

// Any as Request.Expected appends to whatever the head is.
const Any = ^head.Revision(0)

// A Request is a turn that is to be committed. The root package has checked it, and
// describes the fields: see turnstone.Commit.
type Request struct {
	Expected   head.Revision
	Turn       string
	Nodes      []Node
	Leaf       Ref
	Checkpoint map[string][]byte
	Drop       []string
	Usage      []head.Usage
}

// A Node is one that is to be appended.
type Node struct {
	Parent      Ref
	Kind        string
	Key         string
	Payload     []byte
	Attachments []blob.Attachment
}

// A Ref names a node in a request.
type Ref struct {
	Kind  RefKind
	ID    graph.ID // of RefExisting
	Index int      // of RefNew, among Request.Nodes
}

// A RefKind says what a Ref names.
type RefKind byte

// The kinds of a Ref.
const (
	RefDefault  RefKind = iota // what the request means if it says nothing
	RefNone                    // no node
	RefExisting                // a node that was committed before
	RefNew                     // a node of the request
)

// A Result says where a commit stands.
type Result struct {
	Revision head.Revision
	Commit   head.CommitID
	Leaf     graph.ID
	Nodes    []graph.ID
	Replayed bool
}

// Stats are figures of one commit, whether it succeeded or not.
type Stats struct {
	// Hits and Misses count the parts whose last version was at hand, and not.
	Hits, Misses int
	// Raw is how many bytes of nodes, before compression, the session has then.
	Raw uint64
}
