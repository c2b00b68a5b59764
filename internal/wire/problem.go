package wire

import (
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/damage"
)

// Errors of the protocol. They match no error of a store.
var (
	// ErrRequest means that a request is malformed.
	ErrRequest = errors.New("server: malformed request")
	// ErrRoute means that the server has no such operation.
	ErrRoute = errors.New("server: no such operation")
	// ErrMethod means that the route is there, and is asked in another way.
	ErrMethod = errors.New("server: method not allowed")
	// ErrMedia means that the body is of a type, or in an encoding, that the server does not read.
	ErrMedia = errors.New("server: unsupported media type")
	// ErrAccept means that the caller takes nothing that the server sends.
	ErrAccept = errors.New("server: not acceptable")
	// ErrRange means that an attachment does not have the part that is asked for.
	ErrRange = errors.New("server: range not satisfiable")
	// ErrToken means that the token is unknown, or missing.
	ErrToken = errors.New("server: unknown token")
	// ErrScope means that the token does not allow the request.
	ErrScope = errors.New("server: not allowed")
	// ErrTooLarge means that the body is longer than the server reads.
	ErrTooLarge = errors.New("server: request too large")
	// ErrBusy means that the server has too many requests at once, or stops. The request had no effect.
	ErrBusy = errors.New("server: busy")
	// ErrRestarted means that a write names another process than the one that serves. The one that serves has not made it.
	ErrRestarted = errors.New("server: restarted")
	// ErrBase means that the server does not have the body of which a request is a Difference (any more). The request
	// had no effect.
	ErrBase = errors.New("server: no such base")
	// ErrUpload means that the server does not have the upload (any more), or has another part of it.
	ErrUpload = errors.New("server: no such upload")
	// ErrOffset means that a piece of an upload does not begin where the last one ended.
	ErrOffset = errors.New("server: the upload goes on elsewhere")
)

// kinds has the kinds of problems: those of the errors of a store, and the protocol's own. A problem is of the first
// kind that its error matches, and names all that it matches.
var kinds = append(turnstone.ErrorKinds(), []turnstone.ErrorKind{
	{Name: "malformed", Status: http.StatusBadRequest, Class: "Invalid", Err: ErrDocument},
	{Name: "request", Status: http.StatusBadRequest, Class: "Invalid", Err: ErrRequest},
	{Name: "no-operation", Status: http.StatusNotFound, Err: ErrRoute},
	{Name: "method", Status: http.StatusMethodNotAllowed, Err: ErrMethod},
	{Name: "media-type", Status: http.StatusUnsupportedMediaType, Class: "Invalid", Err: ErrMedia},
	{Name: "not-acceptable", Status: http.StatusNotAcceptable, Class: "Invalid", Err: ErrAccept},
	{Name: "range", Status: http.StatusRequestedRangeNotSatisfiable, Class: "Invalid", Err: ErrRange},
	{Name: "token", Status: http.StatusUnauthorized, Class: "Unauthorized", Err: ErrToken},
	{Name: "scope", Status: http.StatusForbidden, Class: "Unauthorized", Err: ErrScope},
	{Name: "too-large", Status: http.StatusRequestEntityTooLarge, Class: "Invalid", Err: ErrTooLarge},
	{Name: "busy", Status: http.StatusServiceUnavailable, Class: "Unavailable", Err: ErrBusy},
	{Name: "restarted", Status: http.StatusConflict, Err: ErrRestarted},
	{Name: "base-not-found", Status: http.StatusPreconditionFailed, Err: ErrBase},
	{Name: "upload-not-found", Status: http.StatusNotFound, Class: "NotFound", Err: ErrUpload},
	{Name: "upload-offset", Status: http.StatusConflict, Err: ErrOffset},
}...)

const other = "other" // of errors that match none of the kinds

// Kinds returns all kinds of problems. The last one is that of errors of no other kind.
func Kinds() []turnstone.ErrorKind {
	return append(slices.Clone(kinds), turnstone.ErrorKind{Name: other, Status: http.StatusInternalServerError})
}

// typeBase is what the type of a problem begins with. The name of its kind follows.
const typeBase = "https://github.com/turnstonedb/turnstone/blob/main/docs/http.md#"

// An Error carries an error from the server to the client as an RFC 9457 problem. The client gets an error that matches
// what the server's error matched and has the same text. errors.As finds the typed error in it.
type Error struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	// Matches are the kinds of all errors that it matches.
	Matches []string `json:"matches"`

	Conflict       *turnstone.ConflictError       `json:"conflict,omitempty"`
	TurnConflict   *turnstone.TurnConflictError   `json:"turnConflict,omitempty"`
	RecordConflict *turnstone.RecordConflictError `json:"recordConflict,omitempty"`
	Diverged       *turnstone.DivergedError       `json:"diverged,omitempty"`
	Limit          *turnstone.LimitError          `json:"limit,omitempty"`
	Invalid        *turnstone.InvalidError        `json:"invalid,omitempty"`
	Damage         *Damage                        `json:"damage,omitempty"`
	Format         *damage.FormatError            `json:"format,omitempty"`
	Offset         *int64                         `json:"offset,omitempty"` // of upload-offset: where the upload goes on
}

// Damage is a damage.CorruptError.
type Damage struct {
	Object string `json:"object"`
	Reason string `json:"reason"`
}

// ErrorOf returns err as a problem.
func ErrorOf(err error) *Error {
	if e, ok := err.(*Error); ok {
		return e
	}
	out := &Error{Detail: valid(err.Error()), Type: typeBase + other, Status: http.StatusInternalServerError}
	var corrupt *damage.CorruptError
	if errors.As(err, &corrupt) {
		out.Damage = &Damage{valid(corrupt.Object), valid(corrupt.Err.Error())}
	}
	for _, k := range kinds {
		if !k.Has(err) {
			continue
		}
		if out.Matches == nil {
			out.Type, out.Status = typeBase+k.Name, k.Status
		}
		out.Matches = append(out.Matches, k.Name)
	}
	out.Title = http.StatusText(out.Status)
	errors.As(err, &out.Conflict)
	errors.As(err, &out.TurnConflict)
	errors.As(err, &out.RecordConflict)
	errors.As(err, &out.Diverged)
	errors.As(err, &out.Limit)
	errors.As(err, &out.Invalid)
	errors.As(err, &out.Format)
	if i := out.Invalid; i != nil && valid(i.Where+i.Reason) != i.Where+i.Reason {
		out.Invalid = &turnstone.InvalidError{Where: valid(i.Where), Reason: valid(i.Reason)}
	}
	return out
}

// valid returns text with invalid UTF-8 replaced: text may quote a request.
func valid(text string) string { return strings.ToValidUTF8(text, "\ufffd") }

// Kind returns the name of the kind of the problem.
func (e *Error) Kind() string { return strings.TrimPrefix(e.Type, typeBase) }

// Error returns the text that the error had on the server.
func (e *Error) Error() string { return e.Detail }

// Unwrap returns the errors that it matches, as the error on the server did.
func (e *Error) Unwrap() []error {
	var out []error
	for _, k := range kinds {
		if slices.Contains(e.Matches, k.Name) {
			out = append(out, k.Err)
		}
	}
	if e.Conflict != nil {
		out = append(out, e.Conflict)
	}
	if e.TurnConflict != nil {
		out = append(out, e.TurnConflict)
	}
	if e.RecordConflict != nil {
		out = append(out, e.RecordConflict)
	}
	if e.Diverged != nil {
		out = append(out, e.Diverged)
	}
	if e.Limit != nil {
		out = append(out, e.Limit)
	}
	if e.Invalid != nil {
		out = append(out, e.Invalid)
	}
	if e.Format != nil {
		out = append(out, e.Format)
	}
	if e.Damage != nil {
		out = append(out, &damage.CorruptError{Object: e.Damage.Object, Err: errors.New(e.Damage.Reason)})
	}
	return out
}

// IsProblem reports whether a media type is that of problems.
func IsProblem(contentType string) bool { return strings.HasPrefix(contentType, Problem) }

// ReadError reads the problem that a body is, or returns nil if it is none.
func ReadError(contentType string, body []byte) *Error {
	var e Error
	if !IsProblem(contentType) || json.Unmarshal(body, &e) != nil || e.Type == "" {
		return nil
	}
	return &e
}
