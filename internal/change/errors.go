package change

import "fmt"

// A Limit says that the call would exceed a limit. The root package gives it, and Invalid,
// their public types.
type Limit struct {
	Limit string
	Where string
	Have  int64
	Max   int64
}

func (e *Limit) Error() string { return "limit " + e.Limit }

// An Invalid says what of the request contradicts itself or the session.
type Invalid struct {
	Where  string
	Reason string
}

func (e *Invalid) Error() string { return e.Where + ": " + e.Reason }

// NewInvalid returns an Invalid with a formatted reason.
func NewInvalid(where, reason string, args ...any) error {
	return &Invalid{Where: where, Reason: fmt.Sprintf(reason, args...)}
}
