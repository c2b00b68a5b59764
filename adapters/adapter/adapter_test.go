package adapter

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/turnstonedb/turnstone"
)

// Ids keep names apart, and give them back. Shortened ones have a length that a store takes, and are nobody else's. The
// modules for Python and JavaScript have the same ids in their tests.
func TestKT1_IdsOfNames(t *testing.T) {
	seen := map[string]bool{}
	for _, names := range [][]string{{"a"}, {"a", "b"}, {"a/b"}, {"a%2Fb"}, {"a%", "2Fb"}, {"", ""}, {""}} {
		id := Join("root", names...)
		if seen[id] {
			t.Errorf("%.20q: %s is taken", names, id)
		}
		if seen[id] = true; !slices.Equal(Names(id), names) {
			t.Errorf("%q, want %q", Names(id), names)
		}
	}
	long := "r/" + strings.Repeat("é", 300)
	short := Short(long, turnstone.MaxSessionID)
	if !strings.HasSuffix(short, "~a2acea681c8e86884d62ce42c970c71ee74bc3a0177c6466fb73dec691b28762") || !strings.HasPrefix(short, "r/éé") {
		t.Error(short)
	}
	for _, text := range []string{long, long + "b", short, "a", ""} {
		id := Short(text, turnstone.MaxSessionID)
		if len(id) > turnstone.MaxSessionID || !utf8.ValidString(id) || seen["short "+id] {
			t.Errorf("%d bytes: %s", len(id), id)
		}
		seen["short "+id] = true
	}
}
