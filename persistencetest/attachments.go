package persistencetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"testing/iotest"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
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
	{name: "A7_AnAttachmentIsLinkedFromAnotherSessionWithoutItsBytes", test: func(s *suite) {
		a := s.create(turnstone.Request{ID: "a"})
		content := pattern(300_000, 1)
		ref, err := a.PutAttachment(ctx, bytes.NewReader(content), -1, "image/png", "n")
		s.must(err)
		other := s.create(turnstone.Request{ID: "b"})
		uses := func(id string, refs ...blob.Attachment) error {
			_, err := s.session(id).Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "k", Attachments: refs}}})
			return err
		}
		s.is(uses("b", ref), turnstone.ErrUploadExpired) // To know an id is not enough.
		_, err = other.LinkAttachment(ctx, "c", ref.ID)
		s.is(err, turnstone.ErrSessionNotFound)
		_, err = other.LinkAttachment(ctx, "b", ref.ID)
		s.is(err, turnstone.ErrBlobNotFound)
		// Of an upload, and of what a node has; the link is an upload of its own.
		linked, err := other.LinkAttachment(ctx, "a", ref.ID)
		s.must(err)
		s.equal("reference", linked, ref)
		s.must(uses("a", ref))
		child, _, err := s.Factory.Create(ctx, turnstone.Request{ID: "child", Parent: "a", ForkAt: 1, Detached: true})
		s.must(err)
		_, err = child.LinkAttachment(ctx, "a", ref.ID)
		s.must(err)
		s.must(s.Factory.Delete(ctx, "a", turnstone.KeepChildren))
		s.must(second(s.Factory.GC(ctx, gc.Options{})))
		s.twice(func() {
			for _, id := range []string{"b", "child"} {
				all, err := s.session(id).Uploads(ctx)
				s.must(err)
				s.equal("uploads", []any{len(all), all[0].Attachment}, []any{1, ref})
				var b bytes.Buffer
				s.must(second(s.session(id).ReadAttachment(ctx, &b, ref.ID)))
				s.equal("content is right", bytes.Equal(b.Bytes(), content), true)
			}
		})
		s.must(uses("b", ref))
		gone := s.session("child")
		s.must(gone.Delete(ctx, turnstone.AnyRevision, turnstone.KeepChildren))
		_, err = s.session("b").LinkAttachment(ctx, "child", ref.ID)
		s.is(err, turnstone.ErrSessionNotFound)
		_, err = gone.LinkAttachment(ctx, "b", ref.ID)
		s.is(err, turnstone.ErrSessionDeleted)
	}},
	{name: "A8_AttachmentsAreListedAndHaveTimeAndSize", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		put := func(id string, n int) blob.Attachment {
			s.Helper()
			ref, err := s.session(id).PutAttachment(ctx, bytes.NewReader(pattern(n, byte(n))), -1, "text/x", fmt.Sprint("n", n))
			s.must(err)
			return ref
		}
		one, two, three := put("a", 1), put("a", 20_000), put("a", 3)
		stat := func(id string, of blob.Attachment) turnstone.Attached {
			s.Helper()
			got, err := s.session(id).Attachment(ctx, of.ID)
			s.must(err)
			s.equal("reference", got.Attachment, of)
			return got
		}
		s.equal("expires", stat("a", one).Expires.After(time.Now()), true)
		first := s.commit(p, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "k", Attachments: []blob.Attachment{two, one}}}})
		second := s.commit(p, turnstone.Commit{Expected: 1, Nodes: []turnstone.NewNode{{Kind: "k", Attachments: []blob.Attachment{one, three}}}})
		_, _, err := s.Factory.Create(ctx, turnstone.Request{ID: "fork", Parent: "a", ForkNode: first.Nodes[0]})
		s.must(err)
		own := put("fork", 5)
		s.commit(s.session("fork"), turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "k", Attachments: []blob.Attachment{own}}}})
		list := func(id string) (names []string) {
			s.Helper()
			all, err := s.session(id).Attachments(ctx)
			s.must(err)
			for _, a := range all {
				s.equal("one alone", stat(id, a.Attachment), a)
				names = append(names, fmt.Sprint(a.Name, " ", a.Size, " ", a.Revision, " ", a.Inherited, " ", a.Node == first.Nodes[0], " ", a.Time.IsZero()))
			}
			return names
		}
		s.twice(func() {
			s.equal("attachments", list("a"), []string{"n1 1 1 false true false", "n20000 20000 1 false true false", "n3 3 2 false false false"})
			s.equal("attachments", list("fork"), []string{"n1 1 1 true true false", "n20000 20000 1 true true false", "n5 5 1 false false false"})
			_, err := s.session("fork").Attachment(ctx, three.ID)
			s.is(err, turnstone.ErrBlobNotFound)
		})
		// What is erased is gone; what is tombstoned can be read until then.
		s.must(s.session("a").Tombstone(ctx, second.Nodes[0]))
		s.equal("attachments", len(list("a")), 3)
		_, err = s.session("a").Vacuum(ctx, gc.VacuumOptions{})
		s.must(err)
		s.equal("attachments", len(list("a")), 2)
		_, err = s.session("a").Attachment(ctx, three.ID)
		s.is(err, turnstone.ErrBlobNotFound)
	}},
	{name: "A9_APartIsSetToContentThatIsStored", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		content := pattern(900_000, 1)
		ref, err := p.PutAttachment(ctx, bytes.NewReader(content), -1, "", "")
		s.must(err)
		turn := turnstone.Commit{Turn: "t", Nodes: texts("one"), Stored: map[string]blob.ID{"large": ref.ID}, Checkpoint: map[string][]byte{"small": []byte("s")}}
		first := s.commit(p, turn)
		again, err := p.Commit(ctx, turn)
		s.must(err)
		s.equal("replayed", []any{again.Replayed, again.Commit}, []any{true, first.Commit})
		same := turn // as bytes it is the same commit
		same.Stored, same.Checkpoint = nil, map[string][]byte{"small": []byte("s"), "large": content}
		again, err = p.Commit(ctx, same)
		s.must(err)
		s.equal("replayed", []any{again.Replayed, again.Commit}, []any{true, first.Commit})
		other := turn
		other.Stored = map[string]blob.ID{"large": blob.Sum([]byte("other"))}
		s.is(func() error { _, err := p.Commit(ctx, other); return err }(), turnstone.ErrTurnConflict)
		s.commit(p, turnstone.Commit{Expected: 1, Checkpoint: map[string][]byte{"large": append(bytes.Clone(content), 'x')}})
		_, _, err = s.Factory.Create(ctx, turnstone.Request{ID: "b"})
		s.must(err)
		b := s.session("b")
		_, err = b.Commit(ctx, turnstone.Commit{Stored: map[string]blob.ID{"large": ref.ID}})
		s.is(err, turnstone.ErrUploadExpired)
		parts := func(id string, at head.Revision, want map[string][]byte) {
			s.Helper()
			got, err := s.session(id).Checkpoint(ctx, at)
			s.must(err)
			s.equal("checkpoint is right", maps.EqualFunc(got, want, bytes.Equal), true)
		}
		// The upload has gone into the part; another one of the same content, also by a session that has it as a part alone.
		_, err = p.Commit(ctx, turnstone.Commit{Expected: 2, Stored: map[string]blob.ID{"again": ref.ID}})
		s.is(err, turnstone.ErrUploadExpired)
		image, err := p.PutAttachment(ctx, bytes.NewReader(pattern(100, 2)), -1, "", "")
		s.must(err)
		s.commit(p, turnstone.Commit{Expected: 2, Nodes: []turnstone.NewNode{{Kind: "k", Attachments: []blob.Attachment{image}}}, Stored: map[string]blob.ID{"image": image.ID}})
		s.must(second(b.LinkAttachment(ctx, "a", image.ID)))
		s.commit(b, turnstone.Commit{Stored: map[string]blob.ID{"image": image.ID}})
		s.must(s.Factory.Delete(ctx, "nobody", turnstone.KeepChildren))
		s.must(second(s.Factory.GC(ctx, gc.Options{Full: true})))
		s.must(second(s.Factory.Vacuum(ctx, gc.VacuumOptions{})))
		s.twice(func() {
			small := []byte("s")
			parts("a", 1, map[string][]byte{"small": small, "large": content})
			parts("a", 3, map[string][]byte{"small": small, "large": append(bytes.Clone(content), 'x'), "image": pattern(100, 2)})
			parts("b", 1, map[string][]byte{"image": pattern(100, 2)})
		})
		for _, c := range []turnstone.Commit{
			{Stored: map[string]blob.ID{"": image.ID}},
			{Stored: map[string]blob.ID{"p": {}}},
			{Stored: map[string]blob.ID{"p": image.ID}, Checkpoint: map[string][]byte{"p": nil}},
			{Stored: map[string]blob.ID{"p": image.ID}, Drop: []string{"p"}},
		} {
			c.Expected = turnstone.AnyRevision
			_, err := s.session("a").Commit(ctx, c)
			s.is(err, turnstone.ErrInvalid)
		}
	}},
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }
