package tests

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/turnstonedb/turnstone"

// layers are the packages from the bottom up: each imports only what stands
// before it in this list, never what stands after.
var layers = []string{
	"engine", "internal/testkit", "engine/internal/localdir", "engine/internal/remains", "engine/internal/remains/remainstest", "engine/memory", "engine/badger", "engine/pebble", "engine/postgres", "internal/socket", "engine/shared", "engine/open", "engine/enginetest",
	"internal/pgtest", "damage", "internal/codec", "internal/keys", "engine/sealed",
	"blob", "graph", "head",
	"internal/cache", "internal/history", "internal/copying", "internal/moving", "internal/feed", "internal/session", "gc", "internal/commit", "internal/verify", "internal/bundle", "internal/bundle/bundletest", "internal/repair", "internal/spill",
	"", "lease", "queue", "draft", "effect", "push", "backup", "backup/bucket", "recovery", "search", "persistencetest", "transcript", "internal/wire", "server", "internal/faulty", "client", "internal/storetest", "adapters/adapter", "adapters/adapter/adaptertest",
	"adapters/turnstoneotel", "adapters/adk", "adapters/genkit", "adapters/eino", "adapters/langchaingo", "adapters/trpc", "cmd/turnstone/importer", "cmd/turnstone/page", "cmd/turnstone/ui", "cmd/turnstone", "examples/embed", "bench", "bench/scale", "bench/fleet", "internal/faulty/serve", "tests", "tests/internal/foreign",
}

// may lists what a layer is allowed of those below it, where that is not all.
var may = map[string][]string{
	"search":                              {"", "push", "graph", "head"},
	"cmd/turnstone/page":                  {"", "graph", "cmd/turnstone/importer"},
	"engine":                              {},
	"internal/testkit":                    {},
	"engine/internal/localdir":            {"engine"},
	"engine/internal/remains":             {"engine", "engine/internal/localdir"},
	"engine/internal/remains/remainstest": {"engine"},
	"engine/memory":                       {"engine"},
	"engine/badger":                       {"engine", "engine/internal/localdir", "engine/internal/remains"},
	"engine/pebble":                       {"engine", "engine/internal/localdir", "engine/internal/remains"},
	"engine/postgres":                     {"engine"},
	"internal/socket":                     {},
	"engine/shared":                       {"engine", "engine/internal/localdir", "internal/socket"},
	"engine/open":                         {"engine", "engine/memory", "engine/badger", "engine/pebble", "engine/postgres", "engine/shared"},
	"engine/enginetest":                   {"engine", "internal/testkit", "engine/memory"},
	"internal/pgtest":                     {},
	"damage":                              {},
	"internal/codec":                      {"damage"},
	"internal/keys":                       {"engine", "internal/codec"},
	"engine/sealed":                       {"engine", "engine/internal/localdir", "damage", "internal/codec", "internal/keys"},
	"blob":                                {"engine", "damage", "internal/codec", "internal/keys"},
	"graph":                               {"damage", "internal/codec", "internal/keys", "blob"},
	"head":                                {"engine", "damage", "internal/codec", "internal/keys", "blob", "graph"},
	"internal/cache":                      {"engine"},
	"internal/history":                    {"engine", "damage", "internal/codec", "internal/keys", "blob", "graph", "head", "internal/cache"},
	"internal/copying":                    {"engine", "internal/codec", "internal/keys", "head", "internal/history"},
	"internal/moving":                     {"engine", "damage", "internal/codec", "internal/keys", "head", "internal/history", "internal/copying"},
	"internal/feed":                       {"engine", "damage", "internal/codec", "internal/keys", "head", "internal/history"},
	"internal/session":                    {"engine", "damage", "internal/codec", "internal/keys", "blob", "head", "internal/history"},
	"gc":                                  {"engine", "engine/memory", "damage", "internal/codec", "internal/keys", "blob", "graph", "head", "internal/history", "internal/feed", "internal/session"},
	"internal/commit":                     {"engine", "internal/codec", "internal/keys", "blob", "graph", "head", "internal/cache", "internal/history", "internal/feed", "internal/session", "gc"},
	"internal/verify":                     {"engine", "engine/memory", "damage", "internal/codec", "internal/keys", "blob", "graph", "head", "internal/history", "internal/copying", "internal/feed", "internal/session", "gc"},
	"internal/bundle":                     {"engine", "damage", "internal/codec", "internal/keys", "blob", "graph", "head", "internal/history", "internal/session", "internal/commit"},
	"internal/bundle/bundletest":          {"internal/bundle", "internal/codec"},
	"":                                    {"engine", "damage", "internal/codec", "internal/keys", "blob", "graph", "head", "internal/cache", "internal/history", "internal/copying", "internal/moving", "internal/feed", "internal/session", "gc", "internal/commit", "internal/verify", "internal/bundle"},
	"internal/repair":                     {"engine", "damage", "internal/codec", "internal/keys", "blob", "graph", "head", "internal/history", "internal/session"},
	"recovery":                            {"engine", "damage", "internal/codec", "internal/keys", "blob", "graph", "head", "internal/history", "internal/session", "internal/repair", "internal/spill", "", "push"},
	"lease":                               {""},
	"queue":                               {"", "lease"},
	"draft":                               {""},
	"effect":                              {"engine", ""},
	"push":                                {"engine", "head", ""},
	"backup":                              {"engine", "engine/sealed", "damage", "graph", "head", "internal/spill", "", "push"},
	"internal/spill":                      {"engine", "engine/memory", "engine/pebble"},
	"backup/bucket":                       {"", "backup"},
	"persistencetest":                     {"internal/testkit", "blob", "graph", "head", "gc", "", "lease", "queue", "draft", "effect"},
	"transcript":                          {"blob", "graph", "head", ""},
	"internal/wire":                       {"engine", "damage", "internal/codec", "blob", "graph", "head", "gc", "", "transcript"},
	"server":                              {"engine", "blob", "graph", "head", "internal/cache", "gc", "", "transcript", "internal/wire"},
	"internal/faulty":                     {"engine", "engine/memory", "internal/socket", "", "internal/wire", "server"},
	"internal/faulty/serve":               {"internal/faulty"},
	"client":                              {"engine", "internal/socket", "blob", "graph", "head", "internal/cache", "gc", "", "push", "internal/wire"},
	"internal/storetest":                  {"engine", "engine/memory", "engine/badger", "engine/pebble", "engine/postgres", "engine/open", "engine/sealed", "internal/testkit", "internal/pgtest", "", "server", "client"},
	"adapters/adapter":                    {"blob", "gc", "head", "", "client"},
	"adapters/adapter/adaptertest":        {"", "adapters/adapter", "engine/memory"},
	"adapters/turnstoneotel":              {""},
	"adapters/adk":                        {"blob", "graph", "head", "", "adapters/adapter"},
	"adapters/genkit":                     {"head", "", "transcript", "adapters/adapter"},
	"adapters/eino":                       {"head", "", "adapters/adapter"},
	"adapters/langchaingo":                {"head", "", "transcript", "adapters/adapter"},
	"adapters/trpc":                       {"head", "", "adapters/adapter"},
	"tests/internal/foreign":              {},
}

// modules are the directories whose packages the layers name. Package turnstoneotel and the adapters are modules of
// their own, so that a host of the store is free to choose its versions of OpenTelemetry and of a framework.
var modules = []string{".", "adapters/turnstoneotel", "adapters/adk", "adapters/genkit", "adapters/eino", "adapters/langchaingo", "adapters/trpc"}

func TestImportsGoOneWay(t *testing.T) {
	height := map[string]int{}
	for i, l := range layers {
		height[l] = i
	}
	seen := 0
	for _, dir := range modules {
		packages, err := list(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range packages {
			name := strings.TrimPrefix(strings.TrimPrefix(p.ImportPath, module), "/")
			at, known := height[name]
			if !known {
				t.Errorf("package %q is in no layer: add it to this test", name)
				continue
			}
			seen++
			for _, i := range p.Imports {
				if !strings.HasPrefix(i, module) {
					if name == "engine" && strings.Contains(i, ".") {
						t.Errorf("engine imports %s: it is to need the standard library only", i)
					}
					continue
				}
				below := strings.TrimPrefix(strings.TrimPrefix(i, module), "/")
				if height[below] >= at {
					t.Errorf("%q imports %q, which is above it", name, below)
				}
				if allowed, limited := may[name]; limited && !slices.Contains(allowed, below) {
					t.Errorf("%q imports %q, which it is not to know", name, below)
				}
			}
		}
	}
	if seen != len(layers) {
		t.Errorf("%d packages found, %d listed", seen, len(layers))
	}
}

// goPackage is what go list says of a package.
type goPackage struct {
	ImportPath string
	Imports    []string
}

// list returns the packages of the module in dir.
func list(dir string) (packages []goPackage, _ error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Dir = filepath.Join("..", dir)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list in %s: %w", dir, err)
	}
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, err
		}
		packages = append(packages, p)
	}
}
