package importer

import (
	"strings"

	"github.com/tidwall/gjson"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

// usageNames has the paths under which agents and APIs report numbers of tokens, by what they count. The first
// one that is there counts.
var usageNames = []struct {
	count func(*head.Usage) *uint64
	paths []string
}{
	{func(u *head.Usage) *uint64 { return &u.Input }, split("prompt_tokens,input_tokens,input,prompt,tokensIn,inputTokens,promptTokenCount,prompt_token_count")},
	{func(u *head.Usage) *uint64 { return &u.Output }, split("completion_tokens,output_tokens,output,completion,tokensOut,outputTokens,candidatesTokenCount,candidates_token_count")},
	{func(u *head.Usage) *uint64 { return &u.CachedInput }, split("prompt_tokens_details.cached_tokens,input_tokens_details.cached_tokens,cache_read_input_tokens,cached_input_tokens,cacheRead," +
		"cache_read_tokens,cached,cacheReads,cacheReadTokens,cache.read,input_token_details.cache_read,cachedContentTokenCount,cached_content_token_count")},
	{func(u *head.Usage) *uint64 { return &u.CacheWrite }, split("cache_creation_input_tokens,cacheWrite,cache_write_tokens,cacheWrites,cacheWriteTokens,cache.write,input_token_details.cache_creation")},
	{func(u *head.Usage) *uint64 { return &u.Reasoning }, split("completion_tokens_details.reasoning_tokens,output_tokens_details.reasoning_tokens,reasoning_output_tokens,reasoning,reasoningTokens,thoughts," +
		"output_token_details.reasoning,thoughtsTokenCount,thoughts_token_count")},
}

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
	u.Model = str(have["model"])
	for _, n := range usageNames {
		for _, path := range n.paths {
			name, rest, deep := strings.Cut(path, ".")
			v := have[name]
			if deep {
				v = v.Get(rest)
			}
			if *n.count(&u.Usage) == 0 && v.Type == gjson.Number && v.Num > 0 {
				*n.count(&u.Usage) = uint64(min(v.Num, turnstone.MaxTokens))
			}
		}
	}
	return u
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
