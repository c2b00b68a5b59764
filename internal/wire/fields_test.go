package wire_test

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/internal/testkit"
	"github.com/turnstonedb/turnstone/internal/wire"
	"github.com/turnstonedb/turnstone/transcript"
)

// through sends a message as a document, and returns what is read.
func through[T any](t *testing.T, message *T) *T {
	t.Helper()
	var b bytes.Buffer
	if err := wire.Write(&b, message); err != nil {
		t.Fatal(err)
	}
	out := new(T)
	if err := wire.Decode(b.Bytes(), out, free); err != nil {
		t.Fatal(err)
	}
	return out
}

func same[T any](t *testing.T, got, want T) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%T:\n%+v\nwant\n%+v", want, got, want)
	}
}

func TestSV13_EveryFieldGoesThrough(t *testing.T) {
	own := []any{turnstone.RefNew(3), turnstone.DeleteRecord}
	var c turnstone.Commit
	testkit.Fill(&c, 0, own...)
	same(t, through(t, &wire.CommitRequest{Commit: wire.CommitOf(&c)}).Commit.Public(), c)
	same(t, through(t, wire.ChangesOf(wire.Target{}, c.Records)).Public(), c.Records)

	var n turnstone.Node
	testkit.Fill(&n, 0)
	same(t, through(t, wire.NodeOf(n)).Public(), n)

	var snapshot transcript.Snapshot
	testkit.Fill(&snapshot, 0)
	same(t, through(t, wire.SaveOf("s", &snapshot)).Public(), snapshot)
	same(t, through(t, wire.SaveOf("s", &transcript.Snapshot{State: map[string][]byte{}})).Public().State != nil, true)
	same(t, through(t, wire.SaveOf("s", &transcript.Snapshot{})).Public().State == nil, true)

	var p turnstone.RecordPage
	testkit.Fill(&p, 0)
	same(t, through(t, wire.PageOf(p)).Public(), p)

	var st turnstone.State
	testkit.Fill(&st, 0)
	for _, r := range st.Records { // Each is under its key.
		st.Records = map[string]turnstone.Record{r.Key: r}
	}
	got := through(t, &wire.Item{State: wire.StateOf(&st)}).State.Public()
	same(t, got.Nodes, nil)
	got.Nodes = st.Nodes // They come one by one.
	same(t, *got, st)

	for _, check := range []func(){
		func() { plain[turnstone.Info](t) }, func() { plain[turnstone.Page](t) }, func() { plain[turnstone.Request](t) }, func() { plain[turnstone.Result](t) },
		func() { plain[turnstone.LogEntry](t) }, func() { plain[turnstone.Change](t) }, func() { plain[turnstone.Feed](t) }, func() { plain[turnstone.Upload](t) }, func() { plain[turnstone.Attached](t) }, func() { plain[transcript.Saved](t) },
		func() { plain[turnstone.ListOptions](t) }, func() { plain[turnstone.Scope](t) }, func() { plain[turnstone.RecordQuery](t) },
	} {
		check()
	}
}

// plain checks a type that goes through as it is.
func plain[T any](t *testing.T) {
	t.Helper()
	var v T
	testkit.Fill(&v, 0)
	same(t, *through(t, &v), v)
}
