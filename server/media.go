package server

import (
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"

	"github.com/turnstonedb/turnstone/internal/wire"
)

// checkMedia refuses a body that is announced as something else than a document or bytes, and a request whose caller
// takes none of what the server sends. What programs announce that say nothing of it is taken as well.
func checkMedia(r *http.Request) error {
	if encoding := r.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return fmt.Errorf("%w: Content-Encoding is %.40q, and bodies are read as they are", wire.ErrMedia, encoding)
	}
	if announced := r.Header.Get("Content-Type"); announced != "" && r.Method == http.MethodPost {
		kind, _, _ := mime.ParseMediaType(announced) // Nothing, if it is malformed.
		switch kind {
		case wire.ContentType, "application/json", "application/octet-stream", "text/plain", "application/x-www-form-urlencoded":
		default:
			return fmt.Errorf("%w: Content-Type is %.80q, want %s or application/json", wire.ErrMedia, announced, wire.ContentType)
		}
	}
	accept := r.Header.Values("Accept")
	if len(accept) == 0 {
		return nil
	}
	for _, text := range strings.Split(strings.Join(accept, ","), ",") {
		kind, params, err := mime.ParseMediaType(text)
		if err != nil {
			continue
		}
		if q, err := strconv.ParseFloat(params["q"], 64); err == nil && q == 0 {
			continue
		}
		switch kind {
		case "*/*", "application/*", "text/*", wire.ContentType, wire.Problem, "application/json", "application/octet-stream", "text/plain", "text/event-stream":
			return nil
		}
	}
	return fmt.Errorf("%w: Accept is %.80q", wire.ErrAccept, strings.Join(accept, ","))
}

// A span is the part of an attachment that a request wants: from a byte on, up to but not including another one.
type span struct{ from, to, size int64 }

// whole reports whether it is all of the attachment.
func (s span) whole() bool { return s.from == 0 && s.to == s.size }

// spanOf returns what the header Range asks for, of an attachment of size bytes that has a tag. Several ranges, and what
// is no range of bytes, stand for all of it. ok is false if there is no such part.
func spanOf(r *http.Request, tag string, size int64) (s span, ok bool) {
	all := span{0, size, size}
	text, found := strings.CutPrefix(r.Header.Get("Range"), "bytes=")
	if of := r.Header.Get("If-Range"); !found || of != "" && of != tag {
		return all, true
	}
	first, last, found := strings.Cut(text, "-")
	from, ferr := strconv.ParseUint(first, 10, 63)
	to, terr := strconv.ParseUint(last, 10, 63)
	switch {
	case !found || first != "" && ferr != nil || last != "" && terr != nil || first == "" && last == "":
		return all, true
	case first == "": // the last bytes
		n := min(int64(to), size)
		return span{size - n, size, size}, n > 0
	case last != "" && to < from:
		return all, true
	case int64(from) >= size:
		return all, false
	case last == "" || int64(to) >= size:
		return span{int64(from), size, size}, true
	}
	return span{int64(from), int64(to) + 1, size}, true
}
