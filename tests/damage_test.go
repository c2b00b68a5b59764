package tests

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/pebble"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// Whatever record is damaged, reads give all they gave, or an error; and
// verify names it. What only an index held can be missing without being read.
func TestR10_DamageIsNamedAndNeverHidden(t *testing.T) {
	e, st := onMemory(t, &turnstone.Options{NoAutoSeal: true})
	rich(t, st)
	healthy, err := everything(st)
	if err != nil {
		t.Fatal(err)
	}
	all := pairs(t, e)
	silent := map[byte]int{}
	for _, p := range someOfEach(all, testkit.Pick(len(all), 6, 1)) {
		letter := p.Key[4]
		flipped := bytes.Clone(p.Value)
		flipped[len(flipped)/2] ^= 8
		for name, harm := range map[string]engine.Batch{
			"removed": {Deletes: [][]byte{p.Key}},
			"flipped": {Sets: []engine.Pair{{Key: p.Key, Value: flipped}}},
			"swapped": {Sets: []engine.Pair{{Key: p.Key, Value: all[(slices.IndexFunc(all, func(q engine.Pair) bool { return bytes.Equal(q.Key, p.Key) })+1)%len(all)].Value}}},
		} {
			if err := e.Apply(ctx, &harm); err != nil {
				t.Fatal(err)
			}
			fresh, err := turnstone.Open(ctx, e, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
			if err == nil {
				got, rerr := everything(fresh)
				v, verr := fresh.Verify(ctx, turnstone.VerifyOptions{})
				noticed := rerr != nil || verr != nil || !v.OK()
				var ce *damage.CorruptError
				if rerr != nil && !errors.As(rerr, &ce) && !errors.Is(rerr, turnstone.ErrSessionNotFound) && !errors.Is(rerr, turnstone.ErrNodeNotFound) && !errors.Is(rerr, turnstone.ErrBlobNotFound) {
					t.Errorf("record %q %s: %v", letter, name, rerr)
				}
				if rerr == nil && got != healthy {
					silent[letter]++
					// Without its entry in the order a session is in no list; without
					// its tombstone a node is back. Both are only records of their own.
					if letter != 't' && letter != 'u' || name != "removed" {
						t.Errorf("record %q %s: reads differ without an error", letter, name)
					}
				}
				// The commit keeps the blobs that its upload pinned, too.
				if !noticed && (letter != 'x' || name != "removed") {
					t.Errorf("record %q %s: nobody noticed", letter, name)
				}
				fresh.Close()
			} else if ce := (*damage.CorruptError)(nil); !errors.As(err, &ce) {
				t.Errorf("record %q %s: Open: %v", letter, name, err)
			}
			if err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{p}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got, err := everything(st); err != nil || got != healthy {
		t.Error("the store did not recover with its records:", err)
	}
}

// A bit flips in a table of Badger: what reads it says so, and so does verify.
// Nothing is missing without an error, also for who would create a store.
func TestR10_ABitFlippedUnderPebbleIsNoticed(t *testing.T) {
	testkit.Slow(t)
	testkit.OneGoroutine(t)
	dir := t.TempDir() + "/store"
	e, err := pebble.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	st := openStore(t, e, &turnstone.Options{NoAutoSeal: true})
	rich(t, st)
	healthy, err := everything(st)
	if err == nil {
		err = errors.Join(e.Vacuum(ctx), st.Close(), e.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	tables, err := filepath.Glob(dir + "/*.sst")
	if err != nil || len(tables) != 1 {
		t.Fatal(tables, err)
	}
	data, err := os.ReadFile(tables[0])
	if err != nil {
		t.Fatal(err)
	}
	flips, harmless, refused, read, found := testkit.Pick(200, 60, 20), 0, 0, 0, 0
	rng := rand.New(rand.NewPCG(7, 7))
	for range flips {
		at, bit := rng.IntN(len(data)), byte(1)<<rng.IntN(8)
		copied := t.TempDir() + "/store"
		if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Chmod(copied, 0o700), os.Remove(copied+"/turnstone.lock")); err != nil {
			t.Fatal(err)
		}
		broken := bytes.Clone(data)
		broken[at] ^= bit
		if err := os.WriteFile(filepath.Join(copied, strings.TrimPrefix(tables[0], dir)), broken, 0o600); err != nil {
			t.Fatal(err)
		}
		e, err := pebble.Open(copied, nil)
		if err != nil {
			refused++
			continue
		}
		st, err := turnstone.Open(ctx, e, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
		if err != nil {
			refused++
		} else {
			got, rerr := everything(st)
			v, verr := st.Verify(ctx, turnstone.VerifyOptions{})
			switch {
			case rerr != nil && (verr != nil || !v.OK()):
				read++
			case got == healthy && (verr != nil || !v.OK()):
				found++
			case got == healthy:
				harmless++
			default:
				t.Errorf("bit %#x of byte %d: reads differ, and nobody noticed", bit, at)
			}
			st.Close()
		}
		e.Close()
	}
	if read == 0 || refused == 0 && testkit.Long() { // few flips keep a store from opening
		t.Error("no flip was noticed by a read, or none by Open")
	}
	t.Logf("of %d flips %d kept the store from opening, %d were named by reads, %d by verify, %d did no harm", flips, refused, read, found, harmless)
}

// The pack of a turn is written anew with another payload in place of one of the same length: no
// read returns it.
func TestR10_ANodeWhosePayloadWasReplacedIsNotRead(t *testing.T) {
	e, st := onMemory(t, nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	r := commitAt(t, s, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "u", Payload: []byte("true"), Key: "k"}, {Kind: "u", Payload: []byte("b"), Parent: turnstone.RefNone()}}})
	turn, err := historiesOf(st).TurnAt(ctx, incarnationOf(s), 1)
	if err != nil {
		t.Fatal(err)
	}
	turn.Pack.Nodes[0].Inline = []byte("FAKE")
	ks, vs, err := history.EncodeTurn(spaceOf(st), incarnationOf(s), turn.Body(), &turn.Pack)
	if err != nil || len(ks) != 1 {
		t.Fatal(len(ks), err)
	}
	var b engine.Batch
	b.Set(ks[0], vs[0])
	if err := e.Apply(ctx, &b); err != nil {
		t.Fatal(err)
	}
	var corrupt *damage.CorruptError
	if _, err := s.Load(ctx, turnstone.Scope{Full: true}); !errors.As(err, &corrupt) {
		t.Errorf("full: %v", err)
	}
	if _, err := s.NodeByKey(ctx, "k"); !errors.As(err, &corrupt) {
		t.Errorf("by key: %v", err)
	}
	// The id of the altered node is another one, which was never committed.
	if n, err := s.Node(ctx, r.Nodes[0]); !errors.As(err, &corrupt) && !errors.Is(err, turnstone.ErrNodeNotFound) {
		t.Errorf("by id: %q, %v", n.Payload, err)
	}
}

// A node is not taken for absent because the index is lost. Load needs no index, and Verify misses
// it.
func TestR10_ALostIndexHidesNoNodeFromLoadAndIsNamedByVerify(t *testing.T) {
	e, st := onMemory(t, nil)
	s := create(t, st, turnstone.Request{ID: "s"})
	commitAt(t, s, turnstone.Commit{Nodes: saying([]byte("x"))})
	r := commitAt(t, s, turnstone.Commit{Expected: 1, Nodes: saying([]byte("x"))})
	if err := s.Seal(ctx); err != nil {
		t.Fatal(err)
	}
	var b engine.Batch
	b.Delete(spaceOf(st).Index(incarnationOf(s), 2, 0))
	if err := e.Apply(ctx, &b); err != nil {
		t.Fatal(err)
	}
	var corrupt *damage.CorruptError
	if _, err := s.Node(ctx, r.Leaf); !errors.As(err, &corrupt) {
		t.Error(err)
	}
	if _, err := s.Load(ctx, turnstone.Scope{Last: 1}); err != nil { // needs no index
		t.Error(err)
	}
	if v, err := st.Verify(ctx, turnstone.VerifyOptions{}); err != nil || v.OK() {
		t.Error("verify does not notice", err)
	}
}

// A node that vacuum has erased is gone because of its tombstone. If that is lost, no read shows a
// history without the node.
func TestR10_ALostTombstoneOfAnErasedNodeIsNoticed(t *testing.T) {
	e, st := onMemory(t, nil)
	s := create(t, st, turnstone.Request{ID: "a"}, []byte("one"), []byte("two"), []byte("three"))
	state, err := s.Load(ctx, turnstone.Scope{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Tombstone(ctx, state.Nodes[1].ID); err != nil {
		t.Fatal(err)
	}
	vacuum(t, st)
	var lose engine.Batch
	for _, p := range pairs(t, e) {
		if p.Key[4] == keys.Tombstone {
			lose.Delete(p.Key)
		}
	}
	if err := e.Apply(ctx, &lose); err != nil || len(lose.Deletes) != 1 {
		t.Fatalf("%d tombstones, %v", len(lose.Deletes), err)
	}
	s = session(t, openStore(t, e, nil), "a")
	for _, scope := range []turnstone.Scope{{}, {Full: true}, {Last: 2}, {Reverse: true}, {After: 1}, {Full: true, Reverse: true}} {
		_, lerr := s.Load(ctx, scope)
		var nerr error
		for _, err := range s.Nodes(ctx, scope) {
			nerr = err
		}
		for what, err := range map[string]error{"Load": lerr, "Nodes": nerr} {
			var ce *damage.CorruptError
			if !errors.As(err, &ce) {
				t.Errorf("%s of %+v: %v", what, scope, err)
			}
		}
	}
}

// A head that is rolled back between the two looks of one read is damage, as it is
// before the first.
func TestR10_AHeadThatIsRolledBackWhileItIsReadIsNoticed(t *testing.T) {
	for _, back := range []int{1, 2} { // revisions
		e := memory.New()
		writer := create(t, openStore(t, e, &turnstone.Options{NoAutoSeal: true}), turnstone.Request{ID: "s"})
		var heads []engine.Pair // of each revision
		turn := func() {
			commitTo(t, writer, turnstone.Commit{Nodes: saying([]byte("x"))})
			for _, p := range pairs(t, e) {
				if p.Key[4] == keys.Head {
					heads = append(heads, p)
				}
			}
		}
		turn()
		turn()
		f := &enginetest.Faulty{Engine: e}
		s, err := openStore(t, f, &turnstone.Options{NoAutoSeal: true}).Session(ctx, "s")
		if err != nil {
			t.Fatal(err)
		}
		turn() // s does not know
		f.Plan = before(2, func() {
			old := heads[len(heads)-1-back]
			if err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{old}}); err != nil {
				t.Error(err)
			}
		})
		var corrupt *damage.CorruptError
		if i, err := s.Info(ctx); !errors.As(err, &corrupt) {
			t.Errorf("back by %d: revision %d, %v", back, i.Revision, err)
		}
	}
}
