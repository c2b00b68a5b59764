package importer

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
)

// A BlockKind says what a Block is.
type BlockKind int

// The kinds of blocks.
const (
	TextBlock    BlockKind = iota // what somebody says
	ThoughtBlock                  // what the model thought
	CallBlock                     // a call of a tool
	ResultBlock                   // what a tool has answered
	ImageBlock
)

// A Block is a part of a message.
type Block struct {
	Kind  BlockKind
	Text  string // of a call its arguments, as JSON if they are an object; empty for an image
	Call  Call   // of a call and of a result: a result has the id of its call only
	Media string // of an image: its media type
	Data  []byte // of an image
}

// Blocks returns the parts of a payload in any of the formats, in order. A payload without any is one block of text.
func Blocks(payload []byte) []Block {
	var v any
	if json.Unmarshal(payload, &v) != nil {
		return []Block{{Text: string(payload)}}
	}
	var b blocks
	b.add(v, 0)
	if len(b) == 0 {
		return []Block{{Text: string(payload)}}
	}
	return b
}

// blocks gathers the blocks of a value.
type blocks []Block

func (b *blocks) add(v any, depth int) {
	if depth > 6 {
		return
	}
	switch v := v.(type) {
	case string:
		if strings.TrimSpace(v) != "" {
			*b = append(*b, Block{Text: v})
		}
	case []any:
		for _, item := range v {
			b.add(item, depth+1)
		}
	case map[string]any:
		b.object(v, depth)
	}
}

func (b *blocks) object(m map[string]any, depth int) {
	kind, _ := m["type"].(string)
	if media, data, ok := image(m); ok {
		*b = append(*b, Block{Kind: ImageBlock, Media: media, Data: data})
		return
	}
	if kind == "thinking" || kind == "reasoning" || m["thought"] == true {
		if s := text(m, depth, true); s != "" {
			*b = append(*b, Block{Kind: ThoughtBlock, Text: s})
		}
		return
	}
	from := len(*b)
	for _, key := range textFields {
		n := len(*b)
		if b.add(m[key], depth+1); len(*b) > n {
			break
		}
	}
	if id := answered(m); id != "" && !slices.Contains(callTypes, m["type"]) { // All that it says is the result.
		for i := range (*b)[from:] {
			if part := &(*b)[from+i]; part.Kind == TextBlock {
				part.Kind, part.Call = ResultBlock, Call{ID: id}
			}
		}
	}
	for _, c := range toolCalls(m) {
		id, _ := c.id.(string)
		name, _ := c.name.(string)
		*b = append(*b, Block{Kind: CallBlock, Text: argumentsJSON(c.args), Call: Call{ID: id, Name: name}})
	}
}

// answered returns the id of the call whose result an object is, or "".
func answered(m map[string]any) string {
	for _, name := range []string{"tool_call_id", "tool_use_id", "toolCallId", "call_id"} {
		if id, ok := m[name].(string); ok && first(m["content"], m["output"], m["result"]) != nil {
			return id
		}
	}
	return ""
}

// argumentsJSON returns arguments as indented JSON, or as they are if they are a string without JSON.
func argumentsJSON(v any) string {
	if s, ok := v.(string); ok {
		if json.Unmarshal([]byte(s), &v) != nil {
			return s
		}
	}
	if v == nil {
		return ""
	}
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return ""
	}
	return string(text)
}

// image returns an image that an object has, as the APIs of Anthropic, OpenAI and Google have them.
func image(m map[string]any) (media string, data []byte, ok bool) {
	var encoded string
	source, _ := m["source"].(map[string]any)
	inline, _ := first(m["inlineData"], m["inline_data"]).(map[string]any)
	url := m["image_url"]
	if object, isObject := url.(map[string]any); isObject {
		url = object["url"]
	}
	switch {
	case source != nil && source["type"] == "base64":
		media, _ = source["media_type"].(string)
		encoded, _ = source["data"].(string)
	case inline != nil:
		media, _ = first(inline["mimeType"], inline["mime_type"]).(string)
		encoded, _ = inline["data"].(string)
	default:
		text, _ := url.(string)
		rest, isData := strings.CutPrefix(text, "data:")
		if !isData {
			return "", nil, false
		}
		media, encoded, _ = strings.Cut(rest, ";base64,")
	}
	if !strings.HasPrefix(media, "image/") {
		return "", nil, false
	}
	data, err := base64.StdEncoding.DecodeString(encoded)
	return media, data, err == nil && len(data) > 0
}
