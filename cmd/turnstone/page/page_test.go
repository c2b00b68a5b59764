package page

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/head"
)

// elements are those that a page of a session has.
var elements = strings.Fields("html head meta title style body header h1 h2 h3 h4 h5 h6 dl dt dd main article span a time div p br hr strong b em del blockquote ul ol li table thead tbody tr th td pre code details summary img")

// check fails unless a page has only what runs nothing and loads nothing.
func check(t *testing.T, what string, page []byte) {
	t.Helper()
	root, err := html.Parse(bytes.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	styles := 0
	for n := range root.Descendants() {
		if n.Type == html.CommentNode {
			t.Errorf("%s: a comment %q", what, n.Data)
		}
		if n.Type != html.ElementNode {
			continue
		}
		if !slices.Contains(elements, n.Data) {
			t.Errorf("%s: <%s>", what, n.Data)
		}
		if n.Data == "style" {
			styles++
		}
		for _, a := range n.Attr {
			switch a.Key {
			case "lang", "charset", "name", "content", "http-equiv", "id", "class", "open", "rel", "alt", "align", "start", "data-id":
			case "href":
				u, err := url.Parse(a.Val)
				if err != nil || !slices.Contains([]string{"http", "https", "mailto"}, u.Scheme) && !strings.HasPrefix(a.Val, "#n-") {
					t.Errorf("%s: <%s href=%q>", what, n.Data, a.Val)
				}
			case "src":
				if n.Data != "img" || !strings.HasPrefix(a.Val, "data:image/") || strings.HasPrefix(a.Val, "data:image/svg") {
					t.Errorf("%s: <%s src=%.60q>", what, n.Data, a.Val)
				}
			default:
				t.Errorf("%s: <%s %s=%q>", what, n.Data, a.Key, a.Val)
			}
		}
	}
	if styles != 1 {
		t.Errorf("%s: %d styles", what, styles)
	}
}

// payloads are payloads in which a text stands in the places that the formats have for it.
func payloads(text string) (out [][]byte) {
	for _, v := range []any{
		text,
		map[string]any{"content": text},
		map[string]any{"content": []any{map[string]any{"type": "text", "text": text}}},
		map[string]any{"type": "thinking", "thinking": text},
		map[string]any{"content": []any{map[string]any{"type": "tool_use", "id": text, "name": text, "input": map[string]any{text: text}}}},
		map[string]any{"type": "tool_result", "tool_use_id": text, "content": text},
		map[string]any{"type": "image", "source": map[string]any{"type": "base64", "media_type": text, "data": "aGk="}},
		map[string]any{"type": "image", "source": map[string]any{"type": "base64", "media_type": "image/svg+xml", "data": "PHN2Zy8+"}},
		map[string]any{"image_url": map[string]any{"url": text}},
		map[string]any{"image_url": map[string]any{"url": "data:image/png;base64," + text}},
		map[string]any{"tool_calls": []any{map[string]any{"id": "1", "function": map[string]any{"name": text, "arguments": text}}}},
	} {
		b, err := json.Marshal(v)
		if err != nil {
			panic(err)
		}
		out = append(out, b)
	}
	return append(out, []byte(text), []byte("```"+text+"\n"+text+"\n```"))
}

// Nothing that a session holds runs, loads, or leaves its place, wherever it stands.
func TestUI2_AttacksShowAsText(t *testing.T) {
	source, err := os.ReadFile("testdata/attacks.txt")
	if err != nil {
		t.Fatal(err)
	}
	attacks := strings.Split(strings.TrimSpace(string(source)), "\n")
	if len(attacks) < 100 {
		t.Fatalf("%d attacks", len(attacks))
	}
	for _, attack := range attacks {
		attack = strings.ReplaceAll(attack, "\\n", "\n")
		s := &Session{Thoughts: true, Info: turnstone.Info{ID: attack}}
		s.Info.Metadata = head.Metadata{Name: attack, Model: attack, Group: attack, Cwd: attack}
		for _, p := range payloads(attack) {
			s.Nodes = append(s.Nodes, turnstone.Node{Kind: attack, Payload: p, Attachments: []blob.Attachment{{Name: attack, MediaType: attack}}})
		}
		var out bytes.Buffer
		if err := Write(&out, s); err != nil {
			t.Fatal(err)
		}
		check(t, fmt.Sprintf("%q", attack), out.Bytes())
	}
}

// Text whose markdown would take time or memory without measure is shown as it is, and a kind is no class of another
// thing.
func TestUI2_WhatCostsTooMuchIsShownAsItIs(t *testing.T) {
	repeat := strings.Repeat
	for name, text := range map[string]string{
		"table": "|" + repeat("a|", 4000) + "\n|" + repeat("-|", 4000) + "\n" + repeat("|\n", 8000), "quotes": repeat("> ", 10_000), "quoted table": "> |" + repeat("a|", 900) + "\n> |" + repeat("-|", 900) + "\n" + repeat("> |\n", 900),
		"lists": repeat("- ", 8000) + "x", "numbers": repeat("1. ", 8000) + "x", "brackets": repeat("[", 30_000), "images": repeat("![", 15_000), "stars": repeat("*a ", 10_000), "marks": repeat("**a_", 8000),
		"ticks": repeat("`a``", 8000), "links": repeat("[a](", 8000), "fences": repeat("```\n", 8000), "angles": repeat("<", 30_000), "entities": repeat("&#x", 10_000), "strikes": repeat("~~a", 10_000), "indented": repeat(" ", 30_000) + "- x",
	} {
		if out := Markdown(text); len(out) > 20*len(text)+1000 {
			t.Errorf("%s: %d bytes of %d", name, len(out), len(text))
		}
	}
	for _, text := range []string{"| a | b |\n|---|---|\n| 1 | 2 |\n", repeat("- one\n  - two\n", 300), repeat("> said\n", 300), repeat("-", 200)} {
		if out := Markdown(text); strings.HasPrefix(string(out), "<pre>") {
			t.Errorf("%.40q is not rendered: %.100s", text, out)
		}
	}
	if got := []string{class("user"), class("x chunk hidden"), class("Tool")}; !slices.Equal(got, []string{"user", "other", "other"}) {
		t.Error(got)
	}
}

// A page shows who says what, calls beside their results, code, tables and images.
func TestUI1_APageShowsAConversation(t *testing.T) {
	s := &Session{Thoughts: true, Info: turnstone.Info{ID: "trip"}, Nodes: []turnstone.Node{
		{Kind: "user", Payload: []byte(`{"content":"What is **this**?\n\n| a | b |\n|---|---|\n| 1 | 2 |"}`)},
		{Kind: "assistant", Payload: []byte(`{"content":[{"type":"thinking","thinking":"Hm."},{"type":"text","text":"A [page](https://example.com).\n\n` + "```go\\nfunc main() {}\\n```" + `"},{"type":"tool_use","id":"c1","name":"look","input":{"path":"x"}}]}`)},
		{Kind: "tool", Payload: []byte(`{"type":"tool_result","tool_use_id":"c1","content":"<b>found</b>"}`)},
		{Kind: "user", Payload: []byte(`{"content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"iVBORw0KGgo="}}]}`)},
	}}
	var out bytes.Buffer
	if err := Write(&out, s); err != nil {
		t.Fatal(err)
	}
	check(t, "conversation", out.Bytes())
	for _, want := range []string{
		"<strong>this</strong>", "<td>1</td>", "<summary>Thoughts</summary>", `<span class="kd">func</span>`, `href="https://example.com" rel="nofollow noreferrer"`,
		"Calls <b>look</b>", `<p class="soft">Result</p>`, "its result stands at the call", "&lt;b&gt;found&lt;/b&gt;", `src="data:image/png;base64,iVBORw0KGgo="`,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	s.Thoughts = false
	out.Reset()
	if err := Write(&out, s); err != nil || strings.Contains(out.String(), "Hm.") {
		t.Errorf("thoughts are shown: %v", err)
	}
}
