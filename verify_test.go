package turnstone_test

import (
	"bytes"
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
	"github.com/turnstonedb/turnstone/internal/heads"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testscale"
	"github.com/turnstonedb/turnstone/record"
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

// full returns an engine with a store that has records of every kind: a copy, so that
// it has a note of that, too. Its records are the same every time, but for random values.
func full(t *testing.T) *memory.Engine {
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
	put := func(s *turnstone.Session, size int, seed byte) blob.Attachment {
		t.Helper()
		a, err := s.PutAttachment(ctx, bytes.NewReader(random(size, seed)), -1, "image/png", "x")
		must(err)
		return a
	}
	vacuum := func() {
		t.Helper()
		_, err := st.Vacuum(ctx, gc.VacuumOptions{})
		must(err)
	}

	a := create(t, st, turnstone.Request{ID: "a", Metadata: turnstone.Metadata{Name: "n", Labels: map[string]string{"k": "v"}, Retention: 9}})
	att := put(a, 300, 1)
	part := random(4000, 2)
	var nodes []graph.ID
	for i := range 8 {
		part[i*7]++
		c := turnstone.Commit{
			Turn:       fmt.Sprint("t", i),
			Nodes:      []turnstone.NewNode{{Kind: "user", Key: fmt.Sprint("k", i), Payload: random(900, byte(i))}, {Kind: "side"}},
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
	must(a.Keep(ctx, "kept", 3))
	f := create(t, st, turnstone.Request{ID: "f", Parent: "a"})
	commitTo(t, f, turnstone.Commit{Nodes: saying([]byte("forked")), Checkpoint: map[string][]byte{"p": []byte("own")}})
	ff := create(t, st, turnstone.Request{ID: "ff", Parent: "f"})
	add(ff, "in the fork of the fork")
	commitTo(t, ff, turnstone.Commit{Leaf: turnstone.RefTo(nodes[5])})
	commitTo(t, ff, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "branch", Parent: turnstone.RefTo(nodes[3])}}})
	must(f.Tombstone(ctx, nodes[6]))
	must(a.Tombstone(ctx, nodes[1]))
	create(t, st, turnstone.Request{ID: "detached", Parent: "a", ForkNode: nodes[0], Detached: true})
	must(st.Rename(ctx, "detached", "renamed"))

	// A deleted session that only forks hold, one part of which nobody does.
	d := create(t, st, turnstone.Request{ID: "d"})
	commitTo(t, d, turnstone.Commit{
		Nodes:      []turnstone.NewNode{{Kind: "user", Key: "dk", Payload: random(6000, 9), Attachments: []blob.Attachment{put(d, 400, 3)}}},
		Checkpoint: map[string][]byte{"p": []byte("of the deleted")},
	})
	must(d.Tombstone(ctx, add(d, "hidden")))
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
	must(st.Delete(ctx, "gone", turnstone.KeepChildren))
	vacuum()

	// What no collection has seen: commits, an upload, one that is not finished, a
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

	// A vacuum that was cut off when it had detached a blob, and a collection that was
	// when it had listed one.
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
	// And again what no collection has seen.
	put(a, 400_000, 11)
	commitTo(t, a, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "image", Attachments: []blob.Attachment{put(a, 300_000, 12)}}}})
	i := create(t, st, turnstone.Request{ID: "i", Parent: "h"})
	commitTo(t, i, turnstone.Commit{Nodes: saying(random(9000, 10)), Checkpoint: map[string][]byte{"p": []byte("new")}})
	j := create(t, st, turnstone.Request{ID: "j"})
	commitTo(t, j, turnstone.Commit{Nodes: saying([]byte("deleted at once"))})
	must(st.Delete(ctx, "j", turnstone.KeepChildren))
	create(t, st, turnstone.Request{ID: "k", Parent: "a"})
	must(st.Delete(ctx, "k", turnstone.KeepChildren))

	copied := memory.New()
	_, err = turnstone.Copy(ctx, source, copied, turnstone.CopyOptions{})
	must(err)
	return copied
}

// named says what a problem with the record of each kind is called.
var named = map[byte]string{
	'A': "store record", 'C': "note of the last copy", 'D': "detached blob", 'G': "candidate", 'a': "metadata", 'b': "blob", 'c': "commit",
	'd': "dirty record", 'e': "attachment entry", 'f': "fork entr", 'g': "cycle record", 'h': "edge", 'i': "turn", 'j': "number of edges",
	'k': "event key", 'l': "lifecycle", 'm': "mark", 'o': "origin", 'p': "pack", 'q': "child entry", 'r': "kept revision", 's': "head",
	't': "tombstone", 'u': "order of sessions", 'v': "order of sessions", 'w': "predecessor", 'x': "upload", 'y': "index", 'z': "bookmark",
}

// VF1: whatever record is removed, altered or put in the place of another one of its
// kind, Verify names it by its kind and what it belongs to.
func TestVF1_VerifyNamesEveryRecord(t *testing.T) {
	if race {
		t.Skip("one goroutine, hundreds of stores: there is nothing for the race detector")
	}
	e := full(t)
	verify(t, openStore(t, e, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1}))
	var all []engine.Pair
	kinds := map[byte][]engine.Pair{}
	for p, err := range e.Scan(ctx, engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
		kinds[p.Key[4]] = append(kinds[p.Key[4]], p)
	}
	for letter, what := range named {
		if len(kinds[letter]) == 0 {
			t.Errorf("the store has no %s (%q)", what, letter)
		}
	}
	about := tableOf(t, e)
	check := func(p engine.Pair, how string, damage engine.Batch) (noticed bool) {
		if err := e.Apply(ctx, &damage); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{p}}); err != nil {
				t.Fatal(err)
			}
		}()
		var problems []error
		st, err := turnstone.Open(ctx, e, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
		if err == nil {
			v, verr := st.Verify(ctx, turnstone.VerifyOptions{})
			st.Close()
			problems, err = v.Problems, verr
		}
		problems = append(problems, err)
		ids := about.identities(p.Key)
		for _, err := range problems {
			if err == nil {
				continue
			}
			noticed = true
			var damage *record.CorruptError
			if !errors.As(err, &damage) {
				t.Errorf("%s of %x, %s: %v", named[p.Key[4]], p.Key, how, err)
			}
			if strings.Contains(err.Error(), named[p.Key[4]]) && slices.ContainsFunc(ids, func(id string) bool { return strings.Contains(err.Error(), id) }) {
				return true
			}
		}
		if noticed {
			t.Errorf("%s at %x, %s: no problem names it and any of %q: %v", named[p.Key[4]], p.Key, how, ids, problems)
		}
		return noticed
	}
	harmless := map[string]int{}
	for i, p := range someOfEach(all, testscale.Pick(len(all), 5, 1)) {
		letter := p.Key[4]
		if !check(p, "removed", engine.Batch{Deletes: [][]byte{p.Key}}) {
			reason := about.harmless(p)
			if reason == "" {
				t.Errorf("%s at %x was removed, and Verify did not notice", named[letter], p.Key)
			}
			harmless[reason]++
		}
		flipped := bytes.Clone(p.Value)
		flipped[i%len(flipped)] ^= 1 << (i % 8)
		if !check(p, "altered", engine.Batch{Sets: []engine.Pair{{Key: p.Key, Value: flipped}}}) {
			t.Errorf("%s at %x was altered, and Verify did not notice", named[letter], p.Key)
		}
		kind := kinds[letter]
		other := kind[(slices.IndexFunc(kind, func(q engine.Pair) bool { return bytes.Equal(q.Key, p.Key) })+1)%len(kind)]
		if bytes.Equal(other.Key, p.Key) {
			continue // there is no other one
		}
		if !check(p, "replaced", engine.Batch{Sets: []engine.Pair{{Key: p.Key, Value: other.Value}}}) {
			t.Errorf("the value of another %s at %x, and Verify did not notice", named[letter], p.Key)
		}
	}
	t.Logf("%d records; not missed: %v", len(all), harmless)
	verify(t, openStore(t, e, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})) // all is as it was
}

// A table is what a test knows of a store's sessions.
type table struct {
	ids  map[string]string // of sessions that live, by incarnation
	incs map[string]string // by the hash of the session id
	dead map[string]bool   // incarnations of deleted sessions of which something is left
	open map[string]bool   // uploads that are not finished
	held map[string]int    // how many records under keys.Upload name a blob
}

func tableOf(t *testing.T, e engine.Engine) *table {
	t.Helper()
	out := &table{ids: map[string]string{}, incs: map[string]string{}, dead: map[string]bool{}, open: map[string]bool{}, held: map[string]int{}}
	for p, err := range e.Scan(ctx, engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		switch fields := p.Key[5:]; p.Key[4] {
		case keys.About:
			about, err := heads.OpenAbout(p.Key, p.Value)
			if err != nil {
				t.Fatal(err)
			}
			out.ids[string(about.Incarnation[:])] = about.ID
		case keys.Upload:
			out.held[string(fields[16:])]++
			if bytes.Equal(fields[16:], make([]byte, 16)) {
				out.open[string(fields[:16])] = true
			}
		case keys.Life:
			life, err := heads.OpenLife(p.Key, p.Value)
			if err != nil {
				t.Fatal(err)
			}
			out.incs[string(life.Session[:])] = string(fields)
			out.dead[string(fields)] = life.State == heads.Deleted
		}
	}
	return out
}

// identities returns what may stand in a problem for what a record belongs to.
func (s *table) identities(key []byte) (out []string) {
	fields := key[5:]
	var parts [][]byte
	switch key[4] {
	case keys.Store, keys.Cycle, keys.Copying:
		return []string{""}
	case keys.Order:
		parts = [][]byte{fields[8:]}
	case keys.About, keys.Head, keys.Predecessor:
		parts = [][]byte{fields, []byte(s.incs[string(fields)])}
	case keys.Edge:
		parts = [][]byte{fields[:16], fields[17:]}
	case keys.Fork, keys.Child, keys.Upload, keys.Detached:
		parts = [][]byte{fields[:16], fields[16:]}
	default:
		parts = [][]byte{fields[:16]}
	}
	for _, p := range parts {
		if len(p) == 0 {
			continue
		}
		out = append(out, fmt.Sprintf("%x", p))
		if id := s.ids[string(p)]; id != "" {
			out = append(out, fmt.Sprintf("session %q", id))
		}
	}
	return out
}

// harmless says why nobody misses a record, or "".
func (s *table) harmless(p engine.Pair) string {
	fields := p.Key[5:]
	switch letter := p.Key[4]; {
	case letter == keys.Copying:
		return "the note of a copy: the next copy into the store refuses to overwrite it without being told"
	case letter == keys.Turn && s.dead[string(fields[:16])]:
		return "a turn of a deleted session: only a commit of that session would ask for it"
	case letter == keys.Predecessor && s.incs[string(fields)] == "":
		return "the predecessor record of an id whose session was renamed, or removed by vacuum: only a creation that was sent before and comes late is stopped by it"
	case letter == keys.Upload && bytes.Equal(fields[16:], make([]byte, 16)):
		return "an unfinished upload: without it the next collection ends the upload, and what refers to it is refused"
	case letter == keys.Upload && !s.open[string(fields[:16])] && s.ids[string(fields[:16])] == "":
		return "what a finished upload pinned: the commit that it was for, or its grant, keeps the whole"
	case letter == keys.Upload && !s.open[string(fields[:16])] && s.held[string(fields[16:])] > 1:
		return "the grant of a large attachment: the commit that it is for is refused, and collections find the blob by the pins of the upload"
	}
	return ""
}

// VF3: a blob that only the first checkpoint of a fork refers to is not unreferenced.
func TestVF3_AForksFirstCheckpointIsReferredTo(t *testing.T) {
	_, st := onMemory(t, nil)
	p := create(t, st, turnstone.Request{ID: "p"})
	commitTo(t, p, turnstone.Commit{Nodes: saying([]byte("1")), Checkpoint: map[string][]byte{"a": []byte("inherited part")}})
	f := create(t, st, turnstone.Request{ID: "f", Parent: "p"})
	commitTo(t, f, turnstone.Commit{Nodes: saying([]byte("2")), Checkpoint: map[string][]byte{"a": []byte("own part")}})
	remove(t, st, "p")
	unreferenced := func(want int) {
		t.Helper()
		v, err := st.Verify(ctx, turnstone.VerifyOptions{})
		if err != nil || !v.OK() || v.Unreferenced != want {
			t.Fatal(v.Unreferenced, v.Problems, err)
		}
	}
	for range 2 {
		if _, err := st.Vacuum(ctx, gc.VacuumOptions{}); err != nil {
			t.Fatal(err)
		}
		unreferenced(0)
	}
	info, err := f.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	g := create(t, st, turnstone.Request{ID: "g", Parent: "f", ForkNode: info.ForkNode})
	if parts, err := g.Checkpoint(ctx, 0); err != nil || string(parts["a"]) != "inherited part" {
		t.Fatal(parts, err)
	}
	// When neither of the forks retains its beginning, it is.
	remove(t, st, "g")
	pruneTo1(t, f)
	unreferenced(1)
}
