package client

import (
	"context"
	"errors"
	"iter"
	"net/url"
	"strings"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// session implements turnstone.Persistence.
type session struct {
	c *Client
	wire.Target
}

func (s *session) ID() string { return s.Session }

func (s *session) Info(ctx context.Context) (turnstone.Info, error) {
	return value(read[turnstone.Info](ctx, s.c, "info", &s.Target))
}

func (s *session) Load(ctx context.Context, scope turnstone.Scope) (*turnstone.State, error) {
	var st *turnstone.State
	err := items(ctx, s.c, "load", "", true, &wire.Load{Target: s.Target, Scope: scope}, func() { st = nil }, func(i *wire.Item) bool {
		switch {
		case i.State != nil:
			st = i.State.Public()
		case i.Node != nil && st != nil:
			st.Nodes = append(st.Nodes, i.Node.Public())
		}
		return true
	})
	if err == nil && st == nil {
		err = wire.ErrDocument
	}
	if err != nil {
		return nil, err
	}
	return st, nil
}

// Nodes goes on after the last node when the connection is cut, unless that one was tombstoned meanwhile.
func (s *session) Nodes(ctx context.Context, scope turnstone.Scope) iter.Seq2[turnstone.Node, error] {
	return func(yield func(turnstone.Node, error) bool) {
		in := &wire.LoadNodes{Load: wire.Load{Target: s.Target, Scope: scope}}
		for p := (patient{c: s.c}); ; {
			again, err := sequence(ctx, s.c, asking("nodes", "", true, in), func() {}, func(i *wire.Item) bool {
				if i.At != nil {
					in.At = *i.At
				}
				if i.Node == nil {
					return true
				}
				in.Behind = i.Node.ID
				more := yield(i.Node.Public(), nil)
				p.since = time.Now() // However long the caller took, the server has answered.
				return more
			})
			if again && p.wait(ctx) {
				continue
			}
			if err != nil {
				yield(turnstone.Node{}, err)
			}
			return
		}
	}
}

func (s *session) Node(ctx context.Context, id graph.ID) (turnstone.Node, error) {
	return public(read[wire.Node](ctx, s.c, "node", &wire.NodeRequest{Target: s.Target, Node: id}))
}

func (s *session) NodeByKey(ctx context.Context, key string) (turnstone.Node, error) {
	return public(read[wire.Node](ctx, s.c, "node", &wire.NodeRequest{Target: s.Target, Key: key}))
}

func (s *session) NodesByKey(ctx context.Context, keys ...string) (map[string]turnstone.Node, error) {
	var out map[string]turnstone.Node
	err := items(ctx, s.c, "nodes-by-key", "", true, &wire.NodesByKey{Target: s.Target, Keys: keys}, func() { out = map[string]turnstone.Node{} }, func(i *wire.Item) bool {
		if i.Node != nil {
			out[i.Node.Key] = i.Node.Public()
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (s *session) Leaves(ctx context.Context) ([]turnstone.Node, error) {
	var out []turnstone.Node
	err := items(ctx, s.c, "leaves", "", true, &s.Target, func() { out = []turnstone.Node{} }, func(i *wire.Item) bool {
		if i.Node != nil {
			out = append(out, i.Node.Public())
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (s *session) Kept(ctx context.Context) ([]head.Kept, error) {
	out, err := read[wire.Kept](ctx, s.c, "kept", &s.Target)
	if err != nil {
		return nil, err
	}
	return out.Kept, nil
}

func (s *session) Checkpoint(ctx context.Context, at head.Revision) (map[string][]byte, error) {
	return public(read[wire.Checkpoint](ctx, s.c, "checkpoint", &wire.At{Target: s.Target, At: at}))
}

func (s *session) Record(ctx context.Context, key string) (turnstone.Record, error) {
	r, err := public(read[wire.Record](ctx, s.c, "record", &wire.RecordRequest{Target: s.Target, Key: key}))
	if errors.Is(err, turnstone.ErrRecordNotFound) {
		r = turnstone.Record{Session: s.Session, Key: key, Version: turnstone.NoRecord}
	}
	return r, err
}

func (s *session) Records(ctx context.Context, q turnstone.RecordQuery) (turnstone.RecordPage, error) {
	return public(read[wire.RecordPage](ctx, s.c, "records", &wire.ListRecords{Some: wire.SomeOf(s.Target), RecordQuery: q}))
}

// Log goes on after the last commit when the connection is cut.
func (s *session) Log(ctx context.Context, after head.Revision) iter.Seq2[turnstone.LogEntry, error] {
	return func(yield func(turnstone.LogEntry, error) bool) {
		for p := (patient{c: s.c}); ; {
			again, err := sequence(ctx, s.c, asking("log", "", true, &wire.After{Target: s.Target, After: after}), func() {}, func(i *wire.Item) bool {
				if i.Entry == nil {
					return true
				}
				after = i.Entry.Revision
				more := yield(*i.Entry, nil)
				p.since = time.Now()
				return more
			})
			if again && p.wait(ctx) {
				continue
			}
			if err != nil {
				yield(turnstone.LogEntry{}, err)
			}
			return
		}
	}
}

// Watch goes on after the last commit when the connection is cut, also with a server that was restarted.
func (s *session) Watch(ctx context.Context, after head.Revision) iter.Seq2[turnstone.LogEntry, error] {
	return watch(ctx, s.c, "/v1/watch", s.query(), text(after), func(e turnstone.LogEntry) string { return text(e.Revision) })
}

// WatchRecords begins anew when the connection is cut: see turnstone.RecordUpdate.Anew.
func (s *session) WatchRecords(ctx context.Context, prefix string) iter.Seq2[turnstone.RecordUpdate, error] {
	return watchRecords(ctx, s.c, s.query(), prefix)
}

// text returns a revision as it is in a query.
func text(r head.Revision) string {
	b, err := r.MarshalJSON()
	if err != nil {
		panic(err) // It has no error.
	}
	return strings.Trim(string(b), `"`)
}

func (s *session) query() url.Values {
	return url.Values{"session": {s.Session}, "incarnation": {s.Incarnation}}
}

func (s *session) Uploads(ctx context.Context) ([]turnstone.Upload, error) {
	out, err := read[wire.Uploads](ctx, s.c, "uploads", &s.Target)
	if err != nil {
		return nil, err
	}
	return out.Uploads, nil
}

func (s *session) Attachment(ctx context.Context, id blob.ID) (turnstone.Attached, error) {
	return value(read[turnstone.Attached](ctx, s.c, "stat-attachment", &wire.AttachmentRequest{Target: s.Target, ID: id}))
}

func (s *session) Attachments(ctx context.Context) ([]turnstone.Attached, error) {
	out, err := read[wire.Attachments](ctx, s.c, "attachments", &s.Target)
	if err != nil {
		return nil, err
	}
	return out.Attachments, nil
}

func (s *session) LinkAttachment(ctx context.Context, from string, id blob.ID) (blob.Attachment, error) {
	in := &wire.LinkAttachment{AttachmentRequest: wire.AttachmentRequest{Target: s.Target, ID: id}, From: from}
	return value(write[blob.Attachment](ctx, s.c, "link-attachment", in, false))
}

func (s *session) Commit(ctx context.Context, c turnstone.Commit) (turnstone.Result, error) {
	return value(s.c.commit(ctx, &wire.CommitRequest{Target: s.Target, Commit: wire.CommitOf(&c)}))
}

func (s *session) ChangeRecords(ctx context.Context, changes ...turnstone.RecordChange) ([]turnstone.RecordVersion, error) {
	out, err := write[wire.Versions](ctx, s.c, "change-records", wire.ChangesOf(s.Target, changes), false)
	if err != nil {
		return nil, err
	}
	return out.Versions, nil
}

func (s *session) SaveMetadata(ctx context.Context, m head.Metadata, empty ...head.Field) error {
	m, err := turnstone.CheckMetadata(m, empty...)
	if err != nil {
		return err
	}
	return s.change(ctx, "save-metadata", &wire.SaveMetadata{Target: s.Target, Metadata: m, Empty: empty})
}

func (s *session) Tombstone(ctx context.Context, ids ...graph.ID) error {
	return s.change(ctx, "tombstone", &wire.Tombstone{Target: s.Target, Nodes: ids})
}

func (s *session) Keep(ctx context.Context, name string, r head.Revision) error {
	return s.change(ctx, "keep", &wire.Keep{Target: s.Target, Name: name, Revision: r})
}

func (s *session) Release(ctx context.Context, name string) error {
	return s.change(ctx, "release", &wire.Release{Target: s.Target, Name: name})
}

func (s *session) Rename(ctx context.Context, to string) error {
	return s.change(ctx, "rename", &wire.Rename{Target: s.Target, To: to})
}

func (s *session) Delete(ctx context.Context, expected head.Revision, policy turnstone.ChildPolicy) error {
	return s.c.delete(ctx, s.Target, expected, policy)
}

func (s *session) change(ctx context.Context, name string, in any) error {
	_, err := write[wire.None](ctx, s.c, name, in, false)
	return err
}

func (s *session) GC(ctx context.Context, o gc.Options) (*gc.Report, error) {
	return collect(ctx, s.c, wire.SomeOf(s.Target), o)
}

func (s *session) Vacuum(ctx context.Context, o gc.VacuumOptions) (*gc.VacuumReport, error) {
	return vacuum(ctx, s.c, wire.SomeOf(s.Target), o)
}

func (s *session) Prune(ctx context.Context, keep head.Retention) (moved bool, err error) {
	r, err := prune(ctx, s.c, &wire.Prune{Some: wire.SomeOf(s.Target), PruneOptions: gc.PruneOptions{Revisions: uint64(keep)}})
	return err == nil && r.Sessions > 0, err
}

func (s *session) Erase(ctx context.Context, o turnstone.EraseOptions, ids ...graph.ID) (*turnstone.Erasure, error) {
	return erase(ctx, s.c, "erase-nodes", true, &wire.EraseNodes{Target: s.Target, Nodes: ids, Pace: o.Pace}, o)
}

func (s *session) Seal(ctx context.Context) error { return seal(ctx, s.c, wire.SomeOf(s.Target)) }

var (
	_ turnstone.Persistence = (*session)(nil)
	_ turnstone.Operator    = (*Client)(nil)
)
