package turnstone_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/record"
)

// A store knows the size of what it uploaded: the commit that refers to it reads no more
// than one that refers to it again.
func TestACommitDoesNotReadTheSizeOfWhatWasJustUploaded(t *testing.T) {
	read := 0
	e := &enginetest.Faulty{Engine: memory.New(), Done: func(c enginetest.Call, _ error) { read += c.Read }}
	s := create(t, openStore(t, e, nil), turnstone.Request{ID: "s"})
	for name, size := range map[string]int{"one blob": 3000, "chunks": 3 << 20} {
		a, err := s.PutAttachment(ctx, bytes.NewReader(random(size, uint64(size))), -1, "", "")
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

// A mark that somebody else has changed since the store read it costs an upload a second
// attempt. A mark that is damaged ends the upload, which does not try for ever.
func TestAStaleMarkCostsOneMoreAttempt(t *testing.T) {
	for _, damaged := range []bool{false, true} {
		mem := memory.New()
		e := &enginetest.Faulty{Engine: mem}
		st := openStore(t, e, nil)
		s := create(t, st, turnstone.Request{ID: "s"})
		content := random(100, 1)
		a := upload(t, s, content)
		space := turnstone.SpaceOf(st)
		k := space.Mark(space.BlobHash(a.ID))
		vs, err := mem.Get(ctx, k)
		if err != nil {
			t.Fatal(err)
		}
		v := bytes.Clone(vs[0])
		v[len(v)-5] ^= 1 // the last of its random bytes
		if !damaged {
			v = codec.SealTail(k, v[:len(v)-4], 0)
		}
		attempts := 0
		e.Plan = func(c enginetest.Call) enginetest.Fault {
			if c.Op != "Apply" {
				return enginetest.Fault{}
			}
			if attempts++; attempts == 1 {
				if err := mem.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: k, Value: v}}}); err != nil {
					t.Error(err)
				}
			}
			if attempts > 100 {
				return enginetest.Fault{Err: errors.New("it tries for ever")}
			}
			return enginetest.Fault{}
		}
		again, err := s.PutAttachment(ctx, bytes.NewReader(content), -1, "", "")
		var damage *record.CorruptError
		switch {
		case damaged && !errors.As(err, &damage):
			t.Errorf("a damaged mark: %v after %d attempts", err, attempts)
		case !damaged && (err != nil || again.ID != a.ID || attempts < 2):
			t.Errorf("a stale mark: %v after %d attempts", err, attempts)
		}
	}
}

// What an attachment is read from is vacuumed: the read says that it is gone, or gives all of
// it, and is no damage.
func TestAnAttachmentThatIsVacuumedWhileItIsReadIsNoDamage(t *testing.T) {
	content := random(9000, 1)
	read := new(bytes.Buffer)
	gone := 0
	besideEachCall(t,
		func(st *turnstone.Store) {
			s := create(t, st, turnstone.Request{ID: "s"})
			n := saying([]byte("x"))
			n[0].Attachments = []blob.Attachment{upload(t, s, content)}
			if err := s.Tombstone(ctx, commitTo(t, s, turnstone.Commit{Nodes: n}).Nodes...); err != nil {
				t.Fatal(err)
			}
		},
		func(st *turnstone.Store) error {
			read.Reset()
			s, err := st.Session(ctx, "s")
			if err == nil {
				_, err = s.ReadAttachment(ctx, read, blob.Sum(content))
			}
			return err
		},
		func(st *turnstone.Store) { vacuum(t, st) },
		func(_ *turnstone.Store, _ engine.Engine, err error) error {
			switch {
			case err == nil && !bytes.Equal(read.Bytes(), content):
				return errors.New("other bytes")
			case err != nil && !errors.Is(err, turnstone.ErrBlobNotFound):
				return errors.New("another error than that it is gone")
			case err != nil:
				gone++
			}
			return nil
		})
	if gone == 0 {
		t.Error("vacuum never took it away")
	}
}
