package client

import (
	"context"
	"crypto/rand"
	"iter"
	"net/url"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// Create implements turnstone.Factory.
func (c *Client) Create(ctx context.Context, r turnstone.Request) (p turnstone.Persistence, created bool, err error) {
	out, err := write[wire.Created](ctx, c, "create", &r, false)
	if err != nil {
		return nil, false, err
	}
	return &session{c, wire.Target{Session: out.ID, Of: out.Of}}, out.New, nil
}

// Session implements turnstone.Factory.
func (c *Client) Session(ctx context.Context, id string) (turnstone.Persistence, error) {
	i, err := read[turnstone.Info](ctx, c, "info", &wire.Target{Session: id})
	if err != nil {
		return nil, err
	}
	return &session{c, wire.Target{Session: i.ID, Of: i.Of}}, nil
}

// CommitAll implements turnstone.Factory.
func (c *Client) CommitAll(ctx context.Context, commits ...turnstone.SessionCommit) ([]turnstone.Result, error) {
	in := &wire.CommitAll{Commits: make([]wire.SessionCommit, len(commits))}
	turns := false // If one commit has a turn id, all that make a turn have one.
	for i := range commits {
		m := wire.SessionCommit{Create: commits[i].Create, RecordsOnly: commits[i].RecordsOnly, Commit: wire.CommitOf(&commits[i].Commit)}
		if s, ok := commits[i].Session.(*session); ok && s != nil && s.c == c {
			m.Some = wire.SomeOf(s.Target)
		} else if commits[i].Session != nil {
			return nil, &turnstone.InvalidError{Where: "commit", Reason: "it is to no session of this client"}
		}
		turns = turns || commits[i].Turn != ""
		in.Commits[i] = m
	}
	out, err := write[wire.Results](ctx, c, "commit-all", in, turns)
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
func (c *Client) StartFeed(ctx context.Context, keep time.Duration) error {
	_, err := write[wire.None](ctx, c, "start-feed", &wire.StartFeed{Keep: int64(keep)}, false)
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

// Delete implements turnstone.Factory.
func (c *Client) Delete(ctx context.Context, id string, policy turnstone.ChildPolicy) error {
	return c.delete(ctx, wire.Target{Session: id}, policy)
}

func (c *Client) delete(ctx context.Context, t wire.Target, policy turnstone.ChildPolicy) error {
	name := wire.Name(wire.Policies, policy)
	if name == "" {
		return &turnstone.InvalidError{Where: "delete", Reason: "there is no such policy"}
	}
	_, err := write[wire.None](ctx, c, "delete", &wire.Delete{Session: t.Session, Of: t.Of, Children: name}, false)
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

func collect(ctx context.Context, c *Client, t wire.Some, o gc.Options) (report *gc.Report, err error) {
	in := &wire.Collect{Some: t, DryRun: o.DryRun, Full: o.Full, Pace: o.Pace}
	err = items(ctx, c, "gc", rand.Text(), in, func() { report = nil }, func(i *wire.Item) bool {
		tell(o.Progress, i)
		if i.Report != nil {
			report = i.Report
		}
		return true
	})
	return report, err
}

func vacuum(ctx context.Context, c *Client, t wire.Some, o gc.VacuumOptions) (report *gc.VacuumReport, err error) {
	err = items(ctx, c, "vacuum", rand.Text(), &wire.VacuumRequest{Some: t, Pace: o.Pace}, func() { report = nil }, func(i *wire.Item) bool {
		tell(o.Progress, i)
		if i.Vacuum != nil {
			report = i.Vacuum
		}
		return true
	})
	return report, err
}

func tell(progress func(gc.Progress), i *wire.Item) {
	if progress != nil && i.Progress != nil {
		progress(*i.Progress)
	}
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
