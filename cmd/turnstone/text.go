package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// clean makes text from a store fit for a terminal: control characters, among
// them those that begin escape sequences (C0, DEL and C1), and characters that
// reorder the line become visible instead of effective.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r < 0x20:
			return '\u2400' + r // the symbol for it
		case r == 0x7f:
			return '\u2421'
		case r >= 0x80 && r < 0xa0, unicode.Is(unicode.Bidi_Control, r), r == '\u2028', r == '\u2029':
			return '\ufffd'
		}
		return r
	}, strings.ToValidUTF8(s, "\ufffd"))
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
