package tests

import (
	"fmt"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
)

func TestC14_ATurnIsOneRecord(t *testing.T) {
	now := time.Now()
	var last *engine.Batch
	e := &enginetest.Faulty{Engine: memory.New(), Plan: beforeEachApply(func(b *engine.Batch) { last = b })}
	st := openStore(t, e, &turnstone.Options{NoAutoSeal: true, Now: func() time.Time { return now }})
	s := create(t, st, turnstone.Request{ID: "a", Metadata: head.Metadata{Group: "g", Labels: map[string]string{"k": "v"}}})
	revision := head.Revision(0)
	commit := func(want string) {
		t.Helper()
		var c turnstone.Commit
		c.Expected, c.Turn = revision, fmt.Sprint("turn ", revision)
		for i := range 20 {
			c.Nodes = append(c.Nodes, turnstone.NewNode{Kind: "k", Key: fmt.Sprint(revision, "/", i), Payload: random(100, uint64(i))})
		}
		commitAt(t, s, c)
		revision++
		written := ""
		for _, p := range last.Sets {
			written += string(p.Key[4])
		}
		if got := fmt.Sprintf("%s, %d guards, %d deletes", written, len(last.Guards), len(last.Deletes)); got != want {
			t.Errorf("commit %d: %s, want %s", revision, got, want)
		}
	}
	const plain = "ps, 2 guards, 0 deletes"
	commit("pds, 2 guards, 0 deletes")
	commit(plain)
	commit(plain)
	collect(t, st, gc.Options{})
	commit("pds, 2 guards, 0 deletes")
	commit(plain)
	now = now.Add(time.Second) // The session moves in three lists, and its place says so.
	commit("puuuvs, 3 guards, 3 deletes")
	commit(plain)
}
