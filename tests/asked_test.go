package tests

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each law of lash, and each thing that five hosts do with a store, is held by what exists and has tests, or it is said
// why it is not.
func TestWhatHostsAskOfAStoreIsHeldOrNamed(t *testing.T) {
	rows := map[string]bool{}
	for _, name := range []string{"contract", "contract-operations", "contract-hosts", "hosts", "transcript"} {
		text, err := os.ReadFile("../docs/" + name + ".md")
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^\| ([A-Z0-9, ]+) \||\| ((?:lash|simulacra|skillkit|condukt|json)-[a-z]+) \|$`).FindAllSubmatch(text, -1) {
			for row := range strings.SplitSeq(string(m[1])+string(m[2]), ", ") {
				rows[row] = true
			}
		}
	}
	tested := map[string]bool{}
	id := regexp.MustCompile(`(?:Test|"|_)((?:[A-Z]{1,2}[0-9]+_)+)|"((?:lash|simulacra|skillkit|condukt|json)-[a-z]+)"`)
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && d.Name() == "node_modules" {
			return errOrSkip(err)
		}
		tested[d.Name()] = true
		if !strings.HasSuffix(path, "_test.go") && !strings.Contains(path, "persistencetest") {
			return nil
		}
		text, err := os.ReadFile(path)
		if d.IsDir() {
			return nil
		}
		for _, m := range id.FindAllSubmatch(text, -1) {
			for of := range strings.SplitSeq(strings.Trim(string(m[1]), "_"), "_") {
				tested[of] = true
			}
			tested[string(m[2])] = true
		}
		for _, m := range declared.FindAllSubmatch(text, -1) {
			tested[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	isRow := regexp.MustCompile(`^[A-Z]{1,2}[0-9]+$|^[a-z]+-[a-z]+$`)
	for file, least := range map[string]int{"lash_laws.txt": 150, "host_rows.txt": 103} {
		text, err := os.ReadFile("testdata/" + file)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for line := range strings.Lines(string(text)) {
			line = strings.TrimSpace(line)
			if line == "" || strings.HasPrefix(line, "#") {
				continue
			}
			n++
			asked, by, ok := strings.Cut(line, " -> ")
			if reason, no := strings.CutPrefix(by, "no: "); no && reason != "" {
				continue
			}
			by, reason, differs := strings.Cut(by, " differs: ")
			if !ok || by == "" || differs && reason == "" {
				t.Errorf("%q", line)
			}
			for of := range strings.FieldsSeq(by) {
				if isRow.MatchString(of) && !rows[of] || !tested[of] {
					t.Errorf("%s: %s is in a document: %v, and tested: %v", asked, of, rows[of], tested[of])
				}
			}
		}
		if n < least {
			t.Errorf("%s has %d lines, want %d", file, n, least)
		}
	}
}

// errOrSkip returns err, or fs.SkipDir.
func errOrSkip(err error) error {
	if err != nil {
		return err
	}
	return fs.SkipDir
}
