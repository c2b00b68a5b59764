package tests

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone/internal/testkit"
)

// Each test that a document names is there. A name that ends with an underscore stands for all
// tests of a row.
func TestTheTestsThatDocumentsNameExist(t *testing.T) {
	var tests []string
	named := map[string]string{} // the document, by the name of the test
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	name := regexp.MustCompile(`\bTest[A-Z]\w*`)
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == "node_modules" || path != ".." && strings.HasPrefix(d.Name(), ".") {
				return filepath.SkipDir // what others have written
			}
			return nil
		}
		isTest, isDocument := strings.HasSuffix(path, "_test.go"), strings.HasSuffix(path, ".md")
		if !isTest && !isDocument {
			return nil
		}
		text, err := os.ReadFile(path)
		if isTest {
			for _, m := range declared.FindAllSubmatch(text, -1) {
				tests = append(tests, string(m[1]))
			}
		} else {
			for _, m := range name.FindAll(text, -1) {
				named[string(m)] = path
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, document := range named {
		if !slices.ContainsFunc(tests, func(test string) bool {
			return test == name || strings.HasPrefix(test, name+"_") || strings.HasSuffix(name, "_") && strings.HasPrefix(test, name)
		}) {
			t.Errorf("%s names %s, which is no test", document, name)
		}
	}
	if len(named) < 20 {
		t.Errorf("the documents name only %d tests", len(named))
	}
}

// Every link of a document to a file of the repository leads to one.
func TestTheFilesThatDocumentsLinkToExist(t *testing.T) {
	link := regexp.MustCompile(`\]\(([\w./-]+)(#[^)]*)?\)`)
	links := 0
	err := documents(func(path string, text []byte) {
		for _, m := range link.FindAllSubmatch(text, -1) {
			links++
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), string(m[1]))); err != nil {
				t.Errorf("%s links to %s: %v", path, m[1], err)
			}
		}
	})
	if err != nil || links < 100 {
		t.Errorf("%d links, %v", links, err)
	}
}

// documents calls f with the path and the text of each document of the repository.
func documents(f func(path string, text []byte)) error {
	return filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || path != ".." && strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir // what others have written
		case !strings.HasSuffix(path, ".md"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err == nil {
			f(path, text)
		}
		return err
	})
}

// The example in Go of the README runs as it stands.
func TestTheExampleOfTheREADMERuns(t *testing.T) {
	testkit.Slow(t)
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(readme), "```go\n")
	block, _, _ = strings.Cut(block, "```")
	program := `package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"` + module + `"
	"` + module + `/engine/open"
)

func main() {
	ctx, dir := context.Background(), os.Args[1]
` + block + `
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(result.Revision)
}
`
	// The program is in the module, but not in its directory.
	dir := t.TempDir()
	main, err := filepath.Abs("../examples/readme/main.go")
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := json.Marshal(map[string]map[string]string{"Replace": {main: dir + "/main.go"}})
	if err == nil {
		err = errors.Join(os.WriteFile(dir+"/main.go", []byte(program), 0o600), os.WriteFile(dir+"/overlay.json", overlay, 0o600))
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // The turn is stored once.
		out, err := exec.Command("go", "run", "-overlay", dir+"/overlay.json", "../examples/readme", dir+"/store").CombinedOutput()
		if err != nil || string(out) != "1" {
			t.Fatalf("%v: %s", err, out)
		}
	}
}
