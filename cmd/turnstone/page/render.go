package page

import (
	"bytes"
	"html/template"
	"strings"

	"github.com/alecthomas/chroma/v2"
	"github.com/alecthomas/chroma/v2/formatters/html"
	"github.com/alecthomas/chroma/v2/lexers"
	"github.com/microcosm-cc/bluemonday"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/util"
)

// markdown renders GitHub's dialect, without raw HTML, and with code that is highlighted by classes.
var markdown = goldmark.New(
	goldmark.WithExtensions(extension.GFM),
	goldmark.WithRendererOptions(renderer.WithNodeRenderers(util.Prioritized(codeRenderer{}, 1))),
)

// policy lists the elements and attributes that rendered markdown keeps. Images are none of them: a browser would load
// them from elsewhere.
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

// Text that exceeds one of these limits is shown as it is, because a short text can take minutes and gigabytes to
// render as markdown.
const (
	maxMarkdown = 32 << 10 // bytes
	maxCells    = 10_000   // columns of tables, times the lines that may follow
	maxNested   = 40       // quotes and lists within each other
)

// simple reports whether text may be rendered as markdown. A row of a table that is short is filled up, so the cells
// are those of its head in each line.
func simple(text string) bool {
	if len(text) > maxMarkdown {
		return false
	}
	columns, lines := 0, 0
	for line := range strings.Lines(text) {
		lines++
		if strings.Trim(line, " \t\r\n|:->") == "" {
			columns = max(columns, strings.Count(line, "|"))
		}
		begin := line[:len(line)-len(strings.TrimLeft(line, " \t>-+*0123456789.)"))]
		if strings.Count(begin, ">")+strings.Count(begin, "-")+strings.Count(begin, "+")+strings.Count(begin, "*")+strings.Count(begin, ".")+strings.Count(begin, ")") > maxNested && strings.Trim(line, "-*_ \r\n") != "" {
			return false
		}
	}
	return columns*lines <= maxCells
}

// Markdown returns text that is markdown as HTML that runs nothing and loads nothing.
func Markdown(text string) template.HTML {
	if !simple(text) {
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
const maxHighlighted = 16 << 10

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
