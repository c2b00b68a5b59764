package search

import (
	"encoding/json"
	"strings"
	"unicode/utf8"

	"github.com/turnstonedb/turnstone"
)

// plainText returns the payload of a node, if it is text, or of JSON its strings, each on a line.
func plainText(n *turnstone.Node) string {
	if !utf8.Valid(n.Payload) {
		return ""
	}
	var v any
	if json.Unmarshal(n.Payload, &v) != nil {
		return string(n.Payload)
	}
	var b strings.Builder
	gather(&b, v)
	return b.String()
}

func gather(b *strings.Builder, v any) {
	switch v := v.(type) {
	case string:
		b.WriteString(v)
		b.WriteByte('\n')
	case []any:
		for _, one := range v {
			gather(b, one)
		}
	case map[string]any:
		for _, name := range sortedKeys(v) {
			gather(b, v[name])
		}
	}
}
