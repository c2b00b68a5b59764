package main

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestVF9_TheCommandScrubsAndSaysHowFarItCame(t *testing.T) {
	store := t.TempDir() + "/store"
	must(t, "demo", "--store", store)
	if out := must(t, "stats", "--store", store); strings.Contains(out, "scrubbed") {
		t.Errorf("%s", out)
	}
	if out := must(t, "scrub", "--store", store, "--rate", "100MiB", "--for", "1h"); !strings.Contains(out, "complete   0 problems in all records") {
		t.Errorf("%s", out)
	}
	if out := must(t, "stats", "--store", store); !strings.Contains(out, "scrubbed     all that was written before 2") {
		t.Errorf("%s", out)
	}
	var r scrubLine
	if err := json.Unmarshal([]byte(must(t, "scrub", "--store", store, "--json")), &r); err != nil || r.Records < 10 || r.Complete.IsZero() || len(r.Problems) > 0 {
		t.Errorf("%+v, %v", r, err)
	}
	for _, args := range [][]string{{"scrub", "--rate", "-1"}, {"scrub", "--for", "-1s"}, {"serve", "--scrub", "1h"}} {
		if _, _, ok := turnstoneCmd(t, append(args, "--store", store)...); ok {
			t.Errorf("%v was accepted", args)
		}
	}
}
