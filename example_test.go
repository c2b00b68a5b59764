package turnstone_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"strings"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
)

// A turn is committed with the revision that was loaded; a second writer who
// loaded the same one loses, and learns where the session stands.
func Example() {
	ctx := context.Background()
	engine := memory.New() // or pebble.Open(dir, nil)
	defer engine.Close()
	store, err := turnstone.Open(ctx, engine, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	chat, _, err := store.Create(ctx, turnstone.Request{ID: "chat-1"})
	if err != nil {
		log.Fatal(err)
	}
	say := func(expected head.Revision, text string) (turnstone.Result, error) {
		return chat.Commit(ctx, turnstone.Commit{Expected: expected, Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte(text)}}})
	}
	r, err := say(0, "hello")
	fmt.Println(r.Revision, err)
	_, err = say(0, "me too")
	var conflict *turnstone.ConflictError
	fmt.Println(errors.As(err, &conflict), conflict.Revision)
	state, err := chat.Load(ctx, turnstone.Scope{})
	fmt.Println(len(state.Nodes), string(state.Nodes[0].Payload), err)
	// Output:
	// 1 <nil>
	// true 1
	// 1 hello <nil>
}

func ExampleStore_Create_fork() {
	ctx := context.Background()
	store, err := turnstone.Open(ctx, memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	chat, _, err := store.Create(ctx, turnstone.Request{ID: "chat"})
	if err != nil {
		log.Fatal(err)
	}
	r, err := chat.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("shared")}}})
	if err != nil {
		log.Fatal(err)
	}
	fork, _, err := store.Create(ctx, turnstone.Request{ID: "what-if", Parent: "chat", ForkNode: r.Leaf})
	if err != nil {
		log.Fatal(err)
	}
	if err := store.Delete(ctx, "chat", turnstone.KeepChildren); err != nil {
		log.Fatal(err)
	}
	state, err := fork.Load(ctx, turnstone.Scope{})
	fmt.Println(len(state.Nodes), err)
	// Output: 1 <nil>
}

// A commit names the revision that its author loaded. Who lost against another writer loads
// again, and decides anew.
// A host that serves several users of several apps lists the sessions of one user, or of an app.
func ExampleStore_List() {
	ctx := context.Background()
	store, err := turnstone.Open(ctx, memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	for id, group := range map[string]string{"one": "travel/ann", "two": "travel/bob", "three": "shop/ann"} {
		if _, _, err := store.Create(ctx, turnstone.Request{ID: id, Metadata: head.Metadata{Group: group}}); err != nil {
			log.Fatal(err)
		}
	}
	for _, group := range []string{"travel", "travel/ann"} {
		page, err := store.List(ctx, turnstone.ListOptions{Group: group})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(group, len(page.Sessions))
	}
	// Output:
	// travel 2
	// travel/ann 1
}

func ExampleSession_Commit() {
	ctx := context.Background()
	store, err := turnstone.Open(ctx, memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	session, _, err := store.Create(ctx, turnstone.Request{ID: "chat"})
	if err != nil {
		log.Fatal(err)
	}
	say := func(expected head.Revision, turn, text string) error {
		_, err := session.Commit(ctx, turnstone.Commit{
			Expected: expected,
			Turn:     turn, // the same turn again, however late, returns the first result
			Nodes:    []turnstone.NewNode{{Kind: "user", Payload: []byte(text)}},
		})
		return err
	}
	fmt.Println(say(0, "turn-1", "hello"))
	fmt.Println(say(0, "turn-1", "hello")) // the reply was lost: sent once more
	var conflict *turnstone.ConflictError
	if err := say(0, "turn-2", "too late"); errors.As(err, &conflict) {
		fmt.Println("the head is at revision", conflict.Revision)
	}
	// Output:
	// <nil>
	// <nil>
	// the head is at revision 1
}

// What belongs together is committed together, also in several sessions: here a message leaves the
// outbox of one agent as it reaches another.
func ExampleStore_CommitAll() {
	ctx := context.Background()
	store, err := turnstone.Open(ctx, memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	planner, _, err := store.Create(ctx, turnstone.Request{ID: "planner"})
	if err != nil {
		log.Fatal(err)
	}
	coder, _, err := store.Create(ctx, turnstone.Request{ID: "coder"})
	if err != nil {
		log.Fatal(err)
	}
	results, err := store.CommitAll(ctx,
		turnstone.SessionCommit{Session: planner, Commit: turnstone.Commit{
			Turn: "hand-over-1", Nodes: []turnstone.NewNode{{Kind: "assistant", Payload: []byte("Coder, write the parser.")}},
			Checkpoint: map[string][]byte{"outbox": []byte("[]")},
		}},
		turnstone.SessionCommit{Session: coder, Commit: turnstone.Commit{
			Turn: "hand-over-1", Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("Write the parser.")}},
		}},
	)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("planner at", results[0].Revision, "and coder at", results[1].Revision)
	// Output: planner at 1 and coder at 1
}

// A load reads the path that ends at the leaf, or a part of it, also as it was at an earlier
// revision.
func ExampleSession_Load() {
	ctx := context.Background()
	store, err := turnstone.Open(ctx, memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	session, _, err := store.Create(ctx, turnstone.Request{ID: "chat"})
	if err != nil {
		log.Fatal(err)
	}
	for i, text := range []string{"one", "two", "three"} {
		_, err := session.Commit(ctx, turnstone.Commit{
			Expected:   head.Revision(i),
			Nodes:      []turnstone.NewNode{{Kind: "user", Payload: []byte(text)}},
			Checkpoint: map[string][]byte{"state": fmt.Append(nil, i)},
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	for _, scope := range []turnstone.Scope{{}, {Last: 1}, {After: 1}, {At: 2}} {
		state, err := session.Load(ctx, scope)
		if err != nil {
			log.Fatal(err)
		}
		for _, n := range state.Nodes {
			fmt.Print(string(n.Payload), " ")
		}
		fmt.Println("at revision", state.Revision)
	}
	// Output:
	// one two three at revision 3
	// three at revision 3
	// two three at revision 3
	// one two at revision 2
}

// A tombstoned node is gone from reads at once; Erase removes it from the store's files, too.
func ExampleSession_Tombstone() {
	ctx := context.Background()
	store, err := turnstone.Open(ctx, memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	session, _, err := store.Create(ctx, turnstone.Request{ID: "chat"})
	if err != nil {
		log.Fatal(err)
	}
	result, err := session.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{
		{Kind: "user", Payload: []byte("my password is 1234")},
		{Kind: "assistant", Payload: []byte("please don't tell me")},
	}})
	if err != nil {
		log.Fatal(err)
	}
	if err := session.Tombstone(ctx, result.Nodes[0]); err != nil {
		log.Fatal(err)
	}
	state, err := session.Load(ctx, turnstone.Scope{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(state.Nodes), "node:", string(state.Nodes[0].Payload))
	receipt, err := session.Erase(ctx, turnstone.EraseOptions{}, result.Nodes[0])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("held by", receipt.HeldBy)
	// Output:
	// 1 node: please don't tell me
	// held by []
}

// An attachment is uploaded first, as a stream, and belongs to the session once a commit
// refers to it.
func ExampleSession_PutAttachment() {
	ctx := context.Background()
	store, err := turnstone.Open(ctx, memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	session, _, err := store.Create(ctx, turnstone.Request{ID: "chat"})
	if err != nil {
		log.Fatal(err)
	}
	picture, err := session.PutAttachment(ctx, strings.NewReader("…"), -1, "image/png", "cat.png")
	if err != nil {
		log.Fatal(err)
	}
	_, err = session.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{
		{Kind: "user", Payload: []byte("what is this?"), Attachments: []blob.Attachment{picture}},
	}})
	if err != nil {
		log.Fatal(err)
	}
	n, err := session.ReadAttachment(ctx, io.Discard, picture.ID)
	fmt.Println(picture.Name, picture.MediaType, n, "bytes", err)
	// Output: cat.png image/png 3 bytes <nil>
}

// Nothing is reclaimed by itself: run GC and Vacuum, or start Maintain.
func ExampleStore_GC() {
	ctx := context.Background()
	store, err := turnstone.Open(ctx, memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	session, _, err := store.Create(ctx, turnstone.Request{ID: "chat"})
	if err != nil {
		log.Fatal(err)
	}
	_, err = session.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "tool_result", Payload: make([]byte, 100_000)}}})
	if err != nil {
		log.Fatal(err)
	}
	if err := store.Delete(ctx, "chat", turnstone.KeepChildren); err != nil {
		log.Fatal(err)
	}
	report, err := store.GC(ctx, gc.Options{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(report.Deleted, "blob deleted,", report.Retained, "retained")
	// Output: 1 blob deleted, 0 retained
}

// Who watches a session sees its commits and those that come, whoever makes them.
func ExampleSession_Watch() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	store, err := turnstone.Open(ctx, memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	session, _, err := store.Create(ctx, turnstone.Request{ID: "chat"})
	if err != nil {
		log.Fatal(err)
	}
	say := func(text string) {
		_, err := session.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Turn: text, Nodes: []turnstone.NewNode{{Kind: "m", Payload: []byte(text)}}})
		if err != nil {
			log.Fatal(err)
		}
	}
	say("hello")
	for e, err := range session.Watch(ctx, 0) { // after the last revision that was dealt with
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(e.Revision, e.Turn)
		if e.Revision == 2 {
			break
		}
		say("hi")
	}
	// Output:
	// 1 hello
	// 2 hi
}

// A view of all sessions is built once, and then follows the feed: here it counts commits.
func ExampleStore_Watch() {
	ctx := context.Background()
	store, err := turnstone.Open(ctx, memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	if err := store.StartFeed(ctx, turnstone.FeedOptions{Keep: 30 * 24 * time.Hour}); err != nil { // once in the life of a store
		log.Fatal(err)
	}
	feed, err := store.Feed(ctx)
	if err != nil {
		log.Fatal(err)
	}
	// Read all sessions here, then follow what changes after feed.End.
	_, err = store.CommitAll(ctx,
		turnstone.SessionCommit{Create: &turnstone.Request{ID: "a"}, Commit: turnstone.Commit{Turn: "1"}},
		turnstone.SessionCommit{Create: &turnstone.Request{ID: "b"}, Commit: turnstone.Commit{Turn: "1"}})
	if err == nil {
		err = store.Delete(ctx, "b", turnstone.KeepChildren)
	}
	if err != nil {
		log.Fatal(err)
	}
	commits := map[string]int{}
	for c, err := range store.Watch(ctx, feed.End) {
		if err != nil {
			log.Fatal(err) // after turnstone.ErrCursorExpired, build the view anew
		}
		switch c.Kind {
		case turnstone.ChangeCommitted:
			commits[c.Session]++
		case turnstone.ChangeDeleted:
			delete(commits, c.Session)
		}
		if c.Kind == turnstone.ChangeDeleted { // Store c.Cursor with the view, to go on from there after a restart.
			break
		}
	}
	fmt.Println(commits)
	// Output:
	// map[a:1]
}

// Several writers count in one session. Update loads and commits anew when another one was
// faster, so that no step is lost.
func ExampleUpdate() {
	ctx := context.Background()
	engine := memory.New()
	defer engine.Close()
	store, err := turnstone.Open(ctx, engine, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	counter, _, err := store.Create(ctx, turnstone.Request{ID: "counter"})
	if err != nil {
		log.Fatal(err)
	}
	for range 3 {
		_, err := turnstone.Update(ctx, counter, turnstone.Scope{Last: 1}, func(st *turnstone.State) (turnstone.Commit, error) {
			text := "x"
			if len(st.Nodes) > 0 {
				text += string(st.Nodes[0].Payload)
			}
			return turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "count", Payload: []byte(text)}}}, nil
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	state, err := counter.Load(ctx, turnstone.Scope{Last: 1})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s at revision %d\n", state.Nodes[0].Payload, state.Revision)
	// Output: xxx at revision 3
}

// A session goes to another store as a file, and has the same ids there.
func ExampleStore_Bundle() {
	ctx := context.Background()
	here, err := turnstone.Open(ctx, memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer here.Close()
	there, err := turnstone.Open(ctx, memory.New(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer there.Close()
	session, _, err := here.Create(ctx, turnstone.Request{ID: "chat"})
	if err != nil {
		log.Fatal(err)
	}
	result, err := session.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("hello")}}})
	if err != nil {
		log.Fatal(err)
	}
	var file bytes.Buffer
	if _, err := here.Bundle(ctx, &file, turnstone.Bundled{ID: "chat"}); err != nil {
		log.Fatal(err)
	}
	report, err := there.Unbundle(ctx, &file, turnstone.UnbundleOptions{})
	if err != nil {
		log.Fatal(err)
	}
	copied, err := there.Session(ctx, "chat")
	if err != nil {
		log.Fatal(err)
	}
	state, err := copied.Load(ctx, turnstone.Scope{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(report.Sessions[0].Created, state.Commit == result.Commit, string(state.Nodes[0].Payload))
	// Output:
	// true true hello
}
