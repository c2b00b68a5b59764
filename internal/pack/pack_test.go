package pack_test

import (
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/internal/pack"
)

// An id vouches for everything but the place where it is stored.
func TestIDsVouchForContent(t *testing.T) {
	base := pack.Node{Parent: graph.ID{1}, Kind: "k", Key: "key", Inline: []byte("payload")}
	id := func(n pack.Node, salt pack.Salt, at int) graph.ID {
		n.Derive(salt, at, nil)
		return n.ID
	}
	want := id(base, pack.Salt{1}, 0)
	for name, other := range map[string]graph.ID{
		"salt":       id(base, pack.Salt{2}, 0),
		"position":   id(base, pack.Salt{1}, 1),
		"parent":     id(pack.Node{Parent: graph.ID{2}, Kind: "k", Key: "key", Inline: base.Inline}, pack.Salt{1}, 0),
		"kind":       id(pack.Node{Parent: graph.ID{1}, Kind: "l", Key: "key", Inline: base.Inline}, pack.Salt{1}, 0),
		"key":        id(pack.Node{Parent: graph.ID{1}, Kind: "k", Inline: base.Inline}, pack.Salt{1}, 0),
		"payload":    id(pack.Node{Parent: graph.ID{1}, Kind: "k", Key: "key", Inline: []byte("Payload")}, pack.Salt{1}, 0),
		"attachment": id(pack.Node{Parent: graph.ID{1}, Kind: "k", Key: "key", Inline: base.Inline, Attachments: []blob.Attachment{{ID: blob.ID{1}}}}, pack.Salt{1}, 0),
	} {
		if other == want {
			t.Errorf("another %s has the same id", name)
		}
	}
}

// Whether a payload is stored in the pack or apart is a matter of storage: vacuum may move it.
func TestAnIDDoesNotDependOnWhereThePayloadIs(t *testing.T) {
	for _, size := range []int{pack.MaxPlain + 1, 1 << 20} {
		payload := make([]byte, size)
		inline := pack.Node{Kind: "k", Inline: payload}
		apart := pack.Node{Kind: "k", Blob: blob.Sum(payload), Size: int64(size)}
		inline.Derive(pack.Salt{1}, 0, nil)
		apart.Derive(pack.Salt{1}, 0, nil)
		if inline.ID != apart.ID {
			t.Errorf("%d bytes: the ids differ", size)
		}
	}
}

func ExampleNode_Derive() {
	n := pack.Node{Kind: "user", Inline: []byte("hello")}
	n.Derive(pack.Salt{1}, 0, nil)
	reply := pack.Node{Parent: n.ID, Kind: "assistant", Inline: []byte("hi")}
	reply.Derive(pack.Salt{1}, 1, nil)
	fmt.Println(reply.ID != n.ID, reply.ID.IsZero())
	// Output: true false
}
