package tests

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/storetest"
	"github.com/turnstonedb/turnstone/internal/testkit"
	"github.com/turnstonedb/turnstone/tests/internal/foreign"
)

// foreignReads returns an error unless a stranger who has only docs/format.md reads the same from the engine as st
// does.
func foreignReads(t *testing.T, e engine.Engine, st *turnstone.Store, namespace string) error {
	t.Helper()
	all := map[string][]byte{}
	for _, p := range pairs(t, e) {
		all[string(p.Key)] = p.Value
	}
	theirs, err := foreign.Read(all, namespace)
	if err != nil {
		return err
	}
	page, err := st.List(ctx, turnstone.ListOptions{Limit: turnstone.MaxPage})
	if err != nil {
		return err
	}
	if len(page.Sessions) != len(theirs.Sessions) {
		return fmt.Errorf("%d sessions, and %d for a stranger", len(page.Sessions), len(theirs.Sessions))
	}
	for _, info := range page.Sessions {
		if err := foreignSession(t, st, info, theirs.Sessions[info.ID]); err != nil {
			return fmt.Errorf("session %q: %w", info.ID, err)
		}
	}
	return nil
}

func nanos(t time.Time) uint64 {
	if t.IsZero() {
		return 0
	}
	return uint64(t.UnixNano())
}

func foreignSession(t *testing.T, st *turnstone.Store, info turnstone.Info, f *foreign.Session) error {
	t.Helper()
	s := session(t, st, info.ID)
	if f == nil || f.Revision != uint64(info.Revision) || f.Name != info.Name || f.Model != info.Model || f.Cwd != info.Cwd || f.Group != info.Group ||
		!maps.Equal(f.Labels, info.Labels) || f.Retention != uint64(info.Retention) ||
		string(f.Custom) != string(info.Custom) || f.HostCreated != nanos(info.HostCreated) || f.HostUpdated != nanos(info.HostUpdated) || uint64(len(f.Path)) != info.Messages {
		return fmt.Errorf("%+v, and for a stranger %+v", info, f)
	}
	state, err := s.Load(ctx, turnstone.Scope{})
	if err != nil {
		return err
	}
	path := slices.DeleteFunc(f.Path, func(n foreign.Node) bool { return n.Hidden || n.Erased })
	if len(path) != len(state.Nodes) || state.Commit != head.CommitID(f.Commit) || state.Leaf != graph.ID(f.Leaf) {
		return fmt.Errorf("%d nodes, commit %s, leaf %s, and for a stranger %d, %x, %x", len(state.Nodes), state.Commit, state.Leaf, len(path), f.Commit, f.Leaf)
	}
	var before graph.ID // a parent that is not shown is skipped
	for i, n := range state.Nodes {
		p := path[i]
		same := n.ID == graph.ID(p.ID) && n.Parent == before && n.Kind == p.Kind && n.Key == p.Key && bytes.Equal(n.Payload, p.Payload) &&
			slices.EqualFunc(n.Attachments, p.Attachments, func(a blob.Attachment, b foreign.Attachment) bool {
				return a.ID == blob.ID(b.ID) && uint64(a.Size) == b.Size && a.MediaType == b.MediaType && a.Name == b.Name
			})
		if !same {
			n.Payload, p.Payload = n.Payload[:min(9, len(n.Payload))], p.Payload[:min(9, len(p.Payload))]
			return fmt.Errorf("node %d is %+v, and for a stranger %+v", i, n, p)
		}
		before = n.ID
	}
	at := 0
	for entry, err := range s.Log(ctx, 0) {
		if err != nil {
			return err
		}
		if at >= len(f.Commits) {
			return fmt.Errorf("the log has commit %d, and a stranger none", entry.Revision)
		}
		c := f.Commits[at]
		if at++; entry.Commit != head.CommitID(c.ID) || entry.Turn != c.Turn || !maps.Equal(entry.Labels, c.Labels) || uint64(entry.Time.UnixNano()) != c.Time {
			return fmt.Errorf("commit %+v, and for a stranger %+v", entry, c)
		}
	}
	if at != len(f.Commits) {
		return fmt.Errorf("the log has %d commits, and for a stranger %d", at, len(f.Commits))
	}
	usage := map[string][6]uint64{}
	for _, u := range f.Usage {
		usage[u.Model] = u.Counts
	}
	for _, u := range state.Usage {
		if usage[u.Model] != [6]uint64{u.Input, u.Output, u.CachedInput, u.CacheWrite, u.Reasoning, u.Cost} || len(usage) != len(state.Usage) {
			return fmt.Errorf("usage %+v, and for a stranger %+v", state.Usage, f.Usage)
		}
	}
	parts, err := s.Checkpoint(ctx, 0)
	if err != nil || !maps.EqualFunc(parts, f.Parts, bytes.Equal) {
		return fmt.Errorf("parts %v, and for a stranger %v: %w", slices.Sorted(maps.Keys(parts)), slices.Sorted(maps.Keys(f.Parts)), err)
	}
	records, err := s.Records(ctx, turnstone.RecordQuery{Limit: turnstone.MaxPage})
	if err != nil || len(records.Records) != len(f.Records) {
		return fmt.Errorf("%d records, and for a stranger %d: %w", len(records.Records), len(f.Records), err)
	}
	for _, r := range records.Records {
		if !bytes.Equal(f.Records[r.Key], r.Value) {
			return fmt.Errorf("record %q", r.Key)
		}
	}
	kept, err := s.Kept(ctx)
	if err != nil || len(kept) != len(f.Kept) {
		return fmt.Errorf("%d revisions are kept, and for a stranger %d: %w", len(kept), len(f.Kept), err)
	}
	for _, k := range kept {
		if f.Kept[k.Name] != uint64(k.Revision) {
			return fmt.Errorf("%+v is kept", k)
		}
	}
	return nil
}

// A wild is a store to which random things happen.
type wild struct {
	*testing.T
	rng *rand.Rand
	st  *turnstone.Store
	ids []string
	n   int
}

// some returns a random session that lives.
func (w *wild) some() *turnstone.Session { return session(w.T, w.st, w.ids[w.rng.IntN(len(w.ids))]) }

// payload returns bytes that are like those before, or not, short or long.
func (w *wild) payload() []byte {
	b := random([]int{3, 40, 700, 6 << 10, 30 << 10}[w.rng.IntN(5)], uint64(w.rng.IntN(4)))
	return append([]byte(strings.Repeat("words that recur ", w.rng.IntN(80))), b...)
}

func (w *wild) commit(s *turnstone.Session) error {
	w.n++
	state, err := s.Load(ctx, turnstone.Scope{})
	if err != nil {
		return err
	}
	c := turnstone.Commit{Expected: state.Revision}
	for i := range w.rng.IntN(4) {
		n := turnstone.NewNode{Kind: []string{"user", "assistant", "tool"}[i%3], Payload: w.payload()}
		if w.rng.IntN(2) == 0 {
			n.Key = fmt.Sprint("key", w.n, "/", i)
		}
		if k := len(state.Nodes); k > 0 && w.rng.IntN(6) == 0 {
			n.Parent = turnstone.RefTo(state.Nodes[w.rng.IntN(k)].ID)
		}
		if w.rng.IntN(6) == 0 {
			a, err := s.PutAttachment(ctx, bytes.NewReader(random(1+w.rng.IntN(300<<10), uint64(w.rng.IntN(3)))), -1, "image/png", "x")
			if err != nil {
				return err
			}
			n.Attachments = []blob.Attachment{a}
		}
		c.Nodes = append(c.Nodes, n)
	}
	if k := len(state.Nodes); k > 0 && w.rng.IntN(8) == 0 {
		c.Leaf = turnstone.RefTo(state.Nodes[w.rng.IntN(k)].ID)
	} else if w.rng.IntN(20) == 0 {
		c.Leaf = turnstone.RefNone()
	}
	if w.rng.IntN(2) == 0 {
		c.Checkpoint = map[string][]byte{fmt.Sprint("part", w.rng.IntN(3)): append(random(3000+w.rng.IntN(3), 9), w.payload()...)}
	}
	if w.rng.IntN(8) == 0 {
		c.Drop = []string{"part1"}
		delete(c.Checkpoint, "part1")
	}
	if w.rng.IntN(3) == 0 {
		c.Turn, c.Labels = fmt.Sprint("turn", w.n), map[string]string{"a": fmt.Sprint(w.n), "b": "x"}
		c.Usage = []head.Usage{{Model: "m", Input: uint64(w.n), Output: 3, CachedInput: 1, Cost: 5}}
	}
	if w.rng.IntN(3) == 0 {
		c.Records = []turnstone.RecordChange{{Key: fmt.Sprint("record", w.n), Expect: turnstone.NoRecord, Value: w.payload()}}
	}
	if len(c.Nodes)+len(c.Checkpoint)+len(c.Drop)+len(c.Records) == 0 && c.Leaf == (turnstone.Ref{}) {
		return nil
	}
	_, err = s.Commit(ctx, c)
	return err
}

// step does something at random.
func (w *wild) step() error {
	s := w.some()
	switch k := w.rng.IntN(40); {
	case k < 20:
		return w.commit(s)
	case k < 24:
		w.n++
		id := fmt.Sprint("s", w.n)
		r := turnstone.Request{ID: id, Metadata: head.Metadata{Name: "n" + id, Group: "g/h", Labels: map[string]string{"l": id}}}
		if w.rng.IntN(3) > 0 {
			r.Parent, r.Detached = s.ID(), w.rng.IntN(4) == 0
			r.NoCheckpoint = !r.Detached && w.rng.IntN(2) == 0
		}
		if _, _, err := w.st.Create(ctx, r); err != nil {
			return err
		}
		w.ids = append(w.ids, id)
	case k < 27:
		state, err := s.Load(ctx, turnstone.Scope{})
		if err != nil || len(state.Nodes) == 0 {
			return err
		}
		return s.Tombstone(ctx, state.Nodes[w.rng.IntN(len(state.Nodes))].ID)
	case k < 30:
		return s.Seal(ctx)
	case k < 32:
		w.n++
		return s.Keep(ctx, fmt.Sprint("kept", w.n), 0)
	case k < 34:
		_, err := s.Prune(ctx, 3)
		return err
	case k < 35:
		return s.SaveMetadata(ctx, head.Metadata{Model: fmt.Sprint("m", w.n), Cwd: "/x", Retention: 5})
	case k < 36 && len(w.ids) > 2:
		w.ids = slices.DeleteFunc(w.ids, func(id string) bool { return id == s.ID() })
		return w.st.Delete(ctx, s.ID(), turnstone.KeepChildren)
	case k < 37:
		w.n++
		to := fmt.Sprint("renamed", w.n)
		w.ids[slices.Index(w.ids, s.ID())] = to
		return s.Rename(ctx, to)
	case k < 39:
		_, err := w.st.GC(ctx, gc.Options{})
		return err
	default:
		_, err := w.st.Vacuum(ctx, gc.VacuumOptions{})
		return err
	}
	return nil
}

var histories = flag.Int("histories", 0, "random histories on each engine in TestFV7_AStrangerReadsTheFormat, instead of its own number")

// At the end of random histories, on every engine, with outcomes that are unknown in between, a reader that was
// written from docs/format.md alone finds every id, payload, part, record, edge and count that the store returns.
func TestFV7_AStrangerReadsTheFormat(t *testing.T) {
	for name, open := range storetest.Engines {
		if name == "sealed" { // What it returns is what another engine has.
			continue
		}
		t.Run(name, func(t *testing.T) {
			storetest.Some(t, name)
			t.Parallel()
			n := *histories
			if n == 0 {
				n = testkit.Pick(20, 3, 1)
			}
			e, err := open(t)()
			must(t, err)
			defer e.Close()
			for seed := range n {
				namespace := fmt.Sprint("namespace", seed)
				w := &wild{T: t, rng: rand.New(rand.NewPCG(uint64(seed), 77)), ids: []string{"first"}}
				lost := rand.New(rand.NewPCG(uint64(seed), 78))
				w.st = openStore(t, &enginetest.Faulty{Engine: e, Plan: func(c enginetest.Call) (f enginetest.Fault) {
					if c.Op == "Apply" && lost.IntN(10) == 0 {
						f = enginetest.Fault{Err: engine.ErrUnknown, Applied: lost.IntN(2) == 0}
					}
					return f
				}}, &turnstone.Options{Namespace: namespace, SealBytes: 3000, NoAutoSeal: true, InlineBytes: 2000})
				create(t, w.st, turnstone.Request{ID: "first"})
				for step := range 50 {
					if err := w.step(); err != nil && !errors.Is(err, turnstone.ErrRevisionPruned) && !errors.Is(err, turnstone.ErrRevisionNotFound) && !errors.Is(err, turnstone.ErrNodeNotFound) {
						t.Fatalf("history %d, step %d: %v", seed, step, err)
					}
				}
				if err := foreignReads(t, e, openStore(t, e, &turnstone.Options{Namespace: namespace}), namespace); err != nil {
					t.Fatalf("history %d: %v", seed, err)
				}
			}
			t.Logf("%d histories", n)
		})
	}
}
