package turnstone_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/badger"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/testscale"
	"github.com/turnstonedb/turnstone/record"
)

// rich fills a store with something of everything.
func rich(t *testing.T, st *turnstone.Store) {
	t.Helper()
	s := create(t, st, turnstone.Request{ID: "a", Metadata: turnstone.Metadata{Name: "n", Labels: map[string]string{"k": "v"}}})
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
			Nodes:      []turnstone.NewNode{{Kind: "user", Key: fmt.Sprint("k", i), Payload: fmt.Appendf(nil, "question %d", i)}, {Kind: "assistant", Payload: random(20+i*700, byte(i))}},
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
		r, err := s.Commit(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		leaf = r.Nodes[0]
		if i == 8 {
			if err := s.Seal(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	f := create(t, st, turnstone.Request{ID: "f", Parent: "a"})
	if _, err := f.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("forked")}}}); err != nil {
		t.Fatal(err)
	}
	if err := f.Tombstone(ctx, leaf); err != nil {
		t.Fatal(err)
	}
}

// everything is what all reads of a store give, as JSON; an error ends it.
func everything(st *turnstone.Store) (string, error) {
	var out strings.Builder
	tell := json.NewEncoder(&out).Encode
	page, err := st.List(ctx, turnstone.ListOptions{})
	if err != nil {
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

// someOfEach returns at most n records of each kind, from its whole range.
func someOfEach(all []engine.Pair, n int) (out []engine.Pair) {
	kinds := map[byte]int{}
	for _, p := range all {
		kinds[p.Key[4]]++
	}
	met := map[byte]int{}
	for _, p := range all {
		kind := p.Key[4]
		i := met[kind]
		met[kind]++
		if i*n/kinds[kind] != (i+1)*n/kinds[kind] || n >= kinds[kind] {
			out = append(out, p)
		}
	}
	return out
}

// R10: whatever record is damaged, reads give all they gave, or an error; and
// verify names it. What only an index held can be missing without being read.
func TestR10_DamageIsNamedAndNeverHidden(t *testing.T) {
	e := memory.New()
	st := openStore(t, e, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
	rich(t, st)
	healthy, err := everything(st)
	if err != nil {
		t.Fatal(err)
	}
	var pairs []engine.Pair
	for p, err := range e.Scan(ctx, engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		pairs = append(pairs, p)
	}
	silent := map[byte]int{}
	for _, p := range someOfEach(pairs, testscale.Pick(len(pairs), 6, 1)) {
		letter := p.Key[4]
		flipped := bytes.Clone(p.Value)
		flipped[len(flipped)/2] ^= 8
		for name, damage := range map[string]engine.Batch{
			"removed": {Deletes: [][]byte{p.Key}},
			"flipped": {Sets: []engine.Pair{{Key: p.Key, Value: flipped}}},
			"swapped": {Sets: []engine.Pair{{Key: p.Key, Value: pairs[(slices.IndexFunc(pairs, func(q engine.Pair) bool { return bytes.Equal(q.Key, p.Key) })+1)%len(pairs)].Value}}},
		} {
			if err := e.Apply(ctx, &damage); err != nil {
				t.Fatal(err)
			}
			fresh, err := turnstone.Open(ctx, e, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
			if err == nil {
				got, rerr := everything(fresh)
				v, verr := fresh.Verify(ctx, turnstone.VerifyOptions{})
				noticed := rerr != nil || verr != nil || !v.OK()
				var ce *record.CorruptError
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
			} else if ce := (*record.CorruptError)(nil); !errors.As(err, &ce) {
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
func TestABitFlippedUnderBadgerIsNoticed(t *testing.T) {
	testscale.Slow(t)
	if race {
		t.Skip("one goroutine, two hundred stores: there is nothing for the race detector")
	}
	dir := t.TempDir() + "/store"
	e, err := badger.Open(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	st := openStore(t, e, &turnstone.Options{NoAutoSeal: true, TakeOverAfter: -1})
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
	flips, harmless, refused, read, found := testscale.Pick(200, 60, 20), 0, 0, 0, 0
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
		e, err := badger.Open(copied, nil)
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
	if read == 0 || refused == 0 && testscale.Long() { // few flips keep a store from opening
		t.Error("no flip was noticed by a read, or none by Open")
	}
	t.Logf("of %d flips %d kept the store from opening, %d were named by reads, %d by verify, %d did no harm", flips, refused, read, found, harmless)
}
