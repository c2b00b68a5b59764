package page

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"strings"

	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
)

// WriteMarkdown writes a session as Markdown: a heading for each node, what is said as it is, and calls and results of
// tools as blocks of code. What is said may be Markdown with anything in it: whoever renders the document has to
// sanitize it.
func WriteMarkdown(w io.Writer, s *Session) error {
	out := bufio.NewWriter(w)
	title := s.Info.Name
	if title == "" {
		title = s.Info.ID
	}
	fmt.Fprintf(out, "# %s\n", oneLine(title))
	names := s.callNames()
	for _, p := range parts(s) {
		fmt.Fprintf(out, "\n## %s, %s\n", oneLine(p.Node.Kind), p.Time)
		for _, b := range importer.Blocks(p.Node.Payload) {
			switch b.Kind {
			case importer.TextBlock:
				fmt.Fprintf(out, "\n%s\n", strings.TrimSpace(b.Text))
			case importer.ThoughtBlock:
				if s.Thoughts {
					fmt.Fprintf(out, "\n> %s\n", strings.ReplaceAll(strings.TrimSpace(b.Text), "\n", "\n> "))
				}
			case importer.CallBlock:
				fmt.Fprintf(out, "\nCalls `%s`:\n", code(b.Call.Name))
				fenced(out, "json", b.Text)
			case importer.ResultBlock:
				fmt.Fprintf(out, "\nResult of `%s`:\n", code(names[b.Call.ID]))
				fenced(out, "", b.Text)
			case importer.ImageBlock:
				fmt.Fprintf(out, "\n(an image, %s, %d bytes)\n", oneLine(b.Media), len(b.Data))
			}
		}
		for _, a := range p.Node.Attachments {
			fmt.Fprintf(out, "\n(attachment %s, %s, %d bytes)\n", oneLine(a.Name), oneLine(a.MediaType), a.Size)
		}
	}
	return out.Flush()
}

// fenced writes a block of code, between fences that are longer than any in it.
func fenced(w io.Writer, language, text string) {
	fence := "```"
	for strings.Contains(text, fence) {
		fence += "`"
	}
	fmt.Fprintf(w, "\n%s%s\n%s\n%s\n", fence, language, strings.TrimRight(text, "\n"), fence)
}

// code returns a name as it may stand between backticks.
func code(name string) string { return strings.ReplaceAll(cmp.Or(oneLine(name), "?"), "`", "'") }

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
