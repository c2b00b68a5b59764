package importer_test

import (
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
)

func TestExportIsTheFileByteForByte(t *testing.T) {
	line := `{"role":"user","content":"x"}`
	for _, content := range []string{
		line + "\n", line, "\ufeff" + line + "\n", line + "\r\n" + line + "\r\n", line + "\n\n \n" + line + "\n\n", "\n" + line + "\n", line + "\n" + line,
		"\ufeff\n" + line + "\n\t", line + "\n  ",
	} {
		st, clock := openClocked(t)
		for _, name := range []string{"x.jsonl", "x.jsonl"} {
			id := bring(t, st, clock, name, content).Session
			if got := exported(t, st, id); got != content {
				t.Errorf("%q is exported as %q", content, got)
			}
		}
		// Payloads that a host commits later come after the file.
		s := session(t, st, "x")
		if _, err := s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("since")}}}); err != nil {
			t.Fatal(err)
		}
		want := content
		if !strings.HasSuffix(content, "\n") && !strings.HasSuffix(content, "\n\t") && !strings.HasSuffix(content, "\n  ") {
			want += "\n"
		}
		if got := exported(t, st, "x"); !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "since\n") {
			t.Errorf("%q is exported as %q", content, got)
		}
	}
}
