package main

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/turnstonedb/turnstone/head"
)

// pricesJSON has the list prices of autumn 2026 of the models that coding agents use, for requests of ordinary length
// and speed. Its form is that of model_prices_and_context_window.json, which LiteLLM keeps.
//
//go:embed prices.json
var pricesJSON []byte

// pricesVariable names a file with the prices of models.
const pricesVariable = "TURNSTONE_PRICES"

// A price is what one token of a model costs, in US dollars.
type price struct {
	Input      float64 `json:"input_cost_per_token"`
	Output     float64 `json:"output_cost_per_token"`
	CacheRead  float64 `json:"cache_read_input_token_cost"`
	CacheWrite float64 `json:"cache_creation_input_token_cost"`
}

// prices has the prices of models, by their names and by the plain form of those.
type prices map[string]price

// loadPrices reads the table of prices in a file, or the one that is built in if path is empty.
func loadPrices(path string) (prices, error) {
	data := pricesJSON
	if path != "" {
		var err error
		if data, err = os.ReadFile(path); err != nil {
			return nil, err
		}
	}
	return parsePrices(data, path)
}

func parsePrices(data []byte, path string) (prices, error) {
	var models map[string]json.RawMessage
	if err := json.Unmarshal(data, &models); err != nil {
		return nil, usageError{fmt.Errorf("%s is no object of models and their prices: %w", path, err)}
	}
	p, plain := prices{}, map[string]string{} // the name of whose price a plain name has
	for _, name := range slices.Sorted(maps.Keys(models)) {
		raw := models[name]
		if name == "sample_spec" { // LiteLLM's file explains its fields there.
			continue
		}
		var one price
		if err := json.Unmarshal(raw, &one); err != nil {
			return nil, usageError{fmt.Errorf("%s: prices of %q: %w", path, name, err)}
		}
		if min(one.Input, one.Output, one.CacheRead, one.CacheWrite) < 0 || max(one.Input, one.Output, one.CacheRead, one.CacheWrite) > 1 {
			return nil, usageError{fmt.Errorf("%s: prices of %q must be dollars for one token, from 0 to 1", path, name)}
		}
		if one.Input == 0 && one.Output == 0 {
			continue // It is no model for text, or has no price.
		}
		p[name] = one
		// The shortest name is that of the model itself: "azure/gpt-5" and an older "gpt-5-2025-08-07" may cost something else.
		if of := plain[plainModel(name)]; of == "" || len(name) < len(of) {
			plain[plainModel(name)] = name
		}
	}
	for name, of := range plain {
		if _, ok := models[name]; !ok {
			p[name] = p[of]
		}
	}
	return p, nil
}

// dated matches the end of a model's name that other names of the same model lack: a date, a version, the size of a window.
var dated = regexp.MustCompile(`([-@]([0-9]{8}|[0-9]{4}-[0-9]{2}-[0-9]{2}|latest|default))?(-v[0-9]+(:[0-9]+)?)?(\[[0-9]+[mk]\])?(:[a-z]+)?$`)

// plainModel returns a model's name without its provider, region and date, and with dashes for dots: agents write
// claude-opus-4-5-20251101, anthropic/claude-opus-4.5 and us.anthropic.claude-opus-4-5-20251101-v1:0.
func plainModel(name string) string {
	name = strings.ToLower(name[strings.LastIndex(name, "/")+1:])
	if _, model, ok := strings.Cut(name, "anthropic."); ok {
		name = model
	}
	return strings.ReplaceAll(dated.ReplaceAllString(name, ""), ".", "-")
}

// cost returns what was paid for usage, in billionths of a dollar: what the provider said, or what the table says.
// It returns false if neither does.
func (p prices) cost(u *head.Usage) (uint64, bool) {
	if u.Cost > 0 || u.Input == 0 && u.Output == 0 {
		return u.Cost, true
	}
	one, ok := p[u.Model]
	if !ok {
		one, ok = p[plainModel(u.Model)]
	}
	// Tokens that were read from the cache, or written to it, are a part of the input. If a table has no price of their
	// own, they cost as much as the rest.
	read := min(u.CachedInput, u.Input)
	write := min(u.CacheWrite, u.Input-read)
	if one.CacheRead == 0 {
		one.CacheRead = one.Input
	}
	if one.CacheWrite == 0 {
		one.CacheWrite = one.Input
	}
	dollars := float64(u.Input-read-write)*one.Input + float64(read)*one.CacheRead + float64(write)*one.CacheWrite + float64(u.Output)*one.Output
	return uint64(math.Round(min(dollars*1e9, math.MaxInt64))), ok
}

// dollars returns a cost in dollars with two decimal places, or with up to six if it is less than a cent.
func dollars(cost uint64) string {
	if cost > 0 && cost < 1e7 {
		return strings.TrimRight(fmt.Sprintf("%.6f", float64(max(cost, 1e3))/1e9), "0")
	}
	return fmt.Sprintf("%.2f", float64(cost)/1e9)
}
