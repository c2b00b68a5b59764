// Package page makes web pages of sessions: what people send each other, and what the server shows.
//
// What a transcript holds is hostile. Markdown is rendered without raw HTML, and what comes out is sanitized. Links
// lead to http, https and mailto only, images are those that the session itself has, and the pages have a policy that
// runs no script and loads nothing (Content Security Policy, level 3).
package page

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"strings"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/graph"
)

// Style is the style sheet of what Conversation writes.
//
//go:embed style.css
var Style string

//go:embed session.html
var sessionSource string

//go:embed conversation.html
var conversationSource string

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
	// Beside, if set, returns what stands in the title of a node, and below it.
	Beside func(*turnstone.Node) (title, below template.HTML)
}

// Write writes a page that stands by itself: one file, without a script, that loads nothing.
func Write(w io.Writer, s *Session) error {
	sum := sha256.Sum256([]byte(Style))
	return sessionPage.Execute(w, struct {
		*Session
		Style  template.CSS
		Policy string
		Parts  []part
	}{s, template.CSS(Style), "default-src 'none'; img-src data:; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'", parts(s)})
}

// Conversation writes the nodes of a session, for a page that has Style.
func Conversation(w io.Writer, s *Session) error {
	return sessionPage.ExecuteTemplate(w, "conversation", parts(s))
}

var sessionPage = template.Must(template.Must(template.New("session").Funcs(template.FuncMap{"plural": plural}).Parse(sessionSource)).Parse(conversationSource))

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprint(n, " ", what, "s")
}

// A part is a node on the page.
type part struct {
	Node         turnstone.Node
	ID           string // short
	Class        string // the kind, if the style sheet may have it
	Time         string
	Blocks       []block
	Answers      bool // All that it has is shown at the calls of tools that it answers.
	Title, Below template.HTML
}

// A block is a block of a node on the page.
type block struct {
	Kind   string // text, thought, call, result or image
	HTML   template.HTML
	Title  string       // of a call or result
	Image  template.URL // a data URL
	Long   bool         // to be folded
	Result template.HTML
	Done   bool // a call that has Result
}

// maxImage is how many bytes an image may have that is shown.
const maxImage = 4 << 20

// images are the media types of images that are shown. SVG is none of them: it can have scripts.
var images = map[string]bool{"image/png": true, "image/jpeg": true, "image/gif": true, "image/webp": true, "image/avif": true}

// IsImage reports whether a media type is one of an image that pages show.
func IsImage(mediaType string) bool { return images[mediaType] }

// parts returns the nodes of a session as they are shown. Results stand at their calls, if these are among the nodes.
func parts(s *Session) []part {
	names := s.callNames()
	location := s.Location
	if location == nil {
		location = time.UTC
	}
	calls := map[string]place{} // whose result has not come yet, by their ids
	out := make([]part, len(s.Nodes))
	for i := range s.Nodes {
		n, p := &s.Nodes[i], &out[i]
		*p = part{Node: *n, ID: Short(n.ID), Class: class(n.Kind), Time: n.Time.In(location).Format("2006-01-02 15:04:05 MST")}
		for _, b := range importer.Blocks(n.Payload) {
			if b.Kind == importer.ThoughtBlock && !s.Thoughts {
				continue
			}
			one := shown(&b, names)
			if at, ok := calls[b.Call.ID]; ok && b.Kind == importer.ResultBlock {
				call := &out[at.part].Blocks[at.block]
				call.Result, call.Done, p.Answers = one.HTML, true, true
				delete(calls, b.Call.ID)
				continue
			}
			if b.Kind == importer.CallBlock && b.Call.ID != "" {
				calls[b.Call.ID] = place{i, len(p.Blocks)}
			}
			p.Blocks = append(p.Blocks, one)
		}
		p.Answers = p.Answers && len(p.Blocks) == 0
		if s.Beside != nil {
			p.Title, p.Below = s.Beside(n)
		}
	}
	return out
}

// callNames returns the names of the calls of tools, by their ids.
func (s *Session) callNames() map[string]string {
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
	return names
}

// class returns a kind as a part of the name of a class: one that a style sheet doesn't know stands for no other.
func class(kind string) string {
	if strings.ContainsFunc(kind, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' }) {
		return "other"
	}
	return kind
}

// A place is that of a block among parts.
type place struct{ part, block int }

// Short returns the beginning of the id of a node, for people.
func Short(id graph.ID) string { return id.String()[:12] }

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
