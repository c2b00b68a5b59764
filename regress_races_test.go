package turnstone_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testscale"
	"github.com/turnstonedb/turnstone/record"
)

func TestTwoPartsOfEqualContentKnowTheirDepth(t *testing.T) {
	st := openStore(t, memory.New(), nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	for i := range 64 {
		commitAt(t, s, turnstone.Commit{Expected: turnstone.AnyRevision, Checkpoint: map[string][]byte{"a": partVersion(i)}})
	}
	commitAt(t, s, turnstone.Commit{Expected: turnstone.AnyRevision, Checkpoint: map[string][]byte{"a": partVersion(64), "b": partVersion(64)}})
	commitAt(t, s, turnstone.Commit{Expected: turnstone.AnyRevision, Checkpoint: map[string][]byte{"b": partVersion(65)}})
	parts, err := s.Checkpoint(ctx, 0)
	if err != nil || !bytes.Equal(parts["a"], partVersion(64)) || !bytes.Equal(parts["b"], partVersion(65)) {
		t.Error(err)
	}
}

func TestSealCountsAttachments(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes 51,200 references to attachments")
	}
	for _, distinct := range testscale.Pick([]bool{false, true}, []bool{false}, []bool{false}) {
		st := openStore(t, memory.New(), &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
		s := create(t, st, turnstone.Request{ID: "s"})
		var atts []blob.Attachment
		for i := range 64 {
			a, err := s.PutAttachment(ctx, bytes.NewReader(random(100, uint64(i))), -1, "image/png", "")
			if err != nil {
				t.Fatal(err)
			}
			if !distinct {
				a.Name = fmt.Sprintf("%x", random(128, uint64(i+1000)))
			}
			atts = append(atts, a)
		}
		c := uint64(0)
		for i := range 40 {
			var n []turnstone.NewNode
			for range 80 {
				as := atts
				if !distinct {
					as = nil
					for j := range 16 {
						a := atts[j]
						c++
						a.Name = fmt.Sprintf("%x", random(128, c))
						as = append(as, a)
					}
				}
				n = append(n, turnstone.NewNode{Kind: "u", Payload: []byte("hi"), Attachments: as})
			}
			_, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: n})
			if err != nil {
				t.Fatal(i, err)
			}
		}
		if err := s.Seal(ctx); err != nil {
			t.Errorf("distinct %v: %v", distinct, err)
		}
		if stats, err := st.Stats(ctx); err != nil || stats.Sealed == 0 || stats.Loose != 0 {
			t.Errorf("distinct %v: %d segments are sealed and %d packs loose, %v", distinct, stats.Sealed, stats.Loose, err)
		}
	}
}

func TestVerifyBesideSeal(t *testing.T) {
	e := &pager{Engine: memory.New()}
	st := openStore(t, e, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1, SealBytes: 1 << 20})
	s := create(t, st, turnstone.Request{ID: "s"})
	var n []turnstone.NewNode
	for i := range 120 {
		n = append(n, turnstone.NewNode{Kind: "u", Payload: random(5000, uint64(i))})
	}
	commitAt(t, s, turnstone.Commit{Turn: "T", Nodes: n})
	commitAt(t, s, turnstone.Commit{Expected: 1, Nodes: saying([]byte("x"))})
	commitAt(t, s, turnstone.Commit{Expected: 2, Nodes: saying([]byte("x"))})
	k := turnstone.SpaceOf(st).Pack(turnstone.IncarnationOf(s), 1, 0)
	other, err := st.Session(ctx, "s")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	e.between = func(key []byte) {
		if string(key) == string(k) {
			if seen++; seen == 2 { // first is the scan of all records
				e.between = nil
				if err := other.Seal(ctx); err != nil {
					t.Error(err)
				}
			}
		}
	}
	v, err := st.Verify(ctx, turnstone.VerifyOptions{})
	if err != nil || !v.OK() || seen != 2 {
		t.Errorf("%v, %v; the pack was met %d times", v.Problems, err, seen)
	}
}

func TestVerifyHashesLists(t *testing.T) {
	mem := memory.New()
	st := openStore(t, mem, nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	a, err := s.PutAttachment(ctx, bytes.NewReader(random(2<<20, 1)), -1, "", "")
	if err != nil {
		t.Fatal(err)
	}
	commitAt(t, s, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "u", Attachments: []blob.Attachment{a}}}})
	k := turnstone.SpaceOf(st).Blob(turnstone.SpaceOf(st).BlobHash(a.ID), 0)
	vs, err := mem.Get(ctx, k)
	if err != nil {
		t.Fatal(err)
	}
	body, err := codec.Open(k, vs[0], keys.Blob)
	if err != nil {
		t.Fatal(err)
	}
	refs, err := turnstone.BlobsOf(st).Items(ctx, a.ID)
	if err != nil {
		t.Fatal(err)
	}
	x, y := refs[0], refs[1]
	// swap the items: ids with their sizes
	i, j := bytes.Index(body, x[:]), bytes.Index(body, y[:])
	i1 := j - i // stride
	nb := bytes.Clone(body)
	copy(nb[i-3:], body[j-3:j-3+i1])
	copy(nb[i-3+i1:], body[i-3:i-3+i1])
	var b engine.Batch
	b.Set(k, codec.Seal(k, keys.Blob, nb))
	if err := mem.Apply(ctx, &b); err != nil {
		t.Fatal(err)
	}
	var w bytes.Buffer
	_, rerr := turnstone.BlobsOf(st).WriteTo(ctx, &w, a.ID)
	v, err := st.Verify(ctx, turnstone.VerifyOptions{})
	if !errors.Is(rerr, record.ErrHash) || err != nil || len(v.Problems) != 1 || !errors.Is(v.Problems[0], record.ErrHash) {
		t.Errorf("read: %v; verify: %v, %v", rerr, v.Problems, err)
	}
}
