package transcript_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/testkit"
	"github.com/turnstonedb/turnstone/transcript"
)

var ctx = context.Background()

// open returns the histories of a new store, and the store.
func open(t *testing.T) (*transcript.Transcripts, *turnstone.Store) {
	t.Helper()
	e := memory.New()
	st, err := turnstone.Open(ctx, e, &turnstone.Options{NoAutoSeal: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		v, err := st.Verify(ctx, turnstone.VerifyOptions{})
		if err != nil || !v.OK() {
			t.Errorf("the store does not verify: %v %v", err, v)
		}
		st.Close()
		e.Close()
	})
	return transcript.New(st.Factory()), st
}

// history returns a message for each text.
func history(texts ...string) []transcript.Message {
	var out []transcript.Message
	for i, text := range texts {
		kind := "user"
		if i%2 == 1 {
			kind = "assistant"
		}
		out = append(out, transcript.Message{Kind: kind, Payload: []byte(text)})
	}
	return out
}

func texts(all []transcript.Message) string {
	var out []string
	for _, m := range all {
		out = append(out, string(m.Payload))
	}
	return strings.Join(out, " ")
}

func save(t *testing.T, tr *transcript.Transcripts, id string, s transcript.Snapshot) transcript.Saved {
	t.Helper()
	saved, err := tr.Save(ctx, id, s)
	if err != nil {
		t.Fatal(err)
	}
	return saved
}

func load(t *testing.T, tr *transcript.Transcripts, id string) *transcript.Transcript {
	t.Helper()
	out, ok, err := tr.Load(ctx, id)
	if err != nil || !ok {
		t.Fatalf("load %q: %v, %v", id, ok, err)
	}
	return out
}

// nodes returns the number of nodes in the graph of a session.
func nodes(t *testing.T, st *turnstone.Store, id string) int {
	t.Helper()
	s, err := st.Session(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	state, err := s.Load(ctx, turnstone.Scope{Full: true})
	if err != nil {
		t.Fatal(err)
	}
	return len(state.Nodes)
}

func TestW1SaveLoadListDelete(t *testing.T) {
	tr, _ := open(t)
	if out, ok, err := tr.Load(ctx, "a"); out != nil || ok || err != nil {
		t.Errorf("a session that is not there: %v, %v, %v", out, ok, err)
	}
	if _, ok, err := tr.Latest(ctx); ok || err != nil {
		t.Errorf("the latest of none: %v, %v", ok, err)
	}
	save(t, tr, "a", transcript.Snapshot{Messages: history("1", "2")})
	save(t, tr, "b", transcript.Snapshot{Messages: history("3")})
	if got := load(t, tr, "a"); texts(got.Messages) != "1 2" || got.Messages[1].Kind != "assistant" || got.ID != "a" {
		t.Errorf("loaded %+v", got)
	}
	page, err := tr.List(ctx, turnstone.ListOptions{})
	if err != nil || len(page.Sessions) != 2 {
		t.Errorf("%+v, %v", page, err)
	}
	for _, want := range []bool{true, false} {
		if existed, err := tr.Delete(ctx, "a"); existed != want || err != nil {
			t.Errorf("delete: %v, %v", existed, err)
		}
	}
	if _, ok, _ := tr.Load(ctx, "a"); ok {
		t.Error("it is still there")
	}
}

func TestW2UnchangedWritesNothing(t *testing.T) {
	tr, st := open(t)
	s := transcript.Snapshot{
		Messages: history("1", "2"), State: map[string][]byte{"prompt": []byte("be kind"), "tools": []byte("[]")},
		Metadata: head.Metadata{Name: "n", Model: "m", Cwd: "/c", Labels: map[string]string{"k": "v"}},
	}
	first := save(t, tr, "a", s)
	before, err := st.Stats(ctx)
	if err != nil {
		t.Fatal(err)
	}
	info := load(t, tr, "a").Info
	if again := save(t, tr, "a", s); again.Revision != first.Revision || again.Kept != 2 || again.Added != 0 {
		t.Errorf("%+v after %+v", again, first)
	}
	after, err := st.Stats(ctx)
	if err != nil || after.Stored != before.Stored {
		t.Errorf("it wrote: %+v, before %+v, %v", after.Stored, before.Stored, err)
	}
	if now := load(t, tr, "a").Info; !now.Updated.Equal(info.Updated) {
		t.Errorf("it moved in the list")
	}
}

func TestW3LongerWritesTheNew(t *testing.T) {
	tr, st := open(t)
	var all []string
	for i := range 20 {
		all = append(all, fmt.Sprint("message ", i))
		if got := save(t, tr, "a", transcript.Snapshot{Messages: history(all...)}); got.Kept != i || got.Added != 1 {
			t.Fatalf("%d: %+v", i, got)
		}
	}
	if n := nodes(t, st, "a"); n != 20 {
		t.Errorf("%d nodes", n)
	}
}

func TestW4EditedMakesABranch(t *testing.T) {
	tr, st := open(t)
	save(t, tr, "a", transcript.Snapshot{Messages: history("1", "2", "3", "4")})
	for _, c := range []struct {
		to    []string
		nodes int // number of nodes in the graph after the save
	}{
		{[]string{"1", "2", "x"}, 5},
		{[]string{"1", "2"}, 5}, // shorter: only the leaf moves
		{[]string{"1", "2", "3"}, 6},
		{[]string{"other"}, 7}, // from the first message on
	} {
		save(t, tr, "a", transcript.Snapshot{Messages: history(c.to...)})
		if got := texts(load(t, tr, "a").Messages); got != strings.Join(c.to, " ") {
			t.Errorf("saved %v, loaded %q", c.to, got)
		}
		if n := nodes(t, st, "a"); n != c.nodes {
			t.Errorf("after %v the graph has %d nodes, not %d", c.to, n, c.nodes)
		}
	}
	// Messages with the same text differ if their kinds or attachments do.
	changed := history("other")
	changed[0].Kind = "system"
	if got := save(t, tr, "a", transcript.Snapshot{Messages: changed}); got.Added != 1 || load(t, tr, "a").Messages[0].Kind != "system" {
		t.Errorf("another kind: %+v", got)
	}
}

// Each field can be unset, with and without a Saver. Unsetting an empty field writes
// nothing.
func TestW5MetadataIsUnset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, _ := open(t)
		var full head.Metadata
		testkit.Fill(&full, 0)
		var all []head.Field // as JSON calls them
		for _, f := range reflect.VisibleFields(reflect.TypeFor[head.Metadata]()) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			all = append(all, head.Field(name))
		}
		sets := [][]head.Field{all}
		for i := range all {
			sets = append(sets, all[i:i+1])
		}
		for _, unset := range sets {
			want := full
			for _, f := range unset {
				reflect.ValueOf(&want).Elem().Field(slices.Index(all, f)).SetZero()
			}
			save(t, tr, "a", transcript.Snapshot{Metadata: full})
			save(t, tr, "a", transcript.Snapshot{Unset: unset})
			got := load(t, tr, "a")
			if !reflect.DeepEqual(got.Metadata, want) {
				t.Errorf("without %v: %+v, want %+v", unset, got.Metadata, want)
			}
			time.Sleep(time.Second)
			save(t, tr, "a", transcript.Snapshot{Unset: unset})
			if again := load(t, tr, "a"); !again.Updated.Equal(got.Updated) {
				t.Errorf("without %v: unsetting what is unset was an update", unset)
			}
			s := tr.Saver("a", time.Hour, nil)
			s.Save(transcript.Snapshot{Metadata: full, Unset: all})
			s.Save(transcript.Snapshot{})
			s.Save(transcript.Snapshot{Unset: unset})
			if err := s.Flush(ctx); err != nil {
				t.Fatal(err)
			}
			if got := load(t, tr, "a"); !reflect.DeepEqual(got.Metadata, want) {
				t.Errorf("saved late, without %v: %+v, want %+v", unset, got.Metadata, want)
			}
			s.Save(transcript.Snapshot{Unset: all})
			s.Save(transcript.Snapshot{Metadata: head.Metadata{Name: "later", Labels: map[string]string{"y": "2"}}})
			if err := s.Flush(ctx); err != nil {
				t.Fatal(err)
			}
			if got, want := load(t, tr, "a").Metadata, (head.Metadata{Name: "later", Labels: map[string]string{"y": "2"}}); !reflect.DeepEqual(got, want) {
				t.Errorf("unset and then set: %+v", got)
			}
			save(t, tr, "a", transcript.Snapshot{Unset: all})
			s.Save(transcript.Snapshot{Metadata: full})
			s.Save(transcript.Snapshot{Metadata: head.Metadata{Cwd: "/only"}, Unset: []head.Field{head.FieldAll}})
			if err := s.Flush(ctx); err != nil {
				t.Fatal(err)
			}
			if got := load(t, tr, "a").Metadata; !reflect.DeepEqual(got, head.Metadata{Cwd: "/only"}) {
				t.Errorf("the snapshot is all: %+v", got)
			}
			save(t, tr, "a", transcript.Snapshot{Unset: all})
		}
		save(t, tr, "a", transcript.Snapshot{Metadata: head.Metadata{Custom: []byte(`{ "a": 1 }`)}})
		s := tr.Saver("a", time.Hour, nil)
		save(t, tr, "a", transcript.Snapshot{Metadata: head.Metadata{Labels: map[string]string{"x": "1", "y": "2", "z": "3"}}})
		s.Save(transcript.Snapshot{Metadata: head.Metadata{Labels: map[string]string{"x": ""}}})
		s.Save(transcript.Snapshot{Metadata: head.Metadata{Labels: map[string]string{"y": ""}}})
		if err := s.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		if got := load(t, tr, "a").Labels; len(got) != 1 || got["z"] != "3" {
			t.Errorf("labels that two saves remove: %v", got)
		}
		before := load(t, tr, "a").Updated
		time.Sleep(time.Second)
		save(t, tr, "a", transcript.Snapshot{Metadata: head.Metadata{Custom: []byte(`{"a":1}`)}})
		if got := load(t, tr, "a").Updated; !got.Equal(before) {
			t.Error("the same custom metadata were an update")
		}
		s.Save(transcript.Snapshot{Touch: true})
		s.Save(transcript.Snapshot{})
		if err := s.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		if got := load(t, tr, "a").Updated; !got.After(before) {
			t.Error("a save that touches the session was no update")
		}
	})
}

func TestW5MetadataMerges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr, _ := open(t)
		save(t, tr, "a", transcript.Snapshot{Metadata: head.Metadata{Name: "name", Labels: map[string]string{"x": "1", "y": "2"}}})
		created := load(t, tr, "a").Created
		time.Sleep(time.Second)
		save(t, tr, "b", transcript.Snapshot{})
		time.Sleep(time.Second)
		save(t, tr, "a", transcript.Snapshot{Metadata: head.Metadata{Model: "model", Labels: map[string]string{"x": ""}}})
		got := load(t, tr, "a")
		if got.Name != "name" || got.Model != "model" || len(got.Labels) != 1 || got.Labels["y"] != "2" {
			t.Errorf("%+v", got.Metadata)
		}
		if !got.Created.Equal(created) || !got.Updated.After(created) {
			t.Errorf("created %v, before %v, updated %v", got.Created, created, got.Updated)
		}
		if _, err := tr.Save(ctx, "a", transcript.Snapshot{Metadata: head.Metadata{Name: "x"}, Unset: []head.Field{"colour"}}); !errors.Is(err, turnstone.ErrInvalid) {
			t.Errorf("an unknown field: %v", err)
		}
		if _, err := tr.Save(ctx, "a", transcript.Snapshot{Base: turnstone.AnyRevision}); !errors.Is(err, turnstone.ErrInvalid) {
			t.Errorf("any revision as a base: %v", err)
		}
		page, err := tr.List(ctx, turnstone.ListOptions{})
		if err != nil || len(page.Sessions) != 2 || page.Sessions[0].ID != "a" {
			t.Errorf("the order of %+v, %v", page.Sessions, err)
		}
		if latest, ok, err := tr.Latest(ctx); !ok || err != nil || latest.ID != "a" {
			t.Errorf("latest %+v, %v", latest, err)
		}
	})
}

func TestW6ClearKeepsTheSession(t *testing.T) {
	tr, _ := open(t)
	if existed, err := tr.Clear(ctx, "a"); existed || err != nil {
		t.Errorf("%v, %v", existed, err)
	}
	if _, ok, _ := tr.Load(ctx, "a"); ok {
		t.Error("clearing made a session")
	}
	save(t, tr, "a", transcript.Snapshot{Messages: history("1", "2"), State: map[string][]byte{"p": []byte("x")}, Metadata: head.Metadata{Name: "n"}})
	if existed, err := tr.Clear(ctx, "a"); !existed || err != nil {
		t.Errorf("%v, %v", existed, err)
	}
	if got := load(t, tr, "a"); len(got.Messages) != 0 || len(got.State) != 0 || got.Name != "n" {
		t.Errorf("%+v", got)
	}
	save(t, tr, "a", transcript.Snapshot{Messages: history("new")})
	if got := texts(load(t, tr, "a").Messages); got != "new" {
		t.Errorf("%q", got)
	}
}

func TestState(t *testing.T) {
	tr, _ := open(t)
	set := func(state map[string][]byte, want string) {
		t.Helper()
		save(t, tr, "a", transcript.Snapshot{Messages: history("1"), State: state})
		var got []string
		for name, content := range load(t, tr, "a").State {
			got = append(got, name+"="+string(content))
		}
		slices.Sort(got)
		if strings.Join(got, " ") != want {
			t.Errorf("%v, not %q", got, want)
		}
	}
	set(map[string][]byte{"a": []byte("1"), "b": []byte("2")}, "a=1 b=2")
	set(nil, "a=1 b=2")
	set(map[string][]byte{"a": []byte("3"), "c": []byte("4")}, "a=3 c=4")
	set(map[string][]byte{}, "")
}

func TestUsageAddsUp(t *testing.T) {
	tr, _ := open(t)
	use := []head.Usage{{Model: "m", Input: 10, Output: 1}}
	save(t, tr, "a", transcript.Snapshot{Messages: history("1"), Usage: use})
	save(t, tr, "a", transcript.Snapshot{Messages: history("1"), Usage: use})
	if got := load(t, tr, "a").Usage; len(got) != 1 || got[0].Input != 20 || got[0].Output != 2 {
		t.Errorf("%+v", got)
	}
}

func TestBaseRefusesALostUpdate(t *testing.T) {
	tr, _ := open(t)
	first := save(t, tr, "a", transcript.Snapshot{Messages: history("1")})
	save(t, tr, "a", transcript.Snapshot{Messages: history("1", "mine"), Base: first.Revision})
	_, err := tr.Save(ctx, "a", transcript.Snapshot{Messages: history("1", "yours"), Base: first.Revision})
	var conflict *turnstone.ConflictError
	if !errors.As(err, &conflict) || conflict.Revision != first.Revision+1 {
		t.Errorf("%v", err)
	}
	if got := texts(load(t, tr, "a").Messages); got != "1 mine" {
		t.Errorf("%q", got)
	}
	// Without a base the last save wins, and the other save's turn is a branch.
	save(t, tr, "a", transcript.Snapshot{Messages: history("1", "yours")})
	if got := texts(load(t, tr, "a").Messages); got != "1 yours" {
		t.Errorf("%q", got)
	}
}

// If several savers save one session at the same time, each save succeeds, the history is
// that of one of them, and the graph has all messages.
func TestConcurrentSaves(t *testing.T) {
	tr, st := open(t)
	const n = 8
	done := make(chan error)
	for i := range n {
		go func() {
			_, err := tr.Save(ctx, "a", transcript.Snapshot{Messages: history("start", fmt.Sprint("from ", i))})
			done <- err
		}()
	}
	for range n {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if got := load(t, tr, "a"); len(got.Messages) != 2 {
		t.Errorf("%q", texts(got.Messages))
	}
	if got := nodes(t, st, "a"); got < n+1 {
		t.Errorf("%d nodes", got)
	}
}

// A history that is too long for one commit becomes visible as a whole.
func TestLongHistory(t *testing.T) {
	tr, st := open(t)
	var all []string
	for i := range 5000 {
		all = append(all, fmt.Sprint(i))
	}
	save(t, tr, "a", transcript.Snapshot{Messages: history("old")})
	if got := save(t, tr, "a", transcript.Snapshot{Messages: history(all...)}); got.Added != 5000 {
		t.Errorf("%+v", got)
	}
	if got := texts(load(t, tr, "a").Messages); got != strings.Join(all, " ") {
		t.Error("it is not what was saved")
	}
	s, err := st.Session(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	commits := 0
	for e, err := range s.Log(ctx, 1) {
		if err != nil {
			t.Fatal(err)
		}
		commits++
		state, err := s.Load(ctx, turnstone.Scope{At: e.Revision})
		if err != nil || len(state.Nodes) != 1 && len(state.Nodes) != 5000 {
			t.Errorf("at revision %d a reader sees %d messages, %v", e.Revision, len(state.Nodes), err)
		}
	}
	if commits < 3 {
		t.Errorf("%d commits", commits)
	}
}

func TestForks(t *testing.T) {
	tr, _ := open(t)
	save(t, tr, "main", transcript.Snapshot{Messages: history("1", "2", "3")})
	made, err := tr.Fork(ctx, "main", 2, turnstone.Request{ID: "fork"})
	if err != nil || !made {
		t.Fatal(made, err)
	}
	if got := load(t, tr, "fork"); texts(got.Messages) != "1 2" || got.Parent != "main" || got.ForkNode != load(t, tr, "main").Messages[1].ID {
		t.Errorf("%q of %+v", texts(got.Messages), got.Info)
	}
	if got := save(t, tr, "fork", transcript.Snapshot{Messages: history("1", "2", "other")}); got.Added != 1 {
		t.Errorf("%+v", got)
	}
	if _, err := tr.Fork(ctx, "main", -1, turnstone.Request{ID: "agent", Detached: true, Summary: true}); err != nil {
		t.Fatal(err)
	}
	if got := load(t, tr, "agent"); len(got.Messages) != 0 || !got.Detached || !got.Summary || got.Parent != "main" {
		t.Errorf("%+v", got)
	}
	if existed, err := tr.Delete(ctx, "main"); !existed || err != nil {
		t.Fatal(err)
	}
	if got := texts(load(t, tr, "fork").Messages); got != "1 2 other" {
		t.Errorf("without its parent: %q", got)
	}
	save(t, tr, "main", transcript.Snapshot{Messages: history("1")})
	for _, n := range []int{0, 2} {
		for _, detached := range []bool{false, true} {
			if _, err := tr.Fork(ctx, "main", n, turnstone.Request{ID: "no", Detached: detached}); !errors.Is(err, turnstone.ErrInvalid) {
				t.Errorf("fork after %d of 1, detached %v: %v", n, detached, err)
			}
		}
	}
	// Of a parent without messages, whose settings an attached fork has.
	if _, err := tr.Create(ctx, turnstone.Request{ID: "bare"}); err != nil {
		t.Fatal(err)
	}
	save(t, tr, "empty", transcript.Snapshot{State: map[string][]byte{"prompt": []byte("p")}})
	for i, c := range []struct {
		parent   string
		n        int
		detached bool
		prompt   string
	}{{"bare", 0, false, ""}, {"bare", -1, true, ""}, {"empty", 0, false, "p"}, {"empty", -1, false, "p"}, {"empty", -1, true, ""}, {"empty", 0, true, ""}} {
		id := fmt.Sprint("of no messages ", i)
		if made, err := tr.Fork(ctx, c.parent, c.n, turnstone.Request{ID: id, Detached: c.detached}); err != nil || !made {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		if got := load(t, tr, id); len(got.Messages) != 0 || string(got.State["prompt"]) != c.prompt || got.Parent != c.parent || got.Detached != c.detached {
			t.Errorf("%+v: %+v", c, got)
		}
	}
	if _, err := tr.Fork(ctx, "none", 1, turnstone.Request{ID: "no"}); !errors.Is(err, turnstone.ErrSessionNotFound) {
		t.Error(err)
	}
}

func TestAttachments(t *testing.T) {
	tr, st := open(t)
	save(t, tr, "a", transcript.Snapshot{})
	s, err := st.Session(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	at, err := s.PutAttachment(ctx, strings.NewReader("image"), -1, "image/png", "x.png")
	if err != nil {
		t.Fatal(err)
	}
	m := transcript.Message{Kind: "user", Payload: []byte("look"), Attachments: []blob.Attachment{at}}
	save(t, tr, "a", transcript.Snapshot{Messages: []transcript.Message{m}})
	got := load(t, tr, "a").Messages
	if len(got) != 1 || !slices.Equal(got[0].Attachments, m.Attachments) {
		t.Errorf("%+v", got)
	}
	if again := save(t, tr, "a", transcript.Snapshot{Messages: got}); again.Added != 0 {
		t.Errorf("%+v", again)
	}
}

// A fork within a turn has the state of the turn before it.
func TestForksHaveTheStateOfTheirPlace(t *testing.T) {
	tr, _ := open(t)
	save(t, tr, "a", transcript.Snapshot{Messages: history("1", "2"), State: map[string][]byte{"p": []byte("v1")}})
	save(t, tr, "a", transcript.Snapshot{Messages: history("1", "2", "3", "4"), State: map[string][]byte{"p": []byte("v2")}})
	for n, want := range map[int]string{1: "", 2: "v1", 3: "v1", 4: "v2", -1: "v2"} {
		id := fmt.Sprint("fork ", n)
		if _, err := tr.Fork(ctx, "a", n, turnstone.Request{ID: id}); err != nil {
			t.Fatal(err)
		}
		if got := string(load(t, tr, id).State["p"]); got != want {
			t.Errorf("after %d messages: %q, not %q", n, got, want)
		}
	}
}

// Many attachments make commits as large as many payloads do.
func TestManyAttachments(t *testing.T) {
	testkit.Slow(t)
	tr, st := open(t)
	save(t, tr, "a", transcript.Snapshot{})
	s, err := st.Session(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	var all []transcript.Message
	for i := range 2000 {
		m := transcript.Message{Kind: "user"}
		for j := range 2 {
			at, err := s.PutAttachment(ctx, strings.NewReader(fmt.Sprint(i, " ", j)), -1, strings.Repeat("t", 200), strings.Repeat("n", 250))
			if err != nil {
				t.Fatal(err)
			}
			m.Attachments = append(m.Attachments, at)
		}
		all = append(all, m)
	}
	save(t, tr, "a", transcript.Snapshot{Messages: all})
	if got := load(t, tr, "a"); len(got.Messages) != 2000 || len(got.Messages[1999].Attachments) != 2 {
		t.Errorf("%d messages", len(got.Messages))
	}
}

// What a host passes to a Saver stays as it is, also when several saves become one.
func TestASaverLeavesUsageAlone(t *testing.T) {
	tr, _ := open(t)
	s := tr.Saver("s", time.Hour, nil)
	first := []head.Usage{{Model: "m", Input: 1}}
	second := []head.Usage{{Model: "m", Input: 2}}
	s.Save(transcript.Snapshot{Usage: first})
	s.Save(transcript.Snapshot{Usage: second})
	if err := s.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	if first[0].Input != 1 || second[0].Input != 2 {
		t.Errorf("the usage that was passed is %v and %v now", first, second)
	}
	if got := load(t, tr, "s"); len(got.Usage) != 1 || got.Usage[0].Input != 3 {
		t.Errorf("saved usage %v", got.Usage)
	}
}
