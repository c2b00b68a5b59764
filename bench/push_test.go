package bench

import (
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/engine/pebble"
	"github.com/turnstonedb/turnstone/push"
)

// Pushing all of 1,000 sessions of ten commits to a server that has them: when none has changed, and when one of them
// has got a commit since.
func BenchmarkPush(b *testing.B) {
	const sessions, commits = 1000, 10
	from, there := onPebble(b, pebble.Process), onPebble(b, pebble.Process)
	var s *turnstone.Session
	for i := range sessions {
		var err error
		if s, _, err = from.Create(ctx, turnstone.Request{ID: fmt.Sprint("s", i)}); err != nil {
			b.Fatal(err)
		}
		for range commits {
			goOn(b, s)
		}
	}
	to := overHTTP(b, there).(*client.Client)
	pushAll := func(b *testing.B, want int) {
		r, err := push.Sessions(ctx, from, to, push.Options{All: true})
		if err != nil || len(r.Sessions) != want || r.Same != sessions-want {
			b.Fatalf("%+v, %v", r, err)
		}
		b.ReportMetric(float64(r.Bytes), "B-sent")
	}
	pushAll(b, sessions)
	b.Run("same", func(b *testing.B) {
		for b.Loop() {
			pushAll(b, 0)
		}
	})
	b.Run("one", func(b *testing.B) {
		for b.Loop() {
			goOn(b, s)
			pushAll(b, 1)
		}
	})
}

// goOn commits a turn of one node.
func goOn(b *testing.B, s *turnstone.Session) {
	b.Helper()
	if _, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("hello")}}}); err != nil {
		b.Fatal(err)
	}
}
