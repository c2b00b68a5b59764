package adapter

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/turnstonedb/turnstone"
)

// Ids keep names apart, give them back, and have a length that a store takes. The modules for Python and JavaScript have
// the same ids in their tests.
func TestKT1_IdsOfNames(t *testing.T) {
	long := strings.Repeat("é", 300)
	seen := map[string]bool{}
	for _, names := range [][]string{{"a"}, {"a", "b"}, {"a/b"}, {"a%2Fb"}, {"a%", "2Fb"}, {"", ""}, {""}, {long}, {long, "b"}, {long + "b"}} {
		id := Join("root", names...)
		if seen[id] {
			t.Errorf("%.20q: %s is taken", names, id)
		}
		if seen[id] = true; len(id) > turnstone.MaxSessionID || !utf8.ValidString(id) {
			t.Errorf("%d bytes: %s", len(id), id)
		}
		if got := Names(id); !slices.Equal(got, names) && !strings.Contains(id, "~") {
			t.Errorf("%q, want %q", got, names)
		}
	}
	if id := Join("r", long); !strings.HasSuffix(id, "~a2acea681c8e86884d62ce42c970c71ee74bc3a0177c6466fb73dec691b28762") || !strings.HasPrefix(id, "r/éé") {
		t.Error(id)
	}
}
