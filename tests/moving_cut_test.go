package tests

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// Wherever a move is cut off, the namespace is in one database, stores go on, and the next move does the rest. It does
// not matter whether the source or the target fails, and whether the last batch has taken effect.
func TestMV3_AMoveThatIsCutOffLosesNothing(t *testing.T) {
	for _, cut := range []struct {
		name    string
		source  bool
		applied bool
	}{{"source", true, false}, {"source, applied", true, true}, {"target", false, false}, {"target, applied", false, true}} {
		t.Run(cut.name, func(t *testing.T) {
			for n, came := 1, true; came; n++ {
				d := databases{"a": memory.New(), "b": memory.New()}
				st := openStore(t, d["a"], d.options())
				s := create(t, st, turnstone.Request{ID: "s"}, []byte("one"), []byte("two"))
				came = false
				faulty := func(e engine.Engine) engine.Engine {
					return &enginetest.Faulty{Engine: e, Plan: func(c enginetest.Call) enginetest.Fault {
						if c.N == n/2+1 && n%2 == 1 { // Something happens before the call, and it fails or not.
							commitBeside(t, s)
						}
						came = came || c.N == n/2+1
						return enginetest.Fault{Crash: c.N == n/2+1 && n%2 == 0, Applied: cut.applied}
					}}
				}
				from, to := d["a"], d["b"]
				if cut.source {
					from = faulty(from)
				} else {
					to = faulty(to)
				}
				_, err := turnstone.Move(ctx, from, to, turnstone.MoveOptions{To: "b", Pause: 40 * time.Millisecond})
				if crashed := n%2 == 0 && came; (err != nil) != crashed {
					t.Fatalf("call %d: %v", n/2+1, err)
				}
				was, err := s.Info(ctx)
				if err != nil {
					t.Fatal(err)
				}
				commitBeside(t, s)
				if _, err := turnstone.Move(ctx, d["a"], d["b"], turnstone.MoveOptions{To: "b"}); err != nil {
					t.Fatalf("again, after call %d: %v", n/2+1, err)
				}
				commitBeside(t, s)
				if now, err := s.Info(ctx); err != nil || now.Revision != was.Revision+2 {
					t.Errorf("revision %d, then %d: %v", was.Revision, now.Revision, err)
				}
				left(t, d["a"])
				verify(t, st)
			}
		})
	}
}

func commitBeside(t *testing.T, s *turnstone.Session) {
	t.Helper()
	commitTo(t, s, turnstone.Commit{Nodes: saying([]byte("beside")), Checkpoint: map[string][]byte{"p": []byte("beside")}})
}

// A batch that changes many keys notes where they begin, and all that begins so is compared.
func TestMV4_LargeBatchesAreCopiedAsWell(t *testing.T) {
	for _, same := range []bool{true, false} { // keys that begin alike, and keys that don't
		d := databases{"a": memory.New(), "b": memory.New()}
		st := openStore(t, d["a"], d.options())
		s := create(t, st, turnstone.Request{ID: "s"})
		done := false
		target := &enginetest.Faulty{Engine: d["b"], Plan: func(c enginetest.Call) enginetest.Fault {
			if c.Apply == 2 && !done { // while it copies
				done = true
				for i := range 3 {
					cs := turnstone.Commit{Expected: turnstone.AnyRevision}
					for j := range 250 {
						key := fmt.Sprintf("%s/%d/%d", bytes.Repeat([]byte("long"), 110), i, j)
						if !same {
							key = "." + key
						}
						cs.Records = append(cs.Records, turnstone.RecordChange{Key: key, Value: []byte("v")})
					}
					for j := range 200 {
						cs.Nodes = append(cs.Nodes, turnstone.NewNode{Kind: "k", Payload: random(6000, uint64(1000*i+j))})
					}
					commitTo(t, s, cs)
				}
			}
			return enginetest.Fault{}
		}}
		if r, err := turnstone.Move(ctx, d["a"], target, turnstone.MoveOptions{To: "b"}); err != nil || r.Changes < 3 {
			t.Fatalf("%+v, %v", r, err)
		}
		left(t, d["a"])
		verify(t, st)
		if p, err := st.Records(ctx, turnstone.RecordQuery{Limit: 1000}); same && (err != nil || len(p.Records) != 750) {
			t.Errorf("%d records, %v", len(p.Records), err)
		}
		if n, err := s.Info(ctx); err != nil || n.Nodes != 600 {
			t.Errorf("%d nodes, %v", n.Nodes, err)
		}
	}
}

// Changes that come just before batches have to wait are copied, however many they are.
func TestMV4_ManyChangesBeforeThePauseAreCopied(t *testing.T) {
	d := databases{"a": memory.New(), "b": memory.New()}
	st := openStore(t, d["a"], d.options())
	s := create(t, st, turnstone.Request{ID: "s"})
	const commits = 1500 // The mover reads a thousand notes at a time.
	done := false
	source := &enginetest.Faulty{Engine: d["a"], Plan: func(c enginetest.Call) enginetest.Fault {
		if !done && c.Apply > 0 && bytes.Equal(c.Batch.Sets[0].Key, keys.StoreKey("")) {
			record, err := head.DecodeStore(c.Batch.Sets[0].Key, c.Batch.Sets[0].Value, head.Known)
			if err != nil {
				t.Error(err)
			}
			if done = record.Move.Phase == head.Paused; done {
				for range commits {
					commitBeside(t, s)
				}
			}
		}
		return enginetest.Fault{}
	}}
	r, err := turnstone.Move(ctx, source, d["b"], turnstone.MoveOptions{To: "b"})
	if err != nil || r.Changes < commits {
		t.Fatalf("%+v, %v", r, err)
	}
	if i, err := s.Info(ctx); err != nil || i.Revision != commits {
		t.Errorf("revision %d: %v", i.Revision, err)
	}
	verify(t, st)
}

// recordSet reports whether a call sets the store record.
func recordSet(c enginetest.Call) bool {
	return c.Apply > 0 && len(c.Batch.Sets) == 1 && bytes.Equal(c.Batch.Sets[0].Key, keys.StoreKey(""))
}

// A mover that fails lets commits go on, and one that was given up before it had begun removes what it has written.
func TestMV3_AMoverThatFailsLetsCommitsGoOn(t *testing.T) {
	d := databases{"a": memory.New(), "b": memory.New()}
	st := openStore(t, d["a"], d.options())
	s := create(t, st, turnstone.Request{ID: "s"}, []byte("x"))
	full, sets := false, 0
	source := &enginetest.Faulty{Engine: d["a"], Plan: func(c enginetest.Call) enginetest.Fault {
		if recordSet(c) {
			if sets++; sets == 2 {
				commitBeside(t, s)
				full = true
			}
		}
		return enginetest.Fault{}
	}}
	target := &enginetest.Faulty{Engine: d["b"], Plan: func(c enginetest.Call) (f enginetest.Fault) {
		if full && c.Apply > 0 {
			f.Err = engine.ErrNoSpace
		}
		return f
	}}
	if _, err := turnstone.Move(ctx, source, target, turnstone.MoveOptions{To: "b", Pause: time.Hour}); !errors.Is(err, engine.ErrNoSpace) {
		t.Fatal(err)
	}
	commitBeside(t, s) // which would wait for an hour
	if w, err := turnstone.Where(ctx, d["a"], ""); err != nil || w.Paused || w.To != "b" {
		t.Errorf("%+v, %v", w, err)
	}
	if err := turnstone.CancelMove(ctx, d["a"], d["b"], turnstone.MoveOptions{}); err != nil || len(pairs(t, d["b"])) > 0 {
		t.Error(err, len(pairs(t, d["b"])))
	}
	cancelled := false
	source = &enginetest.Faulty{Engine: d["a"], Done: func(c enginetest.Call, _ error) {
		if recordSet(c) && !cancelled {
			cancelled = true
			if err := turnstone.CancelMove(ctx, d["a"], d["b"], turnstone.MoveOptions{}); err != nil {
				t.Error(err)
			}
		}
	}}
	if _, err := turnstone.Move(ctx, source, d["b"], turnstone.MoveOptions{To: "b"}); !errors.Is(err, turnstone.ErrConflict) || len(pairs(t, d["b"])) > 0 {
		t.Error(err, len(pairs(t, d["b"])))
	}
	d.move(t, "a", "b")
	commitBeside(t, s)
	verify(t, st)
}
