package turnstone_test

import (
	"bytes"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// A store knows the size of what it uploaded: the commit that refers to it reads no more
// than one that refers to it again.
func TestACommitDoesNotReadTheSizeOfWhatWasJustUploaded(t *testing.T) {
	read := 0
	e := &enginetest.Faulty{Engine: memory.New(), Done: func(c enginetest.Call, _ error) { read += c.Read }}
	s := mustSession(t, openStore(t, e, nil), turnstone.Request{ID: "s"})
	for name, size := range map[string]int{"one blob": 3000, "chunks": 3 << 20} {
		a, err := s.PutAttachment(ctx, bytes.NewReader(noise(size, uint64(size))), -1, "", "")
		if err != nil {
			t.Fatal(err)
		}
		var reads [2]int
		for i := range reads {
			read = 0
			commitTo(t, s, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "u", Attachments: []blob.Attachment{a}}}})
			reads[i] = read
		}
		if reads[0] > reads[1] {
			t.Errorf("%s: the first commit reads %d keys, the second %d", name, reads[0], reads[1])
		}
	}
}

// A commit after a seal by the same handle reads nothing: the seal has seen the head.
func TestACommitAfterASealReadsNothing(t *testing.T) {
	reads := 0
	e := &enginetest.Faulty{Engine: memory.New(), Plan: func(c enginetest.Call) enginetest.Fault {
		if c.Op != "Apply" {
			reads++
		}
		return enginetest.Fault{}
	}}
	s := create(t, openStore(t, e, &turnstone.Options{NoAutoSeal: true}), turnstone.Request{ID: "s"})
	for range 3 {
		commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("x"))})
	}
	if err := s.Seal(ctx); err != nil {
		t.Fatal(err)
	}
	reads = 0
	commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("y"))})
	if reads > 0 {
		t.Errorf("%d reads", reads)
	}
}
