package tests

import (
	"crypto/sha256"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/records.golden anew: the format has changed")

// The same history, of the same random numbers at the same times, writes the same
// records. What differs from testdata/records.golden is another format, and stores that
// were written before may not be readable any more.
func TestFV3_TheSameHistoryWritesTheSameRecords(t *testing.T) {
	const golden = "testdata/records.golden"
	// Records with random values that have nothing to do with Options.Random: notes of copies, dirty records, cycle
	// records, marks, predecessors and that they were forgotten, uploads and sessions' records.
	const random = "CRWdgmwx"
	records := map[string][]string{}
	for _, p := range pairs(t, full(t)) {
		letter, what := string(p.Key[4]), fmt.Sprintf("%x = %x", p.Key, p.Value)
		if strings.Contains(random, letter) {
			what = fmt.Sprintf("%d = %x", len(p.Key), p.Value[:2]) // its type and version
		}
		records[letter] = append(records[letter], what)
	}
	var b strings.Builder
	for _, letter := range slices.Sorted(maps.Keys(records)) {
		fmt.Fprintf(&b, "%s %d %x\n", letter, len(records[letter]), sha256.Sum256([]byte(strings.Join(records[letter], "\n"))))
	}
	if *update {
		if err := os.WriteFile(golden, []byte(b.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if have := b.String(); have != string(want) {
		t.Errorf("the records differ from %s, by letter, number and digest. Now:\n%s", golden, have)
	}
}
