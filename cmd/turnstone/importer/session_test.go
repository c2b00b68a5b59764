package importer_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/graph"
)

var ctx = context.Background()

func openStore(t *testing.T, e engine.Engine) *turnstone.Store {
	t.Helper()
	st, err := turnstone.Open(ctx, e, nil)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// openClocked opens a store in memory whose clock is set by imports, and tells the
// same present otherwise.
func openClocked(t *testing.T) (*turnstone.Store, *importer.Clock) {
	t.Helper()
	clock := &importer.Clock{Present: func() time.Time { return time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC) }}
	st, err := turnstone.Open(ctx, memory.New(), &turnstone.Options{Now: clock.Now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st, clock
}

// stopping opens a store, and returns what makes a context that ends at a commit from then on, counted from 1;
// without such a commit it ends with the test.
func stopping(t *testing.T, at int) (st *turnstone.Store, clock *importer.Clock, stopped func() context.Context) {
	t.Helper()
	clock = &importer.Clock{}
	commits, cut := 0, context.CancelFunc(func() {})
	st, err := turnstone.Open(ctx, memory.New(), &turnstone.Options{Now: clock.Now, Validator: func(context.Context, string, *turnstone.Commit) error {
		if commits++; commits == at {
			cut()
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close() })
	return st, clock, func() (c context.Context) {
		commits = 0
		c, cut = context.WithCancel(ctx)
		t.Cleanup(cut)
		return c
	}
}

func verify(t *testing.T, st *turnstone.Store) {
	t.Helper()
	v, err := st.Verify(ctx, turnstone.VerifyOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range v.Problems {
		t.Error(p)
	}
}

// parseFile parses the content of a file.
func parseFile(t *testing.T, file string, data []byte) ([]importer.Conversation, []*importer.BadInput) {
	t.Helper()
	convs, bad, err := importer.Parse(ctx, file, data, nil)
	if err != nil {
		t.Fatal(err)
	}
	return convs, bad
}

// parse parses a file without errors.
func parse(t *testing.T, file, data string) []importer.Conversation {
	t.Helper()
	convs, bad := parseFile(t, file, []byte(data))
	for _, b := range bad {
		t.Error(b)
	}
	return convs
}

// load imports conversations, each of which must have the outcome that is wanted.
func load(t *testing.T, st *turnstone.Store, convs []importer.Conversation, o importer.Options, want importer.Outcome) []importer.Result {
	t.Helper()
	results := importer.Load(ctx, st, convs, o)
	for _, r := range results {
		if r.Outcome != want {
			t.Fatalf("%s: %s %v", r.Conversation.ID, r.Outcome, r.Err)
		}
	}
	return results
}

// bringAll imports what can be read of a file, which an agent may be writing.
func bringAll(t *testing.T, st *turnstone.Store, clock *importer.Clock, name, content string) []importer.Result {
	t.Helper()
	convs, _ := parseFile(t, name, []byte(content))
	results := importer.Load(ctx, st, convs, importer.Options{Clock: clock})
	for _, r := range results {
		if r.Err != nil {
			t.Fatalf("%s: %+v", name, r)
		}
	}
	return results
}

// bring is bringAll for a file of one conversation.
func bring(t *testing.T, st *turnstone.Store, clock *importer.Clock, name, content string) importer.Result {
	t.Helper()
	results := bringAll(t, st, clock, name, content)
	if len(results) != 1 {
		t.Fatalf("%s: %+v", name, results)
	}
	return results[0]
}

func session(t *testing.T, st *turnstone.Store, id string) *turnstone.Session {
	t.Helper()
	s, err := st.Session(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func loaded(t *testing.T, s *turnstone.Session, scope turnstone.Scope) *turnstone.State {
	t.Helper()
	state, err := s.Load(ctx, scope)
	if err != nil {
		t.Fatal(err)
	}
	return state
}

func infoOf(t *testing.T, s *turnstone.Session) turnstone.Info {
	t.Helper()
	i, err := s.Info(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// partsOf returns the checkpoint of the last revision.
func partsOf(t *testing.T, s *turnstone.Session) map[string][]byte {
	t.Helper()
	parts, err := s.Checkpoint(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	return parts
}

func keys(nodes []turnstone.Node) (out []string) {
	for _, n := range nodes {
		out = append(out, n.Key)
	}
	return out
}

func payloads(nodes []turnstone.Node) (out []string) {
	for _, n := range nodes {
		out = append(out, string(n.Payload))
	}
	return out
}

// describe returns as text what a session holds: its active path, its whole graph,
// its metadata, its usage, its times and its checkpoint. Two sessions that came about
// in different ways have the same text if they hold the same.
func describe(t *testing.T, st *turnstone.Store, id string) string {
	t.Helper()
	i := infoOf(t, session(t, st, id))
	return describeHistory(t, st, id) + fmt.Sprintln(i.Name, i.Model, i.Cwd, i.Labels, i.Created, i.Updated)
}

// describeHistory is describe without metadata and times.
func describeHistory(t *testing.T, st *turnstone.Store, id string) string {
	t.Helper()
	s := session(t, st, id)
	var b strings.Builder
	for _, scope := range []turnstone.Scope{{}, {Full: true}} {
		state := loaded(t, s, scope)
		at := map[graph.ID]int{{}: -1}
		for i, n := range state.Nodes {
			at[n.ID] = i
			fmt.Fprintf(&b, "%d after %d: %s %s %s\n", i, at[n.Parent], n.Kind, n.Key, n.Payload)
		}
		fmt.Fprintln(&b, "leaf", at[state.Leaf])
	}
	fmt.Fprintln(&b, infoOf(t, s).Usage)
	parts := partsOf(t, s)
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		fmt.Fprintf(&b, "%s %s\n", name, parts[name])
	}
	return b.String()
}

// describePath returns the part of describe that is about the active path.
func describePath(t *testing.T, st *turnstone.Store, id string) string {
	t.Helper()
	path, _, _ := strings.Cut(describe(t, st, id), "leaf")
	return path
}

// withoutKeys removes from what describePath returned the keys of the nodes, which
// tell the versions of an edited message apart, and their positions.
func withoutKeys(path string) string {
	var out []string
	for l := range strings.Lines(path) {
		_, payload, _ := strings.Cut(l, "{")
		out = append(out, payload)
	}
	return strings.Join(out, "")
}

// exported returns the file that an export of a session writes.
func exported(t *testing.T, st *turnstone.Store, id string) string {
	t.Helper()
	s := session(t, st, id)
	var b bytes.Buffer
	if err := importer.Write(&b, loaded(t, s, turnstone.Scope{Full: true}), partsOf(t, s)[importer.LayoutPart]); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
