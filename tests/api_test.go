package tests

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/printer"
	"go/token"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The file docs/api.txt lists everything that the public packages export. A change of the
// exported API has to change the file, too: `go test ./tests -run API -update` writes it.
func TestTheExportedAPIIsTheOneOfTheFile(t *testing.T) {
	const file = "../docs/api.txt"
	var b bytes.Buffer
	for path, decls := range public(t) {
		var lines []string
		for _, d := range decls {
			lines = append(lines, d.String())
		}
		slices.Sort(lines)
		b.WriteString("package " + path + "\n\n" + strings.Join(lines, "\n") + "\n\n")
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

// rooms are the packages that have the code of their noun beside the values that users see. What takes a type of an
// internal package there is for the other rooms.
var rooms = []string{module + "/graph", module + "/blob", module + "/head", module + "/gc"}

// What is exported elsewhere can be used from outside: no function needs, and no type has, a type of
// an internal package. And go doc shows the fields of every type: none is another name of
// one that is elsewhere.
func TestTheExportedAPIUsesNoInternalPackage(t *testing.T) {
	for path, decls := range public(t) {
		if slices.Contains(rooms, path) {
			continue
		}
		for _, d := range decls {
			if spec, ok := d.node.(*ast.TypeSpec); ok && spec.Assign.IsValid() {
				t.Errorf("%s: %s is an alias", path, spec.Name)
			}
			node := d.node
			if v, ok := node.(*ast.ValueSpec); ok { // its value may be made by anything
				if node = v.Type; v.Type == nil {
					continue
				}
			}
			ast.Inspect(node, func(n ast.Node) bool {
				sel, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if pkg, ok := sel.X.(*ast.Ident); ok && d.internal[pkg.Name] {
					t.Errorf("%s: %s.%s is internal, in %s", path, pkg.Name, sel.Sel.Name, d)
				}
				return true
			})
		}
	}
}

// A declaration is an exported one of a public package.
type declaration struct {
	set      *token.FileSet
	tok      token.Token
	node     ast.Node
	internal map[string]bool // the internal packages that its file imports, by name
	index    int             // number of a constant whose value is made of iota, from 1
}

// public goes through the public packages, by path, and their exported declarations.
func public(t *testing.T) iter.Seq2[string, []declaration] {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,Dir,GoFiles,Name", "../...").Output()
	if err != nil {
		t.Fatal(err)
	}
	return func(yield func(string, []declaration) bool) {
		for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
			var p struct {
				ImportPath, Dir, Name string
				GoFiles               []string
			}
			if err := d.Decode(&p); err != nil {
				t.Fatal(err)
			}
			// What is in cmd is the command, and no library.
			if p.Name == "main" || strings.Contains(p.ImportPath, "/internal/") || strings.Contains(p.ImportPath, "/cmd/") {
				continue
			}
			var decls []declaration
			for _, name := range p.GoFiles {
				decls = append(decls, exported(t, filepath.Join(p.Dir, name))...)
			}
			if len(decls) > 0 && !yield(p.ImportPath, decls) {
				return
			}
		}
	}
}

// exported returns the exported declarations of a file, without methods of types that are
// not exported.
func exported(t *testing.T, name string) (decls []declaration) {
	t.Helper()
	set := token.NewFileSet()
	f, err := parser.ParseFile(set, name, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	internal := map[string]bool{}
	for _, i := range f.Imports {
		path := strings.Trim(i.Path.Value, `"`)
		if strings.Contains(path, "/internal/") {
			name := path[strings.LastIndex(path, "/")+1:]
			if i.Name != nil {
				name = i.Name.Name
			}
			internal[name] = true
		}
	}
	index := map[ast.Spec]int{} // of a constant in its list, from 1: what iota makes of it
	for _, d := range f.Decls {
		if d, ok := d.(*ast.GenDecl); ok && d.Tok == token.CONST && len(d.Specs) > 1 {
			for i, s := range d.Specs {
				if v := s.(*ast.ValueSpec); len(v.Values) == 0 || strings.Contains(line(set, v), "iota") {
					index[s] = i + 1
				}
			}
		}
	}
	ast.FileExports(f)
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Body = nil; d.Recv == nil || ast.IsExported(strings.TrimLeft(line(set, d.Recv.List[0].Type), "*")) {
				decls = append(decls, declaration{set: set, tok: token.FUNC, node: d, internal: internal})
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if d.Tok != token.IMPORT {
					decls = append(decls, declaration{set: set, tok: d.Tok, node: s, internal: internal, index: index[s]})
				}
			}
		}
	}
	return decls
}

func (d declaration) String() string {
	if d.tok == token.FUNC {
		return line(d.set, d.node)
	}
	text := d.tok.String() + " " + line(d.set, d.node)
	if d.index > 0 {
		text += fmt.Sprintf(" // number %d", d.index)
	}
	return text
}

// line prints a declaration on one line.
func line(set *token.FileSet, node any) string {
	var b bytes.Buffer
	if err := printer.Fprint(&b, set, node); err != nil {
		return err.Error()
	}
	return strings.Join(strings.Fields(strings.ReplaceAll(b.String(), "\n", "; ")), " ")
}
