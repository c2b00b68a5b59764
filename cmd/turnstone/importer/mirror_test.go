package importer_test

import (
	"cmp"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/head"
)

// A mirror stores lines one after another, whatever their parents are. An import of the file adds those that it lacks.
func TestP31_LinesOfAMirrorAreNotStoredAgain(t *testing.T) {
	const id = "0b0d7a3e-7c1a-4d5c-9a57-2f6f7d1c0001"
	lines := []string{
		`{"type":"mode","sessionId":"` + id + `"}`,
		`{"parentUuid":null,"type":"user","message":{"role":"user","content":"Hello."},"uuid":"u1","timestamp":"2026-11-01T10:00:00.000Z","sessionId":"` + id + `"}`,
		`{"type":"mode","sessionId":"` + id + `"}`,
		`{"parentUuid":"u1","type":"assistant","message":{"id":"m1","model":"model-1","role":"assistant","content":[],"usage":{"input_tokens":3,"output_tokens":2}},"uuid":"a1","timestamp":"2026-11-01T10:00:01.000Z","sessionId":"` + id + `"}`,
		`{"parentUuid":"u1","type":"user","message":{"role":"user","content":"Or rather?"},"uuid":"u2","timestamp":"2026-11-01T10:00:02.000Z","sessionId":"` + id + `"}`,
	}
	for _, mirrored := range []bool{true, false} {
		st, _ := openClocked(t)
		labels := map[string]string{importer.IdentityLabel: "claude-code:" + id}
		if mirrored {
			labels[importer.MirrorLabel] = "test"
		}
		s, _, err := st.Create(t.Context(), turnstone.Request{ID: id, Metadata: head.Metadata{Labels: labels}})
		if err != nil {
			t.Fatal(err)
		}
		var nodes []turnstone.NewNode
		for i, key := range []string{"", "u1", "", "a1"} {
			nodes = append(nodes, turnstone.NewNode{Kind: []string{"mode", "user", "mode", "assistant"}[i], Key: key, Payload: []byte(lines[i])})
		}
		if _, err := s.Commit(t.Context(), turnstone.Commit{Nodes: nodes}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			convs := parse(t, "file.jsonl", strings.Join(lines, "\n")+"\n")
			for _, r := range importer.Load(t.Context(), st, convs, importer.Options{}) {
				if r.Err != nil || r.Session != id {
					t.Fatalf("%+v", r)
				}
			}
		}
		state, err := s.Load(t.Context(), turnstone.Scope{Full: true})
		if err != nil {
			t.Fatal(err)
		}
		if once := len(state.Nodes) == len(lines); once != mirrored {
			t.Errorf("mirrored %v: %d nodes", mirrored, len(state.Nodes))
		}
	}
}

// A session of a folder of Claude Code's is of its project, unless what mirrors it says another one.
func TestP31_AnImportedSessionIsOfItsProject(t *testing.T) {
	const id = "0b0d7a3e-7c1a-4d5c-9a57-2f6f7d1c0001"
	line := `{"parentUuid":null,"type":"user","message":{"role":"user","content":"Hello."},"uuid":"u1","timestamp":"2026-11-01T10:00:00.000Z","sessionId":"` + id + `"}` + "\n"
	for file, want := range map[string]string{
		"/home/ann/.claude/projects/-home-ann-trip/" + id + ".jsonl": "-home-ann-trip",
		"/backup/-home-ann-trip/" + id + ".jsonl":                    "",
		id + ".jsonl": "",
		"-":           "",
	} {
		for _, mirrored := range []string{"", "-other"} {
			st, _ := openClocked(t)
			if mirrored != "" {
				labels := map[string]string{importer.IdentityLabel: "claude-code:" + id, importer.ProjectLabel: mirrored}
				if _, _, err := st.Create(t.Context(), turnstone.Request{ID: id, Metadata: head.Metadata{Labels: labels}}); err != nil {
					t.Fatal(err)
				}
			}
			for range 2 {
				importer.Load(t.Context(), st, parse(t, file, line), importer.Options{})
			}
			s, err := st.Session(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			i, err := s.Info(t.Context())
			if err != nil || i.Labels[importer.ProjectLabel] != cmp.Or(mirrored, want) {
				t.Errorf("%s: %q, %v", file, i.Labels, err)
			}
		}
	}
}
