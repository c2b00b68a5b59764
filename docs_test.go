package turnstone_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Each test that a document names is there. A name that ends with an underscore stands for all
// tests of a row.
func TestTheTestsThatDocumentsNameExist(t *testing.T) {
	var tests []string
	named := map[string]string{} // the document, by the name of the test
	declared := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	name := regexp.MustCompile(`\bTest[A-Z]\w*`)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == "node_modules" || len(path) > 1 && strings.HasPrefix(d.Name(), ".") {
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
