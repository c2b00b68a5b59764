package importer_test

import (
	"fmt"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
)

const chat = `{"role":"user","content":"hello"}
{"role":"assistant","content":"hi"}
`

// A new session gets the group of the import. One that is there keeps its own.
func TestNewSessionsGetTheGroupOfTheImport(t *testing.T) {
	st := openStore(t, memory.New())
	defer st.Close()
	group := func(want string) {
		t.Helper()
		s, err := st.Session(ctx, "chat")
		if err != nil {
			t.Fatal(err)
		}
		if i, err := s.Info(ctx); err != nil || i.Group != want {
			t.Errorf("%q, %v", i.Group, err)
		}
	}
	load(t, st, parse(t, "chat.jsonl", chat), importer.Options{Group: "a/b"}, importer.Imported)
	group("a/b")
	load(t, st, parse(t, "chat.jsonl", chat+chat), importer.Options{Group: "c"}, importer.Grown)
	group("a/b")
	for _, r := range importer.Load(ctx, st, parse(t, "other.jsonl", chat), importer.Options{Group: "/"}) {
		if r.Outcome != importer.Failed || r.Err == nil {
			t.Errorf("%+v", r)
		}
	}
}

// An import finds its session without reading the others, however many there are.
func TestAnImportReadsNoOtherSessions(t *testing.T) {
	reads := func(others int) int {
		read := 0
		st := openStore(t, &enginetest.Faulty{Engine: memory.New(), Done: func(c enginetest.Call, _ error) { read += c.Read }})
		defer st.Close()
		load(t, st, parse(t, "chat.jsonl", chat), importer.Options{}, importer.Imported)
		for i := range others {
			if _, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint(i), Metadata: head.Metadata{Labels: map[string]string{"import.identity": fmt.Sprint(i)}}}); err != nil {
				t.Fatal(err)
			}
		}
		read = 0
		load(t, st, parse(t, "chat.jsonl", chat+chat), importer.Options{}, importer.Grown)
		return read
	}
	if few, many := reads(1), reads(500); many > few+2 {
		t.Errorf("%d records beside 500 other sessions, %d beside one", many, few)
	}
}
