package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/fatih/color"
	"github.com/rivo/uniseg"
	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
	"golang.org/x/text/runes"
	"golang.org/x/text/transform"
)

// clean makes text from a store fit for a terminal: control characters, among
// them those that begin escape sequences (C0, DEL and C1), and characters that
// reorder the line become visible instead of effective.
func clean(s string) string {
	return strings.Map(visible, strings.ToValidUTF8(s, "\ufffd"))
}

func visible(r rune) rune {
	switch {
	case !active(r):
		return r
	case r < 0x20:
		return '\u2400' + r // the symbol for it
	case r == 0x7f:
		return '\u2421'
	}
	return '\ufffd'
}

// content returns a writer for bytes from a store: as they are, but made visible
// where a terminal would show them. Close it when all is written.
func content(w io.Writer) io.WriteCloser {
	if terminal(w) {
		return transform.NewWriter(w, transform.Chain(runes.ReplaceIllFormed(), runes.Map(visible)))
	}
	return transform.NewWriter(w, transform.Nop)
}

// columns is how many columns of a terminal a text takes: East Asian characters and
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

// cut returns s in at most n columns.
func cut(s string, n int) string {
	if n > 1 && columns(s) > n {
		return begin(s, n-1) + "…"
	}
	return s
}

// line is clean text on one line of at most n columns.
func line(s string, n int) string {
	return cut(strings.Join(strings.Fields(clean(s)), " "), n)
}

// wrap breaks text into lines of at most n columns, at spaces where it can; if n is
// 0, only where the text does.
func wrap(text string, n int) []string {
	var out []string
	for _, l := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		l = strings.ReplaceAll(l, "\t", "    ")
		for n > 0 && columns(l) > n {
			head := begin(l, n)
			if head == "" { // one character is wider than that
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

// hang writes label and text, wrapped at n columns, all of its lines as far to the
// right as the first.
func hang(label, text string, n int) string {
	indent := columns(label)
	if n > 0 {
		n = max(n-indent, 20)
	}
	return label + strings.Join(wrap(text, n), "\n"+strings.Repeat(" ", indent))
}

// reflow wraps paragraphs at n columns. Lines that begin with a space, tables among
// them, are wrapped one by one.
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
			// What continues the line stands below its last column.
			at := strings.LastIndex(l, "  ") + 2
			out = append(out, strings.Split(hang(l[:at], l[at:], n), "\n")...)
		default:
			paragraph = append(paragraph, l)
		}
	}
	flush()
	return strings.Join(out, "\n")
}

// width returns how many columns w has: 0, which is any number, unless it is a
// terminal.
func width(w io.Writer) int {
	if f, ok := w.(*os.File); ok && terminal(w) {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 20 {
			return n
		}
		return 80
	}
	return 0
}

func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// A table is rows of cells, each column as wide as its widest cell.
type table struct{ rows [][]string }

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

// write writes the table; a line ends where a terminal would wrap it.
func (t *table) write(w io.Writer, terminal int) error {
	var widths []int
	for _, row := range t.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], columns(cell))
		}
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

// bar draws progress on standard error when that is a terminal.
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

// size writes a number of bytes for people.
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

// plural writes a count of things.
func plural[N int | uint64](n N, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// moment writes a time for people.
func moment(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05") }

// short is the beginning of an id that is enough to name it.
func short(id fmt.Stringer) string { return id.String()[:12] }

// Colours are for terminals, and not wanted if NO_COLOR is set (https://no-color.org).
func bold(s string) string  { return color.New(color.Bold).Sprint(s) }
func faint(s string) string { return color.New(color.Faint).Sprint(s) }
func red(s string) string   { return color.RedString("%s", s) }
func green(s string) string { return color.GreenString("%s", s) }
