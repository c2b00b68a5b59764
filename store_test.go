package turnstone_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/badger"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/codec"
)

var ctx = context.Background()

func openStore(t *testing.T, e engine.Engine, o *turnstone.Options) *turnstone.Store {
	t.Helper()
	st, err := turnstone.Open(ctx, e, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

func create(t *testing.T, st *turnstone.Store, r turnstone.Request) *turnstone.Session {
	t.Helper()
	s, _, err := st.Create(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func random(n int, seed byte) []byte {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// rich fills a store with something of everything.
func rich(t *testing.T, st *turnstone.Store) {
	t.Helper()
	s := create(t, st, turnstone.Request{ID: "a", Metadata: turnstone.Metadata{Name: "n", Labels: map[string]string{"k": "v"}}})
	att, err := s.PutAttachment(ctx, bytes.NewReader(random(200_000, 1)), -1, "image/png", "x")
	if err != nil {
		t.Fatal(err)
	}
	part := random(3000, 2)
	var leaf turnstone.NodeID
	for i := range 12 {
		part[i*7]++
		c := turnstone.Commit{
			Expected: turnstone.Revision(i), Turn: fmt.Sprint("t", i),
			Nodes:      []turnstone.NewNode{{Kind: "user", Key: fmt.Sprint("k", i), Payload: fmt.Appendf(nil, "question %d", i)}, {Kind: "assistant", Payload: random(20+i*700, byte(i))}},
			Checkpoint: map[string][]byte{"p": bytes.Clone(part)},
			Usage:      []turnstone.Usage{{Model: "m", Input: 1}},
		}
		if i == 3 {
			c.Nodes[0].Attachments = []turnstone.Attachment{att}
		}
		if i == 6 {
			c.Nodes = append(c.Nodes, turnstone.NewNode{Kind: "side", Parent: turnstone.At(leaf)})
			c.Leaf = turnstone.New(0)
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

// everything is what all reads of a store give, as text; an error ends it.
func everything(st *turnstone.Store) (string, error) {
	var out strings.Builder
	page, err := st.List(ctx, turnstone.ListOptions{})
	if err != nil {
		return "", err
	}
	for _, i := range page.Sessions {
		fmt.Fprintln(&out, i.ID, i.Metadata, i.Revision, i.Leaf, i.Usage)
		s, err := st.Session(ctx, i.ID)
		if err != nil {
			return "", err
		}
		for _, sc := range []turnstone.Scope{{}, {Full: true}, {Last: 4}, {At: 1}} {
			state, err := s.Load(ctx, sc)
			if err != nil {
				return "", err
			}
			fmt.Fprintln(&out, state.Nodes, state.Usage)
		}
		parts, err := s.Checkpoint(ctx, 0)
		if err != nil {
			return "", err
		}
		fmt.Fprintln(&out, parts)
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

// R10: whatever record is damaged, reads give all they gave, or an error; and
// verify names it. What only an index held can be missing without being read.
func TestR10_DamageIsNamedAndNeverHidden(t *testing.T) {
	e := memory.New()
	st := openStore(t, e, &turnstone.Options{NoAutoSeal: true})
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
	for i, p := range pairs {
		letter := p.Key[4]
		flipped := bytes.Clone(p.Value)
		flipped[len(flipped)/2] ^= 8
		for name, damage := range map[string]engine.Batch{
			"removed": {Deletes: [][]byte{p.Key}},
			"flipped": {Sets: []engine.Pair{{Key: p.Key, Value: flipped}}},
			"swapped": {Sets: []engine.Pair{{Key: p.Key, Value: pairs[(i+1)%len(pairs)].Value}}},
		} {
			if err := e.Apply(ctx, &damage); err != nil {
				t.Fatal(err)
			}
			fresh, err := turnstone.Open(ctx, e, &turnstone.Options{NoAutoSeal: true})
			if err == nil {
				got, rerr := everything(fresh)
				v, verr := fresh.Verify(ctx, nil)
				noticed := rerr != nil || verr != nil || !v.OK()
				var ce *turnstone.CorruptError
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
				// A dirty record, a fork's grave and the like say nothing on their own.
				if !noticed && !strings.ContainsRune("dtvqw", rune(letter)) {
					t.Errorf("record %q %s: nobody noticed", letter, name)
				}
				if !noticed && name != "removed" {
					t.Errorf("record %q %s: verify did not notice", letter, name)
				}
				fresh.Close()
			} else if ce := (*turnstone.CorruptError)(nil); !errors.As(err, &ce) {
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

// A bit flips in a table of Badger, which checks nothing on its reads: reads give
// all they gave, or an error; what they don't notice, verify does.
func TestABitFlippedUnderBadgerIsNoticed(t *testing.T) {
	dir := t.TempDir() + "/store"
	e, err := badger.Open(dir, nil)
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
	tables, err := filepath.Glob(dir + "/gen-*/*.sst")
	if err != nil || len(tables) != 1 {
		t.Fatal(tables, err)
	}
	data, err := os.ReadFile(tables[0])
	if err != nil {
		t.Fatal(err)
	}
	flips, harmless, refused, read, found := 200, 0, 0, 0, 0
	if testing.Short() {
		flips = 50
	}
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
		st, err := turnstone.Open(ctx, e, &turnstone.Options{NoAutoSeal: true, MustExist: true})
		if err != nil {
			refused++
		} else {
			got, rerr := everything(st)
			v, verr := st.Verify(ctx, nil)
			switch {
			case rerr != nil:
				read++
			case verr != nil || !v.OK():
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
	t.Logf("of %d flips %d kept the store from opening, %d were named by reads, %d by verify, %d did no harm", flips, refused, read, found, harmless)
}

// Outcomes are unknown again and again, applied or not, sometimes late: every
// turn is there once, in order.
func TestUnknownOutcomesAreResolved(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var mu sync.Mutex
		e := &enginetest.Faulty{Engine: memory.New(), Plan: func(c enginetest.Call) enginetest.Fault {
			mu.Lock()
			defer mu.Unlock()
			if c.Op != "Apply" || rng.IntN(3) > 0 {
				return enginetest.Fault{}
			}
			f := enginetest.Fault{Err: engine.ErrUnknown}
			switch rng.IntN(3) {
			case 0:
				f.Applied = true
			case 1:
				f.Late = true
			}
			return f
		}}
		st := openStore(t, e, &turnstone.Options{NoAutoSeal: true})
		s := create(t, st, turnstone.Request{ID: "a"})
		for i := range 30 {
			c := turnstone.Commit{Expected: turnstone.Revision(i), Nodes: []turnstone.NewNode{{Kind: "k", Payload: fmt.Append(nil, i)}}}
			switch i % 3 {
			case 0:
				c.Turn = fmt.Sprint(i)
			case 1:
				c.Expected = turnstone.AnyRevision
			}
			if i%4 == 0 {
				c.Checkpoint = map[string][]byte{"p": random(500, byte(i))}
			}
			r, err := s.Commit(ctx, c)
			if err != nil || r.Revision != turnstone.Revision(i+1) {
				t.Fatalf("seed %d, commit %d: %+v, %v", seed, i, r, err)
			}
			if i == 10 {
				if err := s.Tombstone(ctx, r.Nodes[0]); err != nil {
					t.Fatal(err)
				}
			}
			if i == 20 {
				if err := st.Rename(ctx, "a", "b"); err != nil {
					t.Fatal(err)
				}
				if s, err = st.Session(ctx, "b"); err != nil {
					t.Fatal(err)
				}
			}
		}
		state, err := s.Load(ctx, turnstone.Scope{Full: true})
		if err != nil || len(state.Nodes) != 29 {
			t.Fatalf("seed %d: %d nodes, %v", seed, len(state.Nodes), err)
		}
		verify(t, st)
	}
}

// A crash after any Apply of a history leaves a store that verifies and holds
// what was acknowledged.
func TestACrashAnywhereLeavesAWholeStore(t *testing.T) {
	for n := 1; ; n++ {
		m := memory.New()
		e := &enginetest.Faulty{Engine: m, Plan: enginetest.CrashAfter(n)}
		acked := -1
		st, err := turnstone.Open(ctx, e, &turnstone.Options{NoAutoSeal: true})
		if err == nil {
			var s *turnstone.Session
			if s, _, err = st.Create(ctx, turnstone.Request{ID: "a"}); err == nil {
				acked = 0
				for i := range 6 {
					_, err = s.Commit(ctx, turnstone.Commit{
						Expected: turnstone.Revision(i), Nodes: []turnstone.NewNode{{Kind: "k", Payload: random(6000, byte(i))}},
						Checkpoint: map[string][]byte{"p": random(800<<10, byte(i))},
					})
					if err != nil {
						break
					}
					acked = i + 1
				}
				if err == nil {
					err = s.Seal(ctx)
				}
			}
			st.Close()
		}
		again := openStore(t, m, nil)
		verify(t, again)
		if s, serr := again.Session(ctx, "a"); serr == nil {
			info, ierr := s.Info(ctx)
			if ierr != nil || int(info.Revision) < acked || int(info.Revision) > acked+1 {
				t.Fatalf("crash after Apply %d: at revision %d, %d was acknowledged: %v", n, info.Revision, acked, ierr)
			}
		} else if acked >= 0 {
			t.Fatalf("crash after Apply %d: %v", n, serr)
		}
		if err == nil {
			if n < 10 {
				t.Fatalf("the history has only %d applies", n)
			}
			return
		}
		if !errors.Is(err, engine.ErrClosed) {
			t.Fatal(err)
		}
	}
}

// G3, as far as storing goes: identical bytes in two sessions are stored once.
func TestG3_EqualBytesAreStoredOncePerNamespace(t *testing.T) {
	e := memory.New()
	blobs := func(st *turnstone.Store) int {
		s, err := st.Stats(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return s.Blobs
	}
	st, other := openStore(t, e, nil), openStore(t, e, &turnstone.Options{Namespace: "other"})
	for i := range 3 {
		s := create(t, st, turnstone.Request{ID: fmt.Sprint(i)})
		c := turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "system", Payload: random(20_000, 1)}}, Checkpoint: map[string][]byte{"tools": random(9000, 2)}}
		if _, err := s.Commit(ctx, c); err != nil {
			t.Fatal(err)
		}
		if got := blobs(st); got != 2 {
			t.Errorf("%d blobs after session %d", got, i)
		}
	}
	if got := blobs(other); got != 0 {
		t.Errorf("%d blobs in another namespace", got)
	}
	if _, err := other.Session(ctx, "0"); !errors.Is(err, turnstone.ErrSessionNotFound) {
		t.Errorf("a session of another namespace: %v", err)
	}
	s := create(t, other, turnstone.Request{ID: "0"})
	if _, err := s.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "system", Payload: random(20_000, 1)}}}); err != nil {
		t.Fatal(err)
	}
	if got := blobs(other); got != 1 {
		t.Errorf("%d blobs: shared across namespaces", got)
	}
}

// sizes records the bytes of each batch.
type sizes struct {
	engine.Engine
	mu   sync.Mutex
	last int
}

func (s *sizes) Apply(ctx context.Context, b *engine.Batch) error {
	s.mu.Lock()
	s.last = b.Bytes()
	s.mu.Unlock()
	return s.Engine.Apply(ctx, b)
}

func TestF1_AForkOfALongSessionIsSmall(t *testing.T) {
	e := &sizes{Engine: memory.New()}
	st := openStore(t, e, nil)
	s := create(t, st, turnstone.Request{ID: "long"})
	for i := range 2500 {
		nodes := make([]turnstone.NewNode, 4)
		for j := range nodes {
			nodes[j] = turnstone.NewNode{Kind: "text", Payload: fmt.Append(nil, i, j)}
		}
		if _, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.Revision(i), Nodes: nodes}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Seal(ctx); err != nil {
		t.Fatal(err)
	}
	f := create(t, st, turnstone.Request{ID: "fork", Parent: "long"})
	t.Logf("a fork of 10,000 nodes writes %d bytes", e.last)
	if e.last >= 2000 {
		t.Errorf("a fork writes %d bytes", e.last)
	}
	state, err := f.Load(ctx, turnstone.Scope{})
	if err != nil || len(state.Nodes) != 10_000 {
		t.Errorf("%d nodes, %v", len(state.Nodes), err)
	}
}

func TestSealingRunsByItself(t *testing.T) {
	st := openStore(t, memory.New(), &turnstone.Options{SealBytes: 10_000})
	s := create(t, st, turnstone.Request{ID: "a"})
	for i := range 200 {
		if _, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.Revision(i), Nodes: []turnstone.NewNode{{Kind: "k", Payload: random(1000, byte(i))}}}); err != nil {
			t.Fatal(err)
		}
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

func TestANewerFormatIsRefused(t *testing.T) {
	e := memory.New()
	openStore(t, e, nil)
	for p, err := range e.Scan(ctx, engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		// The record's version is its second byte; its checksum comes last.
		v := append([]byte{p.Value[0], p.Value[1] + 1}, p.Value[2:len(p.Value)-4]...)
		p.Value = codec.SealTail(p.Key, v, 0)
		if err := e.Apply(ctx, &engine.Batch{Sets: []engine.Pair{p}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := turnstone.Open(ctx, e, nil); !errors.Is(err, turnstone.ErrFormat) {
		t.Errorf("%v", err)
	}
}

// Writers, readers, forks, tombstones, deletes, seals and lists all at once; the
// store is compared with what each writer knows of its own sessions.
func TestStress(t *testing.T) {
	for name, open := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var e engine.Engine = memory.New()
			if open != nil {
				var err error
				if e, err = open(t.TempDir() + "/store"); err != nil {
					t.Fatal(err)
				}
				defer e.Close()
			}
			st := openStore(t, e, &turnstone.Options{SealBytes: 3000})
			stop := make(chan struct{})
			var background, writers sync.WaitGroup
			loop := func(f func() error) {
				background.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						if err := f(); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			loop(func() error { return st.Seal(ctx) })
			loop(func() error { _, err := st.List(ctx, turnstone.ListOptions{Limit: 7}); return err })
			loop(func() error { return e.Vacuum(ctx) })
			loop(func() error {
				v, err := st.Verify(ctx, nil)
				if err == nil && !v.OK() {
					err = v.Problems[0]
				}
				return err
			})
			for w := range 6 {
				writers.Go(func() {
					if err := writer(st, w); err != nil {
						t.Error(err)
					}
				})
			}
			writers.Wait()
			close(stop)
			background.Wait()
			verify(t, st)
		})
	}
}

func writer(st *turnstone.Store, w int) error {
	rng := rand.New(rand.NewPCG(uint64(w), 3))
	id := fmt.Sprint("w", w)
	s, _, err := st.Create(ctx, turnstone.Request{ID: id})
	if err != nil {
		return err
	}
	var want []string
	shared := random(7000, 1)
	for i := range 60 {
		text := fmt.Sprint(w, "/", i)
		_, err := s.Commit(ctx, turnstone.Commit{
			Expected: turnstone.Revision(i), Turn: text, Checkpoint: map[string][]byte{"p": append([]byte(text), shared...)},
			Nodes: []turnstone.NewNode{{Kind: "k", Payload: []byte(text)}, {Kind: "k", Payload: shared}},
		})
		if err != nil {
			return err
		}
		want = append(want, text)
		switch rng.IntN(6) {
		case 0:
			f, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint(id, "-fork", i), Parent: id})
			if err != nil {
				return err
			}
			if rng.IntN(2) == 0 {
				if err := st.Delete(ctx, f.ID(), turnstone.KeepChildren); err != nil {
					return err
				}
			}
		case 1:
			state, err := s.Load(ctx, turnstone.Scope{})
			if err != nil {
				return err
			}
			var got []string
			for _, n := range state.Nodes {
				if len(n.Payload) < 100 {
					got = append(got, string(n.Payload))
				}
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Errorf("%s reads %v, want %v", id, got, want)
			}
		case 2:
			state, err := s.Load(ctx, turnstone.Scope{Last: 2})
			if err != nil {
				return err
			}
			if err := s.Tombstone(ctx, state.Nodes[0].ID); err != nil {
				return err
			}
			want = want[:len(want)-1]
		case 3:
			if err := s.SaveMetadata(ctx, turnstone.Metadata{Name: text}); err != nil {
				return err
			}
		}
	}
	return nil
}
