package trpc

import (
	"reflect"
	"testing"

	"trpc.group/trpc-go/trpc-agent-go/event"
	"trpc.group/trpc-go/trpc-agent-go/model"

	"github.com/turnstonedb/turnstone/head"
)

// Input has all tokens of the prompt: OpenAI's models count those of the cache in it, Anthropic's beside it.
func TestUsageHasAllTokensOfThePrompt(t *testing.T) {
	for name, c := range map[string]struct {
		details model.PromptTokensDetails
		want    head.Usage
	}{
		"openai":    {model.PromptTokensDetails{CachedTokens: 4}, head.Usage{Model: "m", Input: 10, Output: 3, CachedInput: 4}},
		"anthropic": {model.PromptTokensDetails{CachedTokens: 4, CacheReadTokens: 4, CacheCreationTokens: 5}, head.Usage{Model: "m", Input: 19, Output: 3, CachedInput: 4, CacheWrite: 5}},
	} {
		e := &event.Event{Response: &model.Response{Model: "m", Usage: &model.Usage{PromptTokens: 10, CompletionTokens: 3, PromptTokensDetails: c.details}}}
		if got := usage(e); !reflect.DeepEqual(got, []head.Usage{c.want}) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
