package wire

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"regexp"
	"testing"
)

var update = flag.Bool("update", false, "write the kinds of errors for Python and TypeScript")

// The clients in Python and TypeScript have the kinds of errors from the table of the server, and a class for each.
// `go test ./internal/wire -run Kinds -update` writes it.
func TestSV5_ClientsKnowTheKindsOfErrors(t *testing.T) {
	const from = "Written by `go test ./internal/wire -run Kinds -update`."
	var py, ts bytes.Buffer
	fmt.Fprintf(&py, "\"\"\"The class of each kind of errors. %s\"\"\"\n\nKINDS = {\n", from)
	fmt.Fprintf(&ts, "/** The class of each kind of errors. %s */\nexport const kinds = {\n", from)
	classes := map[string]bool{}
	for _, k := range Kinds() {
		if k.Class == "" {
			continue
		}
		classes[k.Class+"Error"] = true
		fmt.Fprintf(&py, "    \"%s\": \"%sError\",\n", k.Name, k.Class)
		name := k.Name
		if !regexp.MustCompile(`^[a-z]+$`).MatchString(name) {
			name = `"` + name + `"`
		}
		fmt.Fprintf(&ts, "\t%s: \"%sError\",\n", name, k.Class)
	}
	py.WriteString("}\n")
	ts.WriteString("} as const;\n")
	for _, c := range []struct {
		file, errors, class string
		want                []byte
	}{
		{"../../python/src/turnstonedb/_kinds.py", "../../python/src/turnstonedb/errors.py", "(?m)^class %s\\(", py.Bytes()},
		{"../../ts/src/kinds.ts", "../../ts/src/errors.ts", "(?m)^export class %s ", ts.Bytes()},
	} {
		if *update {
			if err := os.WriteFile(c.file, c.want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if have, err := os.ReadFile(c.file); err != nil || !bytes.Equal(have, c.want) {
			t.Errorf("%s differs from the table of kinds (%v): -update writes it", c.file, err)
		}
		text, err := os.ReadFile(c.errors)
		if err != nil {
			t.Fatal(err)
		}
		for class := range classes {
			if !regexp.MustCompile(fmt.Sprintf(c.class, class)).Match(text) {
				t.Errorf("%s has no class %s", c.errors, class)
			}
		}
	}
}
