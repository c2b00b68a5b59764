package graph_test

import (
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/graph"
)

// An id vouches for everything but the place where it is stored.
func TestIDsVouchForContent(t *testing.T) {
	base := graph.Node{Parent: graph.ID{1}, Kind: "k", Key: "key", Inline: []byte("payload")}
	id := func(n graph.Node, salt graph.Salt, at int) graph.ID {
		n.Derive(salt, at, nil)
		return n.ID
	}
	want := id(base, graph.Salt{1}, 0)
	for name, other := range map[string]graph.ID{
		"salt":       id(base, graph.Salt{2}, 0),
		"position":   id(base, graph.Salt{1}, 1),
		"parent":     id(graph.Node{Parent: graph.ID{2}, Kind: "k", Key: "key", Inline: base.Inline}, graph.Salt{1}, 0),
		"kind":       id(graph.Node{Parent: graph.ID{1}, Kind: "l", Key: "key", Inline: base.Inline}, graph.Salt{1}, 0),
		"key":        id(graph.Node{Parent: graph.ID{1}, Kind: "k", Inline: base.Inline}, graph.Salt{1}, 0),
		"payload":    id(graph.Node{Parent: graph.ID{1}, Kind: "k", Key: "key", Inline: []byte("Payload")}, graph.Salt{1}, 0),
		"attachment": id(graph.Node{Parent: graph.ID{1}, Kind: "k", Key: "key", Inline: base.Inline, Attachments: []blob.Attachment{{ID: blob.ID{1}}}}, graph.Salt{1}, 0),
	} {
		if other == want {
			t.Errorf("another %s has the same id", name)
		}
	}
}

// Whether a payload is stored in the pack or apart is a matter of storage: vacuum may move it.
func TestAnIDDoesNotDependOnWhereThePayloadIs(t *testing.T) {
	for _, size := range []int{graph.MaxPlain + 1, 1 << 20} {
		payload := make([]byte, size)
		inline := graph.Node{Kind: "k", Inline: payload}
		apart := graph.Node{Kind: "k", Blob: blob.Sum(payload), Size: int64(size)}
		inline.Derive(graph.Salt{1}, 0, nil)
		apart.Derive(graph.Salt{1}, 0, nil)
		if inline.ID != apart.ID {
			t.Errorf("%d bytes: the ids differ", size)
		}
	}
}

func ExampleNode_Derive() {
	n := graph.Node{Kind: "user", Inline: []byte("hello")}
	n.Derive(graph.Salt{1}, 0, nil)
	reply := graph.Node{Parent: n.ID, Kind: "assistant", Inline: []byte("hi")}
	reply.Derive(graph.Salt{1}, 1, nil)
	fmt.Println(reply.ID != n.ID, reply.ID.IsZero())
	// Output: true false
}
