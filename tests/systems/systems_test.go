// Package systems_test checks the packages for the systems on which the tests do not run.
package systems_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/go/packages"
)

// On every system that a release is for, all packages of the module of the command have sound types, and each function has a
// body. So have their tests, which need Unix. Of what others have written, the declarations are checked, not the bodies of
// functions: to compile all for one system takes minutes.
func TestTypesAndBodiesAreSoundOnEverySystem(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, system := range []string{"windows/amd64", "windows/arm64", "darwin/amd64", "darwin/arm64", "linux/arm64"} {
		t.Run(system, func(t *testing.T) {
			goos, goarch, _ := strings.Cut(system, "/")
			found, err := packages.Load(&packages.Config{
				Dir:   root,
				Tests: goos != "windows",
				Env:   append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0"),
				Mode:  packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedDeps | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesSizes | packages.NeedModule,
				ParseFile: func(files *token.FileSet, name string, content []byte) (*ast.File, error) {
					f, err := parser.ParseFile(files, name, content, parser.SkipObjectResolution)
					if f != nil && !strings.HasPrefix(name, root) {
						for _, d := range f.Decls {
							if d, ok := d.(*ast.FuncDecl); ok {
								d.Body = nil
							}
						}
					}
					return f, err
				},
			}, "./...")
			if err != nil {
				t.Fatal(err)
			}
			own := 0
			packages.Visit(found, nil, func(p *packages.Package) {
				ours := p.Module != nil && p.Module.Main && !strings.HasSuffix(p.PkgPath, ".test")
				if goos == "windows" && strings.HasSuffix(p.PkgPath, "/internal/pgtest") {
					return // Only tests need it.
				}
				for _, err := range p.Errors {
					if err.Kind != packages.TypeError {
						t.Errorf("%s: %v", p.PkgPath, err)
					}
				}
				for _, err := range p.TypeErrors {
					if ours || !err.Soft { // Without bodies, imports are not used.
						t.Errorf("%s: %v", p.PkgPath, err)
					}
				}
				if !ours {
					return
				}
				own++
				assembly := slices.ContainsFunc(p.OtherFiles, func(name string) bool { return strings.HasSuffix(name, ".s") })
				for _, f := range p.Syntax {
					for _, d := range f.Decls {
						if d, ok := d.(*ast.FuncDecl); ok && d.Body == nil && !assembly {
							t.Errorf("%v: %s has no body", p.Fset.Position(d.Pos()), d.Name.Name)
						}
					}
				}
			})
			if own < 50 {
				t.Errorf("only %d packages", own)
			}
		})
	}
}
