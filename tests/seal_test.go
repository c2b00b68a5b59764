package tests

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/testkit"

	"github.com/turnstonedb/turnstone"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
)

// In the background segments are sealed fast; who asks for it gets them as small
// as they can be, once, however many there are.
func TestWhatTheBackgroundSealedFastIsSealedAgain(t *testing.T) {
	batches := 0
	e := &enginetest.Faulty{Engine: memory.New(), Plan: beforeEachApply(func(*engine.Batch) { batches++ })}
	st := openStore(t, e, &turnstone.Options{NoAutoSeal: true, SealBytes: 20_000})
	s := create(t, st, turnstone.Request{ID: "s"})
	var want []string
	commit := func(n int) {
		t.Helper()
		for range n {
			text := strings.Repeat(fmt.Sprint("turn ", len(want), " of a conversation; "), 40)
			commitAt(t, s, turnstone.Commit{Expected: head.Revision(len(want)), Nodes: saying([]byte(text))})
			want = append(want, text)
		}
	}
	levels := func() (out []codec.Level) {
		t.Helper()
		of := history.Revisions{Inc: incarnationOf(s), Last: head.Revision(len(want))}
		for seg, err := range historiesOf(st).Segments(ctx, of) {
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, seg.Level)
		}
		return out
	}
	complete := func() {
		t.Helper()
		l, err := s.Load(ctx, turnstone.Scope{})
		if err != nil || len(l.Nodes) != len(want) {
			t.Fatal(len(l.Nodes), err)
		}
		for i, n := range l.Nodes {
			if string(n.Payload) != want[i] {
				t.Fatalf("node %d differs", i)
			}
			if got, err := s.Node(ctx, n.ID); err != nil || string(got.Payload) != want[i] {
				t.Fatalf("node %d by id: %v", i, err)
			}
		}
		verify(t, st)
	}
	for round := range 2 {
		commit(75)
		if err := sealFast(ctx, s); err != nil { // what the background does
			t.Fatal(err)
		}
		got := levels()
		sealed := slices.IndexFunc(got, func(l codec.Level) bool { return l == codec.Medium })
		if sealed < 0 || !slices.Contains(got[sealed:], codec.Fast) || slices.Contains(got[sealed:], codec.Best) || round == 0 && sealed > 0 {
			t.Errorf("round %d: levels %v after sealing in the background", round, got)
		}
		complete()
		if err := s.Seal(ctx); err != nil {
			t.Fatal(err)
		}
		if got := levels(); len(got) != 1+round || slices.ContainsFunc(got, func(l codec.Level) bool { return l != codec.Best }) {
			t.Errorf("round %d: levels %v after Seal", round, got)
		}
		complete()
		batches = 0
		if err := s.Seal(ctx); err != nil || batches != 0 {
			t.Errorf("round %d: sealing again writes %d batches, %v", round, batches, err)
		}
	}
}

// A store seals in the background what has gathered.
func TestSealingRunsByItself(t *testing.T) {
	st := openStore(t, memory.New(), &turnstone.Options{SealBytes: 10_000})
	s := create(t, st, turnstone.Request{ID: "a"})
	for i := range 200 {
		commitAt(t, s, turnstone.Commit{Expected: head.Revision(i), Nodes: []turnstone.NewNode{{Kind: "k", Payload: random(1000, uint64(i))}}})
	}
	for wait := 0; ; wait++ {
		stats, err := st.Stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if stats.Sealed >= 5 && stats.Loose < 100 {
			break
		}
		if wait == 2000 {
			t.Fatalf("%d sealed, %d loose", stats.Sealed, stats.Loose)
		}
		time.Sleep(5 * time.Millisecond)
	}
	verify(t, st)
}

// A turn that is larger than a segment is to be is sealed all the same, and so are turns at the
// largest size of a segment that can be chosen.
func TestTurnsLargerThanASegmentAreSealed(t *testing.T) {
	testkit.Slow(t)
	st := openStore(t, memory.New(), &turnstone.Options{NoAutoSeal: true})
	s := create(t, st, turnstone.Request{ID: "s"})
	var small, big []turnstone.NewNode
	for i := range 30 {
		small = append(small, turnstone.NewNode{Kind: "u", Payload: random(5000, uint64(i))})
	}
	for i := range 350 {
		big = append(big, turnstone.NewNode{Kind: "u", Payload: random(5000, uint64(1000+i))})
	}
	commitTo(t, s, turnstone.Commit{Nodes: small})
	commitTo(t, s, turnstone.Commit{Nodes: big})
	if err := st.Seal(ctx); err != nil {
		t.Error(err)
	}
	st2 := openStore(t, memory.New(), &turnstone.Options{NoAutoSeal: true, SealBytes: turnstone.MaxSeal})
	s = create(t, st2, turnstone.Request{ID: "s"})
	for i := range 30 {
		for j := range small {
			small[j].Payload = random(5000, uint64(5000+i*100+j))
		}
		commitTo(t, s, turnstone.Commit{Nodes: small})
	}
	if err := st2.Seal(ctx); err != nil {
		t.Error("SealBytes 4M:", err)
	}
}

// The nodes of a session refer to attachments 51,200 times, under names that all differ, or to
// the same 64 all the time: that is more than one segment takes, and they are sealed all the same.
func TestManyReferencesToAttachmentsAreSealed(t *testing.T) {
	testkit.Seldom(t)
	testkit.OneGoroutine(t)
	if testing.Short() {
		t.Skip("-short: it takes 51,200 references to attachments")
	}
	for _, distinct := range testkit.Pick([]bool{false, true}, []bool{false}, []bool{false}) {
		st := openStore(t, memory.New(), &turnstone.Options{NoAutoSeal: true})
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

// The event keys of 16,000 nodes, of 256 bytes each, are more than one segment takes: the nodes
// are sealed all the same.
func TestManyLongEventKeysAreSealed(t *testing.T) {
	testkit.Seldom(t)
	testkit.OneGoroutine(t)
	if testing.Short() {
		t.Skip("-short: it takes 16,000 nodes")
	}
	st := openStore(t, memory.New(), &turnstone.Options{NoAutoSeal: true, SealBytes: 1 << 20})
	s := create(t, st, turnstone.Request{ID: "s"})
	c := uint64(0)
	for i := range 40 {
		var n []turnstone.NewNode
		for range 400 {
			c++
			key := random(256, c)
			for j, x := range key {
				key[j] = '!' + x%90
			}
			n = append(n, turnstone.NewNode{Kind: "u", Key: string(key), Payload: []byte("hi")})
		}
		if _, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: n}); err != nil {
			t.Fatal(i, err)
		}
	}
	if err := s.Seal(ctx); err != nil {
		t.Error(err)
	}
	if stats, err := st.Stats(ctx); err != nil || stats.Sealed == 0 || stats.Loose != 0 {
		t.Errorf("%d segments are sealed and %d packs loose, %v", stats.Sealed, stats.Loose, err)
	}
}

// A session is sealed while a call reads its packs, between two pages: the call finds in the
// segment what was in the packs.
func TestCallsBesideASealReportNoDamage(t *testing.T) {
	testkit.Slow(t)
	for _, op := range []string{"commit", "tombstone", "fork", "replay", "load", "seal"} {
		e := &pager{Engine: memory.New()}
		st := openStore(t, e, &turnstone.Options{NoAutoSeal: true, SealBytes: 1 << 20})
		s := create(t, st, turnstone.Request{ID: "s"})
		var n []turnstone.NewNode
		for i := range 220 {
			n = append(n, turnstone.NewNode{Kind: "u", Payload: random(5000, uint64(i))})
		}
		r := commitAt(t, s, turnstone.Commit{Turn: "T", Nodes: n})
		commitAt(t, s, turnstone.Commit{Expected: 1, Nodes: saying([]byte("x"))})
		commitAt(t, s, turnstone.Commit{Expected: 2, Nodes: saying([]byte("x"))})
		other := session(t, st, "s")
		k := spaceOf(st).Segment(incarnationOf(s), 1, 0)
		seen := 0
		e.between = func(key []byte) {
			if string(key) == string(k) {
				if seen++; seen == 2 || op == "seal" || op == "load" { // the rescan with the limit known
					e.between = nil
					if err := other.Seal(ctx); err != nil {
						t.Error("seal", err)
					}
				}
			}
		}
		var err error
		switch op {
		case "commit":
			_, err = s.Commit(ctx, turnstone.Commit{Expected: 3, Nodes: []turnstone.NewNode{{Kind: "u", Parent: turnstone.RefTo(r.Leaf)}}})
		case "tombstone":
			err = s.Tombstone(ctx, r.Nodes[0])
		case "fork":
			_, _, err = st.Create(ctx, turnstone.Request{ID: "f", Parent: "s", ForkNode: r.Leaf})
		case "replay":
			_, err = s.Commit(ctx, turnstone.Commit{Turn: "T", Nodes: n})
		case "load":
			_, err = s.Load(ctx, turnstone.Scope{})
		case "seal":
			err = s.Seal(ctx)
		}
		if err != nil || seen == 0 {
			t.Error(op, seen, err)
		}
	}
}

// Labels and usage count for the size of a segment: a segment of turns that say much and add no node fits a batch of
// every engine.
func TestASegmentOfTurnsThatSayMuchFitsABatch(t *testing.T) {
	testkit.Seldom(t)
	testkit.OneGoroutine(t)
	st := openStore(t, memory.New(), &turnstone.Options{NoAutoSeal: true})
	s := create(t, st, turnstone.Request{ID: "s"})
	most := func(n, bytes, i int) string { return string(random(bytes, uint64(n*1000+i))) }
	for i := range 24 {
		c := turnstone.Commit{Expected: head.Revision(i), Labels: map[string]string{}}
		for n := range turnstone.MaxLabels {
			c.Labels[fmt.Sprint(n)] = hex.EncodeToString([]byte(most(n, turnstone.MaxCommitLabel/2, i)))
			c.Usage = append(c.Usage, head.Usage{Model: hex.EncodeToString([]byte(most(n, turnstone.MaxModel/2, 0)))})
		}
		commitAt(t, s, c)
	}
	vacuum(t, st)
	verify(t, st)
}
