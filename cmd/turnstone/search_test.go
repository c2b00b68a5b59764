package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// The command finds what is said, on each branch, and what a command makes the store forget leaves the index with it.
func TestSE6_TheCommandFindsAndForgets(t *testing.T) {
	store := t.TempDir() + "/store"
	must(t, "import", write(t, "chat.jsonl", `{"role":"user","content":"Is there a museum in Kyoto?"}
{"role":"assistant","content":"The museum is open. My word is zxsecretone."}
{"role":"user","content":"And zxsecrettwo?"}
{"role":"assistant","content":"Thanks."}
`), "--store", store)
	search := func(args ...string) string { return must(t, append([]string{"search", "--store", store}, args...)...) }
	if out := search("museum"); strings.Count(out, "\n") != 4 || !strings.Contains(out, "Is there a museum in Kyoto?") {
		t.Errorf("%s", out)
	}
	if out := search("kyoto", "kind:user", "--json"); !strings.Contains(out, `"session":"chat"`) || !strings.Contains(out, `"passage":"Is there a museum in Kyoto?`) {
		t.Errorf("%s", out)
	}
	must(t, "rewind", "chat@1", "--store", store)
	must(t, "rewind", "chat", "--empty", "--store", store)
	if out := search("thanks"); !strings.Contains(out, "on another branch") {
		t.Errorf("%s", out)
	}
	for i, word := range []string{"zxsecretone", "zxsecrettwo"} {
		data, err := os.ReadFile(store + indexSuffix)
		if err != nil || !bytes.Contains(data, []byte("zxsecret")) {
			t.Fatalf("the index has no such word before: %v", err)
		}
		id := search(word, "--json")
		_, id, _ = strings.Cut(id, `"node":"`)
		id, _, _ = strings.Cut(id, `"`)
		if i == 0 {
			must(t, "tombstone", "chat", id, "--store", store)
		} else {
			must(t, "erase", "chat", id, "--yes", "--store", store)
		}
		if _, errs, ok := turnstoneCmd(t, "search", word, "--store", store); ok || !strings.Contains(errs, "nothing is found") {
			t.Errorf("%s: %s", word, errs)
		}
	}
	for _, suffix := range []string{"", "-wal"} {
		if data, err := os.ReadFile(store + indexSuffix + suffix); err == nil && bytes.Contains(data, []byte("zxsecret")) {
			t.Errorf("%s has what was forgotten", indexSuffix+suffix)
		}
	}
	search("museum", "--anew")
	for _, args := range [][]string{{"colour:red"}, {"museum", "--limit", "0"}, {"museum", "--store", "mem:"}} {
		if _, errs, ok := turnstoneCmd(t, append([]string{"search", "--store", store}, args...)...); ok {
			t.Errorf("%v is accepted: %s", args, errs)
		}
	}
}
