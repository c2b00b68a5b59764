package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"slices"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/internal/cache"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// leastBase is how many bytes a body has at least for the next one to be sent as its difference from it.
const leastBase = 8 << 10

// bases are the bodies of the last commits, by their sessions.
type bases = cache.Cache[wire.Target, base]

// A base is a body, and the id of the write by which the server remembers it.
type base struct {
	id   string
	body []byte
}

// commit makes a commit. If it is large, it is sent as its difference from the last one of the session, and whole if
// the server does not have that one any more.
func (c *Client) commit(ctx context.Context, in *wire.CommitRequest) (*turnstone.Result, error) {
	// The id of the request would do, but a commit that is sent whole after its difference was refused has another one.
	in.Turn = cmp.Or(in.Turn, wire.RequestTurn+rand.Text())
	pieces, err := wire.Encode(in)
	if err != nil {
		return nil, err
	}
	whole := &ask{method: "POST", path: "/v1/commit", session: in.Session, body: pieces, id: rand.Text(), anywhere: true}
	size := 0
	for _, p := range pieces {
		size += len(p)
	}
	if size < leastBase {
		return one[turnstone.Result](ctx, c, whole)
	}
	whole.base = wire.WholeBody
	body := slices.Concat(pieces...)
	a := cmp.Or(c.difference(in.Target, whole, body), whole)
	out, err := one[turnstone.Result](ctx, c, a)
	if errors.Is(err, wire.ErrBase) && !errors.Is(err, turnstone.ErrOutcomeUnknown) {
		a = whole
		out, err = one[turnstone.Result](ctx, c, a)
	}
	if err == nil {
		c.bases.Put(in.Target, base{a.id, body}, len(body))
	}
	return out, err
}

// difference returns the request to commit body as its difference from the last one of its session, or nil if there
// is none, or too large a one. Only one commit is the difference from another one.
func (c *Client) difference(of wire.Target, whole *ask, body []byte) *ask {
	last, ok := c.bases.Get(of)
	if !ok {
		return nil
	}
	c.bases.Drop(of)
	d := wire.DifferenceOf(last.body, body)
	if d == nil {
		return nil
	}
	pieces, err := wire.Encode(d)
	if err != nil {
		return nil
	}
	a := *whole
	a.id, a.body, a.base = rand.Text(), pieces, last.id
	return &a
}
