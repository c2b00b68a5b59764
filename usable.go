package turnstone

import "context"

// A callee is what exported methods are of. Each of them begins with usable, most by
// way of observed; a test goes through all methods.
type callee interface {
	// usable returns the store that a call is on. It fails for a nil or zero
	// receiver, and for a nil context.
	usable(ctx context.Context) (*Store, error)
}

func (s *Store) usable(ctx context.Context) (*Store, error) {
	switch {
	case s == nil || s.engine == nil:
		return nil, invalid("store", "it was not opened by Open")
	case ctx == nil:
		return nil, invalid("context", "it is nil")
	}
	return s, nil
}

func (s *Session) usable(ctx context.Context) (*Store, error) {
	if s == nil || s.store == nil {
		return nil, invalid("session", "it is no handle that a store returned")
	}
	return s.store.usable(ctx)
}
