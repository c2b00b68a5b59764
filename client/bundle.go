package client

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/wire"
	"github.com/turnstonedb/turnstone/push"
)

var _ push.Peer = (*Client)(nil)

// Standings implements push.Peer.
func (c *Client) Standings(ctx context.Context, of ...turnstone.StandingQuery) ([]turnstone.Standing, error) {
	out, err := read[wire.Standings](ctx, c, "standings", &wire.StandingQueries{Sessions: of})
	if err != nil {
		return nil, err
	}
	return out.Sessions, nil
}

// Bundle implements push.Peer. It goes on where it was when the connection is cut, unless a session was changed
// meanwhile. The report is empty: servers don't send it.
func (c *Client) Bundle(ctx context.Context, w io.Writer, of ...turnstone.Bundled) (*turnstone.BundleReport, error) {
	if w == nil {
		return nil, &turnstone.InvalidError{Where: "bundle", Reason: "the writer is nil"}
	}
	in := &wire.Bundle{Sessions: of}
	sum := sha256.New()
	err := c.download(ctx, writerFunc(func(b []byte) (int, error) {
		sum.Write(b)
		return w.Write(b)
	}), func(offset int64) *ask {
		if in.Offset = offset; offset > 0 {
			in.Before = hex.EncodeToString(sum.Sum(nil))
		}
		return asking("bundle", "", false, in)
	})
	if err != nil {
		return nil, err
	}
	return &turnstone.BundleReport{}, nil
}

// Unbundle implements push.Peer. It takes only the options As and Branch. When the connection is cut, it goes on with
// the next byte that the server needs. If the server was restarted, it fails with engine.ErrUnavailable.
func (c *Client) Unbundle(ctx context.Context, r io.Reader, o turnstone.UnbundleOptions) (*turnstone.UnbundleReport, error) {
	switch {
	case r == nil:
		return nil, &turnstone.InvalidError{Where: "bundle", Reason: "the reader is nil"}
	case o.MaxBytes != 0, o.Exact, len(o.IDs) > 0:
		return nil, &turnstone.InvalidError{Where: "options", Reason: "MaxBytes, Exact and IDs are for a store of this process"}
	}
	u := &upload{c: c, id: rand.Text(), path: "/v1/bundle", query: url.Values{}}
	if o.As != "" {
		u.query.Set("as", o.As)
	}
	if o.Branch != "" {
		u.query.Set("branch", o.Branch)
	}
	p, err := u.all(ctx, r, -1)
	if err != nil {
		return nil, err
	}
	if p.Bundle == nil {
		return nil, fmt.Errorf("%w: no report", wire.ErrDocument)
	}
	return p.Bundle, nil
}

// download writes to w what the answer to a request has. When that is cut off, it asks for the rest: from returns the
// request for what comes from an offset on.
func (c *Client) download(ctx context.Context, w io.Writer, from func(offset int64) *ask) error {
	var n int64
	var failed error // of w
	for p := (patient{c: c}); ; {
		before := n
		var cutOff error
		err := c.do(ctx, from(n), func(answer *http.Response) error {
			k, err := io.Copy(writerFunc(func(b []byte) (int, error) {
				var k int
				if k, failed = w.Write(b); failed == nil && k < len(b) {
					failed = io.ErrShortWrite
				}
				return k, failed
			}), answer.Body)
			n += k
			cutOff = err
			return nil
		})
		switch {
		case failed != nil:
			return failed
		case err != nil || cutOff == nil:
			return err
		case ctx.Err() != nil:
			return ctx.Err()
		case c.ended.Err() != nil:
			return errClosed
		case n > before:
			p.since = time.Now()
		case !p.wait(ctx): // A server that finds damage cuts off at the same place each time.
			return fmt.Errorf("%w: the answer is cut off: %w", engine.ErrUnavailable, cutOff)
		}
	}
}
