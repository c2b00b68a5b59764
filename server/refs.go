package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// readRefs sends refs in the order in which they were asked for, each before the records beside it. A host that keeps
// its checkpoints by names of its own reads one, or a page of them, with one request.
func readRefs(ctx context.Context, c call[wire.ReadRefs], send sender) error {
	if n := len(c.in.Refs); n > turnstone.MaxPage {
		return &turnstone.LimitError{Limit: "refs", Where: "refs", Have: int64(n), Max: turnstone.MaxPage}
	}
	for _, want := range c.in.Refs {
		if err := readRef(ctx, c, want, send); err != nil && !isGone(err) {
			return err
		}
	}
	return nil
}

// isGone reports whether a record or its revision is not there any more.
func isGone(err error) bool {
	return errors.Is(err, turnstone.ErrRecordNotFound) || errors.Is(err, turnstone.ErrRevisionPruned)
}

func readRef(ctx context.Context, c call[wire.ReadRefs], want wire.WantedRef, send sender) error {
	ref, to, err := followRef(ctx, c, want)
	// The record may have been moved to another revision, and the one before pruned, between the two reads.
	for tries := 0; tries < 10 && errors.Is(err, turnstone.ErrRevisionPruned); tries++ {
		before := ref.Record.Version
		if ref, to, err = followRef(ctx, c, want); err != nil && ref != nil && ref.Record.Version == before {
			break
		}
	}
	if err != nil {
		return err
	}
	if err := send(&wire.Item{Ref: ref}); err != nil || to.Beside == "" {
		return err
	}
	for q := (turnstone.RecordQuery{Prefix: to.Beside, Limit: turnstone.MaxPage}); ; {
		page, err := c.session.Records(ctx, q)
		if err == nil && len(page.Records) > 0 {
			err = send(&wire.Item{Beside: wire.PageOf(page)})
		}
		if q.After = page.Next; err != nil || page.Next == "" {
			return err
		}
	}
}

// A place is what the value of a ref says.
type place struct {
	Revision head.Revision `json:"revision"`
	Beside   string        `json:"beside"`
}

// followRef reads a ref and, unless they are known, the parts of its revision. If these can't be read, it returns the
// ref beside the error.
func followRef(ctx context.Context, c call[wire.ReadRefs], want wire.WantedRef) (ref *wire.Ref, to place, err error) {
	r, err := c.session.Record(ctx, want.Key)
	if err != nil {
		return nil, to, err
	}
	if err := json.Unmarshal(r.Value, &to); err != nil || to.Revision == 0 {
		return nil, to, &turnstone.InvalidError{Where: fmt.Sprintf("record %q", want.Key), Reason: "its value is no JSON object with a revision"}
	}
	ref = wire.RefOf(r, nil)
	if ref.Known = want.Known == r.Version; ref.Known {
		return ref, to, nil
	}
	parts, err := c.session.Checkpoint(ctx, to.Revision)
	if err != nil {
		return ref, to, err
	}
	return wire.RefOf(r, parts), to, nil
}
