package tests

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/history"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// named says what a problem with the record of each kind is called.
var named = map[byte]string{
	'A': "store record", 'C': "note of the last copy", 'S': "scrub record", 'N': "note of the last maintenance", 'D': "detached blob", 'E': "erasure", 'G': "candidate", 'a': "metadata", 'b': "blob",
	'd': "dirty record", 'e': "attachment entry", 'f': "fork entr", 'g': "cycle record", 'h': "edge", 'j': "number of edges",
	'l': "lifecycle", 'm': "mark", 'o': "origin", 'p': "commit", 'r': "kept revision", 's': "head",
	't': "tombstone", 'u': "list entry", 'v': "place in lists", 'w': "predecessor", 'W': "forgotten", 'x': "upload", 'y': "index", 'z': "bookmark",
	'R': "record", 'n': "list of records", 'F': "record of the feed", 'Q': "end of the feed", 'c': "change that is not in the feed", 'q': "change",
}

// Whatever record is removed, altered or put in the place of another one of its
// kind, Verify names it by its kind and what it belongs to.
func TestVF1_VerifyNamesEveryRecord(t *testing.T) {
	testkit.OneGoroutine(t)
	e := full(t)
	scrub(t, openStore(t, e, nil), turnstone.ScrubOptions{})
	if err := openStore(t, e, nil).NoteMaintenance(ctx, "backup", time.Second, nil, nil); err != nil {
		t.Fatal(err)
	}
	verify(t, openStore(t, e, &turnstone.Options{NoAutoSeal: true}))
	var all []engine.Pair
	kinds := map[byte][]engine.Pair{}
	for _, p := range pairs(t, e) {
		all = append(all, p)
		kinds[p.Key[4]] = append(kinds[p.Key[4]], p)
	}
	for letter, what := range named {
		if len(kinds[letter]) == 0 {
			t.Errorf("the store has no %s (%q)", what, letter)
		}
	}
	about := tableOf(t, e)
	check := func(p engine.Pair, how string, corrupt engine.Batch) (noticed bool) {
		if err := e.Apply(ctx, &corrupt); err != nil {
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
			var corrupt *damage.CorruptError
			if !errors.As(err, &corrupt) {
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
	for i, p := range someOfEach(all, testkit.Pick(len(all), 5, 1)) {
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
	verify(t, openStore(t, e, &turnstone.Options{NoAutoSeal: true})) // all is as it was
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
	for _, p := range pairs(t, e) {
		switch fields := p.Key[5:]; p.Key[4] {
		case keys.About:
			about, err := head.DecodeAbout(p.Key, p.Value)
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
			life, err := head.DecodeLife(p.Key, p.Value)
			if err != nil {
				t.Fatal(err)
			}
			out.incs[string(life.Session[:])] = string(fields)
			out.dead[string(fields)] = life.State == head.Deleted
		}
	}
	return out
}

// identities returns what may stand in a problem for what a record belongs to.
func (s *table) identities(key []byte) (out []string) {
	fields := key[5:]
	var parts [][]byte
	switch key[4] {
	case keys.Store, keys.Cycle, keys.Copying, keys.Scrub, keys.Maintenance, keys.Forgotten, keys.Feed, keys.FeedEnd, keys.Pending, keys.Change:
		return []string{""}
	case keys.Entry:
		parts = [][]byte{fields[24:]}
	case keys.Listing:
		parts = [][]byte{fields[len(fields)-16:]}
	case keys.About, keys.Head, keys.Predecessor:
		parts = [][]byte{fields, []byte(s.incs[string(fields)])}
	case keys.Edge:
		parts = [][]byte{fields[:16], fields[17:]}
	case keys.Fork, keys.Upload, keys.Detached:
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
	case letter == keys.Maintenance:
		return "the note of the last maintenance: the next one writes it anew"
	case letter == keys.Scrub:
		return "the scrub record: the next scrub begins anew"
	case letter == keys.Erased:
		return "the note of an erasure: nothing else in the store knows of it"
	case letter == keys.Record && fields[16] == '.':
		return "a record in no list: nothing else says that it was there"
	case letter == keys.Pending:
		return "a change that is not in the feed yet: nothing else says that it was told, and the session has it"
	case letter == keys.Forgotten:
		return "the record of forgotten predecessors: it stops a creation that was sent before and comes late"
	case letter == keys.Predecessor:
		return "the predecessor record of an id whose session was deleted or renamed: it stops a creation that was sent before and comes late, tells an erasure that goes on which session it is, and goes by itself"
	case letter == keys.Upload && bytes.Equal(fields[16:], make([]byte, 16)):
		return "an unfinished upload: without it the next collection ends the upload, and what refers to it is refused"
	case letter == keys.Upload && !s.open[string(fields[:16])] && s.ids[string(fields[:16])] == "":
		return "what a finished upload pinned: the commit that it was for, or its grant, keeps the whole"
	case letter == keys.Upload && !s.open[string(fields[:16])] && s.held[string(fields[16:])] > 1:
		return "the grant of a large attachment: the commit that it is for is refused, and collections find the blob by the pins of the upload"
	}
	return ""
}

// A blob that only the first checkpoint of a fork refers to is not unreferenced.
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
		vacuum(t, st)
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
	prune(t, f, 1)
	unreferenced(1)
}

// A record whose key is too short to be any of the format is a problem that Verify names, and ends
// Stats.
func TestVF1_ARecordWithAShortKeyIsNamed(t *testing.T) {
	for _, suffix := range []string{"", "b", "mab", "sx"} {
		t.Run(suffix, func(t *testing.T) {
			e, st := onMemory(t, nil)
			k := append(bytes.Clone(keys.StoreKey("")[:4]), suffix...)
			var b engine.Batch
			b.Set(k, []byte("x"))
			if err := e.Apply(ctx, &b); err != nil {
				t.Fatal(err)
			}
			v, err := st.Verify(ctx, turnstone.VerifyOptions{})
			if err != nil || len(v.Problems) != 1 || !errors.Is(v.Problems[0], damage.ErrMalformed) {
				t.Errorf("verify: %v, %v", v.Problems, err)
			}
			if _, err := st.Stats(ctx); !errors.Is(err, damage.ErrMalformed) {
				t.Errorf("stats: %v", err)
			}
		})
	}
}

// A list of chunks that has its items in another order has its own checksum right, but not the hash
// of the whole: reads and Verify say so.
func TestVF1_AListWhoseItemsAreSwappedIsNamed(t *testing.T) {
	mem, st := onMemory(t, nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	a := upload(t, s, random(2<<20, 1))
	commitAt(t, s, turnstone.Commit{Nodes: attaching(a)})
	k := spaceOf(st).Blob(spaceOf(st).BlobHash(a.ID), 0)
	vs, err := mem.Get(ctx, k)
	if err != nil {
		t.Fatal(err)
	}
	body, err := codec.Decode(k, vs[0], keys.Blob)
	if err != nil {
		t.Fatal(err)
	}
	refs, err := blobsOf(st).Items(ctx, a.ID)
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
	b.Set(k, codec.Encode(k, keys.Blob, nb))
	if err := mem.Apply(ctx, &b); err != nil {
		t.Fatal(err)
	}
	var w bytes.Buffer
	_, rerr := blobsOf(st).WriteTo(ctx, &w, a.ID)
	v, err := st.Verify(ctx, turnstone.VerifyOptions{})
	if !errors.Is(rerr, damage.ErrHash) || err != nil || len(v.Problems) != 1 || !errors.Is(v.Problems[0], damage.ErrHash) {
		t.Errorf("read: %v; verify: %v, %v", rerr, v.Problems, err)
	}
}

// Verify reads in proportion to the store, also when forks follow each other to
// the greatest depth, and go on from what they inherit.
func TestVF2_VerifyReadsEachHistoryOnce(t *testing.T) {
	testkit.Slow(t)
	cost := func(depth int, deleted bool) (calls, records float64) {
		read, called := 0, 0 // keys asked for and pairs scanned; Get and Scan
		e := &enginetest.Faulty{Engine: memory.New(), Done: func(c enginetest.Call, _ error) {
			if c.Op == "Get" || c.Op == "Scan" {
				read += c.Read
				called++
			}
		}}
		st := openStore(t, e, &turnstone.Options{NoAutoSeal: true})
		root := create(t, st, turnstone.Request{ID: "0"})
		first := commitTo(t, root, turnstone.Commit{Nodes: saying([]byte("first")), Checkpoint: map[string][]byte{"p": []byte("0")}}).Nodes[0]
		for i := range depth {
			f := create(t, st, turnstone.Request{ID: fmt.Sprint(i + 1), Parent: fmt.Sprint(i)})
			commitTo(t, f, turnstone.Commit{Nodes: saying(fmt.Append(nil, i)), Checkpoint: map[string][]byte{"p": fmt.Append(nil, i)}})
			commitTo(t, f, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "branch", Parent: turnstone.RefTo(first)}}})
		}
		collect(t, st, gc.Options{})
		if deleted {
			for i := range depth {
				remove(t, st, fmt.Sprint(i))
			}
		}
		read, called = 0, 0
		v, err := st.Verify(ctx, turnstone.VerifyOptions{})
		if err != nil || !v.OK() || v.Records < depth {
			t.Fatal(v.Problems, err)
		}
		return float64(called) / float64(depth+1), float64(read) / float64(v.Records)
	}
	for _, deleted := range []bool{false, true} {
		calls16, records16 := cost(16, deleted)
		calls256, records256 := cost(256, deleted)
		t.Logf("deleted: %v; at depth 16: %.1f calls a session, each record read %.1f times; at 256: %.1f, %.1f", deleted, calls16, records16, calls256, records256)
		if calls256 > 1.2*calls16 || records256 > 1.2*records16 {
			t.Error("a deeper chain costs more for each session")
		}
	}
}

// Verify computes how long the paths to leaves and fork nodes are: a commit and a fork that say something else, with
// hashes that fit, are found.
func TestVF8_VerifyKnowsTheLengthsOfPaths(t *testing.T) {
	e, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
	s := create(t, st, turnstone.Request{ID: "s"})
	commitTo(t, s, turnstone.Commit{Nodes: append(saying([]byte("1")), saying([]byte("2"))...)})
	create(t, st, turnstone.Request{ID: "f", Parent: "s"})
	verify(t, st)
	found := func(st *turnstone.Store, what string) {
		t.Helper()
		v, err := st.Verify(ctx, turnstone.VerifyOptions{})
		if err != nil || len(v.Problems) == 0 || !slices.ContainsFunc(v.Problems, func(err error) bool { return strings.Contains(err.Error(), what) }) {
			t.Errorf("%s: %v, %v", what, v.Problems, err)
		}
	}
	apply := func(b engine.Batch) {
		t.Helper()
		if err := e.Apply(ctx, &b); err != nil {
			t.Fatal(err)
		}
	}
	// The origin of a fork without commits: its head has the same length.
	var harm, mend engine.Batch
	for _, p := range pairs(t, e) {
		switch p.Key[4] {
		case keys.Origin:
			o, err := head.DecodeOrigin(p.Key, p.Value)
			if err != nil {
				t.Fatal(err)
			}
			o.Depth = 7
			harm.Set(p.Key, o.Encode(p.Key))
			mend.Set(p.Key, p.Value)
			for _, h := range pairs(t, e) {
				if h.Key[4] != keys.Head {
					continue
				}
				one, err := head.DecodeHead(h.Key, h.Value)
				if err != nil {
					t.Fatal(err)
				}
				if bytes.Equal(one.Incarnation[:], p.Key[5:]) {
					one.Depth, one.Commit = 7, head.Genesis(one.Incarnation, o)
					harm.Set(h.Key, one.Encode(h.Key))
					mend.Set(h.Key, h.Value)
				}
			}
		}
	}
	if len(harm.Sets) != 2 {
		t.Fatalf("%d records", len(harm.Sets))
	}
	apply(harm)
	found(openStore(t, e, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1}), "path to the fork node")
	apply(mend)
	verify(t, openStore(t, e, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1}))
	// A commit, with its head.
	remove(t, st, "f")
	vacuum(t, st)
	turn, err := historiesOf(st).TurnAt(ctx, incarnationOf(s), 1)
	if err != nil {
		t.Fatal(err)
	}
	lying := turn.Commit
	lying.Depth = 9
	ks, vs, err := history.EncodeTurn(spaceOf(st), incarnationOf(s), lying.Body(), &turn.Pack)
	if err != nil {
		t.Fatal(err)
	}
	harm = engine.Batch{}
	for i := range ks {
		harm.Set(ks[i], vs[i])
	}
	for _, h := range pairs(t, e) {
		if h.Key[4] == keys.Head {
			one, err := head.DecodeHead(h.Key, h.Value)
			if err != nil {
				t.Fatal(err)
			}
			one.Depth, one.Commit = 9, lying.ID()
			harm.Set(h.Key, one.Encode(h.Key))
		}
	}
	apply(harm)
	found(openStore(t, e, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1}), "path to the leaf of commit 1")
}
