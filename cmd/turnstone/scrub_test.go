package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/keys"
)

func TestVF9_TheCommandScrubsAndSaysHowFarItCame(t *testing.T) {
	for _, engine := range []string{"pebble:", "badger:"} {
		store := engine + t.TempDir() + "/store"
		must(t, "demo", "--store", store)
		if out := must(t, "stats", "--store", store); strings.Contains(out, "scrubbed") {
			t.Errorf("%s", out)
		}
		if out := must(t, "scrub", "--store", store, "--rate", "100MiB", "--for", "1h"); !strings.Contains(out, "complete   0 problems in all records") {
			t.Errorf("%s", out)
		}
		if out := must(t, "stats", "--store", store); !strings.Contains(out, "scrubbed     all that was written before ") {
			t.Errorf("%s", out)
		}
		var r scrubLine
		if err := json.Unmarshal([]byte(must(t, "scrub", "--store", store, "--json")), &r); err != nil || r.Records < 10 || !r.Ended || len(r.Problems) > 0 {
			t.Errorf("%+v, %v", r, err)
		}
		for _, args := range [][]string{{"scrub", "--rate", "-1"}, {"scrub", "--for", "-1s"}, {"serve", "--scrub", "1h"}} {
			if _, _, ok := turnstoneCmd(t, append(args, "--store", store)...); ok {
				t.Errorf("%v was accepted", args)
			}
		}
	}
}

func TestVF9_TheServerLogsWhatAScrubFinds(t *testing.T) {
	e := memory.New()
	st, err := turnstone.Open(t.Context(), e, nil)
	if err == nil {
		_, _, err = st.Create(t.Context(), turnstone.Request{ID: "s"})
		st.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	for p, err := range e.Scan(t.Context(), engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		if p.Key[4] == keys.About {
			p.Value[len(p.Value)-1] ^= 1
			if err := e.Apply(t.Context(), &engine.Batch{Sets: []engine.Pair{p}}); err != nil {
				t.Fatal(err)
			}
			break
		}
	}
	var out output
	served, err := (&app{}).namespace(t.Context(), e, "", &serving{maintain: time.Hour, scrub: time.Hour, log: &out}, turnstone.Options{MustExist: true})
	if err != nil {
		t.Fatal(err)
	}
	defer served.Close()
	out.waitFor(t, "metadata at key", 1)
}
