package main

import (
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone/engine"
)

func TestTheMemoryFlagTakesASizeOf32MiBAtLeast(t *testing.T) {
	var m *engine.MemoryBudget
	for _, text := range []string{"", "31MiB", "-1", "much", "99999999999GiB"} {
		if err := (memoryFlag{&m}).Set(text); err == nil || !strings.Contains(err.Error(), "32MiB") || m != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := (memoryFlag{&m}).Set("64MiB"); err != nil || m.Bytes() != 64<<20 || (memoryFlag{&m}).String() != "64 MiB" {
		t.Errorf("%v, %d", err, m.Bytes())
	}
	if code, _, errs := status(t, nil, "sessions", "--memory", "1MiB", "--store", t.TempDir()); code != exitUsage || !strings.Contains(errs, "32MiB") {
		t.Errorf("%d, %s", code, errs)
	}
}
