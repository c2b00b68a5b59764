// Package systems_test checks that the packages build on the systems on which the tests do not run.
package systems_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"testing"

	"golang.org/x/tools/go/packages"
)

// The library and the command build on Windows and macOS. The test checks their types only: to compile them takes minutes.
func TestTheLibraryAndTheCommandBuildOnEverySystem(t *testing.T) {
	for _, system := range []string{"windows", "darwin"} {
		t.Run(system, func(t *testing.T) {
			found, err := packages.Load(&packages.Config{
				Dir:  "../..",
				Env:  append(os.Environ(), "GOOS="+system, "GOARCH=amd64", "CGO_ENABLED=0"),
				Mode: packages.NeedName | packages.NeedFiles | packages.NeedCompiledGoFiles | packages.NeedImports | packages.NeedDeps | packages.NeedSyntax | packages.NeedTypes | packages.NeedTypesSizes,
				ParseFile: func(files *token.FileSet, name string, content []byte) (*ast.File, error) {
					return parser.ParseFile(files, name, content, parser.SkipObjectResolution)
				},
			}, ".", "./engine/...", "./server", "./client", "./backup", "./cmd/...")
			if err != nil {
				t.Fatal(err)
			}
			if len(found) < 15 {
				t.Errorf("only %d packages", len(found))
			}
			packages.Visit(found, nil, func(p *packages.Package) {
				for _, err := range p.Errors {
					t.Errorf("%s: %v", p.PkgPath, err)
				}
			})
		})
	}
}
