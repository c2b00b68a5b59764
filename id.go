package turnstone

import (
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/hash"
)

// Names of other packages that most callers need. As text, in JSON too, an id is 64
// lower-case hex digits, and the zero id is empty.
type (
	// NodeID identifies a node.
	NodeID = graph.ID
	// BlobID identifies a blob.
	BlobID = blob.ID
	// CommitID identifies a commit and all before it.
	CommitID = head.CommitID
)

// ParseNodeID reads the text form of a node's id. Any other text, the empty one
// included, is an *InvalidError.
func ParseNodeID(text string) (NodeID, error) { return parseID[NodeID]("node id", text) }

// ParseBlobID reads the text form of a blob's id. Any other text, the empty one
// included, is an *InvalidError.
func ParseBlobID(text string) (BlobID, error) { return parseID[BlobID]("blob id", text) }

// ParseCommitID reads the text form of a commit's id. Any other text, the empty one
// included, is an *InvalidError.
func ParseCommitID(text string) (CommitID, error) { return parseID[CommitID]("commit id", text) }

func parseID[T ~[hash.Size]byte](what, text string) (T, error) {
	if text == "" {
		return T{}, invalid(what, "it is empty")
	}
	sum, err := hash.ParseText([]byte(text))
	if err != nil {
		return T{}, invalid(what, "%v", err)
	}
	return T(sum), nil
}
