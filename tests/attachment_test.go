package tests

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testkit"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/codec"
)

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
		space := spaceOf(st)
		k := space.Mark(space.BlobHash(a.ID))
		vs, err := mem.Get(ctx, k)
		if err != nil {
			t.Fatal(err)
		}
		v := bytes.Clone(vs[0])
		v[len(v)-5] ^= 1 // the last of its random bytes
		if !damaged {
			v = codec.EncodeTail(k, v[:len(v)-4], 0)
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
		var corrupt *damage.CorruptError
		switch {
		case damaged && !errors.As(err, &corrupt):
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

// An attachment is found by the first node that has it. A fork shares the first node, but not
// the second one.
func TestA2_AForkReadsAnAttachmentThatItsParentUsesAgain(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	a := upload(t, p, random(100, 1))
	n := attaching(a)
	commitAt(t, p, turnstone.Commit{Expected: 0, Nodes: n})
	f := create(t, st, turnstone.Request{ID: "f", Parent: "p"})
	var w bytes.Buffer
	if _, err := f.ReadAttachment(ctx, &w, a.ID); err != nil {
		t.Fatal(err)
	}
	commitAt(t, p, turnstone.Commit{Expected: 1, Nodes: n})
	if _, err := f.ReadAttachment(ctx, &w, a.ID); err != nil {
		t.Fatal("after the parent's second use:", err)
	}
}

// A commit refers to 8,300 attachments, each of which its store has uploaded: their marks are more
// than it remembers.
func TestACommitTakesThousandsOfAttachments(t *testing.T) {
	testkit.OneGoroutine(t)
	if testing.Short() {
		t.Skip("-short: it takes 8,300 uploads")
	}
	st := openStore(t, memory.New(), nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	var n []turnstone.NewNode
	for i := range 8300 {
		a := upload(t, p, fmt.Append(nil, "blob", i))
		if i%64 == 0 {
			n = append(n, turnstone.NewNode{Kind: "u"})
		}
		n[len(n)-1].Attachments = append(n[len(n)-1].Attachments, a)
	}
	commitAt(t, p, turnstone.Commit{Nodes: n})
}

// A store remembers the marks of some 8,000 blobs, in two generations of 4,096. A commit takes
// attachments whose marks are in the older one, and those that another store has uploaded.
func TestACommitTakesUploadsWhoseMarksTheStoreHasForgotten(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes 8,192 uploads")
	}
	e, st := onMemory(t, nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	put := func(st *turnstone.Store, i int) blob.Attachment {
		return upload(t, session(t, st, "p"), fmt.Append(nil, "blob", i))
	}
	x := put(st, 0)
	for i := 1; i < 4096; i++ { // generation full: x is in it
		put(st, i)
	}
	for i := 4096; i < 4096+4095; i++ { // x is in the older one, 4095 in the newer
		put(st, i)
	}
	other := openStore(t, e, nil) // another process uploads y and z
	y, z := put(other, -1), put(other, -2)
	commitAt(t, p, turnstone.Commit{Nodes: attaching(x, y, z)})
}

// A session that is deleted between the last look at it and the batch that grants
// the upload gets no grant.
func TestA5_TheGrantOfAnUploadGuardsTheSession(t *testing.T) {
	mem := memory.New()
	var before func()
	st := openStore(t, &enginetest.Faulty{Engine: mem, Plan: func(c enginetest.Call) enginetest.Fault {
		if do := before; c.Op == "Apply" && do != nil {
			before = nil
			do()
		}
		return enginetest.Fault{}
	}}, nil)
	other := openStore(t, mem, nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	before = func() {
		if err := other.Delete(ctx, "s", turnstone.KeepChildren); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.PutAttachment(ctx, bytes.NewReader([]byte("x")), -1, "", ""); !errors.Is(err, turnstone.ErrSessionDeleted) {
		t.Errorf("an upload while the session is deleted: %v", err)
	}
	if n := letters(t, mem)[keys.Upload]; n != 0 {
		t.Errorf("%d records of uploads are left", n)
	}
	// A change that leaves the session alive only makes it try again.
	s = create(t, st, turnstone.Request{ID: "s"})
	before = func() {
		o, err := other.Session(ctx, "s")
		if err == nil {
			_, err = o.Commit(ctx, turnstone.Commit{Nodes: saying([]byte("x"))})
		}
		if err == nil {
			err = o.Keep(ctx, "x", 1)
		}
		if err != nil {
			t.Error(err)
		}
	}
	if _, err := s.PutAttachment(ctx, bytes.NewReader([]byte("x")), -1, "", ""); err != nil {
		t.Error(err)
	}
}

// An upload that no commit refers to is deleted when it has expired, and a commit that comes later
// is refused, unless it is the same turn again, or the session has the attachment otherwise.
func TestG6_UploadsExpire(t *testing.T) {
	e := memory.New()
	now := time.Unix(1_700_000_000, 0)
	st := openStore(t, e, &turnstone.Options{Now: func() time.Time { return now }, UploadTTL: time.Hour})
	s := create(t, st, turnstone.Request{ID: "s"})
	attach := func(turn string, a blob.Attachment) error {
		_, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Turn: turn, Nodes: attaching(a)})
		return err
	}
	small, large := upload(t, s, random(1000, 1)), upload(t, s, random(2<<20, 2))
	kept := upload(t, s, random(2<<20, 3))
	if err := attach("", kept); err != nil {
		t.Fatal(err)
	}
	if r := collect(t, st, gc.Options{}); r.Deleted != 0 {
		t.Errorf("%+v", r)
	}
	if err := attach("small", small); err != nil {
		t.Fatal(err)
	}
	now = now.Add(2 * time.Hour)
	if r := collect(t, st, gc.Options{}); r.Deleted < 2 || r.Expired != 1 {
		t.Errorf("%+v", r)
	}
	if uploads, err := s.Uploads(ctx); err != nil || len(uploads) != 0 {
		t.Errorf("%v, %v", uploads, err)
	}
	if _, err := s.ReadAttachment(ctx, io.Discard, large.ID); !errors.Is(err, turnstone.ErrBlobNotFound) {
		t.Error(err)
	}
	if err := attach("", large); !errors.Is(err, turnstone.ErrUploadExpired) || !errors.Is(err, turnstone.ErrBlobNotFound) {
		t.Error(err)
	}
	if err := attach("small", small); err != nil {
		t.Error("the same turn again:", err)
	}
	if err := attach("", small); err != nil {
		t.Error("the session has it:", err)
	}
	var w bytes.Buffer
	if _, err := s.ReadAttachment(ctx, &w, kept.ID); err != nil || w.Len() != 2<<20 {
		t.Error(err)
	}
	if n := letters(t, e); n[keys.Upload] != 0 || n[keys.Candidate] != 0 {
		t.Errorf("records left: %v", n)
	}
	verify(t, st)
}

// A store that has not seen the content of an attachment links it all the same.
func TestA7_AStoreLinksWhatAnotherOneHasStored(t *testing.T) {
	e := memory.New()
	one, two := openStore(t, e, nil), openStore(t, e, nil)
	s := create(t, one, turnstone.Request{ID: "s"})
	a, err := s.PutAttachment(ctx, strings.NewReader("content"), -1, "", "")
	if err != nil {
		t.Fatal(err)
	}
	commitTo(t, s, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "k", Attachments: []blob.Attachment{a}}}})
	other := create(t, two, turnstone.Request{ID: "other"})
	if _, err := other.LinkAttachment(ctx, "s", a.ID); err != nil {
		t.Fatal(err)
	}
	commitTo(t, other, turnstone.Commit{Stored: map[string]blob.ID{"p": a.ID}})
	if parts, err := other.Checkpoint(ctx, 0); err != nil || string(parts["p"]) != "content" {
		t.Errorf("%q, %v", parts, err)
	}
	// One that is uploaded again is told with both.
	if _, err := s.PutAttachment(ctx, strings.NewReader("content"), -1, "", ""); err != nil {
		t.Fatal(err)
	}
	if of, err := s.Attachment(ctx, a.ID); err != nil || of.Node.IsZero() || of.Expires.IsZero() {
		t.Errorf("%+v, %v", of, err)
	}
}
