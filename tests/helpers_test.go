package tests

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

var ctx = context.Background()

// openStore opens a store on e with the options o, which may be nil, and closes it at the
// end of the test.
func openStore(t *testing.T, e engine.Engine, o *turnstone.Options) *turnstone.Store {
	t.Helper()
	var opts turnstone.Options
	if o != nil {
		opts = *o
	}
	if opts.TakeOverAfter == 0 {
		opts.TakeOverAfter = -1 // what a test has cut off has died
	}
	if opts.InlineBytes == 0 {
		opts.InlineBytes = 1 // so that there are blobs in small stores, too
	}
	st, err := turnstone.Open(ctx, e, &opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st
}

// onMemory opens a store on a new engine in memory.
func onMemory(t *testing.T, o *turnstone.Options) (*memory.Engine, *turnstone.Store) {
	t.Helper()
	e := memory.New()
	return e, openStore(t, e, o)
}

// rename gives the session that has the id from the id to.
func rename(ctx context.Context, st *turnstone.Store, from, to string) error {
	s, err := st.Session(ctx, from)
	if err != nil {
		return err
	}
	return s.Rename(ctx, to)
}

// create creates a session and commits one turn for each payload.
func create(t *testing.T, st *turnstone.Store, r turnstone.Request, payloads ...[]byte) *turnstone.Session {
	t.Helper()
	s, _, err := st.Create(ctx, r)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range payloads {
		commitTo(t, s, turnstone.Commit{Nodes: saying(p)})
	}
	return s
}

// session opens a session that is there.
func session(t *testing.T, st *turnstone.Store, id string) *turnstone.Session {
	t.Helper()
	s, err := st.Session(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// commitTo commits c to s, whatever the revision of its head is.
func commitTo(t *testing.T, s *turnstone.Session, c turnstone.Commit) turnstone.Result {
	t.Helper()
	c.Expected = turnstone.AnyRevision
	return commitAt(t, s, c)
}

// commitAt commits c to s at the revision that c expects.
func commitAt(t *testing.T, s *turnstone.Session, c turnstone.Commit) turnstone.Result {
	t.Helper()
	r, err := s.Commit(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// saying returns one node with a payload.
func saying(payload []byte) []turnstone.NewNode {
	return []turnstone.NewNode{{Kind: "u", Payload: payload}}
}

// sayingAfter returns one node with a payload whose parent is there.
func sayingAfter(parent graph.ID, payload []byte) []turnstone.NewNode {
	return []turnstone.NewNode{{Kind: "u", Parent: turnstone.RefTo(parent), Payload: payload}}
}

// attaching returns one node that has attachments.
func attaching(attachments ...blob.Attachment) []turnstone.NewNode {
	return []turnstone.NewNode{{Kind: "u", Attachments: attachments}}
}

// upload stores content as an attachment of s.
func upload(t *testing.T, s *turnstone.Session, content []byte) blob.Attachment {
	t.Helper()
	a, err := s.PutAttachment(ctx, bytes.NewReader(content), -1, "", "")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// prune prunes s to the last keep revisions.
func prune(t *testing.T, s *turnstone.Session, keep head.Retention) {
	t.Helper()
	if _, err := s.Prune(ctx, keep); err != nil {
		t.Fatal(err)
	}
}

// remove deletes a session and keeps its forks.
func remove(t *testing.T, st *turnstone.Store, id string) {
	t.Helper()
	if err := st.Delete(ctx, id, turnstone.KeepChildren); err != nil {
		t.Fatal(err)
	}
}

// collect runs a collection.
func collect(t *testing.T, st *turnstone.Store, o gc.Options) *gc.Report {
	t.Helper()
	r, err := st.GC(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// vacuum runs a vacuum.
func vacuum(t *testing.T, st *turnstone.Store) *gc.VacuumReport {
	t.Helper()
	r, err := st.Vacuum(ctx, gc.VacuumOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// verify fails the test unless Verify finds no problem in st.
func verify(t *testing.T, st *turnstone.Store) *turnstone.Verification {
	t.Helper()
	v, err := st.Verify(ctx, turnstone.VerifyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range v.Problems {
		t.Error(p)
	}
	return v
}

// random returns n bytes that no compression makes shorter. They are the same for the same
// seed, and begin with the same bytes whatever n is.
func random(n int, seed uint64) []byte {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	b := make([]byte, n)
	rand.NewChaCha8(key).Read(b)
	return b
}

// pairs returns all pairs of e.
func pairs(t *testing.T, e engine.Engine) (out []engine.Pair) {
	t.Helper()
	for p, err := range e.Scan(ctx, engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, p)
	}
	return out
}

// holds reports whether any value of e contains b.
func holds(t *testing.T, e engine.Engine, b []byte) bool {
	t.Helper()
	return slices.ContainsFunc(pairs(t, e), func(p engine.Pair) bool { return bytes.Contains(p.Value, b) })
}

// letters counts the records of e by the letter of their kind.
func letters(t *testing.T, e engine.Engine) map[byte]int {
	t.Helper()
	out := map[byte]int{}
	for _, p := range pairs(t, e) {
		out[p.Key[4]]++
	}
	return out
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

// cloned returns an engine with the same records.
func cloned(t *testing.T, e engine.Engine) *memory.Engine {
	t.Helper()
	out := memory.New()
	var b engine.Batch
	for _, p := range pairs(t, e) {
		b.Set(p.Key, p.Value)
	}
	if err := out.Apply(ctx, &b); err != nil {
		t.Fatal(err)
	}
	return out
}

// dump returns all pairs of e as text.
func dump(t *testing.T, e engine.Engine) string {
	t.Helper()
	var out strings.Builder
	for _, p := range pairs(t, e) {
		fmt.Fprintf(&out, "%x=%x\n", p.Key, p.Value)
	}
	return out.String()
}

// stored returns how many bytes the pairs of e have.
func stored(t *testing.T, e engine.Engine) (n int) {
	t.Helper()
	for _, p := range pairs(t, e) {
		n += len(p.Key) + len(p.Value)
	}
	return n
}

// contents returns what is in the files of a directory.
func contents(t *testing.T, dir string) (files [][]byte) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		files = append(files, data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// inFiles reports whether any of the files has b.
func inFiles(files [][]byte, b []byte) bool {
	return slices.ContainsFunc(files, func(data []byte) bool { return bytes.Contains(data, b) })
}

// change changes records of a session, and returns their versions.
func change(t testing.TB, s *turnstone.Session, changes ...turnstone.RecordChange) []turnstone.RecordVersion {
	t.Helper()
	vs, err := s.ChangeRecords(ctx, changes...)
	if err != nil {
		t.Fatal(err)
	}
	return vs
}

// loseReply makes the outcome of the next batch that is applied to f unknown; applied says whether it takes effect.
// Then it calls since, if that is not nil, before anybody looks.
func loseReply(f *enginetest.Faulty, applied bool, since func()) {
	lost := false
	f.Plan = func(c enginetest.Call) enginetest.Fault {
		if c.Op != "Apply" || lost {
			return enginetest.Fault{}
		}
		lost = true
		return enginetest.Fault{Err: engine.ErrUnknown, Applied: applied}
	}
	f.Done = func(c enginetest.Call, _ error) {
		if c.Op == "Apply" && since != nil {
			f.Done = nil
			since()
		}
	}
}

// A callRecorder is an engine in memory that notes its calls.
type callRecorder struct {
	enginetest.Faulty
	calls []string
	last  *engine.Batch // that was applied
}

func recordCalls() *callRecorder {
	r := &callRecorder{Faulty: enginetest.Faulty{Engine: memory.New()}}
	r.Plan = func(c enginetest.Call) enginetest.Fault {
		r.calls = append(r.calls, c.Op)
		if c.Op == "Apply" {
			r.last = c.Batch
		}
		return enginetest.Fault{}
	}
	return r
}

// during calls f, and returns the calls that it makes to the engine, and the letters of the keys that the last
// batch sets.
func (r *callRecorder) during(f func()) (calls, written string) {
	r.calls = nil
	f()
	for _, p := range r.last.Sets {
		written += string(p.Key[4])
	}
	return fmt.Sprint(r.calls), written
}
