package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// docs/scale.md shows what the command prints.
func TestTheDocumentShowsWhatTheCommandPrints(t *testing.T) {
	doc, err := os.ReadFile("../../docs/scale.md")
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := defaults().run(&out); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(doc), "```\n"+out.String()+"```\n") {
		t.Errorf("docs/scale.md lacks this:\n%s", &out)
	}
}

// Moves level the clusters, keep all namespaces, and never make a fuller cluster than there was.
func TestLevellingMovesWhatIsNeeded(t *testing.T) {
	p := defaults()
	for _, skew := range []float64{0, 0.5, 0.8, 1, 1.2} {
		p.skew, p.namespaces = skew, 500
		f := p.hashed(7)
		_, before := worst(f)
		moves, share := f.level(1.1)
		sum, after := worst(f)
		if after > before+1e-9 || sum < 1-1e-6 || sum > 1+1e-6 || (moves == 0) != (share == 0) || moves > p.namespaces {
			t.Errorf("skew %v: %d moves of %.3f; the fullest cluster has %.3f, then %.3f; in all %.6f", skew, moves, share, before, after, sum)
		}
		if skew < 1 && after > 1.1/7+1e-9 {
			t.Errorf("skew %v: the fullest cluster has %.3f", skew, after)
		}
	}
}

func worst(f *fleet) (sum, most float64) {
	for _, l := range f.loads() {
		sum, most = sum+l, max(most, l)
	}
	return sum, most
}

// What can't be planned is refused.
func TestNothingIsPlannedWithZero(t *testing.T) {
	p := defaults()
	p.sessions = 0
	if err := p.run(&bytes.Buffer{}); err == nil {
		t.Error("a plan for no sessions")
	}
}
