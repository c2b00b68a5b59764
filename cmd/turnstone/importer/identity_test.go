package importer_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/engine/memory"
)

func TestFilesThatAreCalledTheSameBecomeTwoSessions(t *testing.T) {
	st, clock := openClocked(t)
	a, b := filepath.Join(t.TempDir(), "chat.jsonl"), filepath.Join(t.TempDir(), "chat.jsonl")
	say := func(words ...string) string {
		var out []string
		for i, w := range words {
			out = append(out, fmt.Sprintf(`{"role":%q,"content":%q}`, []string{"user", "assistant"}[i%2], w))
		}
		return file(out)
	}
	one := bring(t, st, clock, a, say("hello", "hi"))
	two := bring(t, st, clock, b, say("hello", "hi"))
	if one.Session != "chat" || two.Outcome != importer.Imported || two.Session == one.Session || !strings.HasPrefix(two.Session, "chat~") {
		t.Fatalf("%+v\n%+v", one, two)
	}
	if r := bring(t, st, clock, a, say("hello", "hi", "a")); r.Session != one.Session || r.Outcome != importer.Grown {
		t.Errorf("%+v", r)
	}
	if r := bring(t, st, clock, b, say("hello", "hi", "b")); r.Session != two.Session || r.Outcome != importer.Grown {
		t.Errorf("%+v", r)
	}
	if err := st.Delete(ctx, one.Session, turnstone.KeepChildren); err != nil {
		t.Fatal(err)
	}
	if r := bring(t, st, clock, b, say("hello", "hi", "b", "b")); r.Session != two.Session {
		t.Errorf("%+v", r)
	}
	// A log that was overwritten is another conversation, also if the file was compressed.
	r := bring(t, st, clock, b, say("something else", "yes"))
	if r.Outcome != importer.Imported || r.Session == two.Session {
		t.Errorf("%+v", r)
	}
	if again := bring(t, st, clock, b+".gz", say("something else", "yes", "more")); again.Session != r.Session {
		t.Errorf("%+v", again)
	}
	if again := bring(t, st, clock, b, say("hello", "hi", "b", "b", "b")); again.Session != two.Session {
		t.Errorf("%+v", again)
	}
	// The importer does not use a session that a host created.
	if _, _, err := st.Create(ctx, turnstone.Request{ID: "host"}); err != nil {
		t.Fatal(err)
	}
	if r := bring(t, st, clock, "host.jsonl", say("x")); r.Session == "host" {
		t.Errorf("%+v", r)
	}
	// A conversation from standard input belongs to the session that it continues.
	in := bring(t, st, clock, "-", say("hello", "hi"))
	if r := bring(t, st, clock, "-", say("hello", "hi", "more")); r.Session != in.Session || r.Outcome != importer.Grown {
		t.Errorf("%+v", r)
	}
	if r := bring(t, st, clock, "-", say("hello", "another")); r.Session == in.Session {
		t.Errorf("%+v", r)
	}
}

func TestAConversationsOwnIDIdentifiesIt(t *testing.T) {
	for name, all := range appended {
		if name == "plain.jsonl" {
			continue
		}
		st, clock := openClocked(t)
		one := bring(t, st, clock, filepath.Join(t.TempDir(), "a.jsonl"), file(all[:3]))
		two := bring(t, st, clock, filepath.Join(t.TempDir(), "b.jsonl"), file(all))
		if one.Session != two.Session || two.Outcome != importer.Grown {
			t.Errorf("%s: %+v, %+v", name, one, two)
		}
	}
	st := openStore(t, memory.New())
	defer st.Close()
	const id = "0b0c2f8e-5a0b-4d4e-9c59-6f1f0f4d7a11"
	chat := `{"id":"` + id + `","messages":[{"role":"user","content":"a"}]}`
	load(t, st, parse(t, filepath.Join(t.TempDir(), "a.json"), chat), importer.Options{}, importer.Imported)
	load(t, st, parse(t, filepath.Join(t.TempDir(), "b.json"), chat), importer.Options{}, importer.Unchanged)
	// Numbers of a data set are not globally unique, and not even unique in the file.
	counted := `{"id":"1","messages":[{"role":"user","content":"a"}]}` + "\n" + `{"id":"1","messages":[{"role":"user","content":"b"}]}` + "\n"
	for range 2 {
		load(t, st, parse(t, filepath.Join(t.TempDir(), "set.jsonl"), counted), importer.Options{}, importer.Imported)
	}
	page, err := st.List(ctx, turnstone.ListOptions{})
	if err != nil || len(page.Sessions) != 5 {
		t.Errorf("%d sessions, %v", len(page.Sessions), err)
	}
}
