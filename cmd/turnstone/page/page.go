// Package page makes web pages of sessions: what people send each other, and what the server shows.
//
// What a transcript holds is hostile. Markdown is rendered without raw HTML, and what comes out is sanitized. Links lead
// to http, https and mailto only, images are those that the session itself has, and the pages have a policy that runs no
// script and loads nothing (Content Security Policy, level 3).
package page

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"strings"
	"time"

	"github.com/alecthomas/chroma/v2"
	"github.com/alecthomas/chroma/v2/formatters/html"
	"github.com/alecthomas/chroma/v2/lexers"
	"github.com/microcosm-cc/bluemonday"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/util"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
)

//go:embed style.css
var style string

//go:embed session.html
var sessionSource string

// A Session is what a page of a session shows.
type Session struct {
	Info  turnstone.Info
	Nodes []turnstone.Node // in order
	// All are the nodes among which a result may have its call; Nodes if it is nil.
	All []turnstone.Node
	// Thoughts shows what the model thought, folded.
	Thoughts bool
	// Location is that of the times; UTC if it is nil.
	Location *time.Location
}

// Write writes a page that stands by itself: one file, without a script, that loads nothing.
func Write(w io.Writer, s *Session) error {
	sum := sha256.Sum256([]byte(style))
	return sessionPage.Execute(w, struct {
		*Session
		Style  template.CSS
		Policy string
		Parts  []part
	}{s, template.CSS(style), "default-src 'none'; img-src data:; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'", parts(s)})
}

var sessionPage = template.Must(template.New("session").Funcs(template.FuncMap{"plural": plural}).Parse(sessionSource))

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprint(n, " ", what, "s")
}

// A part is a node on the page.
type part struct {
	Node   turnstone.Node
	ID     string // short
	Time   string
	Blocks []block
}

// A block is a block of a node on the page.
type block struct {
	Kind  string // text, thought, call, result or image
	HTML  template.HTML
	Title string       // of a call or result
	Image template.URL // a data URL
	Long  bool         // to be folded
}

// maxImage is how many bytes an image may have that is shown.
const maxImage = 4 << 20

// images are the media types of images that are shown. SVG is none of them: it can have scripts.
var images = map[string]bool{"image/png": true, "image/jpeg": true, "image/gif": true, "image/webp": true, "image/avif": true}

// parts returns the nodes of a session as they are shown.
func parts(s *Session) []part {
	all := s.All
	if all == nil {
		all = s.Nodes
	}
	names := map[string]string{}
	for i := range all {
		for _, c := range importer.Calls(all[i].Payload) {
			names[c.ID] = c.Name
		}
	}
	location := s.Location
	if location == nil {
		location = time.UTC
	}
	out := make([]part, len(s.Nodes))
	for i := range s.Nodes {
		n := &s.Nodes[i]
		out[i] = part{Node: *n, ID: n.ID.String()[:12], Time: n.Time.In(location).Format("2006-01-02 15:04:05")}
		for _, b := range importer.Blocks(n.Payload) {
			if b.Kind == importer.ThoughtBlock && !s.Thoughts {
				continue
			}
			out[i].Blocks = append(out[i].Blocks, shown(&b, names))
		}
	}
	return out
}

// shown returns a block as it is shown.
func shown(b *importer.Block, names map[string]string) block {
	switch b.Kind {
	case importer.ThoughtBlock:
		return block{Kind: "thought", HTML: Markdown(b.Text)}
	case importer.CallBlock:
		return block{Kind: "call", Title: b.Call.Name, HTML: Code(b.Text, "json")}
	case importer.ResultBlock:
		title := names[b.Call.ID]
		if title == "" {
			title = "a call that is not here"
		}
		return block{Kind: "result", Title: title, HTML: Code(b.Text, ""), Long: strings.Count(b.Text, "\n") > 12 || len(b.Text) > 2000}
	case importer.ImageBlock:
		if !images[b.Media] || len(b.Data) > maxImage {
			return block{Kind: "text", HTML: template.HTML(template.HTMLEscapeString(fmt.Sprintf("(an image of type %s, %d bytes, that is not shown)", b.Media, len(b.Data))))}
		}
		return block{Kind: "image", Image: template.URL("data:" + b.Media + ";base64," + base64.StdEncoding.EncodeToString(b.Data))}
	}
	return block{Kind: "text", HTML: Markdown(b.Text)}
}

// markdown renders GitHub's dialect, without raw HTML, and with code that is highlighted by classes.
var markdown = goldmark.New(
	goldmark.WithExtensions(extension.GFM),
	goldmark.WithRendererOptions(renderer.WithNodeRenderers(util.Prioritized(codeRenderer{}, 1))),
)

// policy is what of rendered markdown stays. Images don't: they would be loaded from elsewhere.
var policy = func() *bluemonday.Policy {
	p := bluemonday.NewPolicy()
	p.AllowElements("p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "strong", "em", "del", "blockquote", "ul", "ol", "li", "table", "thead", "tbody", "tr", "th", "td", "pre", "code", "span")
	p.AllowAttrs("class").Matching(bluemonday.SpaceSeparatedTokens).OnElements("span", "pre", "code")
	p.AllowAttrs("align").Matching(bluemonday.CellAlign).OnElements("th", "td")
	p.AllowAttrs("start").Matching(bluemonday.Integer).OnElements("ol")
	p.AllowAttrs("href").OnElements("a")
	p.AllowURLSchemes("http", "https", "mailto")
	p.AllowRelativeURLs(false)
	p.RequireParseableURLs(true)
	p.RequireNoFollowOnLinks(true)
	p.RequireNoReferrerOnLinks(true)
	return p
}()

// maxMarkdown is how many bytes are rendered as markdown. Longer text is shown as it is.
const maxMarkdown = 256 << 10

// Markdown returns text that is markdown as HTML that runs nothing and loads nothing.
func Markdown(text string) template.HTML {
	if len(text) > maxMarkdown {
		return Code(text, "")
	}
	var out bytes.Buffer
	if err := markdown.Convert([]byte(text), &out); err != nil {
		return Code(text, "")
	}
	return template.HTML(policy.SanitizeBytes(out.Bytes()))
}

// codeRenderer renders the code blocks of markdown.
type codeRenderer struct{}

// RegisterFuncs implements renderer.NodeRenderer.
func (codeRenderer) RegisterFuncs(r renderer.NodeRendererFuncRegisterer) {
	render := func(w util.BufWriter, source []byte, n ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}
		var text strings.Builder
		for i := range n.Lines().Len() {
			line := n.Lines().At(i)
			text.Write(line.Value(source))
		}
		language := ""
		if f, ok := n.(*ast.FencedCodeBlock); ok {
			language = string(f.Language(source))
		}
		_, err := w.WriteString(string(Code(text.String(), language)))
		return ast.WalkSkipChildren, err
	}
	r.Register(ast.KindFencedCodeBlock, render)
	r.Register(ast.KindCodeBlock, render)
}

// maxHighlighted is how many bytes of code are highlighted.
const maxHighlighted = 64 << 10

var formatter = html.New(html.WithClasses(true), html.PreventSurroundingPre(true))

// Code returns code as HTML. A language that is not known, or none, is not highlighted.
func Code(text, language string) template.HTML {
	plain := template.HTML("<pre><code>" + template.HTMLEscapeString(text) + "</code></pre>")
	if len(text) > maxHighlighted || language == "" {
		return plain
	}
	lexer := lexers.Get(language)
	if lexer == nil {
		return plain
	}
	tokens, err := chroma.Coalesce(lexer).Tokenise(nil, text)
	if err != nil {
		return plain
	}
	var out bytes.Buffer
	if err := formatter.Format(&out, chroma.MustNewStyle("turnstone", chroma.StyleEntries{}), tokens); err != nil {
		return plain
	}
	return template.HTML("<pre><code>" + out.String() + "</code></pre>")
}
