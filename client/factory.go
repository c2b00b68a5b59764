package client

import (
	"context"
	"crypto/rand"
	"fmt"
	"iter"
	"net/url"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// Create implements turnstone.Factory.
func (c *Client) Create(ctx context.Context, r turnstone.Request) (p turnstone.Persistence, created bool, err error) {
	if r.Metadata, err = turnstone.CheckMetadata(r.Metadata); err != nil { // JSON that not every reader has is not sent
		return nil, false, err
	}
	out, err := write[wire.Created](ctx, c, "create", &r, false)
	if err != nil {
		return nil, false, err
	}
	return &session{c, wire.Target{Session: out.ID, Incarnation: out.Incarnation}}, out.New, nil
}

// Session implements turnstone.Factory.
func (c *Client) Session(ctx context.Context, id string) (turnstone.Persistence, error) {
	i, err := read[turnstone.Info](ctx, c, "info", &wire.Target{Session: id})
	if err != nil {
		return nil, err
	}
	return &session{c, wire.Target{Session: i.ID, Incarnation: i.Incarnation}}, nil
}

// CommitAll implements turnstone.Factory.
func (c *Client) CommitAll(ctx context.Context, commits ...turnstone.SessionCommit) ([]turnstone.Result, error) {
	in := &wire.CommitAll{Commits: make([]wire.SessionCommit, len(commits))}
	made := false // Commits have turn ids, or that of the request.
	for i := range commits {
		m := wire.SessionCommit{Create: commits[i].Create, RecordsOnly: commits[i].RecordsOnly, Commit: wire.CommitOf(&commits[i].Commit)}
		if s, ok := commits[i].Session.(*session); ok && s != nil && s.c == c {
			m.Some = wire.SomeOf(s.Target)
		} else if commits[i].Session != nil {
			return nil, &turnstone.InvalidError{Where: "commit", Reason: "it is to no session of this client"}
		}
		if create := commits[i].Create; create != nil {
			r := *create
			var err error
			if r.Metadata, err = turnstone.CheckMetadata(r.Metadata); err != nil {
				return nil, fmt.Errorf("commit %d: %w", i, err)
			}
			m.Create = &r
		}
		made = made || !commits[i].RecordsOnly
		in.Commits[i] = m
	}
	out, err := write[wire.Results](ctx, c, "commit-all", in, made)
	if err != nil {
		return nil, err
	}
	return out.Results, nil
}

// List implements turnstone.Factory.
func (c *Client) List(ctx context.Context, o turnstone.ListOptions) (turnstone.Page, error) {
	return value(read[turnstone.Page](ctx, c, "list", &o))
}

// Records implements turnstone.Factory.
func (c *Client) Records(ctx context.Context, q turnstone.RecordQuery) (turnstone.RecordPage, error) {
	return public(read[wire.RecordPage](ctx, c, "records", &wire.ListRecords{RecordQuery: q}))
}

// StartFeed implements turnstone.Factory.
func (c *Client) StartFeed(ctx context.Context, o turnstone.FeedOptions) error {
	_, err := write[wire.None](ctx, c, "start-feed", &wire.StartFeed{Keep: int64(o.Keep), Records: o.Records}, false)
	return err
}

// StopFeed implements turnstone.Factory.
func (c *Client) StopFeed(ctx context.Context) error {
	_, err := write[wire.None](ctx, c, "stop-feed", &wire.None{}, false)
	return err
}

// Feed implements turnstone.Factory.
func (c *Client) Feed(ctx context.Context) (turnstone.Feed, error) {
	return value(read[turnstone.Feed](ctx, c, "feed", &wire.None{}))
}

// Watch implements turnstone.Factory. When the connection is cut, it goes on after the last change, also with a
// server that was restarted.
func (c *Client) Watch(ctx context.Context, after turnstone.Cursor) iter.Seq2[turnstone.Change, error] {
	return watch(ctx, c, "/v1/changes", url.Values{}, string(after), func(ch turnstone.Change) string { return string(ch.Cursor) })
}

// WatchRecords implements turnstone.Factory. It begins anew when the connection is cut: see turnstone.RecordUpdate.Anew.
func (c *Client) WatchRecords(ctx context.Context, prefix string) iter.Seq2[turnstone.RecordUpdate, error] {
	return watchRecords(ctx, c, url.Values{}, prefix)
}

// Delete implements turnstone.Factory.
func (c *Client) Delete(ctx context.Context, id string, policy turnstone.ChildPolicy) error {
	return c.delete(ctx, wire.Target{Session: id}, turnstone.AnyRevision, policy)
}

func (c *Client) delete(ctx context.Context, t wire.Target, expected head.Revision, policy turnstone.ChildPolicy) error {
	name := wire.Name(wire.Policies, policy)
	if name == "" {
		return &turnstone.InvalidError{Where: "delete", Reason: "there is no such policy"}
	}
	in := &wire.Delete{Session: t.Session, Incarnation: t.Incarnation, Children: name}
	if expected != turnstone.AnyRevision {
		in.Expected = &expected
	}
	_, err := write[wire.None](ctx, c, "delete", in, false)
	return err
}

// GC implements turnstone.Factory. The collection ends a while after ctx.
func (c *Client) GC(ctx context.Context, o gc.Options) (*gc.Report, error) {
	return collect(ctx, c, wire.Some{}, o)
}

// Vacuum implements turnstone.Factory. The vacuum ends a while after ctx.
func (c *Client) Vacuum(ctx context.Context, o gc.VacuumOptions) (*gc.VacuumReport, error) {
	return vacuum(ctx, c, wire.Some{}, o)
}

func collect(ctx context.Context, c *Client, t wire.Some, o gc.Options) (*gc.Report, error) {
	in := &wire.Collect{Some: t, DryRun: o.DryRun, Full: o.Full, Pace: o.Pace}
	return long(ctx, c, "gc", true, in, o.Progress, func(i *wire.Item) *gc.Report { return i.Report })
}

func vacuum(ctx context.Context, c *Client, t wire.Some, o gc.VacuumOptions) (*gc.VacuumReport, error) {
	return long(ctx, c, "vacuum", true, &wire.VacuumRequest{Some: t, Pace: o.Pace, NoCompaction: o.NoCompaction}, o.Progress, func(i *wire.Item) *gc.VacuumReport { return i.Vacuum })
}

func erase(ctx context.Context, c *Client, name string, anywhere bool, in any, o turnstone.EraseOptions) (*turnstone.Erasure, error) {
	return long(ctx, c, name, anywhere, in, o.Progress, func(i *wire.Item) *turnstone.Erasure { return i.Erasure })
}

// Prune implements turnstone.Operator.
func (c *Client) Prune(ctx context.Context, o gc.PruneOptions) (*gc.PruneReport, error) {
	return prune(ctx, c, &wire.Prune{PruneOptions: o})
}

func prune(ctx context.Context, c *Client, in *wire.Prune) (*gc.PruneReport, error) {
	return long(ctx, c, "prune", false, in, nil, func(i *wire.Item) *gc.PruneReport { return i.Prune })
}

// Erase implements turnstone.Operator. The vacuum ends a while after ctx.
func (c *Client) Erase(ctx context.Context, id string, policy turnstone.ChildPolicy, o turnstone.EraseOptions) (*turnstone.Erasure, error) {
	name := wire.Name(wire.Policies, policy)
	if name == "" {
		return nil, &turnstone.InvalidError{Where: "erase", Reason: "there is no such policy"}
	}
	return erase(ctx, c, "erase", false, &wire.Erase{Session: id, Children: name, Pace: o.Pace}, o)
}

// Seal implements turnstone.Operator.
func (c *Client) Seal(ctx context.Context) error { return seal(ctx, c, wire.Some{}) }

func seal(ctx context.Context, c *Client, t wire.Some) error {
	return items(ctx, c, "seal", rand.Text(), true, &wire.Seal{Some: t}, func() {}, func(*wire.Item) bool { return true })
}

// Verify implements turnstone.Operator. It ends a while after ctx.
func (c *Client) Verify(ctx context.Context, o turnstone.VerifyOptions) (*turnstone.Verification, error) {
	progress := func(p gc.Progress) {
		if o.Progress != nil {
			o.Progress(p.Done)
		}
	}
	v, err := long(ctx, c, "verify", true, &wire.None{}, progress, func(i *wire.Item) *wire.Verification { return i.Verified })
	if v == nil {
		return nil, err
	}
	return v.Public(), err
}

// Stats implements turnstone.Operator.
func (c *Client) Stats(ctx context.Context) (*turnstone.Stats, error) {
	return long(ctx, c, "stats", true, &wire.None{}, nil, func(i *wire.Item) *turnstone.Stats { return i.Stats })
}

// Upgrade implements turnstone.Operator.
func (c *Client) Upgrade(ctx context.Context) (*turnstone.Upgraded, error) {
	return write[turnstone.Upgraded](ctx, c, "upgrade", &wire.None{}, false)
}

// long calls an operation that may take hours, and returns its report, which of finds in an item of the answer. If
// anywhere is set, it may be made more than once.
func long[T any](ctx context.Context, c *Client, name string, anywhere bool, in any, progress func(gc.Progress), of func(*wire.Item) *T) (report *T, err error) {
	err = items(ctx, c, name, rand.Text(), anywhere, in, func() { report = nil }, func(i *wire.Item) bool {
		if progress != nil && i.Progress != nil {
			progress(*i.Progress)
		}
		if r := of(i); r != nil {
			report = r
		}
		return true
	})
	if err == nil && report == nil {
		err = fmt.Errorf("%w: the answer has no report", engine.ErrUnavailable)
	}
	return report, err
}

// value returns what an answer points to.
func value[T any](v *T, err error) (T, error) {
	if err != nil {
		var none T
		return none, err
	}
	return *v, nil
}

// public returns an answer as the value of package turnstone that it is.
func public[T any, M interface{ Public() T }](m M, err error) (T, error) {
	if err != nil {
		var none T
		return none, err
	}
	return m.Public(), nil
}
