package turnstone_test

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The file docs/api.txt lists everything that the public packages export. A change of the
// exported API has to change the file, too: `go test . -run API -update` writes it.
func TestTheExportedAPIIsTheOneOfTheFile(t *testing.T) {
	const file = "docs/api.txt"
	out, err := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,Name", "./...").Output()
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p struct {
			ImportPath, Dir, Name string
			GoFiles               []string
		}
		if err := d.Decode(&p); err != nil {
			t.Fatal(err)
		}
		if p.Name == "main" || strings.Contains(p.ImportPath, "/internal/") {
			continue
		}
		lines, err := exported(p.Dir, p.GoFiles)
		if err != nil {
			t.Fatal(err)
		}
		if len(lines) > 0 {
			b.WriteString("package " + p.ImportPath + "\n\n" + strings.Join(lines, "\n") + "\n\n")
		}
	}
	if *update {
		if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	have := strings.Split(b.String(), "\n")
	listed := strings.Split(string(want), "\n")
	for _, line := range have {
		if !slices.Contains(listed, line) {
			t.Errorf("%s lacks: %s", file, line)
		}
	}
	for _, line := range listed {
		if !slices.Contains(have, line) {
			t.Errorf("%s has, and the code has not: %s", file, line)
		}
	}
	if !t.Failed() && b.String() != string(want) {
		t.Errorf("%s has another order", file)
	}
}

// exported returns the exported declarations of a package, in order, one a line.
func exported(dir string, files []string) (lines []string, err error) {
	set := token.NewFileSet()
	for _, name := range files {
		f, err := parser.ParseFile(set, filepath.Join(dir, name), nil, 0)
		if err != nil {
			return nil, err
		}
		ast.FileExports(f)
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				d.Body = nil
				lines = append(lines, line(set, d))
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if d.Tok != token.IMPORT {
						lines = append(lines, d.Tok.String()+" "+line(set, s))
					}
				}
			}
		}
	}
	slices.Sort(lines)
	return lines, nil
}

// line prints a declaration on one line.
func line(set *token.FileSet, node any) string {
	var b bytes.Buffer
	if err := printer.Fprint(&b, set, node); err != nil {
		return err.Error()
	}
	return strings.Join(strings.Fields(strings.ReplaceAll(b.String(), "\n", "; ")), " ")
}
