package persistencetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing/iotest"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/gc"
)

var attachments = []behaviour{
	{name: "A1_A3_AttachmentsAreStreamedAndDeduplicated", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		var refs []blob.Attachment
		sizes := []int{0, 1, 5000, 70_000, 300_000, 3 << 20}
		for i, n := range sizes {
			size := int64(n)
			if i%2 == 1 {
				size = -1
			}
			content := pattern(n, byte(i))
			ref, err := p.PutAttachment(ctx, iotest.HalfReader(bytes.NewReader(content)), size, "image/png", fmt.Sprint("n", i))
			s.must(err)
			again, err := p.PutAttachment(ctx, bytes.NewReader(content), -1, "text/plain", "other name")
			s.must(err)
			s.equal("equal bytes", fmt.Sprint(again.ID, again.Size), fmt.Sprint(ref.ID, n))
			again.Name = "other"
			refs = append(refs, ref, again)
		}
		_, err := p.PutAttachment(ctx, bytes.NewReader(pattern(100, 1)), 101, "", "")
		if err == nil {
			s.Fatal("a truncated stream was accepted")
		}
		_, err = p.PutAttachment(ctx, bytes.NewReader(pattern(100, 1)), 99, "", "")
		if err == nil {
			s.Fatal("a stream that is too long was accepted")
		}
		broken := errors.New("broken")
		_, err = p.PutAttachment(ctx, io.MultiReader(bytes.NewReader(pattern(100_000, 1)), iotest.ErrReader(broken)), -1, "", "")
		s.is(err, broken)
		s.commit(p, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "k", Attachments: refs}}})
		s.twice(func() {
			p := s.session("a")
			s.equal("references", s.load(p, turnstone.Scope{}).Nodes[0].Attachments, refs)
			for i, n := range sizes {
				var b bytes.Buffer
				m, err := p.ReadAttachment(ctx, &b, refs[2*i].ID)
				s.must(err)
				if m != int64(n) || !bytes.Equal(b.Bytes(), pattern(n, byte(i))) {
					s.Fatalf("attachment of %d bytes comes back as %d", n, m)
				}
			}
		})
	}},
	{name: "A2_ASessionReadsOnlyItsOwn", test: func(s *suite) {
		p, q := s.create(turnstone.Request{ID: "a"}), s.create(turnstone.Request{ID: "b"})
		ref, err := p.PutAttachment(ctx, bytes.NewReader(pattern(9000, 1)), -1, "", "")
		s.must(err)
		r := s.commit(p, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "k", Attachments: []blob.Attachment{ref}}}})
		_, err = q.ReadAttachment(ctx, io.Discard, ref.ID)
		s.is(err, turnstone.ErrBlobNotFound)
		_, err = q.ReadAttachment(ctx, io.Discard, blob.ID{1})
		s.is(err, turnstone.ErrBlobNotFound)
		f := s.create(turnstone.Request{ID: "f", Parent: "a", ForkNode: r.Nodes[0]})
		n, err := f.ReadAttachment(ctx, io.Discard, ref.ID)
		s.must(err)
		s.equal("size", n, 9000)
		unknown := blob.Attachment{ID: blob.ID{1, 2}, Size: 5}
		_, err = p.Commit(ctx, turnstone.Commit{Expected: 1, Nodes: []turnstone.NewNode{{Kind: "k", Attachments: []blob.Attachment{unknown}}}})
		s.is(err, turnstone.ErrBlobNotFound)
		_, err = p.Commit(ctx, turnstone.Commit{Expected: 1, Nodes: []turnstone.NewNode{{Kind: "k", Attachments: []blob.Attachment{{}}}}})
		s.is(err, turnstone.ErrInvalid)
	}},
	{name: "A6_ASessionListsAndReadsWhatItUploaded", test: func(s *suite) {
		p, q := s.create(turnstone.Request{ID: "a"}), s.create(turnstone.Request{ID: "b"})
		uploads := func(p turnstone.Persistence, want ...blob.Attachment) {
			s.Helper()
			have, err := p.Uploads(ctx)
			s.must(err)
			got := map[blob.ID]blob.Attachment{}
			for _, u := range have {
				got[u.ID] = u.Attachment
				if until := time.Until(u.Expires); until <= 0 || until > 30*24*time.Hour {
					s.Fatalf("the upload expires in %v", until)
				}
			}
			s.equal("number of uploads", len(have), len(want))
			for _, a := range want {
				s.equal("upload", got[a.ID], a)
			}
		}
		uploads(p)
		var refs []blob.Attachment
		for i, n := range []int{0, 9000, 2 << 20} {
			first, err := p.PutAttachment(ctx, bytes.NewReader(pattern(n, byte(i))), -1, "", "")
			s.must(err)
			ref, err := p.PutAttachment(ctx, bytes.NewReader(pattern(n, byte(i))), -1, "image/png", fmt.Sprint("name ", i))
			s.must(err)
			s.equal("id", first.ID, ref.ID)
			refs = append(refs, ref)
		}
		s.twice(func() {
			p, q = s.session("a"), s.session("b")
			uploads(p, refs...)
			uploads(q)
			for i, a := range refs {
				var w bytes.Buffer
				_, err := p.ReadAttachment(ctx, &w, a.ID)
				s.must(err)
				s.equal("content", bytes.Equal(w.Bytes(), pattern(int(a.Size), byte(i))), true)
				_, err = q.ReadAttachment(ctx, io.Discard, a.ID)
				s.is(err, turnstone.ErrBlobNotFound)
			}
			_, err := s.Factory.GC(ctx, gc.Options{})
			s.must(err)
		})
		s.commit(p, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "k", Attachments: refs[:2]}}})
		uploads(p, refs[2])
		for _, a := range refs {
			_, err := p.ReadAttachment(ctx, io.Discard, a.ID)
			s.must(err)
		}
		s.must(s.Factory.Delete(ctx, "a", turnstone.KeepChildren))
		_, err := p.Uploads(ctx)
		s.is(err, turnstone.ErrSessionDeleted)
		_, err = p.ReadAttachment(ctx, io.Discard, refs[2].ID)
		s.is(err, turnstone.ErrSessionDeleted)
	}},
	{name: "A4_ACommitSaysTheSizeThatAnAttachmentHas", test: func(s *suite) {
		contents := [][]byte{nil, pattern(100, 1), pattern(700_000, 2), pattern(2<<20, 3)}
		p, other := s.create(turnstone.Request{ID: "a"}), s.create(turnstone.Request{ID: "b"})
		var refs []blob.Attachment
		for i, content := range contents {
			ref, err := p.PutAttachment(ctx, bytes.NewReader(content), -1, "", fmt.Sprint("n", i))
			s.must(err)
			refs = append(refs, ref)
		}
		wrong := func(p turnstone.Persistence) {
			s.Helper()
			for i, ref := range refs {
				for _, size := range []int64{ref.Size + 1, ref.Size - 1, 0, turnstone.MaxBlob} {
					if size == ref.Size {
						continue
					}
					bad := ref
					bad.Size = size
					_, err := p.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{
						{Kind: "k", Attachments: refs}, {Kind: "k", Attachments: []blob.Attachment{ref, bad}},
					}})
					s.is(err, turnstone.ErrInvalid)
					if size >= 0 {
						s.refused(err, turnstone.ErrInvalid, fmt.Sprintf("node 1: attachment %q is of %d bytes, not of %d", ref.Name, len(contents[i]), size))
					}
				}
			}
		}
		wrong(p)
		s.reads(p, turnstone.Scope{})
		s.commit(p, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "k", Attachments: refs}}})
		s.create(turnstone.Request{ID: "f", Parent: "a"})
		s.twice(func() {
			wrong(s.session("a"))
			wrong(s.session("f")) // the fork inherited the attachment
			s.commit(s.session("f"), turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "k", Attachments: refs}}})
		})
		// A session that lacks the attachment does not learn its size.
		other = s.session(other.ID())
		bad := refs[1]
		bad.Size++
		_, err := other.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "k", Attachments: []blob.Attachment{bad}}}})
		s.is(err, turnstone.ErrBlobNotFound)
	}},
	{name: "A5_AnUploadToADeletedSessionLeavesNothing", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		s.must(s.Factory.Delete(ctx, "a", turnstone.KeepChildren))
		s.create(turnstone.Request{ID: "a"}) // another incarnation
		read := errors.New("it was read")
		_, err := p.PutAttachment(ctx, iotest.ErrReader(read), -1, "", "")
		s.is(err, turnstone.ErrSessionDeleted)
		if errors.Is(err, read) {
			s.Fatal(err)
		}
		for _, size := range []int{0, 5000, 2 << 20} {
			p := s.create(turnstone.Request{ID: "b"})
			deletes := readerFunc(func([]byte) (int, error) {
				s.must(s.Factory.Delete(ctx, "b", turnstone.KeepChildren))
				return 0, io.EOF
			})
			_, err := p.PutAttachment(ctx, io.MultiReader(bytes.NewReader(pattern(size, 1)), deletes), -1, "", "")
			s.is(err, turnstone.ErrSessionDeleted)
		}
		for range 2 {
			_, err := s.Factory.Vacuum(ctx, gc.VacuumOptions{})
			s.must(err)
		}
		r, err := s.Factory.GC(ctx, gc.Options{})
		s.must(err)
		s.equal("blobs left", r.Retained, 0)
	}},
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }
