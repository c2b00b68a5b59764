package search

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// maxWord is how many bytes of a word are compared.
const maxWord = 64

// A word is a word of a text, and where it stands.
type word struct {
	text     string // in small letters, without accents
	from, to int    // in the text
}

// words yields the words of a text: letters and digits that stand together. In scripts that put no spaces between
// words, each character is one. Small and capital letters are the same, and so are letters with and without accents
// (Unicode, annex 15, form KD, without marks).
func words(text string, yield func(word) bool) {
	all := yield
	yield = func(w word) bool { return w.text == "" || all(w) } // Some letters are marks only.
	from := -1
	for i, r := range text {
		switch {
		case alone(r):
			if from >= 0 && !yield(wordOf(text, from, i)) {
				return
			}
			from = -1
			if !yield(wordOf(text, i, i+utf8.RuneLen(r))) {
				return
			}
		case unicode.IsLetter(r) || unicode.IsNumber(r) || unicode.IsMark(r) && from >= 0:
			if from < 0 {
				from = i
			}
		case from >= 0:
			if !yield(wordOf(text, from, i)) {
				return
			}
			from = -1
		}
	}
	if from >= 0 {
		yield(wordOf(text, from, len(text)))
	}
}

// alone reports whether a character is of a script without spaces between words.
func alone(r rune) bool {
	return r > 0x0e00 && unicode.In(r, unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar) && unicode.IsLetter(r)
}

func wordOf(text string, from, to int) word { return word{plain(text[from:to]), from, to} }

// plain returns a word as it is compared.
func plain(text string) string {
	ascii := true
	for i := range len(text) {
		ascii = ascii && text[i] < utf8.RuneSelf
	}
	if !ascii {
		var b strings.Builder
		for _, r := range norm.NFKD.String(strings.ToLower(text)) {
			if r == 'ς' { // as at the end of a word
				r = 'σ'
			}
			if unicode.IsLetter(r) || unicode.IsNumber(r) {
				b.WriteRune(r)
			}
		}
		text = b.String()
	}
	text = strings.ToLower(text)
	if len(text) > maxWord {
		text = strings.ToValidUTF8(text[:maxWord], "")
	}
	return text
}
