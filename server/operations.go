package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/wire"
	"github.com/turnstonedb/turnstone/transcript"
)

// operations are all of them.
var operations = []operation{
	read("list", "Lists sessions, the most recently updated first.", func(ctx context.Context, c call[turnstone.ListOptions]) (*turnstone.Page, error) {
		return pointer(c.store.List(ctx, *c.in))
	}),
	read("info", "Returns metadata, head and totals of a session.", func(ctx context.Context, c call[wire.Target]) (*turnstone.Info, error) {
		i, err := c.session.Info(ctx)
		if err == nil {
			c.keep(i.Incarnation, c.session)
		}
		return &i, err
	}),
	several("load", "Reads history by scope: an item with the state, then one with each node.",
		func(ctx context.Context, c call[wire.Load], send sender) error {
			st, err := c.session.Load(ctx, c.in.Scope)
			if err != nil {
				return err
			}
			if err := send(&wire.Item{State: wire.StateOf(st)}); err != nil {
				return err
			}
			return sendAll(send, slices.Values(st.Nodes), nil)
		}),
	several("nodes", "Reads the nodes of a scope, one at a time, of a history of any length.",
		func(ctx context.Context, c call[wire.LoadNodes], send sender) error {
			if c.in.At == 0 { // Who is cut off goes on with the same revision.
				i, err := c.session.Info(ctx)
				if err != nil {
					return err
				}
				c.in.At = cmp.Or(i.Revision, turnstone.RevisionZero)
			}
			// The answer begins with the first node, so that what can't be read at all fails as it does in load.
			begin := sync.OnceValue(func() error { return send(&wire.Item{At: &c.in.At}) })
			for n, err := range c.session.Nodes(ctx, c.in.Scope) {
				if err == nil {
					err = begin()
				}
				switch {
				case err != nil:
					return err
				case !c.in.Behind.IsZero():
					if n.ID == c.in.Behind {
						c.in.Behind = graph.ID{}
					}
					continue
				}
				if err := send(&wire.Item{Node: wire.NodeOf(n)}); err != nil {
					return err
				}
			}
			if !c.in.Behind.IsZero() {
				return fmt.Errorf("%w: %s, behind which the rest was to be sent", turnstone.ErrNodeNotFound, c.in.Behind)
			}
			return begin()
		}),
	read("node", "Returns one node, by its id or by the caller's key.", func(ctx context.Context, c call[wire.NodeRequest]) (*wire.Node, error) {
		if c.in.Key != "" && c.in.Node.IsZero() {
			n, err := c.session.NodeByKey(ctx, c.in.Key)
			return wire.NodeOf(n), err
		}
		n, err := c.session.Node(ctx, c.in.Node)
		return wire.NodeOf(n), err
	}),
	several("nodes-by-key", "Returns those nodes that have one of the caller's keys.",
		func(ctx context.Context, c call[wire.NodesByKey], send sender) error {
			nodes, err := c.session.NodesByKey(ctx, c.in.Keys...)
			return sendAll(send, maps.Values(nodes), err)
		}),
	several("leaves", "Returns the ends of branches, without payloads.", func(ctx context.Context, c call[wire.Target], send sender) error {
		leaves, err := c.session.Leaves(ctx)
		return sendAll(send, slices.Values(leaves), err)
	}),
	read("kept", "Returns the revisions that are kept by name.", func(ctx context.Context, c call[wire.Target]) (*wire.Kept, error) {
		kept, err := c.session.Kept(ctx)
		return &wire.Kept{Kept: kept}, err
	}),
	read("checkpoint", "Returns the checkpoint parts at a revision.", func(ctx context.Context, c call[wire.At]) (*wire.Checkpoint, error) {
		parts, err := c.session.Checkpoint(ctx, c.in.At)
		return wire.CheckpointOf(parts), err
	}),
	read("record", "Returns one record of a session.", func(ctx context.Context, c call[wire.RecordRequest]) (*wire.Record, error) {
		r, err := c.session.Record(ctx, c.in.Key)
		return wire.RecordOf(r), err
	}),
	read("records", "Lists records of a session, or of all, in the order of their keys.", func(ctx context.Context, c call[wire.ListRecords]) (*wire.RecordPage, error) {
		list := c.store.Records
		if c.session != nil {
			list = c.session.Records
		}
		p, err := list(ctx, c.in.RecordQuery)
		return wire.PageOf(p), err
	}),
	several("refs", "Reads records that name a revision, each with the checkpoint of that, and the records beside it. Those that can't be read any more are left out.", readRefs),
	several("log", "Reads the commits after a revision, up to the head.", func(ctx context.Context, c call[wire.After], send sender) error {
		for e, err := range c.session.Log(ctx, c.in.After) {
			if err == nil {
				e = withoutRequest(e)
				err = send(&wire.Item{Entry: &e})
			}
			if err != nil {
				return err
			}
		}
		return nil
	}),
	read("uploads", "Returns the attachments that wait for a commit to refer to them.", func(ctx context.Context, c call[wire.Target]) (*wire.Uploads, error) {
		all, err := c.session.Uploads(ctx)
		return &wire.Uploads{Uploads: all}, err
	}),
	read("stat-attachment", "Returns what is known of an attachment of a session, without its bytes.",
		func(ctx context.Context, c call[wire.AttachmentRequest]) (*turnstone.Attached, error) {
			return pointer(c.session.Attachment(ctx, c.in.ID))
		}),
	read("attachments", "Returns the attachments of a session's nodes.", func(ctx context.Context, c call[wire.Target]) (*wire.Attachments, error) {
		all, err := c.session.Attachments(ctx)
		return &wire.Attachments{Attachments: all}, err
	}),
	read("standings", "Returns where sessions stand, to compare it with where they do in another store. Those that do not exist are left out.",
		func(ctx context.Context, c call[wire.StandingQueries]) (*wire.Standings, error) {
			all, err := c.store.Standings(ctx, c.in.Sessions...)
			return &wire.Standings{Sessions: all}, err
		}),
	{
		name: "bundle", scope: Read, in: reflect.TypeFor[wire.Bundle](), handle: (*Server).bundle,
		summary: "Sends sessions as a bundle. An answer that is cut off is not whole.",
	},
	read("feed", "Returns what the feed of changes has.", func(ctx context.Context, c call[wire.None]) (*turnstone.Feed, error) {
		return pointer(c.store.Feed(ctx))
	}),

	write("create", "Makes a session, or returns the one that exists.", Write, func(ctx context.Context, c call[turnstone.Request]) (*wire.Created, error) {
		s, created, err := c.store.Create(ctx, *c.in)
		if err != nil {
			return nil, err
		}
		i, err := s.Info(ctx)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", turnstone.ErrOutcomeUnknown, err) // Create has succeeded.
		}
		c.keep(i.Incarnation, s)
		return &wire.Created{Info: i, New: created}, nil
	}),
	write("commit", "Stores one turn, whole or not at all.", Write, func(ctx context.Context, c call[wire.CommitRequest]) (*turnstone.Result, error) {
		in := c.in.Commit.Public()
		in.Turn = cmp.Or(in.Turn, c.turn())
		return pointer(c.session.Commit(ctx, in))
	}),
	write("commit-all", "Stores a turn in each of several sessions, all or none.", Write, func(ctx context.Context, c call[wire.CommitAll]) (*wire.Results, error) {
		commits := make([]turnstone.SessionCommit, len(c.in.Commits))
		turns := slices.ContainsFunc(c.in.Commits, func(m wire.SessionCommit) bool { return m.Turn != "" })
		for i := range c.in.Commits {
			m := &c.in.Commits[i]
			commits[i] = turnstone.SessionCommit{Create: m.Create, RecordsOnly: m.RecordsOnly, Commit: m.Commit.Public()}
			if !turns && !m.RecordsOnly {
				commits[i].Turn = c.turn()
			}
			if t, named := m.Named(); named {
				s, err := c.find(ctx, t)
				if err != nil {
					return nil, fmt.Errorf("session %q: %w", t.Session, err)
				}
				commits[i].Session = s
			}
		}
		results, err := c.store.CommitAll(ctx, commits...)
		return &wire.Results{Results: results}, err
	}),
	write("save", "Makes a whole history that of a session, which it makes if there is none, and stores the difference.", Write,
		func(ctx context.Context, c call[wire.Save]) (*transcript.Saved, error) {
			return pointer(transcript.New(c.store.Factory()).Save(ctx, c.in.Session, c.in.Public()))
		}),
	write("link-attachment", "Makes an attachment of another session one that commits of this one may refer to.", Write,
		func(ctx context.Context, c call[wire.LinkAttachment]) (*blob.Attachment, error) {
			return pointer(c.session.LinkAttachment(ctx, c.in.From, c.in.ID))
		}),
	write("change-records", "Sets, deletes and checks records of a session, all or none, without a commit.", Write,
		func(ctx context.Context, c call[wire.ChangeRecords]) (*wire.Versions, error) {
			versions, err := c.session.ChangeRecords(ctx, c.in.Public()...)
			return &wire.Versions{Versions: versions}, err
		}),
	write("save-metadata", "Empties fields of a session's metadata, and merges others.", Write, func(ctx context.Context, c call[wire.SaveMetadata]) (*wire.None, error) {
		return &wire.None{}, c.session.SaveMetadata(ctx, c.in.Metadata, c.in.Empty...)
	}),
	write("tombstone", "Soft-deletes nodes.", Write, func(ctx context.Context, c call[wire.Tombstone]) (*wire.None, error) {
		return &wire.None{}, c.session.Tombstone(ctx, c.in.Nodes...)
	}),
	write("keep", "Keeps a revision under a name.", Write, func(ctx context.Context, c call[wire.Keep]) (*wire.None, error) {
		return &wire.None{}, c.session.Keep(ctx, c.in.Name, c.in.Revision)
	}),
	write("release", "Ends the keeping of a revision.", Write, func(ctx context.Context, c call[wire.Release]) (*wire.None, error) {
		return &wire.None{}, c.session.Release(ctx, c.in.Name)
	}),
	write("rename", "Gives a session another id.", Write, func(ctx context.Context, c call[wire.Rename]) (*wire.None, error) {
		return &wire.None{}, c.session.Rename(ctx, c.in.To)
	}),
	write("delete", "Removes a session.", Write, func(ctx context.Context, c call[wire.Delete]) (*wire.None, error) {
		policy, err := childPolicy("delete", c.in.Children)
		if err != nil {
			return nil, err
		}
		if c.in.Incarnation == "" {
			if c.in.Expected != nil {
				return nil, &turnstone.InvalidError{Where: "delete", Reason: "expected is of an incarnation, and none is said"}
			}
			return &wire.None{}, c.store.Delete(ctx, c.in.Session, policy)
		}
		expected := turnstone.AnyRevision
		if c.in.Expected != nil {
			expected = *c.in.Expected
		}
		s, err := c.store.SessionByIncarnation(ctx, c.in.Incarnation)
		if errors.Is(err, turnstone.ErrSessionNotFound) {
			return &wire.None{}, nil
		}
		if err != nil {
			return nil, err
		}
		return &wire.None{}, s.Delete(ctx, expected, policy)
	}),

	write("start-feed", "Turns the feed of changes on.", Maintain, func(ctx context.Context, c call[wire.StartFeed]) (*wire.None, error) {
		return &wire.None{}, c.store.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Duration(c.in.Keep), Records: c.in.Records})
	}),
	write("stop-feed", "Turns the feed of changes off.", Maintain, func(ctx context.Context, c call[wire.None]) (*wire.None, error) {
		return &wire.None{}, c.store.StopFeed(ctx)
	}),
	long("gc", "Deletes the blobs that nothing refers to, of a session or of all.", func(ctx context.Context, c call[wire.Collect], tell func(gc.Progress)) (*wire.Item, error) {
		collect := c.store.GC
		if c.session != nil {
			collect = c.session.GC
		}
		began := time.Now()
		report, err := collect(ctx, gc.Options{DryRun: c.in.DryRun, Full: c.in.Full, Pace: c.in.Pace, Progress: tell})
		if c.session == nil && !c.in.DryRun {
			note(ctx, c.store, turnstone.OpGC, began, report, err)
		}
		return reported(report, func(i *wire.Item, r *gc.Report) { i.Report = r }), err
	}),
	long("vacuum", "Removes what is detached, of a session or of all, and gives the space back.", func(ctx context.Context, c call[wire.VacuumRequest], tell func(gc.Progress)) (*wire.Item, error) {
		vacuum := c.store.Vacuum
		if c.session != nil {
			vacuum = c.session.Vacuum
		}
		began := time.Now()
		report, err := vacuum(ctx, gc.VacuumOptions{Pace: c.in.Pace, NoCompaction: c.in.NoCompaction, Progress: tell})
		if c.session == nil {
			note(ctx, c.store, turnstone.OpVacuum, began, report, err)
		}
		return reported(report, func(i *wire.Item, r *gc.VacuumReport) { i.Vacuum = r }), err
	}),
	long("prune", "Applies retention to all sessions, or sets the floor of one.", func(ctx context.Context, c call[wire.Prune], _ func(gc.Progress)) (*wire.Item, error) {
		var report *gc.PruneReport
		var err error
		if c.session == nil {
			began := time.Now()
			if report, err = c.store.Prune(ctx, c.in.PruneOptions); !c.in.DryRun {
				note(ctx, c.store, turnstone.OpPrune, began, report, err)
			}
		} else if c.in.PruneOptions != (gc.PruneOptions{Revisions: c.in.Revisions}) {
			return nil, &turnstone.InvalidError{Where: "prune", Reason: "of one session: it retains a number of revisions, and nothing else is said"}
		} else {
			report, err = pruneOne(ctx, c.session, head.Retention(c.in.Revisions))
		}
		return reported(report, func(i *wire.Item, r *gc.PruneReport) { i.Prune = r }), err
	}),
	long("erase", "Deletes a session, and removes what it alone had from the store's files.", func(ctx context.Context, c call[wire.Erase], tell func(gc.Progress)) (*wire.Item, error) {
		policy, err := childPolicy("erase", c.in.Children)
		if err != nil {
			return nil, err
		}
		report, err := c.store.Erase(ctx, c.in.Session, policy, turnstone.EraseOptions{Progress: tell, Pace: c.in.Pace})
		return reported(report, func(i *wire.Item, r *turnstone.Erasure) { i.Erasure = r }), err
	}),
	long("erase-nodes", "Tombstones nodes, and removes their content from the store's files.", func(ctx context.Context, c call[wire.EraseNodes], tell func(gc.Progress)) (*wire.Item, error) {
		report, err := c.session.Erase(ctx, turnstone.EraseOptions{Progress: tell, Pace: c.in.Pace}, c.in.Nodes...)
		return reported(report, func(i *wire.Item, r *turnstone.Erasure) { i.Erasure = r }), err
	}),
	long("seal", "Makes segments of loose commits, of a session or of all.", func(ctx context.Context, c call[wire.Seal], _ func(gc.Progress)) (*wire.Item, error) {
		if c.session != nil {
			return nil, c.session.Seal(ctx)
		}
		return nil, c.store.Seal(ctx)
	}),
	long("verify", "Checks every hash, link, checksum and reference.", func(ctx context.Context, c call[wire.None], tell func(gc.Progress)) (*wire.Item, error) {
		began := time.Now()
		report, err := c.store.Verify(ctx, turnstone.VerifyOptions{Progress: func(done int) { tell(gc.Progress{Phase: "sessions", Done: done}) }})
		note(ctx, c.store, turnstone.OpVerify, began, report, cmp.Or(err, report.Err()))
		return reported(report, func(i *wire.Item, r *turnstone.Verification) { i.Verified = wire.VerificationOf(r) }), err
	}),
	long("stats", "Says what a namespace holds, and what that takes.", func(ctx context.Context, c call[wire.None], _ func(gc.Progress)) (*wire.Item, error) {
		report, err := c.store.Stats(ctx)
		return reported(report, func(i *wire.Item, r *turnstone.Stats) { i.Stats = r }), err
	}),
	write("upgrade", "Raises the format of a store to the newest one.", Maintain, func(ctx context.Context, c call[wire.None]) (*turnstone.Upgraded, error) {
		return c.store.Upgrade(ctx)
	}),
}

// note notes in the store how maintenance went. A store that may only be read has no such note.
func note(ctx context.Context, st *turnstone.Store, operation string, began time.Time, report any, problem error) {
	_ = st.NoteMaintenance(ctx, operation, time.Since(began), report, problem)
}

// pruneOne prunes one session, and reports it as the operation of the store does.
func pruneOne(ctx context.Context, s *turnstone.Session, keep head.Retention) (*gc.PruneReport, error) {
	moved, err := s.Prune(ctx, keep)
	if err != nil {
		return nil, err
	}
	report := new(gc.PruneReport)
	if moved {
		report.Sessions = 1
	}
	return report, nil
}

// childPolicy returns the policy of a name; that of the empty name keeps children.
func childPolicy(where, name string) (turnstone.ChildPolicy, error) {
	policy, known := wire.Policies[cmp.Or(name, "keep")]
	if !known {
		return 0, &turnstone.InvalidError{Where: where, Reason: fmt.Sprintf("there is no policy %q", name)}
	}
	return policy, nil
}

func pointer[T any](v T, err error) (*T, error) { return &v, err }

// sendAll sends nodes, unless there is an error.
func sendAll(send sender, nodes iter.Seq[turnstone.Node], err error) error {
	for n := range nodes {
		if err == nil {
			err = send(&wire.Item{Node: wire.NodeOf(n)})
		}
	}
	return err
}
