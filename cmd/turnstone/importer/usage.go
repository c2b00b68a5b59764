package importer

import (
	"math"
	"strings"

	"github.com/tidwall/gjson"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

// usageNames has the paths under which agents and APIs report numbers of tokens, by what they count. The first
// one that is there counts. Under the paths in beside, APIs report what the input or the output does not include.
var usageNames = []struct {
	paths, beside []string
	count, sum    func(*head.Usage) *uint64
}{
	{
		count: func(u *head.Usage) *uint64 { return &u.Input },
		paths: split("prompt_tokens,input_tokens,input,prompt,tokensIn,inputTokens,promptTokenCount,prompt_token_count"),
	},
	{
		count: func(u *head.Usage) *uint64 { return &u.Output },
		paths: split("completion_tokens,output_tokens,output,completion,tokensOut,outputTokens,candidatesTokenCount,candidates_token_count"),
	},
	{
		count: func(u *head.Usage) *uint64 { return &u.CachedInput }, sum: func(u *head.Usage) *uint64 { return &u.Input },
		paths: split("prompt_tokens_details.cached_tokens,input_tokens_details.cached_tokens,cached_input_tokens,cached,input_token_details.cache_read," +
			"cachedContentTokenCount,cached_content_token_count"),
		beside: split("cache_read_input_tokens,cacheRead,cache_read_tokens,cacheReads,cacheReadTokens,cache.read"),
	},
	{
		count: func(u *head.Usage) *uint64 { return &u.CacheWrite }, sum: func(u *head.Usage) *uint64 { return &u.Input },
		paths:  split("cache_write_input_tokens,input_token_details.cache_creation"),
		beside: split("cache_creation_input_tokens,cacheWrite,cache_write_tokens,cacheWrites,cacheWriteTokens,cacheCreationTokens,cache.write"),
	},
	{
		count: func(u *head.Usage) *uint64 { return &u.Reasoning }, sum: func(u *head.Usage) *uint64 { return &u.Output },
		paths:  split("completion_tokens_details.reasoning_tokens,output_tokens_details.reasoning_tokens,reasoning_output_tokens,output_token_details.reasoning"),
		beside: split("reasoning,reasoningTokens,thoughts,thoughtsTokenCount,thoughts_token_count"),
	},
}

// totalNames are the paths under which APIs report the sum of all tokens, and costNames those of the cost in dollars.
var (
	totalNames = split("total_tokens,totalTokenCount,total_token_count,totalTokens,total")
	costNames  = split("cost.total,cost,total_cost,costUSD")
)

// usage is a number of tokens of each sort. Values that are not usage are taken for none, because other programs
// may have fields with the same names, and usage is not essential to a transcript.
type usage struct{ head.Usage }

// UnmarshalJSON never fails.
func (u *usage) UnmarshalJSON(b []byte) error {
	*u = usageOf(gjson.ParseBytes(b))
	return nil
}

// usageOf returns the usage that an object reports.
func usageOf(r gjson.Result) (u usage) {
	if !r.IsObject() {
		return u
	}
	have := map[string]gjson.Result{}
	r.ForEach(func(name, v gjson.Result) bool {
		have[name.Str] = v
		return true
	})
	number := func(paths []string) float64 {
		for _, path := range paths {
			name, rest, deep := strings.Cut(path, ".")
			v := have[name]
			if deep {
				v = v.Get(rest)
			}
			if v.Type == gjson.Number && v.Num > 0 {
				return v.Num
			}
		}
		return 0
	}
	tokens := func(paths []string) uint64 { return uint64(min(number(paths), turnstone.MaxTokens)) }
	u.Model, u.Cost = str(have["model"]), nanoDollars(number(costNames))
	var sums head.Usage
	for _, n := range usageNames {
		c := n.count(&u.Usage)
		if *c = tokens(n.paths); *c == 0 {
			if *c = tokens(n.beside); *c > 0 {
				*n.sum(&sums) += *c
			}
		}
	}
	// OpenAI's names and a total say that nothing is beside the others.
	total := tokens(totalNames)
	if have["prompt_tokens"].Exists() || total > 0 && total == u.Input+u.Output {
		return u
	}
	u.Input, u.Output = min(u.Input+sums.Input, turnstone.MaxTokens), min(u.Output+sums.Output, turnstone.MaxTokens)
	return u
}

// usageIn returns the usage that a payload of a format reports.
func usageIn(name string, payload []byte) []head.Usage {
	t := formatNamed(name)
	if t == nil || !valid(payload) {
		return nil
	}
	return t.entry(piece{raw: payload}, 0).usage
}

// nanoDollars returns an amount of dollars in the unit of head.Usage.Cost.
func nanoDollars(dollars float64) uint64 {
	return uint64(math.Round(min(max(dollars, 0)*1e9, turnstone.MaxCost)))
}

// of returns the usage as that of a model, or nil if it is empty.
func (u *usage) of(model string) []head.Usage {
	if u == nil || u.Usage == (head.Usage{Model: u.Model}) {
		return nil
	}
	out := u.Usage
	out.Model = model
	return []head.Usage{out}
}
