package main

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestP30_GrepFindsWhatWasSaid(t *testing.T) {
	dir, store := t.TempDir(), t.TempDir()+"/store"
	said := func(session string, texts ...string) {
		for i, text := range texts {
			content, err := json.Marshal(text)
			if err != nil {
				t.Fatal(err)
			}
			appendTo(t, filepath.Join(dir, session+".jsonl"), strings.Replace(spoken(session, i), fmt.Sprintf(`"text %d"`, i), string(content), 1))
		}
	}
	said("one", "find the flaky test", "a\nb \"quoted\" <tag> Größe", "nothing")
	said("two", "the FLAKY one", "flaky", "flaky", "flaky", "flaky")
	appendTo(t, filepath.Join(dir, "two.jsonl"), `{"type":"file-history-snapshot","snapshot":{"a":"flaky note"}}`+"\n")
	must(t, "import", dir, "--store", store)
	must(t, "fork", "two", "fork", "--store", store)
	grep := func(args ...string) string {
		t.Helper()
		return must(t, append([]string{"grep", "--store", store}, args...)...)
	}
	contains := func(out string, all ...string) {
		t.Helper()
		for _, text := range all {
			if !strings.Contains(out, text) {
				t.Errorf("no %q in\n%s", text, out)
			}
		}
	}
	contains(grep("flaky"), "one  find the flaky test\n", "    find the flaky test\n", "  1 more; --limit 0 shows all", "5 nodes in 2 sessions")
	contains(grep("-i", "flaky"), "the FLAKY one", "6 nodes in 2 sessions")
	contains(grep("flaky", "--all"), "6 nodes in 2 sessions")
	must(t, "fork", "one", "child", "--store", store)
	must(t, "rm", "one", "--store", store)
	contains(grep("find"), "child  \n", "1 node in 1 session") // What it came from is gone.
	must(t, "rm", "child", "--store", store)
	must(t, "import", dir, "--store", store)
	if n := strings.Count(grep("flaky", "--json"), "\n"); n != 5 {
		t.Errorf("%d lines", n)
	}
	contains(grep("flaky", "fork"), "5 nodes in 1 session") // named, so what it inherits is searched; it was not imported itself
	contains(grep("flaky", "--limit", "0", "two"), "4 nodes in 1 session")
	contains(grep(`b "quoted" <tag> Gr`), "a b \"quoted\" <tag> Größe")
	contains(grep("a\nb"), "1 node in 1 session")
	contains(grep("-F", `"quoted" <`), "1 node in 1 session")
	contains(grep(`^find|nothing$`), "2 nodes in 1 session")
	appendTo(t, filepath.Join(dir, "call.jsonl"), strings.Replace(spoken("call", 0), `"text 0"`, `[{"type":"tool_use","id":"t","name":"run","input":{"n":1e3,"null":"x"}},{"type":"tool_use","id":"w","name":"edit","input":{"all":[{"old":"<divx class>","new":"a && bb"}]}},{"type":"tool_use","id":"v","name":"stop"}]`, 1))
	must(t, "import", dir, "--store", store)
	for _, text := range []string{"run(n: 1000, null: x)", "stop(null)", "(null)", `"<divx class>"`, `a && bb`} { // as the text has it, not the JSON
		contains(grep("-F", text), "1 node in 1 session")
	}
	contains(grep("flaky", "--since", "36h", "--kind", "user"), "5 nodes")
	var l grepLine
	if err := json.Unmarshal([]byte(grep("--json", "find")), &l); err != nil || l.Session != "one" || l.Text != "find the flaky test" || l.Key != "u0" || l.Kind != "user" || l.Revision != 1 {
		t.Errorf("%+v, %v", l, err)
	}
	if _, errs, ok := turnstoneCmd(t, "grep", "no such text", "--store", store); ok || !strings.Contains(errs, "nothing matches in 4 sessions") {
		t.Error(errs)
	}
	for _, args := range [][]string{{"("}, {"x", "--limit", "-1"}, {"x", "--since", "once"}} {
		if _, _, ok := turnstoneCmd(t, append([]string{"grep", "--store", store}, args...)...); ok {
			t.Errorf("%v was accepted", args)
		}
	}
}

// Whatever characters a text has, and however JSON writes them, each part of it is found.
func TestP30_GrepFindsEachPartOfAnyText(t *testing.T) {
	rnd := rand.New(rand.NewPCG(30, 1))
	alphabet := []rune("ab \"\\/<>&'\u2028é漢\x7f")
	var texts []string
	file := filepath.Join(t.TempDir(), "s.jsonl")
	for i := range 40 {
		var b strings.Builder
		for range 12 {
			b.WriteRune(alphabet[rnd.IntN(len(alphabet))])
		}
		texts = append(texts, b.String())
		content, err := json.Marshal(texts[i])
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 { // as another program writes it
			content = []byte(strings.NewReplacer(`\u003c`, "<", `\u003e`, ">", `\u0026`, "&", "/", `\/`, "a", `\u0061`).Replace(string(content)))
		}
		appendTo(t, file, strings.Replace(spoken("s", i), fmt.Sprintf(`"text %d"`, i), string(content), 1))
	}
	store := t.TempDir() + "/store"
	must(t, "import", file, "--store", store)
	for i, text := range texts {
		runes := []rune(text)
		at := rnd.IntN(8)
		part := string(runes[at : at+4])
		out := must(t, "grep", "-F", part, "--json", "--limit", "0", "--store", store)
		if !strings.Contains(out, fmt.Sprintf(`"key":"u%d"`, i)) {
			t.Errorf("%q of %q is not found", part, text)
		}
	}
	if data, err := os.ReadFile(file); err != nil || !strings.Contains(string(data), `\u0061`) {
		t.Error("no text is escaped")
	}
}
