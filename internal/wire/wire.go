// Package wire has what server and client say to each other: documents, messages and problems. docs/http.md describes
// it for those who write a client in another language.
//
// A document is one line of JSON, and behind it the bytes that it refers to:
//
//	{"kind":"user","payload":"hello"}
//	{"kind":"image","payload":[0,5],"follow":5}
//	\x89PNG
//
// A value of bytes is a string if it is short text. Otherwise the value is its place among the bytes behind the line:
// offset and length. The member "follow" says how many bytes there are. So large values are neither escaped nor
// encoded, and small ones can be read.
package wire

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/turnstonedb/turnstone"
)

// ContentType is the media type of documents: of one, or of several that follow one another.
const ContentType = "application/vnd.turnstone"

const (
	// maxInline is the longest value that is written as a string.
	maxInline = 1024
	// maxLine is the longest line of a document that is read: a commit of turnstone.MaxNodes nodes
	// with keys of turnstone.MaxEventKey bytes takes less than half, also if each byte is escaped.
	maxLine = 32 << 20
	// maxObjects and maxCommas bound what a line of a request has outside its texts, because each may take hundreds of
	// bytes in memory.
	maxObjects = 50_000
	maxCommas  = 1_000_000
	// objectBytes and commaBytes are about what one of them stands for takes decoded: a node, a text.
	objectBytes = 400
	commaBytes  = 48
	// readAhead is how much is allocated for a value before any byte of it has come.
	readAhead = 1 << 20
)

// ErrDocument means that what was read is no document.
var ErrDocument = errors.New("malformed document")

// Bytes are a value in a document.
type Bytes struct {
	Content []byte
	place   [2]int // offset and length behind the line; of length 0 if the value is in the line
}

// MarshalJSON implements json.Marshaler.
func (b Bytes) MarshalJSON() ([]byte, error) {
	if b.inline() {
		return marshal(string(b.Content))
	}
	return json.Marshal(b.place)
}

// UnmarshalJSON implements json.Unmarshaler.
func (b *Bytes) UnmarshalJSON(text []byte) error {
	*b = Bytes{}
	if text[0] == '"' {
		var s string
		if err := json.Unmarshal(text, &s); err != nil {
			return err
		}
		b.Content = []byte(s)
		return nil
	}
	var place []int
	if err := json.Unmarshal(text, &place); err != nil || len(place) != 2 || place[0] < 0 || place[1] < 0 {
		return fmt.Errorf("%.80s is no value of bytes: want a string, or offset and length behind the line", text)
	}
	b.place = [2]int(place)
	return nil
}

func (b *Bytes) inline() bool { return len(b.Content) <= maxInline && utf8.Valid(b.Content) }

// Follow is embedded in messages that have values of bytes.
type Follow struct {
	// Bytes is how many bytes follow the line. Write sets it.
	Bytes int `json:"follow,omitzero"`
}

func (f *Follow) following() *int { return &f.Bytes }

// A carrier is a message with values of bytes.
type carrier interface {
	following() *int
	// Each calls f with each value.
	Each(f func(*Bytes))
}

// marshal is json.Marshal without the escapes that HTML would need. Text that is not UTF-8 is a
// *turnstone.InvalidError: JSON can't hold it.
func marshal(v any) ([]byte, error) {
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	line := bytes.TrimSuffix(out.Bytes(), []byte("\n"))
	if replaced(line) {
		return nil, &turnstone.InvalidError{Where: "text", Reason: "it is not UTF-8"}
	}
	return line, nil
}

// replaced reports whether json.Marshal has replaced bytes that are not UTF-8. For them it writes an escape, and for
// the character that the escape stands for that character.
func replaced(line []byte) bool {
	const escape = `\ufffd`
	for {
		i := bytes.Index(line, []byte(escape))
		if i < 0 {
			return false
		}
		before := len(line[:i]) - len(bytes.TrimRight(line[:i], `\`))
		if before%2 == 0 { // else the backslash itself is escaped
			return true
		}
		line = line[i+len(escape):]
	}
}

// Encode returns a message, which is a pointer, as a document: the pieces of it, one after another. Those of values
// share their memory.
func Encode(message any) ([][]byte, error) {
	m, carries := message.(carrier)
	var values [][]byte
	if carries {
		n := m.following()
		*n = 0
		m.Each(func(b *Bytes) {
			if !b.inline() {
				b.place = [2]int{*n, len(b.Content)}
				*n += len(b.Content)
				values = append(values, b.Content)
			}
		})
	}
	line, err := marshal(message)
	if err != nil {
		return nil, err
	}
	return append([][]byte{append(line, '\n')}, values...), nil
}

// Write writes a message, which is a pointer, as a document.
func Write(w io.Writer, message any) error {
	pieces, err := Encode(message)
	for i := 0; err == nil && i < len(pieces); i++ {
		_, err = w.Write(pieces[i])
	}
	return err
}

// A Reader reads documents one after another.
type Reader struct{ in *bufio.Reader }

// NewReader returns a Reader of r.
func NewReader(r io.Reader) *Reader { return &Reader{in: bufio.NewReaderSize(r, 16<<10)} }

// Read reads one document into a message. It skips empty lines, which keep a connection alive. The error is io.EOF at
// the end, matches ErrDocument if what comes is no such document, and is otherwise that of the reader.
func (r *Reader) Read(message any) error {
	line, err := r.line()
	if err != nil {
		return err
	}
	if err := object(line, message, false); err != nil {
		return err
	}
	n, err := following(message)
	if err != nil {
		return err
	}
	block, err := r.bytes(n)
	if err != nil {
		return err
	}
	return place(message, block)
}

// Decode reads a request into a message. body has to be exactly one document. The message shares the memory of body.
// The error matches ErrDocument if body has a field that the message does not have in just this case, or twice, or text
// that is no UTF-8. It is
// io.EOF if there is no document, and io.ErrUnexpectedEOF if the document is cut off. Before anything is decoded, charge
// is called with about how many bytes the message will take beyond those of body; its error ends Decode.
func Decode(body []byte, message any, charge func(int64) error) error {
	line, rest, _ := bytes.Cut(bytes.TrimLeft(body, "\r\n \t"), []byte("\n"))
	if len(line) == 0 {
		return io.EOF
	}
	if len(line) > maxLine {
		return errLine
	}
	n, err := check(line)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDocument, err)
	}
	if err := charge(n); err != nil {
		return err
	}
	if err := object(line, message, true); err != nil {
		return err
	}
	if err := checkNames(line, reflect.TypeOf(message)); err != nil {
		return fmt.Errorf("%w: %w", ErrDocument, err)
	}
	follow, err := following(message)
	switch {
	case err != nil:
		return err
	case follow > len(rest):
		return io.ErrUnexpectedEOF
	case len(bytes.TrimSpace(rest[follow:])) > 0:
		return fmt.Errorf("%w: something follows the document", ErrDocument)
	}
	return place(message, rest[:follow])
}

var errLine = fmt.Errorf("%w: a line of more than %d bytes", ErrDocument, maxLine)

// object reads the line of a document into a message. strict refuses fields that the message does not have.
func object(line []byte, message any, strict bool) error {
	d := json.NewDecoder(bytes.NewReader(line))
	if strict {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(message); err != nil {
		return fmt.Errorf("%w: %w", ErrDocument, err)
	}
	if rest, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: %v after the end of the document", ErrDocument, rest)
	}
	return nil
}

// following returns how many bytes follow the line of a message.
func following(message any) (int, error) {
	m, carries := message.(carrier)
	if !carries {
		return 0, nil
	}
	n := *m.following()
	if n < 0 {
		return 0, fmt.Errorf("%w: %d bytes follow", ErrDocument, n)
	}
	return n, nil
}

// place sets the values of a message that are in the bytes which follow its line.
func place(message any, block []byte) (err error) {
	m, carries := message.(carrier)
	if !carries {
		return nil
	}
	n := len(block)
	left := n
	m.Each(func(b *Bytes) {
		at, length := b.place[0], b.place[1]
		left -= min(length, n+1)
		switch {
		case length == 0:
		case left < 0:
			err = fmt.Errorf("%w: values have more bytes than the %d that follow", ErrDocument, n)
		case at > n || length > n-at:
			err = fmt.Errorf("%w: %d bytes at %d, and %d follow", ErrDocument, length, at, n)
		default:
			b.Content = block[at : at+length : at+length]
		}
	})
	return err
}

// check returns an error if a line has text that json.Unmarshal would change, or more than a request needs. It returns
// about how many bytes the line takes decoded.
func check(line []byte) (decoded int64, err error) {
	if !utf8.Valid(line) {
		return 0, errors.New("it is not UTF-8")
	}
	objects, commas, text := 0, 0, false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '"':
			text = !text
		case text && c == '\\':
			n, err := escape(line[i:])
			if err != nil {
				return 0, err
			}
			i += n - 1
		case text:
		case c == '{', c == '[':
			objects++
		case c == ',':
			commas++
		}
	}
	if objects > maxObjects || commas > maxCommas {
		return 0, fmt.Errorf("%d objects and lists, and %d commas: at most %d and %d are read", objects, commas, maxObjects, maxCommas)
	}
	return int64(len(line)) + int64(objects)*objectBytes + int64(commas)*commaBytes, nil
}

// escape returns the length of the escape that text begins with. Half of a surrogate pair stands for no character.
func escape(text []byte) (int, error) {
	if len(text) < 6 || text[1] != 'u' {
		return 2, nil
	}
	unit := func(at int) rune {
		n, err := strconv.ParseUint(string(text[at+2:at+6]), 16, 32)
		if err != nil {
			return 0 // It is no escape: json.Unmarshal refuses it.
		}
		return rune(n)
	}
	first := unit(0)
	if !utf16.IsSurrogate(first) {
		return 6, nil
	}
	if len(text) < 12 || text[6] != '\\' || text[7] != 'u' || utf16.DecodeRune(first, unit(6)) == utf8.RuneError {
		return 0, fmt.Errorf("%s is half of a character", text[:6])
	}
	return 12, nil
}

// line returns the next line that is not empty.
func (r *Reader) line() ([]byte, error) {
	var line []byte
	for {
		part, err := r.in.ReadSlice('\n')
		line = append(line, part...)
		if len(line) > maxLine {
			return nil, errLine
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		blank := len(bytes.TrimSpace(line)) == 0
		switch {
		case errors.Is(err, io.EOF) && blank:
			return nil, io.EOF
		case err != nil && !errors.Is(err, io.EOF):
			return nil, err
		case !blank:
			return line, nil
		}
		line = line[:0]
	}
}

// bytes returns the next n bytes. It allocates at most 1 MiB, or twice what has come.
func (r *Reader) bytes(n int) ([]byte, error) {
	out := make([]byte, 0, min(n, readAhead))
	for len(out) < n {
		if len(out) == cap(out) {
			out = append(make([]byte, 0, min(n, 2*cap(out))), out...)
		}
		k, err := io.ReadFull(r.in, out[len(out):cap(out)])
		out = out[:len(out)+k]
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}
