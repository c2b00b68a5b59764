package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/fatih/color"
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

// line is clean text on one line of at most n characters.
func line(s string, n int) string {
	s = strings.Join(strings.Fields(clean(s)), " ")
	if r := []rune(s); len(r) > n && n > 1 {
		return string(r[:n-1]) + "…"
	}
	return s
}

// width returns how many columns to fill.
func width(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 20 {
			return n
		}
	}
	return 100
}

func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// fit cuts a line of a table where a terminal would wrap it.
func fit(w io.Writer, l string) string {
	if !terminal(w) {
		return l
	}
	if r, n := []rune(strings.TrimRight(l, "\n")), width(w); len(r) > n {
		return string(r[:n-1]) + "…\n"
	}
	return l
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
