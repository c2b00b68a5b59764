package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/fatih/color"
	"github.com/rivo/uniseg"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
	"golang.org/x/text/runes"
	"golang.org/x/text/transform"
)

// clean returns text from a store in a form that is safe to print on a terminal. It
// replaces control characters (C0, DEL and C1), which begin escape sequences, and
// characters that reorder the line by visible ones.
func clean(s string) string {
	return strings.Map(visible, strings.ToValidUTF8(s, "\ufffd"))
}

func visible(r rune) rune {
	switch {
	case !active(r):
		return r
	case r < 0x20:
		return '\u2400' + r // the symbol of the control character
	case r == 0x7f:
		return '\u2421'
	}
	return '\ufffd'
}

// contentWriter returns a writer to w for bytes from a store. If w is a terminal,
// control characters become visible; otherwise the bytes stay as they are. The caller
// must close it.
func contentWriter(w io.Writer) io.WriteCloser {
	if terminal(w) {
		return transform.NewWriter(w, transform.Chain(runes.ReplaceIllFormed(), runes.Map(visible)))
	}
	return transform.NewWriter(w, transform.Nop)
}

// columns returns how many columns of a terminal a text takes. East Asian characters and
// emoji take two each, combining characters none.
func columns(s string) int { return uniseg.StringWidth(s) }

// begin returns the longest beginning of s that takes at most n columns.
func begin(s string, n int) string {
	taken, rest, state := 0, s, -1
	for rest != "" {
		var w int
		var next string
		if _, next, w, state = uniseg.FirstGraphemeClusterInString(rest, state); taken+w > n {
			break
		}
		taken, rest = taken+w, next
	}
	return s[:len(s)-len(rest)]
}

// cut shortens s to at most n columns.
func cut(s string, n int) string {
	if n > 1 && columns(s) > n {
		return begin(s, n-1) + "…"
	}
	return s
}

// line returns s as clean text on one line of at most n columns.
func line(s string, n int) string {
	return cut(strings.Join(strings.Fields(clean(s)), " "), n)
}

// wrap breaks text into lines of at most n columns, at spaces if possible. If n is 0, it
// breaks text only at its newlines.
func wrap(text string, n int) []string {
	var out []string
	for _, l := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		l = strings.ReplaceAll(l, "\t", "    ")
		for n > 0 && columns(l) > n {
			head := begin(l, n)
			if head == "" { // one character is wider than n columns
				head, _, _, _ = uniseg.FirstGraphemeClusterInString(l, -1)
			}
			rest := l[len(head):]
			if rest == "" {
				break
			}
			if at := strings.LastIndexByte(head, ' '); !strings.HasPrefix(rest, " ") && at >= 0 && columns(head[:at]) >= n/2 {
				head, rest = head[:at], l[at:]
			}
			out, l = append(out, head), strings.TrimPrefix(rest, " ")
		}
		out = append(out, l)
	}
	return out
}

// hang returns label and text wrapped at n columns. All lines of text begin in the same
// column, after the label.
func hang(label, text string, n int) string {
	indent := columns(label)
	if n > 0 {
		n = max(n-indent, 20)
	}
	return label + strings.Join(wrap(text, n), "\n"+strings.Repeat(" ", indent))
}

// reflow wraps paragraphs at n columns. Lines that begin with a space, for example those
// of tables, are wrapped one by one.
func reflow(text string, n int) string {
	var out, paragraph []string
	flush := func() {
		if len(paragraph) > 0 {
			out = append(out, wrap(strings.Join(paragraph, " "), n)...)
		}
		paragraph = nil
	}
	for _, l := range strings.Split(text, "\n") {
		switch {
		case l == "":
			flush()
			out = append(out, "")
		case l[0] == ' ':
			flush()
			// Continuation lines begin in the last column of the table.
			at := strings.LastIndex(l, "  ") + 2
			out = append(out, strings.Split(hang(l[:at], l[at:], n), "\n")...)
		default:
			paragraph = append(paragraph, l)
		}
	}
	flush()
	return strings.Join(out, "\n")
}

// width returns how many columns the terminal w has, or 0 if w is not a terminal and
// lines may be of any length.
func width(w io.Writer) int {
	if f, ok := w.(*os.File); ok && terminal(w) {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 20 {
			return n
		}
		return 80
	}
	return 0
}

// terminal reports whether w is a terminal.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// A table prints rows of cells. Each column is as wide as its widest cell.
type table struct {
	rows [][]string
	// least has the titles of columns that a narrow terminal does without, the least important first.
	least []string
}

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

// write writes the table. It cuts lines at the given number of columns; 0 cuts none.
func (t *table) write(w io.Writer, terminal int) error {
	widths := t.widths()
	for _, title := range t.least {
		if needs := 2 * (len(widths) - 1); terminal == 0 || needs+sum(widths) <= terminal {
			break
		}
		t.remove(title)
		widths = t.widths()
	}
	p := printer{w: w}
	for _, row := range t.rows {
		var l strings.Builder
		for i, cell := range row {
			if l.WriteString(cell); i < len(row)-1 {
				l.WriteString(strings.Repeat(" ", widths[i]-columns(cell)+2))
			}
		}
		p.printf("%s\n", cut(strings.TrimRight(l.String(), " "), terminal))
	}
	return p.err
}

// widths returns the widths of the columns.
func (t *table) widths() (widths []int) {
	for _, row := range t.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], columns(cell))
		}
	}
	return widths
}

// remove removes the column with a title.
func (t *table) remove(title string) {
	if i := slices.Index(t.rows[0], title); i >= 0 {
		for k := range t.rows {
			t.rows[k] = slices.Delete(t.rows[k], i, i+1)
		}
	}
}

func sum(all []int) (n int) {
	for _, v := range all {
		n += v
	}
	return n
}

// bar returns a progress bar. It is drawn on standard error if that is a terminal.
func bar(total int64, what string, bytes bool) *progressbar.ProgressBar {
	return progressbar.NewOptions64(total,
		progressbar.OptionSetDescription(what),
		progressbar.OptionSetWriter(os.Stderr),
		progressbar.OptionSetVisibility(term.IsTerminal(int(os.Stderr.Fd()))),
		progressbar.OptionShowBytes(bytes),
		progressbar.OptionThrottle(100*time.Millisecond),
		progressbar.OptionClearOnFinish(),
	)
}

// size formats a number of bytes for people.
func size(n uint64) string {
	const units = "kMGT"
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	f := float64(n) / 1000
	i := 0
	for f >= 999.5 && i < len(units)-1 {
		f, i = f/1000, i+1
	}
	return fmt.Sprintf("%.3g %cB", f, units[i])
}

// plural formats a count of things, such as "1 node" or "3 nodes".
func plural[N int | uint64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// moment formats a time for people.
func moment(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05") }

// short returns the beginning of an id, which is enough to name a node.
func short(id fmt.Stringer) string { return id.String()[:12] }

// These functions color text. Package color does so only on a terminal, and if NO_COLOR
// is not set (https://no-color.org).
func bold(s string) string  { return color.New(color.Bold).Sprint(s) }
func faint(s string) string { return color.New(color.Faint).Sprint(s) }
func red(s string) string   { return color.RedString("%s", s) }
func green(s string) string { return color.GreenString("%s", s) }
