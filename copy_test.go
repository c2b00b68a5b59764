package turnstone_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
)

// fill makes a store with something of everything.
func fill(t *testing.T, e engine.Engine) {
	t.Helper()
	st := openStore(t, e, &turnstone.Options{SealBytes: 5000, NoAutoSeal: true})
	defer st.Close()
	for i := range 10 {
		s, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint("s", i), Metadata: turnstone.Metadata{Labels: map[string]string{"n": fmt.Sprint(i)}}})
		if err != nil {
			t.Fatal(err)
		}
		at, err := s.PutAttachment(ctx, strings.NewReader(strings.Repeat("attached ", 1000*i)), -1, "text/plain", "a")
		if err != nil {
			t.Fatal(err)
		}
		for j := range 20 {
			commitTo(t, s, turnstone.Commit{
				Expected: turnstone.Revision(j), Turn: fmt.Sprint("turn ", j), Usage: []turnstone.Usage{{Model: "m", Input: 1}},
				Nodes:      []turnstone.NewNode{{Kind: "user", Key: fmt.Sprint("k", j), Payload: bytes.Repeat([]byte("text "), 10*j*i)}, {Kind: "tool", Attachments: []turnstone.Attachment{at}}},
				Checkpoint: map[string][]byte{"p": bytes.Repeat(fmt.Append(nil, j), 100)},
			})
		}
		n, err := s.NodeByKey(ctx, "k3")
		if err == nil {
			err = s.Tombstone(ctx, n.ID)
		}
		if err == nil && i%2 == 0 {
			err = s.Seal(ctx)
		}
		if err == nil && i > 5 {
			_, _, err = st.Create(ctx, turnstone.Request{ID: fmt.Sprint("fork", i), Parent: s.ID(), ForkNode: n.ID})
		}
		if err == nil && i == 9 {
			err = st.Delete(ctx, "s9", turnstone.KeepChildren)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := st.GC(ctx, turnstone.GCOptions{}); err != nil {
		t.Fatal(err)
	}
}

// equal fails unless a and b hold the same pairs.
func equalPairs(t *testing.T, a, b engine.Engine) {
	t.Helper()
	var all [2][]engine.Pair
	for i, e := range []engine.Engine{a, b} {
		for p, err := range e.Scan(ctx, engine.Range{}) {
			if err != nil {
				t.Fatal(err)
			}
			all[i] = append(all[i], p)
		}
	}
	if len(all[0]) == 0 || len(all[0]) != len(all[1]) {
		t.Fatalf("%d and %d pairs", len(all[0]), len(all[1]))
	}
	for i, p := range all[0] {
		if q := all[1][i]; !bytes.Equal(p.Key, q.Key) || !bytes.Equal(p.Value, q.Value) {
			t.Fatalf("pair %d differs: %x", i, p.Key)
		}
	}
}

func copyStore(t *testing.T, from, to engine.Engine) *turnstone.CopyReport {
	t.Helper()
	r, err := turnstone.Copy(ctx, from, to, turnstone.CopyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// From Badger to PostgreSQL and back, and to every other engine: the same store.
func TestCopyBetweenEngines(t *testing.T) {
	for name, open := range engines {
		t.Run(name, func(t *testing.T) {
			var all []engine.Engine
			for _, open := range []func() (engine.Engine, error){engines["badger"](t), open(t), engines["badger"](t)} {
				e, err := open()
				if err != nil {
					t.Fatal(err)
				}
				defer e.Close()
				all = append(all, e)
			}
			fill(t, all[0])
			there := copyStore(t, all[0], all[1])
			back := copyStore(t, all[1], all[2])
			equalPairs(t, all[0], all[2])
			if there.Sessions != 13 || back.Sessions != 13 || there.Written != there.Records || there.Deleted != 0 {
				t.Errorf("%+v, %+v", there, back)
			}
			if r := copyStore(t, all[0], all[1]); r.Written != 0 || r.Deleted != 0 || r.Records != there.Records {
				t.Errorf("once more: %+v", r)
			}
			// What is new goes over, what is gone goes.
			st := openStore(t, all[0], &turnstone.Options{NoAutoSeal: true})
			s, err := st.Session(ctx, "s1")
			if err != nil {
				t.Fatal(err)
			}
			commitTo(t, s, turnstone.Commit{Expected: 20, Nodes: []turnstone.NewNode{{Kind: "user"}}})
			if err := st.Delete(ctx, "s2", turnstone.KeepChildren); err != nil {
				t.Fatal(err)
			}
			st.Close()
			if r := copyStore(t, all[0], all[1]); r.Written == 0 || r.Written > 30 || r.Deleted == 0 || r.Sessions != 12 {
				t.Errorf("after changes: %+v", r)
			}
			equalPairs(t, all[0], all[1])
		})
	}
}

// A copy that is interrupted anywhere can't be opened before it is whole, the
// first time and when it is brought up to date, and goes on, also when the source
// has changed since.
func TestCopyInterruptedAnywhere(t *testing.T) {
	if race {
		t.Skip("one goroutine, many megabytes: there is nothing for the race detector")
	}
	// bulk commits what does not compress, so that a copy has many batches.
	random := rand.NewChaCha8([32]byte{})
	bulk := func(e engine.Engine, id string) {
		st := openStore(t, e, &turnstone.Options{NoAutoSeal: true})
		defer st.Close()
		s, _, err := st.Create(ctx, turnstone.Request{ID: id})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 8 {
			payload := make([]byte, 400<<10)
			random.Read(payload)
			commitTo(t, s, turnstone.Commit{Expected: turnstone.Revision(i), Nodes: []turnstone.NewNode{{Kind: "user", Payload: payload}}})
		}
	}
	from := memory.New()
	defer from.Close()
	fill(t, from)
	bulk(from, "bulk")
	interrupted := 0
	for n, done := 0, 0; done < 2; n++ {
		base := memory.New()
		if done == 1 { // now it is an update
			copyStore(t, from, base)
			bulk(from, fmt.Sprint("more ", n))
			st := openStore(t, from, nil)
			if err := st.Delete(ctx, "s1", turnstone.KeepChildren); err != nil {
				t.Fatal(err)
			}
			st.Close()
		}
		faulty := &enginetest.Faulty{Engine: base, Plan: enginetest.CrashAfter(n)}
		_, err := turnstone.Copy(ctx, from, faulty, turnstone.CopyOptions{})
		if err == nil {
			done, n = done+1, 0
		} else {
			interrupted++
			if st, err := turnstone.Open(ctx, base, &turnstone.Options{MustExist: true}); err == nil {
				if v, err := st.Verify(ctx, nil); err != nil || !v.OK() {
					t.Fatalf("after %d calls what can be opened is no store: %v", n, err)
				}
				st.Close()
			}
		}
		if n%5 == 3 { // the source has changed since
			st := openStore(t, from, nil)
			if err := st.Seal(ctx); err != nil {
				t.Fatal(err)
			}
			if err := st.Delete(ctx, fmt.Sprint("more ", n-2), turnstone.KeepChildren); err != nil {
				t.Fatal(err)
			}
			if _, err := st.Vacuum(ctx, turnstone.VacuumOptions{}); err != nil {
				t.Fatal(err)
			}
			st.Close()
		}
		copyStore(t, from, base)
		equalPairs(t, from, base)
		base.Close()
	}
	if interrupted < 10 {
		t.Errorf("%d interruptions", interrupted)
	}
}

func TestCopyRefuses(t *testing.T) {
	from, other, empty := memory.New(), memory.New(), memory.New()
	fill(t, from)
	fill(t, other)
	if _, err := turnstone.Copy(ctx, empty, from, turnstone.CopyOptions{}); !errors.Is(err, turnstone.ErrStoreNotFound) {
		t.Error(err)
	}
	if _, err := turnstone.Copy(ctx, from, other, turnstone.CopyOptions{}); !errors.Is(err, turnstone.ErrOtherStore) {
		t.Error(err)
	}
	// One that lost its record is another one still.
	var b engine.Batch
	for p, err := range other.Scan(ctx, engine.Range{}) {
		if err == nil && p.Key[4] == 'A' {
			b.Delete(p.Key)
		}
	}
	if err := other.Apply(ctx, &b); err != nil || b.Ops() != 1 {
		t.Fatal(err)
	}
	before := stored(t, other)
	if _, err := turnstone.Copy(ctx, from, other, turnstone.CopyOptions{}); !errors.Is(err, turnstone.ErrOtherStore) {
		t.Error(err)
	}
	if stored(t, other) != before {
		t.Error("it was changed")
	}
	// Damage is not passed over.
	damaged := memory.New()
	fill(t, damaged)
	for p, err := range damaged.Scan(ctx, engine.Range{}) {
		if err == nil && p.Key[4] == 'p' {
			v := bytes.Clone(p.Value)
			v[len(v)/2] ^= 1
			if err := damaged.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: p.Key, Value: v}}}); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	var corrupt *turnstone.CorruptError
	if _, err := turnstone.Copy(ctx, damaged, empty, turnstone.CopyOptions{}); !errors.As(err, &corrupt) {
		t.Error(err)
	}
}

func stored(t *testing.T, e engine.Engine) (n int) {
	t.Helper()
	for p, err := range e.Scan(ctx, engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		n += len(p.Key) + len(p.Value)
	}
	return n
}
