package turnstone

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/cache"
	"github.com/turnstonedb/turnstone/internal/commit"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/moving"
	"github.com/turnstonedb/turnstone/internal/session"
	"github.com/turnstonedb/turnstone/internal/verify"
)

// A Store is many sessions in one namespace of one engine. It is safe for
// concurrent use, also by several stores on one engine and, where the engine
// allows it, by several processes.
type Store struct {
	engine    engine.Engine
	space     *keys.Space
	blobs     *blob.Store
	histories history.Store
	opts      Options
	record    head.Store
	commits   *commit.Store
	lifecycle *commit.Lifecycle
	sizes     history.SealSizes
	sealing   *history.SealQueue
	ctx       context.Context // ends with the store, and with it what runs in the background
	cancel    context.CancelFunc
	holder    [8]byte // random; it distinguishes the scrubs of this store from those of other processes

	watched    watched
	feeding    chan struct{} // has one while told changes get their numbers
	notifier   engine.Notifier
	listening  sync.Once
	background sync.WaitGroup // of run
	closing    sync.Mutex     // held while something is begun in the background, or the store is closed
	collecting chan struct{}  // holds one element while a collection or vacuum of this store runs
}

// Open opens the namespace of e that o names and creates it if it does not
// exist. The engine stays the caller's: close it after the store.
func Open(ctx context.Context, e engine.Engine, o *Options) (*Store, error) {
	if ctx == nil {
		return nil, invalid("context", "it is nil")
	}
	if e == nil {
		return nil, invalid("engine", "it is nil")
	}
	s := &Store{engine: e, collecting: make(chan struct{}, 1), feeding: make(chan struct{}, 1)}
	if o != nil {
		s.opts = *o
	}
	s.opts.SealBytes = cmp.Or(s.opts.SealBytes, 192<<10)
	s.opts.InlineBytes = cmp.Or(s.opts.InlineBytes, 128<<10)
	s.opts.UploadTTL = cmp.Or(s.opts.UploadTTL, 24*time.Hour)
	s.opts.PollEvery = cmp.Or(s.opts.PollEvery, 500*time.Millisecond)
	s.opts.TakeOverAfter = cmp.Or(s.opts.TakeOverAfter, 5*time.Second)
	s.opts.formats = cmp.Or(s.opts.formats, &head.Known)
	if s.opts.Random == nil {
		s.opts.Random = rand.Reader
	}
	_, _ = rand.Read(s.holder[:]) // It never fails.
	if s.opts.Now == nil {
		s.opts.Now = time.Now
	}
	c := checker{of: "options"}
	c.text("namespace", s.opts.Namespace, 0, MaxNamespace)
	c.positive("SealBytes", int64(s.opts.SealBytes))
	c.limit("seal bytes", s.opts.SealBytes, MaxSeal)
	c.positive("InlineBytes", int64(s.opts.InlineBytes))
	c.positive("UploadTTL", int64(s.opts.UploadTTL))
	c.positive("PollEvery", int64(s.opts.PollEvery))
	if c.err != nil {
		return nil, c.err
	}
	if err := s.openNamespace(ctx, e); err != nil {
		return nil, err
	}
	shares := cache.Of(s.opts.Memory)
	s.histories = session.Histories(s.engine, &s.record).WithCache(shares)
	s.space, s.blobs = s.histories.Space, s.histories.Blobs
	s.commits = &commit.Store{
		Store: s.histories, Bases: commit.NewBases(shares.Bases), Met: commit.NewMet(shares.Met), Recent: commit.NewRecent(shares.Recent), Inline: s.opts.InlineBytes,
		Limits: commit.Limits{Part: MaxPart, Parts: MaxParts, Models: MaxSessionModels, Kept: MaxKept, NodeBytes: MaxCommitNodeBytes, Writes: MaxCommitWrites, Bytes: MaxCommitBytes},
		Now:    s.now, Random: s.random, NewUpload: s.newUpload,
	}
	s.lifecycle = &commit.Lifecycle{Store: s.commits, Limits: commit.LifecycleLimits{Ancestors: head.MaxAncestors, Labels: MaxLabels}}
	s.sizes = history.SealSizes{Full: s.opts.SealBytes, Turns: 256, Large: min(7*s.opts.SealBytes, MaxSeal*5/4), Most: MaxSeal * 7 / 5}
	s.ctx, s.cancel = context.WithCancel(engine.ForMaintenance(context.Background()))
	s.sealing = history.NewSealQueue(s.ctx, shares.Seal)
	return s, nil
}

// openNamespace opens the namespace, or creates it, in e or in the database that it has moved to.
func (s *Store) openNamespace(ctx context.Context, e engine.Engine) error {
	o := &s.opts
	of := moving.Namespace{Name: o.Namespace, Known: *o.formats, Open: o.Database}
	watched := func(e engine.Engine) engine.Engine {
		if o.Observer == nil {
			return e
		}
		return observe(e, o.Observer)
	}
	for at := e; ; {
		record, err := session.OpenNamespace(ctx, watched(at), session.Namespace{
			Name: o.Namespace, MustExist: o.MustExist, Upgrade: o.Upgrade, Known: *o.formats, Random: s.random,
		})
		if errors.Is(err, engine.ErrMoved) && o.Database != nil {
			if at, err = moving.Follow(ctx, at, of); err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		m := moving.New(at, of, record)
		s.record, s.engine, s.notifier = record, watched(m), m
		return nil
	}
}

// ID returns what the store is called by itself: 32 digits, random, the same for all who open it, and for copies of it.
func (s *Store) ID() string {
	if _, err := s.usable(context.Background()); err != nil {
		return ""
	}
	return hex.EncodeToString(s.record.ID[:])
}

// Close ends the store's background work and waits for it. The engine stays
// open, and so handles go on working until it is closed.
func (s *Store) Close() error {
	if _, err := s.usable(context.Background()); err != nil {
		return err
	}
	s.closing.Lock()
	s.cancel()
	s.closing.Unlock()
	s.sealing.Wait()
	s.background.Wait()
	s.histories.Clear()
	s.commits.Bases.Clear()
	s.commits.Recent.Clear()
	s.commits.Met.Clear()
	return nil
}

// run runs f in the background, and Close waits for it. It reports false if the store is closed.
func (s *Store) run(f func()) bool {
	s.closing.Lock()
	defer s.closing.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.background.Go(f)
	return true
}

// random fills b.
func (s *Store) random(b []byte) {
	if _, err := io.ReadFull(s.opts.Random, b); err != nil {
		panic(fmt.Sprintf("turnstone: Options.Random failed: %v", err))
	}
}

// now is the time that records get: whole nanoseconds, UTC, no monotonic clock.
func (s *Store) now() time.Time { return time.Unix(0, s.opts.Now().UnixNano()).UTC() }

// A Request asks for a new session.
type Request struct {
	ID string `json:"id"` // the caller's; unique in the namespace
	head.Metadata
	// Summary says that the session summarises others, for hosts that keep such sessions apart.
	Summary bool `json:"summary,omitzero"`
	// Parent is the id of the session that this one belongs to or forks from.
	// It must exist. When it is deleted and its children are kept, they have no
	// parent any more.
	Parent string `json:"parent,omitempty"`
	// ForkNode is the node of Parent at which to fork; zero is its leaf. An
	// attached fork's checkpoint is that of the last retained turn that ended at
	// the node. If no turn ended there, it is the checkpoint before the turn that made the node. If that checkpoint is
	// not retained any more, the error is ErrRevisionPruned.
	ForkNode graph.ID `json:"forkNode,omitzero"`
	// ForkAt, if set, is the revision of Parent to fork at: an attached fork has the checkpoint of that
	// revision and, if ForkNode is zero, begins at the leaf that it had. RevisionZero is the state before the
	// first commit.
	ForkAt head.Revision `json:"forkAt,omitzero"`
	// NoCheckpoint makes an attached fork begin without a checkpoint, also where the checkpoint is not retained any more.
	NoCheckpoint bool `json:"noCheckpoint,omitzero"`
	// Detached sessions record parent and fork node and start empty. Without
	// it a session with a parent is an attached fork: it shares the ancestors of
	// the fork node, and keeps them alive when the parent is deleted.
	Detached bool `json:"detached,omitzero"`
}

// Create makes the session that r describes. If one of that id exists, nothing
// changes, and it is returned with created = false. An error that matches
// ErrOutcomeUnknown leaves open whether the session was made; after any other error
// it was not. Store.CommitAll makes a session with its first commit in one step.
func (s *Store) Create(ctx context.Context, r Request) (session *Session, created bool, err error) {
	session, err = observed(ctx, s, OpCreate, r.ID, func(ctx context.Context) (*Session, error) {
		session, created, err = s.createOrFind(ctx, r)
		return session, err
	}, nil)
	return session, created, err
}

func (s *Store) createOrFind(ctx context.Context, r Request) (session *Session, created bool, err error) {
	request, err := r.request()
	if err != nil {
		return nil, false, err
	}
	h, st, created, err := s.lifecycle.Create(ctx, request)
	s.changed(head.Incarnation{})
	if err != nil {
		return nil, false, err
	}
	return s.handle(h, st), created, nil
}

// request returns what r asks for, or an error if that is invalid.
func (r *Request) request() (*commit.CreateRequest, error) {
	metadata, err := CheckMetadata(r.Metadata)
	if err := errors.Join(checkSessionID(r.ID), err); err != nil {
		return nil, err
	}
	if r.Parent == r.ID {
		return nil, invalid("request", "a session can't be its own parent")
	}
	if r.Parent == "" && (r.Detached || !r.ForkNode.IsZero() || r.ForkAt != 0 || r.NoCheckpoint) {
		return nil, invalid("request", "fork without a parent")
	}
	if err := checkRevision("request", "ForkAt", r.ForkAt); err != nil {
		return nil, err
	}
	if r.NoCheckpoint && (r.Detached || r.ForkAt != 0 && !r.ForkNode.IsZero()) {
		return nil, invalid("request", "NoCheckpoint is for an attached fork, and goes without ForkAt if ForkNode is set")
	}
	if r.Parent != "" {
		if err := checkSessionID(r.Parent); err != nil {
			return nil, fmt.Errorf("parent: %w", err)
		}
	}
	return &commit.CreateRequest{
		About:  head.About{ID: r.ID, Metadata: metadata, Detached: r.Detached, Summary: r.Summary},
		Parent: r.Parent, ForkNode: r.ForkNode, ForkAt: revisionAt(r.ForkAt), NoCheckpoint: r.NoCheckpoint,
	}, nil
}

// ListOptions says which sessions List returns. The zero value means the first
// page of all.
type ListOptions struct {
	// After is Page.Next of the page before.
	After string `json:"after,omitempty"`
	// Limit is the number of sessions of a page; default 50, at most MaxPage.
	Limit int `json:"limit,omitzero"`
	// Parent keeps the children of this session only, which must exist.
	Parent string `json:"parent,omitempty"`
	// Group keeps sessions of this group and of the groups below it.
	Group string `json:"group,omitempty"`
	// Labels keeps sessions that have all of these.
	Labels map[string]string `json:"labels,omitempty"`
	// Summary, if set, keeps only sessions that are summaries, or only those that are not.
	Summary *bool `json:"summary,omitempty"`
}

// A Page is a part of a list.
type Page struct {
	Sessions []Info `json:"sessions"`
	Next     string `json:"next,omitempty"` // ListOptions.After of the next page; "" on the last one
}

// List returns sessions, the one with the latest Info.Updated first. Going through all pages shows no
// session twice and misses none that was neither updated nor deleted meanwhile. Of several conditions, List reads the
// sessions of one (the parent, else the group, else the first indexed label by name) and leaves out those that do not
// meet the others.
func (s *Store) List(ctx context.Context, o ListOptions) (Page, error) {
	return observed(ctx, s, OpList, "", func(ctx context.Context) (Page, error) { return s.list(ctx, o) },
		func(p Page, out *Outcome) { out.Items = len(p.Sessions) })
}

func (s *Store) list(ctx context.Context, o ListOptions) (Page, error) {
	o.Limit = cmp.Or(o.Limit, 50)
	c := checker{of: "list"}
	c.positive("Limit", int64(o.Limit))
	c.limit("sessions of a page", o.Limit, MaxPage)
	c.group(o.Group)
	if c.err != nil {
		return Page{}, c.err
	}
	q := session.ListQuery{After: o.After, Limit: o.Limit, Group: o.Group, Labels: o.Labels, Summary: o.Summary}
	if o.Parent != "" {
		parent, err := s.Session(ctx, o.Parent)
		if err != nil {
			return Page{}, err
		}
		q.Parent = &parent.session.Inc
	}
	p, err := session.List(ctx, s.histories, q)
	if err != nil {
		return Page{}, err
	}
	out := Page{Sessions: make([]Info, len(p.Items)), Next: p.Next}
	for i, item := range p.Items {
		out.Sessions[i] = info(item.About, item.Head)
		out.Sessions[i].Parent = item.Parent
	}
	return out, nil
}

// Stats says what a namespace holds and what that takes. Stored bytes are those
// of keys and values as the engine is given them; what it makes of them on disk
// is up to the engine.
type Stats struct {
	Format      uint64       `json:"format"` // of the layout: docs/format.md has a table
	Sessions    int          `json:"sessions"`
	Commits     int          `json:"commits"`
	Nodes       uint64       `json:"nodes"`
	Payload     uint64       `json:"payload"`     // logical: the sum of all payloads, as often as they were committed
	Checkpoints uint64       `json:"checkpoints"` // logical: the sum of all versions of all checkpoint parts
	Usage       []head.Usage `json:"usage,omitempty"`

	Stored  engine.Size            `json:"stored"` // all records
	ByKind  map[string]engine.Size `json:"byKind"` // the same, by what they hold
	Blobs   int                    `json:"blobs"`
	Sealed  int                    `json:"sealed"`  // segments that were sealed
	Loose   int                    `json:"loose"`   // commits that are in no segment yet
	Deleted int                    `json:"deleted"` // deleted sessions whose data is not reclaimed yet

	Scrubbed time.Time `json:"scrubbed,omitzero"` // when the last complete pass of Scrub began; zero before that
	Spoilt   uint64    `json:"spoilt,omitzero"`   // how many problems it found
	// Maintenance has the last run of each other operation: see NoteMaintenance. A note that can't be read counts as none.
	Maintenance []head.Maintenance `json:"maintenance,omitempty"`
}

// Stats reads the whole namespace once.
func (s *Store) Stats(ctx context.Context) (*Stats, error) {
	if _, err := s.usable(ctx); err != nil {
		return nil, err
	}
	r, err := session.Gather(ctx, s.histories)
	if err != nil {
		return nil, err
	}
	now, err := s.namespace(ctx, false)
	if err != nil {
		return nil, public(err)
	}
	scrubbed, err := verify.Scrubbed(ctx, s.histories)
	if err != nil {
		return nil, err
	}
	if r.Maintenance, err = s.maintained(ctx); err != nil {
		return nil, err
	}
	r.Format, r.Scrubbed, r.Spoilt = now.Format, scrubbed.LastBegan, scrubbed.LastFound
	return (*Stats)(r), nil
}

// namespace reads the store record, after it has raised the format if upgrade is set.
func (s *Store) namespace(ctx context.Context, upgrade bool) (head.Store, error) {
	return session.OpenNamespace(ctx, s.engine, session.Namespace{Name: s.opts.Namespace, MustExist: true, Upgrade: upgrade, Known: *s.opts.formats})
}

// Upgraded says what Upgrade did.
type Upgraded struct {
	From uint64 `json:"from"` // the format before
	To   uint64 `json:"to"`   // and now
}

// Upgrade raises the format of the store to the newest one that this version of Turnstone writes, as Options.Upgrade
// does. Older versions can't open the store any more then, and there is no way back.
func (s *Store) Upgrade(ctx context.Context) (*Upgraded, error) {
	if _, err := s.usable(ctx); err != nil {
		return nil, err
	}
	before, err := s.namespace(ctx, false)
	if err != nil {
		return nil, public(err)
	}
	after, err := s.namespace(ctx, true)
	if err != nil {
		return nil, public(err)
	}
	if after.Format != s.opts.formats.Newest {
		return nil, fmt.Errorf("%w: namespace %q is being moved to database %q: raise its format afterwards", ErrConflict, s.opts.Namespace, after.Move.To)
	}
	return &Upgraded{before.Format, after.Format}, nil
}

func init() {
	inside := &commit.Inside
	inside.Histories = func(store any) history.Store {
		s := store.(*Store)
		return history.Store{Reader: history.Reader{Engine: s.engine, Space: s.space}, Blobs: s.blobs}
	}
	inside.Opened = func(session any) *history.Session { return session.(*Session).session }
	inside.Seal = func(ctx context.Context, session any) error { return session.(*Session).seal(ctx, false) }
	inside.SetLimits = func(store any, l commit.LifecycleLimits) { store.(*Store).lifecycle.Limits = l }
	inside.SetFormats = func(options any, oldest, newest uint64) {
		options.(*Options).formats = &head.Formats{Oldest: oldest, Newest: newest}
	}
}
