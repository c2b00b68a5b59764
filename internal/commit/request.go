package commit

import (
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/session"
)

// A Store is a store that commits are written to.
type Store struct {
	history.Store
	Bases  *Bases
	Met    *Met
	Recent *Recent
	Inline int // Payloads of more bytes are stored as blobs.
	Limits Limits
	Now    func() time.Time // The time in UTC, to the nanosecond.
	Random func([]byte)     // Fills a slice with random bytes.
	// NewUpload returns an upload, which owner owns. It keeps the blobs that are stored
	// ahead of a batch.
	NewUpload func(owner head.Incarnation) *blob.Upload
}

// Limits are the limits that depend on the session or on the batch.
type Limits struct {
	Part      int64 // How many bytes a checkpoint part may have.
	Parts     int   // How many checkpoint parts a session may have.
	Models    int   // How many models the usage of a session may name.
	Kept      int   // How many revisions of a session may be kept by name.
	NodeBytes int   // The size of a commit's nodes, without payloads that are blobs.
	Writes    int   // How many operations a commit's batch may have.
	Bytes     int   // The size of a commit's batch.
}

// Any is the Request.Expected of a commit that may follow any head.
const Any = ^head.Revision(0)

// A Request is a turn to commit. The root package has checked it: see turnstone.Commit for what
// the fields mean.
type Request struct {
	Expected   head.Revision
	OnPath     graph.ID
	Turn       string
	Nodes      []Node
	Leaf       Ref
	Checkpoint map[string][]byte
	Stored     map[string]blob.ID
	Drop       []string
	Usage      []head.Usage
	Labels     map[string]string
	Tombstone  []graph.ID
	Keep       string
	Records    []RecordChange
	// RecordsOnly makes no commit: only the records are changed, and all fields but Records are zero.
	RecordsOnly bool
}

// A RecordChange sets, deletes or checks a record of the session.
type RecordChange struct {
	Key    string
	Action Action
	Value  []byte // of SetRecord
	Expect Expectation
	As     *session.Record // has the version and the time that the record gets, or is nil
}

// An Action says what a RecordChange does.
type Action int

// The actions.
const (
	SetRecord Action = iota
	DeleteRecord
	CheckRecord // nothing, but the expectation must hold
)

// An Expectation says what must stand under the key of a record. The zero one is met by anything.
type Expectation struct {
	Absent  bool                  // no record
	Version session.RecordVersion // if it is not zero, the record of this version
}

// A Node is a node to append.
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
	Index int      // of RefNew: the index in Request.Nodes
}

// A RefKind says what a Ref names.
type RefKind byte

// The kinds of a Ref.
const (
	RefDefault  RefKind = iota // The node before, and for the leaf the last node.
	RefNone                    // No node.
	RefExisting                // A node that was committed before.
	RefNew                     // A node of the request.
)

// A Result says what a commit has made of its request.
type Result struct {
	Session  *history.Session // the participant's; made or found by its Creator, if it has one
	Revision head.Revision
	Commit   head.CommitID
	Leaf     graph.ID
	Nodes    []graph.ID
	Records  []session.RecordVersion // for each of Request.Records, the version that it has then, or zero for none
	Replayed bool
	Created  bool // the session was made by this call
}

// Stats are numbers about one commit, whether it succeeded or not.
type Stats struct {
	// Hits counts the checkpoint parts whose current version was in Store.Bases. Misses
	// counts the others.
	Hits, Misses int
	// PackBytes is about the size of the packs of the session's own commits, this one
	// included, before compression: see graph.Pack.Uncompressed.
	PackBytes uint64
	// Tells reports whether the commit announced itself to the feed.
	Tells bool
}
