package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

// The cost is what the file says, or else what the table of prices says, which the user can replace. Models without a
// price are named.
func TestP27_CostIsOfTheFileOrOfATableOfPrices(t *testing.T) {
	store := t.TempDir() + "/store"
	said := `{"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"y","model":"gpt-5","usage":{"prompt_tokens":1000000},"cost":7}]}`
	silent := `{"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"y","model":"openai/gpt-5-2025-08-07","usage":{"prompt_tokens":3000000,"completion_tokens":1000000,"prompt_tokens_details":{"cached_tokens":1000000}}}]}`
	unknown := `{"messages":[{"role":"assistant","content":"y","model":"mine","usage":{"prompt_tokens":1000000}}]}`
	must(t, "import", write(t, "said.json", said), write(t, "silent.json", silent), write(t, "unknown.json", unknown), "--store", store)
	mine := write(t, "prices.json", `{"sample_spec":{"input_cost_per_token":"words"},"mine":{"input_cost_per_token":2e-6,"mode":"chat"},"image":{}}`)
	for _, c := range []struct {
		prices string
		want   []string
	}{
		{"", []string{"gpt-5,1000000,0,0,0,0,7.00\n", "mine,1000000,0,0,0,0,\n", "2025-08-07,3000000,1000000,1000000,0,0,12.62\n", "models without a price: mine\n"}},
		{mine, []string{"gpt-5,1000000,0,0,0,0,7.00\n", "mine,1000000,0,0,0,0,2.00\n", "2025-08-07,3000000,1000000,1000000,0,0,\n", "models without a price: openai/gpt-5-2025-08-07\n"}},
	} {
		code, out, errs := status(t, nil, "usage", "--csv", "--prices", c.prices, "--store", store)
		for _, want := range c.want {
			if code != 0 || !strings.Contains(out+errs, want) {
				t.Errorf("code %d, no %q in\n%s%s", code, want, out, errs)
			}
		}
	}
	if out := must(t, "usage", "--store", store); !strings.Contains(out, "$19.62  total\n") || !strings.Contains(out, "?") {
		t.Errorf("%s", out)
	}
	for name, bad := range map[string]string{"no object": `[1]`, `prices of "m"`: `{"m":{"input_cost_per_token":"x"}}`, "from 0 to 1": `{"m":{"output_cost_per_token":3}}`} {
		if code, _, errs := status(t, nil, "usage", "--prices", write(t, "bad.json", bad), "--store", store); code != 2 || !strings.Contains(errs, name) || !strings.Contains(errs, "bad.json") {
			t.Errorf("%s: code %d, %s", bad, code, errs)
		}
	}
	if code, _, errs := status(t, nil, "usage", "--prices", filepath.Join(t.TempDir(), "none"), "--store", store); code == 0 || !strings.Contains(errs, "none") {
		t.Errorf("code %d, %s", code, errs)
	}
}

func TestModelsAreFoundUnderTheNamesThatAgentsWrite(t *testing.T) {
	table, err := loadPrices("")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]uint64{
		"claude-opus-4-5": 5000, "claude-opus-4-5-20251101": 5000, "anthropic/claude-opus-4.5": 5000, "us.anthropic.claude-opus-4-5-20251101-v1:0": 5000,
		"claude-opus-4-5@20251101": 5000, "claude-sonnet-4-5[1m]": 3000, "openrouter/openai/gpt-5-mini:free": 250, "gpt-5": 1250,
		"gpt-5-unheard-of": 0, "": 0, "/": 0,
	} {
		if got, ok := table.cost(&head.Usage{Model: name, Input: 1}); got != want || ok != (want > 0) {
			t.Errorf("%q: %d, want %d", name, got, want)
		}
	}
	u := head.Usage{Model: "claude-opus-4-5", Input: 10, CachedInput: 3, CacheWrite: 2, Output: 4, Reasoning: 1}
	if got, _ := table.cost(&u); got != 5*5000+3*500+2*6250+4*25000 {
		t.Errorf("%d", got)
	}
	u = head.Usage{Model: "gpt-5", Input: 1 << 63, Output: 1 << 63, CachedInput: 1 << 63}
	if got, _ := table.cost(&u); got == 0 {
		t.Error("a large sum costs nothing")
	}
}

// A cost that was noted for one turn does not hide the price of the others, whatever the sums are by.
func TestP27_NotedCostsAndPricesAddUp(t *testing.T) {
	store := t.TempDir() + "/store"
	line := func(i int, more string) string {
		return fmt.Sprintf(`{"type":"user","uuid":"u%d","parentUuid":null,"sessionId":"s","message":{"role":"user","content":"x"}}`+"\n"+
			`{"type":"assistant","uuid":"a%[1]d","parentUuid":"u%[1]d","sessionId":"s","message":{"id":"m%[1]d","role":"assistant","content":"y","model":"gpt-5","usage":{"input_tokens":1000000}}%s}`+"\n", i, more)
	}
	must(t, "import", write(t, "s.jsonl", line(1, `,"costUSD":0.5`)+line(2, "")), "--store", store)
	for _, by := range []string{"model", "day,model"} {
		if out := must(t, "usage", "--by", by, "--csv", "--store", store); !strings.Contains(out, "gpt-5,2000000,0,0,0,0,1.75\n") {
			t.Errorf("%s: %s", by, out)
		}
	}
	mine := write(t, "prices.json", `{"gpt-5-2025-08-07":{"input_cost_per_token":3e-6},"azure/gpt-5":{"input_cost_per_token":4e-6},"gpt-5":{"input_cost_per_token":1e-6},"x/other-1":{"input_cost_per_token":5e-6}}`)
	for range 5 {
		table, err := loadPrices(mine)
		if err != nil {
			t.Fatal(err)
		}
		for model, want := range map[string]uint64{"gpt-5": 1000, "gpt-5-2025-08-07": 3000, "azure/gpt-5": 4000, "openai/gpt-5": 1000, "gpt-5-2026-01-01": 1000, "other.1": 5000} {
			if got, _ := table.cost(&head.Usage{Model: model, Input: 1}); got != want {
				t.Errorf("%s: %d, want %d", model, got, want)
			}
		}
	}
}

// Numbers that no commit can have, which a broken file can report, do not keep its session out.
func TestUsageThatIsTooLargeIsCutOff(t *testing.T) {
	store := t.TempDir() + "/store"
	var lines strings.Builder
	for i := range 3 {
		fmt.Fprintf(&lines, `{"role":"assistant","content":"%d","model":"m","usage":{"prompt_tokens":1e30,"completion_tokens":1e12},"cost":1e30}`+"\n", i)
	}
	must(t, "import", write(t, "s.jsonl", lines.String()), "--store", store)
	if out := must(t, "usage", "--json", "--store", store); !strings.Contains(out, fmt.Sprintf(`"input":%d,"output":%d,"cost":%d`, uint64(turnstone.MaxTokens), uint64(turnstone.MaxTokens), uint64(turnstone.MaxCost))) {
		t.Errorf("%s", out)
	}
}
