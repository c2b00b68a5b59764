package tests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// cutAfter runs call on a store on e, and makes the engine fail for good after the
// first batch that sets a record under letter.
func cutAfter(t *testing.T, e engine.Engine, o *turnstone.Options, letter byte, call func(*turnstone.Store) error) {
	t.Helper()
	cut := false
	f := &enginetest.Faulty{Engine: e, Plan: func(c enginetest.Call) enginetest.Fault {
		if cut {
			return enginetest.Fault{Crash: true}
		}
		if c.Op == "Apply" {
			cut = slices.ContainsFunc(c.Batch.Sets, func(p engine.Pair) bool { return p.Key[4] == letter })
		}
		return enginetest.Fault{}
	}}
	st := openStore(t, f, o)
	if err := call(st); err == nil || !cut {
		t.Fatalf("no record %q was written before the end: %v", letter, err)
	}
}

// full returns an engine with a store that has records of every kind. The store is a copy of
// another one, because only a copy has the record that notes it. The records are the same every
// time, except those that have random values.
func full(t *testing.T) *memory.Engine {
	t.Helper()
	return fullOf(t, random)
}

// fullOf is full with contents that a function makes.
func fullOf(t *testing.T, random func(n int, seed uint64) []byte) *memory.Engine {
	t.Helper()
	source := memory.New()
	clock := time.Unix(1_800_000_000, 0)
	o := &turnstone.Options{
		NoAutoSeal: true, TakeOverAfter: -1, SealBytes: 2000, Random: rand.NewChaCha8([32]byte{}),
		Now: func() time.Time { clock = clock.Add(time.Second); return clock },
	}
	st := openStore(t, source, o)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	add := func(s *turnstone.Session, text string) graph.ID {
		t.Helper()
		return commitTo(t, s, turnstone.Commit{
			Turn: "turn " + text, Nodes: []turnstone.NewNode{{Kind: "user", Key: "key " + text, Payload: []byte(text)}},
			Usage: []head.Usage{{Model: "m", Input: 1}},
		}).Nodes[0]
	}
	put := func(s *turnstone.Session, size int, seed uint64) blob.Attachment {
		t.Helper()
		a, err := s.PutAttachment(ctx, bytes.NewReader(random(size, seed)), -1, "image/png", "x")
		must(err)
		return a
	}

	must(create(t, st, turnstone.Request{ID: "was"}).Rename(ctx, "is"))
	clock = clock.Add(2 * time.Hour)
	collect(t, st, gc.Options{}) // forgets the id

	a := create(t, st, turnstone.Request{ID: "a", Metadata: head.Metadata{Name: "n", Group: "app/user", Labels: map[string]string{"k": "v"}, Retention: 9}})
	att := put(a, 300, 1)
	part := random(4000, 2)
	var nodes []graph.ID
	for i := range 8 {
		part[i*7]++
		part = fmt.Appendf(part, `{"step":%d,"plan":"as in step %d","result":"that of step %d"}`, i, i-1, i-1)
		c := turnstone.Commit{
			Turn:       fmt.Sprint("t", i),
			Nodes:      []turnstone.NewNode{{Kind: "user", Key: fmt.Sprint("k", i), Payload: random(900, uint64(i))}, {Kind: "side"}},
			Leaf:       turnstone.RefNew(0),
			Checkpoint: map[string][]byte{"p": bytes.Clone(part)},
			Usage:      []head.Usage{{Model: "m", Input: 1}},
		}
		if i == 2 || i == 4 {
			c.Nodes[0].Attachments = []blob.Attachment{att}
		}
		nodes = append(nodes, commitTo(t, a, c).Nodes[0])
		if i == 5 {
			must(a.Seal(ctx))
		}
	}
	must(st.StartFeed(ctx, turnstone.FeedOptions{Keep: 1000 * time.Hour}))
	must(a.Keep(ctx, "kept", 3))
	change(t, a, turnstone.RecordChange{Key: "queue/1", Value: random(700, 13)}, turnstone.RecordChange{Key: ".own", Value: []byte("not listed")})
	f := create(t, st, turnstone.Request{ID: "f", Parent: "a"})
	commitTo(t, f, turnstone.Commit{Nodes: saying([]byte("forked")), Checkpoint: map[string][]byte{"p": []byte("own")}})
	if _, err := st.Feed(ctx); err != nil { // What follows is not in the feed yet.
		t.Fatal(err)
	}
	ff := create(t, st, turnstone.Request{ID: "ff", Parent: "f"})
	add(ff, "in the fork of the fork")
	commitTo(t, ff, turnstone.Commit{Leaf: turnstone.RefTo(nodes[5])})
	commitTo(t, ff, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "branch", Parent: turnstone.RefTo(nodes[3])}}})
	must(f.Tombstone(ctx, nodes[6]))
	must(a.Tombstone(ctx, nodes[1]))
	create(t, st, turnstone.Request{ID: "detached", Parent: "a", ForkNode: nodes[0], Detached: true})
	must(rename(ctx, st, "detached", "renamed"))

	// A deleted session. A fork holds its history, except the last commit.
	d := create(t, st, turnstone.Request{ID: "d"})
	commitTo(t, d, turnstone.Commit{
		Nodes:      []turnstone.NewNode{{Kind: "user", Key: "dk", Payload: random(6000, 9), Attachments: []blob.Attachment{put(d, 400, 3)}}},
		Checkpoint: map[string][]byte{"p": []byte("of the deleted")},
	})
	must(d.Tombstone(ctx, add(d, "hidden")))
	change(t, d, turnstone.RecordChange{Key: "queue/1"})
	create(t, st, turnstone.Request{ID: "df", Parent: "d"})
	add(d, "of nobody")
	create(t, st, turnstone.Request{ID: "gone"})
	pruned := create(t, st, turnstone.Request{ID: "pruned"})
	root := add(pruned, "root")
	add(pruned, "branch")
	commitTo(t, pruned, turnstone.Commit{Leaf: turnstone.RefTo(root)})
	add(pruned, "on")
	_, err := pruned.Prune(ctx, 1)
	must(err)
	must(st.Delete(ctx, "d", turnstone.KeepChildren))
	_, err = st.Erase(ctx, "gone", turnstone.KeepChildren, turnstone.EraseOptions{})
	must(err)

	// No collection has seen the rest: commits, an upload, an upload that is not finished, a
	// deleted session and a deleted fork.
	add(a, "after the vacuum")
	put(a, 500, 4)
	cutAfter(t, source, o, 'x', func(st *turnstone.Store) error {
		s, err := st.Session(ctx, "a")
		if err == nil {
			_, err = s.PutAttachment(ctx, bytes.NewReader(random(700_000, 5)), -1, "", "")
		}
		return err
	})
	e := create(t, st, turnstone.Request{ID: "e"})
	commitTo(t, e, turnstone.Commit{Nodes: saying(random(7000, 6)), Checkpoint: map[string][]byte{"p": random(300, 7)}})
	ef := create(t, st, turnstone.Request{ID: "ef", Parent: "e"})
	add(ef, "deleted fork")
	must(st.Delete(ctx, "e", turnstone.KeepChildren))
	must(st.Delete(ctx, "ef", turnstone.KeepChildren))

	// One vacuum is cut off after it has detached a blob, and one collection after it has
	// listed a candidate.
	g := create(t, st, turnstone.Request{ID: "g"})
	id := commitTo(t, g, turnstone.Commit{Nodes: saying(random(8000, 8)), Checkpoint: map[string][]byte{"p": []byte("one")}}).Nodes[0]
	must(g.Tombstone(ctx, id))
	h := create(t, st, turnstone.Request{ID: "h"})
	commitTo(t, h, turnstone.Commit{Checkpoint: map[string][]byte{"p": []byte("first")}})
	commitTo(t, h, turnstone.Commit{Checkpoint: map[string][]byte{"p": []byte("second")}})
	cutAfter(t, source, o, 'D', func(st *turnstone.Store) error {
		_, err := st.Vacuum(ctx, gc.VacuumOptions{})
		return err
	})
	_, err = h.Prune(ctx, 1)
	must(err)
	cutAfter(t, source, o, 'G', func(st *turnstone.Store) error {
		h, err := st.Session(ctx, "h")
		if err == nil {
			_, err = h.GC(ctx, gc.Options{})
		}
		return err
	})
	// Again, no collection has seen the rest.
	put(a, 400_000, 11)
	commitTo(t, a, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "image", Attachments: []blob.Attachment{put(a, 300_000, 12)}}}})
	i := create(t, st, turnstone.Request{ID: "i", Parent: "h"})
	commitTo(t, i, turnstone.Commit{Nodes: saying(random(9000, 10)), Checkpoint: map[string][]byte{"p": []byte("new")}})
	j := create(t, st, turnstone.Request{ID: "j"})
	commitTo(t, j, turnstone.Commit{Nodes: saying([]byte("deleted at once")), Records: []turnstone.RecordChange{{Key: "queue/1", Value: []byte("of the deleted")}}})
	must(st.Delete(ctx, "j", turnstone.KeepChildren))
	create(t, st, turnstone.Request{ID: "k", Parent: "a"})
	must(st.Delete(ctx, "k", turnstone.KeepChildren))

	copied := memory.New()
	_, err = turnstone.Copy(ctx, source, copied, turnstone.CopyOptions{})
	must(err)
	return copied
}

// rich fills a store with something of everything.
func rich(t *testing.T, st *turnstone.Store) {
	t.Helper()
	s := create(t, st, turnstone.Request{ID: "a", Metadata: head.Metadata{Name: "n", Labels: map[string]string{"k": "v"}}})
	att, err := s.PutAttachment(ctx, bytes.NewReader(random(200_000, 1)), -1, "image/png", "x")
	if err != nil {
		t.Fatal(err)
	}
	part := random(3000, 2)
	var leaf graph.ID
	for i := range 12 {
		part[i*7]++
		c := turnstone.Commit{
			Expected: head.Revision(i), Turn: fmt.Sprint("t", i),
			Nodes:      []turnstone.NewNode{{Kind: "user", Key: fmt.Sprint("k", i), Payload: fmt.Appendf(nil, "question %d", i)}, {Kind: "assistant", Payload: random(20+i*700, uint64(i))}},
			Checkpoint: map[string][]byte{"p": bytes.Clone(part)},
			Usage:      []head.Usage{{Model: "m", Input: 1}},
		}
		if i == 3 {
			c.Nodes[0].Attachments = []blob.Attachment{att}
		}
		if i == 6 {
			c.Nodes = append(c.Nodes, turnstone.NewNode{Kind: "side", Parent: turnstone.RefTo(leaf)})
			c.Leaf = turnstone.RefNew(0)
		}
		r := commitAt(t, s, c)
		leaf = r.Nodes[0]
		if i == 8 {
			if err := s.Seal(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	f := create(t, st, turnstone.Request{ID: "f", Parent: "a"})
	commitAt(t, f, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("forked")}}})
	if err := f.Tombstone(ctx, leaf); err != nil {
		t.Fatal(err)
	}
	if err := st.StartFeed(ctx, turnstone.FeedOptions{Keep: 1000 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	change(t, s, turnstone.RecordChange{Key: "queue/1", Value: random(700, 3)}, turnstone.RecordChange{Key: "queue/2"})
	commitTo(t, f, turnstone.Commit{Records: []turnstone.RecordChange{{Key: "queue/1", Value: []byte("of the fork")}}})
}

// outcomeStore makes a store with a session a, which has three revisions, one of
// them kept as "old", a retention and a fork f; and a session b without children.
func outcomeStore(t *testing.T) *memory.Engine {
	t.Helper()
	e, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
	a := create(t, st, turnstone.Request{ID: "a", Metadata: head.Metadata{Retention: 2}})
	for i := range 3 {
		commitTo(t, a, turnstone.Commit{Nodes: saying(fmt.Append(nil, "turn ", i)), Checkpoint: map[string][]byte{"p": fmt.Append(nil, i)}})
	}
	if err := a.Keep(ctx, "old", 2); err != nil {
		t.Fatal(err)
	}
	commitTo(t, create(t, st, turnstone.Request{ID: "f", Parent: "a"}), turnstone.Commit{Nodes: saying([]byte("forked"))})
	b := create(t, st, turnstone.Request{ID: "b"})
	alone := saying([]byte("alone"))
	alone[0].Attachments = []blob.Attachment{upload(t, b, attached)}
	commitTo(t, b, turnstone.Commit{Nodes: alone})
	change(t, a, turnstone.RecordChange{Key: "r", Value: []byte("old")}, turnstone.RecordChange{Key: "r/gone"})
	startFeed(t, st)
	return e
}

// attached is what the attachment of session b of outcomeStore has.
var attached = []byte("attached")

// everything returns what all reads of a store give, as JSON. It stops at the first error.
func everything(st *turnstone.Store) (string, error) {
	var out strings.Builder
	tell := json.NewEncoder(&out).Encode
	page, err := st.List(ctx, turnstone.ListOptions{})
	if err != nil {
		return "", err
	}
	records, err := st.Records(ctx, turnstone.RecordQuery{})
	if err == nil {
		err = tell(records)
	}
	if err != nil {
		return "", err
	}
	f, err := st.Feed(ctx)
	for at := f.Begin; err == nil && at != f.End; {
		for c, werr := range st.Watch(ctx, at) {
			if err = werr; err == nil {
				err = tell(c)
			}
			if at = c.Cursor; err != nil || at == f.End {
				break
			}
		}
	}
	if err != nil && !errors.Is(err, turnstone.ErrFeedOff) {
		return "", err
	}
	for _, i := range page.Sessions {
		if err := tell(i); err != nil {
			return "", err
		}
		s, err := st.Session(ctx, i.ID)
		if err != nil {
			return "", err
		}
		for _, sc := range []turnstone.Scope{{}, {Full: true}, {Last: 4}, {At: 1}} {
			state, err := s.Load(ctx, sc)
			if errors.Is(err, turnstone.ErrRevisionPruned) || errors.Is(err, turnstone.ErrRevisionNotFound) && sc.At > i.Revision {
				fmt.Fprintln(&out, "no revision", sc.At)
				continue
			}
			if err != nil {
				return "", err
			}
			if err := tell(state); err != nil {
				return "", err
			}
		}
		parts, err := s.Checkpoint(ctx, 0)
		if err == nil {
			err = tell(parts)
		}
		var attachments []turnstone.Attached
		if err == nil {
			attachments, err = s.Attachments(ctx)
		}
		if err == nil {
			err = tell(attachments)
		}
		if err == nil {
			var own turnstone.RecordPage
			if own, err = s.Records(ctx, turnstone.RecordQuery{}); err == nil {
				err = tell(own)
			}
		}
		for _, key := range []string{"queue/1", "queue/2", ".own"} {
			var r turnstone.Record
			if err == nil {
				r, err = s.Record(ctx, key)
			}
			if errors.Is(err, turnstone.ErrRecordNotFound) {
				err = nil
			}
			if err == nil {
				err = tell(r)
			}
		}
		if err != nil {
			return "", err
		}
		for k := range 12 {
			n, err := s.NodeByKey(ctx, fmt.Sprint("k", k))
			if err != nil && !errors.Is(err, turnstone.ErrNodeNotFound) {
				return "", err
			}
			for _, a := range n.Attachments {
				var b bytes.Buffer
				if _, err := s.ReadAttachment(ctx, &b, a.ID); err != nil {
					return "", err
				}
			}
		}
	}
	return out.String(), nil
}

// visible returns all that can be seen of a store and that a call of effects can alter.
func visible(t *testing.T, e engine.Engine) string {
	t.Helper()
	st := openStore(t, e, &turnstone.Options{NoAutoSeal: true, MustExist: true})
	page, err := st.List(ctx, turnstone.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	f, err := st.Feed(ctx)
	if err != nil && !errors.Is(err, turnstone.ErrFeedOff) {
		t.Fatal(err)
	}
	out := fmt.Sprintln(f.Keep)
	for _, i := range page.Sessions {
		s := session(t, st, i.ID)
		state, err := s.Load(ctx, turnstone.Scope{Full: true})
		if err != nil {
			t.Fatal(err)
		}
		kept, err := s.Kept(ctx)
		if err != nil {
			t.Fatal(err)
		}
		records, err := s.Records(ctx, turnstone.RecordQuery{})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range records.Records { // a version and a time are of an attempt
			out += fmt.Sprintln(r.Key, r.Value)
		}
		_, first := s.Load(ctx, turnstone.Scope{At: 1})
		out += fmt.Sprintln(i.ID, i.Metadata, i.Revision, i.Leaf, state.Nodes, state.Parts, kept, errors.Is(first, turnstone.ErrRevisionPruned))
	}
	// An attachment that no commit refers to, and a segment, are seen by their records.
	for _, p := range pairs(t, e) {
		if letter := p.Key[4]; letter == 'x' || letter == 'y' {
			out += fmt.Sprintf("%c", letter)
		}
	}
	return out
}
