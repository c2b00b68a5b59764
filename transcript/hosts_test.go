package transcript_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine/pebble"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/transcript"
)

// hosts are the rows of docs/transcript.md: what each host asks of its store.
var hosts = map[string]func(t *testing.T, tr *transcript.Transcripts, st *turnstone.Store){
	"condukt-load": func(t *testing.T, tr *transcript.Transcripts, _ *turnstone.Store) {
		if _, ok, err := tr.Load(ctx, "agent"); ok || err != nil {
			t.Error(ok, err)
		}
		save(t, tr, "agent", transcript.Snapshot{Messages: history("hi", "hello")})
		if got := load(t, tr, "agent"); texts(got.Messages) != "hi hello" {
			t.Errorf("%+v", got)
		}
	},
	"condukt-save": func(t *testing.T, tr *transcript.Transcripts, _ *turnstone.Store) {
		for turn := range 3 {
			save(t, tr, "agent", transcript.Snapshot{
				Messages: history(strings.Fields("a b c d e f")[:2*turn+2]...),
				Metadata: head.Metadata{Model: "m", Cwd: "/work"},
				State:    map[string][]byte{"system_prompt": []byte("be brief")},
			})
		}
		got := load(t, tr, "agent")
		if len(got.Messages) != 6 || got.Model != "m" || got.Cwd != "/work" || string(got.State["system_prompt"]) != "be brief" {
			t.Errorf("%+v", got)
		}
	},
	"condukt-clear": func(t *testing.T, tr *transcript.Transcripts, _ *turnstone.Store) {
		save(t, tr, "agent", transcript.Snapshot{Messages: history("old")})
		if existed, err := tr.Clear(ctx, "agent"); !existed || err != nil {
			t.Error(existed, err)
		}
		if got := load(t, tr, "agent"); len(got.Messages) != 0 {
			t.Errorf("%+v", got)
		}
		save(t, tr, "agent", transcript.Snapshot{Messages: history("new")})
		if got := load(t, tr, "agent"); texts(got.Messages) != "new" {
			t.Errorf("%+v", got)
		}
	},
	"skillkit-save": func(t *testing.T, tr *transcript.Transcripts, _ *turnstone.Store) {
		save(t, tr, "bot", transcript.Snapshot{Messages: history("1", "2")})
		if got := save(t, tr, "bot", transcript.Snapshot{Messages: history("1", "2", "3", "4")}); got.Kept != 2 || got.Added != 2 {
			t.Errorf("%+v", got)
		}
	},
	"skillkit-load": func(t *testing.T, tr *transcript.Transcripts, _ *turnstone.Store) {
		if got, ok, err := tr.Load(ctx, "bot"); got != nil || ok || err != nil {
			t.Error(got, ok, err)
		}
	},
	"skillkit-delete": func(t *testing.T, tr *transcript.Transcripts, st *turnstone.Store) {
		save(t, tr, "bot", transcript.Snapshot{Messages: history("1")})
		if _, err := st.Prune(ctx, gc.PruneOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := st.Vacuum(ctx, gc.VacuumOptions{}); err != nil {
			t.Fatal(err)
		}
		load(t, tr, "bot") // nothing is deleted by itself
		if _, err := tr.Delete(ctx, "bot"); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := tr.Load(ctx, "bot"); ok || err != nil {
			t.Error(ok, err)
		}
	},
	"skillkit-names": func(t *testing.T, tr *transcript.Transcripts, _ *turnstone.Store) {
		names := []string{"../../etc/passwd", "a/b", "a b", "A", "a", "CON", "ünïcödé", "x\x00y", strings.Repeat("n", turnstone.MaxSessionID)}
		for _, name := range names {
			save(t, tr, name, transcript.Snapshot{Messages: history(name)})
		}
		for _, name := range names {
			if got := load(t, tr, name); texts(got.Messages) != name {
				t.Errorf("%q has %q", name, texts(got.Messages))
			}
		}
	},
	"simulacra-list":   latest,
	"simulacra-latest": latest,
	"simulacra-load": func(t *testing.T, tr *transcript.Transcripts, _ *turnstone.Store) {
		save(t, tr, "s", transcript.Snapshot{Messages: history("1"), Metadata: head.Metadata{Name: "title"}})
		if got := load(t, tr, "s"); got.Name != "title" || texts(got.Messages) != "1" {
			t.Errorf("%+v", got)
		}
		if _, ok, err := tr.Load(ctx, "other"); ok || err != nil {
			t.Error(ok, err)
		}
	},
	"simulacra-save": func(t *testing.T, tr *transcript.Transcripts, _ *turnstone.Store) {
		save(t, tr, "s", transcript.Snapshot{Messages: history("1"), Metadata: head.Metadata{Name: "title"}})
		first := load(t, tr, "s")
		time.Sleep(time.Millisecond)
		save(t, tr, "s", transcript.Snapshot{Messages: history("1", "2"), Metadata: head.Metadata{Model: "m"}})
		got := load(t, tr, "s")
		if got.Name != "title" || got.Model != "m" || !got.Created.Equal(first.Created) || !got.Updated.After(first.Updated) {
			t.Errorf("%+v, before %+v", got.Info, first.Info)
		}
	},
	"simulacra-count": func(t *testing.T, tr *transcript.Transcripts, _ *turnstone.Store) {
		save(t, tr, "s", transcript.Snapshot{Messages: history("1", "2", "3")})
		page, err := tr.List(ctx, turnstone.ListOptions{})
		if got := load(t, tr, "s"); err != nil || len(got.Messages) != 3 || page.Sessions[0].Messages != 3 {
			t.Errorf("%d, %+v, %v", len(got.Messages), page, err)
		}
	},
	"simulacra-debounce": func(t *testing.T, tr *transcript.Transcripts, _ *turnstone.Store) {
		synctest.Test(t, func(t *testing.T) {
			tr, _ := open(t)
			s := tr.Saver("s", time.Second, nil)
			all := strings.Fields("a b c d e f g h")
			for i := range all { // the responses of a model
				s.Save(transcript.Snapshot{Messages: history(all[:i+1]...)})
				time.Sleep(190 * time.Millisecond) // never just when a save is due
			}
			if err := s.Flush(ctx); err != nil {
				t.Fatal(err)
			}
			if got := load(t, tr, "s"); got.Revision != 2 || len(got.Messages) != 8 {
				t.Errorf("%d saves of %d messages", got.Revision, len(got.Messages))
			}
		})
	},
	"simulacra-delete": func(t *testing.T, tr *transcript.Transcripts, _ *turnstone.Store) {
		save(t, tr, "s", transcript.Snapshot{})
		for _, want := range []bool{true, false} {
			if existed, err := tr.Delete(ctx, "s"); existed != want || err != nil {
				t.Error(existed, err)
			}
		}
	},
	"simulacra-attached": func(t *testing.T, tr *transcript.Transcripts, _ *turnstone.Store) {
		save(t, tr, "root", transcript.Snapshot{Messages: history("1", "2", "3")})
		if _, err := tr.Fork(ctx, "root", 2, turnstone.Request{ID: "child"}); err != nil {
			t.Fatal(err)
		}
		if _, err := tr.Fork(ctx, "child", -1, turnstone.Request{ID: "grandchild"}); err != nil {
			t.Fatal(err)
		}
		own := load(t, tr, "grandchild").Messages
		save(t, tr, "grandchild", transcript.Snapshot{Messages: append(own, history("own")...)})
		save(t, tr, "root", transcript.Snapshot{Messages: history("1", "2", "3", "4")}) // does not reach the children
		got := load(t, tr, "grandchild")
		if texts(got.Messages) != "1 2 own" || got.ForkNode != got.Messages[1].ID || got.Parent != "child" || got.Detached {
			t.Errorf("%q of %+v", texts(got.Messages), got.Info)
		}
	},
	"simulacra-detached": func(t *testing.T, tr *transcript.Transcripts, _ *turnstone.Store) {
		save(t, tr, "root", transcript.Snapshot{Messages: history("1", "2")})
		if _, err := tr.Fork(ctx, "root", 1, turnstone.Request{ID: "agent", Detached: true}); err != nil {
			t.Fatal(err)
		}
		got := load(t, tr, "agent")
		if len(got.Messages) != 0 || !got.Detached || got.ForkNode != load(t, tr, "root").Messages[0].ID {
			t.Errorf("%+v", got)
		}
	},
	"simulacra-child": func(t *testing.T, tr *transcript.Transcripts, _ *turnstone.Store) {
		save(t, tr, "root", transcript.Snapshot{Messages: history("1", "2")})
		first := load(t, tr, "root").Messages[0].ID
		child := transcript.Snapshot{Messages: history("1", "own"), Metadata: head.Metadata{Name: "n"}, New: turnstone.Request{ID: "ignored", Parent: "root", ForkNode: first}}
		for range 2 { // The second save finds the child.
			save(t, tr, "child", child)
			if got := load(t, tr, "child"); texts(got.Messages) != "1 own" || got.Parent != "root" || got.ForkNode != first || got.Name != "n" || got.Nodes != 1 {
				t.Errorf("%+v", got)
			}
		}
		s := tr.Saver("late", time.Hour, nil)
		s.Save(transcript.Snapshot{New: turnstone.Request{Parent: "root", Detached: true}})
		s.Save(transcript.Snapshot{Messages: history("x")})
		if err := s.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		if got := load(t, tr, "late"); texts(got.Messages) != "x" || !got.Detached || got.Parent != "root" {
			t.Errorf("%+v", got)
		}
		if _, err := tr.Save(ctx, "orphan", transcript.Snapshot{New: turnstone.Request{Parent: "nobody"}}); !errors.Is(err, turnstone.ErrSessionNotFound) {
			t.Error(err)
		}
	},
	"simulacra-checkpoint": func(t *testing.T, tr *transcript.Transcripts, _ *turnstone.Store) {
		save(t, tr, "root", transcript.Snapshot{Messages: history("1", "2")})
		if _, err := tr.Fork(ctx, "root", -1, turnstone.Request{ID: "summary", Detached: true, Summary: true}); err != nil {
			t.Fatal(err)
		}
		for _, want := range []bool{true, false} {
			page, err := tr.List(ctx, turnstone.ListOptions{Summary: &want})
			if err != nil || len(page.Sessions) != 1 || page.Sessions[0].Summary != want {
				t.Errorf("%+v, %v", page, err)
			}
		}
	},
	"json-create": func(t *testing.T, tr *transcript.Transcripts, _ *turnstone.Store) {
		if made, err := tr.Create(ctx, turnstone.Request{ID: "a"}); !made || err != nil {
			t.Error(made, err)
		}
		save(t, tr, "b", transcript.Snapshot{})
		for _, id := range []string{"a", "b"} {
			if got := load(t, tr, id); len(got.Messages) != 0 {
				t.Errorf("%+v", got)
			}
		}
	},
	"json-mutation": func(t *testing.T, tr *transcript.Transcripts, st *turnstone.Store) {
		all := strings.Fields("a b c d e")
		for i := range all {
			save(t, tr, "s", transcript.Snapshot{Messages: history(all[:i+1]...)})
			if got := load(t, transcript.New(st.Factory()), "s"); len(got.Messages) != i+1 {
				t.Errorf("%d messages after %d", len(got.Messages), i+1)
			}
		}
	},
	"json-missing": func(t *testing.T, tr *transcript.Transcripts, _ *turnstone.Store) {
		if _, ok, err := tr.Load(ctx, "missing"); ok || err != nil {
			t.Error(ok, err)
		}
	},
	"json-resume": func(t *testing.T, _ *transcript.Transcripts, _ *turnstone.Store) {
		dir := t.TempDir() + "/store"
		for run := range 3 { // each run is like a new process
			e, err := pebble.Open(dir, nil)
			if err != nil {
				t.Fatal(err)
			}
			st, err := turnstone.Open(ctx, e, nil)
			if err != nil {
				t.Fatal(err)
			}
			tr := transcript.New(st.Factory())
			var all []transcript.Message
			if got, ok, err := tr.Load(ctx, "s"); err != nil || ok != (run > 0) {
				t.Fatal(ok, err)
			} else if ok {
				all = got.Messages
			}
			if len(all) != 2*run {
				t.Errorf("run %d found %d messages", run, len(all))
			}
			save(t, tr, "s", transcript.Snapshot{Messages: append(all, history("q", "a")...)})
			if err := errors.Join(st.Close(), e.Close()); err != nil {
				t.Fatal(err)
			}
		}
	},
	"json-readable": func(t *testing.T, tr *transcript.Transcripts, _ *turnstone.Store) {
		// Payloads are the bytes of the host. The tests of the command cover show and export.
		want := []byte(`{"role": "user",  "content": "kept as it was written"}`)
		save(t, tr, "s", transcript.Snapshot{Messages: []transcript.Message{{Kind: "user", Payload: want}}})
		if got := load(t, tr, "s").Messages[0].Payload; !bytes.Equal(got, want) {
			t.Errorf("%q", got)
		}
	},
	"json-compaction": func(t *testing.T, tr *transcript.Transcripts, st *turnstone.Store) {
		save(t, tr, "s", transcript.Snapshot{Messages: history("system", "a", "b", "c", "d", "e")})
		save(t, tr, "s", transcript.Snapshot{Messages: history("system", "summary of a to d", "e")})
		if got := load(t, tr, "s"); texts(got.Messages) != "system summary of a to d e" || nodes(t, st, "s") != 8 {
			t.Errorf("%q", texts(got.Messages))
		}
	},
	"lash-load": func(t *testing.T, tr *transcript.Transcripts, st *turnstone.Store) {
		save(t, tr, "s", transcript.Snapshot{Messages: history("1", "2", "3")})
		s, err := st.Session(ctx, "s")
		if err != nil {
			t.Fatal(err)
		}
		state, err := s.Load(ctx, turnstone.Scope{Last: 1})
		if err != nil || len(state.Nodes) != 1 {
			t.Fatal(state, err)
		}
		if n, err := s.Node(ctx, state.Leaf); err != nil || string(n.Payload) != "3" {
			t.Error(n, err)
		}
		if _, err := s.Node(ctx, graph.ID{1}); !errors.Is(err, turnstone.ErrNodeNotFound) {
			t.Error(err)
		}
	},
	"lash-commit": func(t *testing.T, tr *transcript.Transcripts, st *turnstone.Store) {
		at := save(t, tr, "s", transcript.Snapshot{Messages: history("1")}).Revision
		s, err := st.Session(ctx, "s")
		if err != nil {
			t.Fatal(err)
		}
		turn := func(text string) error {
			_, err := s.Commit(ctx, turnstone.Commit{Expected: at, Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte(text)}}})
			return err
		}
		if err := turn("winner"); err != nil {
			t.Fatal(err)
		}
		before := load(t, tr, "s")
		if err := turn("loser"); turnstone.KindOf(err).Name != "conflict" {
			t.Error(err)
		}
		if after := load(t, tr, "s"); after.Commit != before.Commit || texts(after.Messages) != "1 winner" {
			t.Errorf("%+v", after)
		}
	},
	"lash-meta": func(t *testing.T, tr *transcript.Transcripts, st *turnstone.Store) {
		at := save(t, tr, "s", transcript.Snapshot{}).Revision
		s, err := st.Session(ctx, "s")
		if err == nil {
			err = s.SaveMetadata(ctx, head.Metadata{Name: "readable", Cwd: "/c"})
		}
		if err != nil {
			t.Fatal(err)
		}
		if i, err := s.Info(ctx); err != nil || i.Name != "readable" || i.Cwd != "/c" || i.Revision != at {
			t.Errorf("%+v, %v", i, err)
		}
	},
	"lash-tombstone": func(t *testing.T, tr *transcript.Transcripts, st *turnstone.Store) {
		save(t, tr, "s", transcript.Snapshot{Messages: history("1", "2", "3")})
		s, err := st.Session(ctx, "s")
		if err == nil {
			err = s.Tombstone(ctx, load(t, tr, "s").Messages[1].ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := load(t, tr, "s"); texts(got.Messages) != "1 3" {
			t.Errorf("%q", texts(got.Messages))
		}
		// The host's list does not have the message any more and goes on without it.
		if got := save(t, tr, "s", transcript.Snapshot{Messages: history("1", "2", "3")[:1]}); got.Added != 0 {
			t.Errorf("%+v", got)
		}
	},
	"lash-gc": func(t *testing.T, tr *transcript.Transcripts, st *turnstone.Store) {
		save(t, tr, "s", transcript.Snapshot{State: map[string][]byte{"plan": bytes.Repeat([]byte("x"), 1000)}})
		if _, err := tr.Delete(ctx, "s"); err != nil {
			t.Fatal(err)
		}
		if r, err := st.GC(ctx, gc.Options{}); err != nil || r.Deleted != 1 {
			t.Errorf("%+v, %v", r, err)
		}
		if r, err := st.Vacuum(ctx, gc.VacuumOptions{}); err != nil || r.Records == 0 {
			t.Errorf("%+v, %v", r, err)
		}
	},
	"lash-factory": func(t *testing.T, _ *transcript.Transcripts, st *turnstone.Store) {
		f := st.Factory()
		p, created, err := f.Create(ctx, turnstone.Request{ID: "chat-1"})
		if err != nil || !created {
			t.Fatal(created, err)
		}
		if _, err := p.Commit(ctx, turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("hi")}}}); err != nil {
			t.Error(err)
		}
		if _, err := f.Session(ctx, "chat-2"); !errors.Is(err, turnstone.ErrSessionNotFound) {
			t.Error(err)
		}
	},
	"lash-policy": func(t *testing.T, tr *transcript.Transcripts, st *turnstone.Store) {
		policy := json.RawMessage(`{"tools":["read"],"budget":1.5}`)
		for range 2 {
			s, _, err := st.Factory().Create(ctx, turnstone.Request{ID: "s", Metadata: head.Metadata{Custom: policy}})
			if err != nil {
				t.Fatal(err)
			}
			if i, err := s.Info(ctx); err != nil || string(i.Custom) != `{"budget":1.5,"tools":["read"]}` || i.Revision != 0 {
				t.Errorf("%+v, %v", i, err)
			}
		}
		_, err := st.CommitAll(ctx, turnstone.SessionCommit{Create: &turnstone.Request{ID: "r"}, RecordsOnly: true, Commit: turnstone.Commit{Records: []turnstone.RecordChange{{Key: "policy", Value: policy}}}})
		if err != nil {
			t.Fatal(err)
		}
		if got := load(t, tr, "r"); got.Revision != 0 {
			t.Errorf("%+v", got)
		}
	},
	"lash-turn": func(t *testing.T, _ *transcript.Transcripts, st *turnstone.Store) {
		s, _, err := st.Create(ctx, turnstone.Request{ID: "s"})
		if err != nil {
			t.Fatal(err)
		}
		in := turnstone.Commit{Turn: "t1", Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("hi")}}}
		first, err := s.Commit(ctx, in)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := s.Commit(ctx, in); err != nil || !again.Replayed || again.Commit != first.Commit {
			t.Errorf("%+v, %v", again, err)
		}
	},
}

func latest(t *testing.T, tr *transcript.Transcripts, _ *turnstone.Store) {
	for _, id := range []string{"a", "b", "c", "a"} {
		got, _, err := tr.Load(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		all := history("1")
		if got != nil {
			all = append(got.Messages, history("2")...)
		}
		save(t, tr, id, transcript.Snapshot{Messages: all})
		time.Sleep(100 * time.Millisecond) // so that the second save of "a" comes more than a quarter of a second after the first
	}
	page, err := tr.List(ctx, turnstone.ListOptions{})
	var ids []string
	for _, i := range page.Sessions {
		ids = append(ids, i.ID)
	}
	if err != nil || !slices.Equal(ids, []string{"a", "c", "b"}) {
		t.Errorf("%v, %v", ids, err)
	}
	if got, ok, err := tr.Latest(ctx); !ok || err != nil || got.ID != "a" || len(got.Messages) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
}

// Every row of the table in docs/transcript.md has a test, and every test a row.
func TestHosts(t *testing.T) {
	doc, err := os.ReadFile("../docs/transcript.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)\| ([a-z]+-[a-z]+) \|$`).FindAllSubmatch(doc, -1) {
		rows[string(m[1])] = true
	}
	for name := range rows {
		if hosts[name] == nil {
			t.Errorf("row %s has no test", name)
		}
	}
	for name, test := range hosts {
		if !rows[name] {
			t.Errorf("test %s has no row", name)
		}
		t.Run(name, func(t *testing.T) {
			tr, st := open(t)
			test(t, tr, st)
		})
	}
}
