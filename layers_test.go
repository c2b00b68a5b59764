package turnstone_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/turnstonedb/turnstone"

// layers are the packages from the bottom up: each imports only what stands
// before it in this list, never what stands after.
var layers = []string{
	"internal/testscale", "internal/filled", "engine", "engine/internal/localdir", "engine/memory", "engine/badger", "engine/pebble", "engine/postgres", "engine/shared", "engine/open", "engine/enginetest",
	"internal/disk", "internal/foreign", "internal/pgtest", "internal/overlay", "internal/hash", "internal/keys", "internal/maintain", "internal/watch", "internal/apply",
	"record", "graph", "blob", "head", "gc",
	"internal/codec", "internal/blobs", "internal/pack", "internal/heads", "internal/cache", "internal/turns", "internal/history", "internal/change", "internal/records", "internal/feed", "internal/namespace", "internal/list", "internal/stats",
	"internal/commit", "internal/lifecycle", "internal/seal", "internal/reclaim", "internal/erase", "internal/verify", "internal/replicate", "internal/errtype",
	"", "lease", "queue", "draft", "persistencetest", "turnstoneotel", "transcript", "internal/wire", "server", "client", "internal/storetest", "internal/adapter", "adapters/adk", "adapters/genkit", "adapters/eino", "adapters/langchaingo", "adapters/trpc", "cmd/turnstone/importer", "cmd/turnstone", "examples/embed", "bench", "bench/scale",
}

// nouns are the packages of values that users see. They know nothing of records.
var nouns = []string{"record", "graph", "blob", "head", "gc"}

// may lists what a layer is allowed of those below it, beside the nouns, where that is not
// all.
var may = map[string][]string{
	"engine":                   {},
	"engine/internal/localdir": {"engine"},
	"engine/memory":            {"engine"},
	"engine/badger":            {"engine", "engine/internal/localdir"},
	"engine/pebble":            {"engine", "engine/internal/localdir"},
	"engine/postgres":          {"engine"},
	"engine/shared":            {"engine", "engine/internal/localdir"},
	"engine/open":              {"engine", "engine/memory", "engine/badger", "engine/pebble", "engine/postgres", "engine/shared"},
	"engine/enginetest":        {"engine", "engine/memory", "internal/testscale"},
	"internal/disk":            {},
	"internal/foreign":         {},
	"internal/testscale":       {},
	"internal/filled":          {},
	"internal/pgtest":          {},
	"internal/overlay":         {"engine"},
	"internal/hash":            {},
	"internal/keys":            {"engine", "internal/hash"},
	"internal/apply":           {"engine"},
	"internal/watch":           {"engine"},
	"internal/maintain":        {},
	"record":                   {},
	"graph":                    {"internal/hash"},
	"blob":                     {"internal/hash"},
	"head":                     {"internal/hash"},
	"gc":                       {},
	"internal/codec":           {"record"},
	"internal/blobs":           {"engine", "internal/apply", "internal/hash", "internal/keys", "internal/codec"},
	"internal/pack":            {"engine", "internal/blobs", "internal/hash", "internal/keys", "internal/codec"},
	"internal/heads":           {"engine", "internal/blobs", "internal/pack", "internal/hash", "internal/keys", "internal/codec"},
	"internal/cache":           {"engine"},
	"internal/turns":           {"engine", "internal/cache", "internal/pack", "internal/heads", "internal/keys", "internal/codec"},
	"internal/history":         {"internal/turns", "internal/cache", "engine", "internal/blobs", "internal/pack", "internal/heads", "internal/keys", "internal/codec"},
	"internal/change":          {"engine", "internal/heads", "internal/apply", "internal/history"},
	"internal/records":         {"engine", "internal/heads", "internal/change", "internal/history", "internal/hash", "internal/keys", "internal/codec"},
	"internal/commit":          {"internal/feed", "internal/hash", "internal/codec", "internal/records", "internal/cache", "internal/turns", "engine", "internal/blobs", "internal/pack", "internal/heads", "internal/change", "internal/history", "internal/keys"},
	"internal/replicate":       {"internal/records", "engine", "internal/heads", "internal/reclaim", "internal/change", "internal/history", "internal/list", "internal/namespace", "internal/verify", "internal/hash", "internal/keys", "internal/codec", "internal/overlay"},
	"internal/namespace":       {"internal/turns", "engine", "internal/blobs", "internal/heads", "internal/change", "internal/history", "internal/keys", "internal/codec"},
	"internal/list":            {"engine", "internal/heads", "internal/change", "internal/history", "internal/keys", "internal/codec"},
	"internal/stats":           {"internal/turns", "engine", "internal/heads", "internal/history", "internal/keys", "internal/codec"},
	"internal/feed":            {"engine", "internal/apply", "internal/change", "internal/codec", "internal/heads", "internal/history", "internal/keys"},
	"internal/lifecycle":       {"internal/feed", "internal/list", "internal/records", "internal/turns", "engine", "internal/keys", "internal/pack", "internal/heads", "internal/change", "internal/commit", "internal/history", "internal/codec"},
	"internal/seal":            {"internal/turns", "engine", "internal/heads", "internal/change", "internal/history", "internal/codec"},
	"internal/reclaim":         {"internal/records", "internal/turns", "engine", "internal/apply", "internal/blobs", "internal/pack", "internal/heads", "internal/turns", "internal/history", "internal/hash", "internal/keys", "internal/codec", "internal/overlay"},
	"internal/errtype":         {"internal/feed", "internal/records", "engine", "internal/change", "internal/codec", "internal/commit", "internal/history", "internal/lifecycle", "internal/namespace", "internal/replicate"},
	"internal/erase":           {"internal/feed", "internal/turns", "internal/blobs", "internal/heads", "internal/reclaim", "internal/change", "internal/history", "internal/keys", "internal/codec"},
	"internal/verify":          {"internal/feed", "internal/records", "internal/turns", "engine", "internal/blobs", "internal/pack", "internal/heads", "internal/reclaim", "internal/history", "internal/keys", "internal/codec"},
	"":                         {"internal/cache", "internal/feed", "internal/records", "internal/turns", "engine", "internal/blobs", "internal/heads", "internal/history", "internal/watch", "internal/change", "internal/namespace", "internal/list", "internal/stats", "internal/commit", "internal/lifecycle", "internal/replicate", "internal/seal", "internal/erase", "internal/errtype", "internal/maintain", "internal/verify", "internal/reclaim", "internal/hash", "internal/keys"},
	"lease":                    {""},
	"queue":                    {"", "lease"},
	"draft":                    {""},
	"persistencetest":          {"", "draft", "lease", "queue", "internal/filled"},
	"turnstoneotel":            {""},
	"transcript":               {""},
	"internal/wire":            {"", "engine", "internal/codec"},
	"server":                   {"", "engine", "internal/cache", "internal/wire"},
	"client":                   {"", "engine", "internal/cache", "internal/wire"},
	"internal/storetest":       {"", "engine", "engine/memory", "engine/open", "internal/pgtest", "server", "client"},
	"internal/adapter":         {""},
	"adapters/adk":             {"", "internal/adapter"},
	"adapters/genkit":          {"", "transcript", "internal/adapter"},
	"adapters/eino":            {"", "internal/adapter"},
	"adapters/langchaingo":     {"", "transcript", "internal/adapter"},
	"adapters/trpc":            {"", "internal/adapter"},
}

// modules are the directories whose packages the layers name. Package turnstoneotel and the adapters are modules of
// their own, so that a host of the store is free to choose its versions of OpenTelemetry and of a framework.
var modules = []string{".", "turnstoneotel", "adapters/adk", "adapters/genkit", "adapters/eino", "adapters/langchaingo", "adapters/trpc"}

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
				if allowed, limited := may[name]; limited && !contains(allowed, below) && (len(allowed) == 0 || !contains(nouns, below)) {
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
	cmd.Dir = dir
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

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}
