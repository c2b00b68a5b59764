package turnstone

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/commit"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/lifecycle"
	"github.com/turnstonedb/turnstone/internal/namespace"
	"github.com/turnstonedb/turnstone/internal/seal"
)

// Options of Open. Nil and the zero value mean the defaults.
type Options struct {
	// Namespace separates stores on one engine: equal bytes are kept once per
	// namespace, never across. Default "".
	Namespace string
	// Validator, if set, is asked before every commit; an error refuses it.
	// It must not call the session that commits.
	Validator Validator
	// SealBytes is how much a session gathers, before compression, until its
	// packs are sealed into one segment. Default 192 KiB, at most MaxSeal. Larger
	// compresses better and makes reading one old node slower.
	SealBytes int
	// NoAutoSeal leaves sealing to calls of Seal.
	NoAutoSeal bool
	// CacheBytes bounds the contents of checkpoint parts that are kept so that
	// the next version can be stored as a delta. Default 32 MiB. A part whose
	// last version is not at hand is stored whole.
	CacheBytes int
	// MustExist makes Open fail with ErrStoreNotFound instead of creating the
	// namespace.
	MustExist bool
	// UploadTTL is how long an attachment that no commit refers to yet is kept.
	// Default 24 hours.
	UploadTTL time.Duration
	// TakeOverAfter is how long a collection or vacuum of another process or store may
	// show no progress before one of this store takes it over: the other process was
	// stopped, or has died. Until then they take turns. Default 5 seconds; negative: at
	// once. Taking over is safe at any time: the other one ends with gc.ErrSuperseded.
	TakeOverAfter time.Duration
	// Retention is what Prune and Maintain apply to sessions that have no
	// retention of their own. Default: all revisions are kept.
	Retention Retention
	// Logger reports what happens in the background. Default: none.
	Logger *slog.Logger
	// Observer, if set, is told what the store does. See LogObserver.
	Observer Observer
	// Now is the clock. Default time.Now. Times are for people and for the
	// order of lists; nothing that must be right depends on them.
	Now func() time.Time
	// Random is the source of incarnations, salts and keys, for tests that must
	// be the same every time. Default crypto/rand.Reader. It must not fail. A
	// source that repeats itself makes the content of erased nodes guessable; it
	// gives no two sessions one identity.
	Random io.Reader
}

// A Validator refuses commits that the host considers incomplete, for example a
// tool call without its result. It is given a copy of the commit, payloads included:
// what it changes there has no effect.
type Validator func(ctx context.Context, session string, c *Commit) error

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
	lifecycle *lifecycle.Store
	sealing   *seal.Queue
	ctx       context.Context // ends with the store, and with it what runs in the background
	cancel    context.CancelFunc

	background sync.WaitGroup // of Maintain
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
	s := &Store{engine: e, collecting: make(chan struct{}, 1)}
	if o != nil {
		s.opts = *o
	}
	if s.opts.Observer != nil {
		s.engine = &observedEngine{Engine: e, observer: s.opts.Observer}
	}
	if s.opts.SealBytes == 0 {
		s.opts.SealBytes = 192 << 10
	}
	if s.opts.CacheBytes == 0 {
		s.opts.CacheBytes = 32 << 20
	}
	if s.opts.UploadTTL == 0 {
		s.opts.UploadTTL = 24 * time.Hour
	}
	if s.opts.TakeOverAfter == 0 {
		s.opts.TakeOverAfter = 5 * time.Second
	}
	if s.opts.Random == nil {
		s.opts.Random = rand.Reader
	}
	if s.opts.Now == nil {
		s.opts.Now = time.Now
	}
	c := checker{of: "options"}
	c.text("namespace", s.opts.Namespace, 0, MaxNamespace)
	c.positive("SealBytes", int64(s.opts.SealBytes))
	c.limit("seal bytes", s.opts.SealBytes, MaxSeal)
	c.positive("CacheBytes", int64(s.opts.CacheBytes))
	c.positive("UploadTTL", int64(s.opts.UploadTTL))
	if c.err != nil {
		return nil, c.err
	}
	var err error
	if s.record, err = namespace.Open(ctx, s.engine, s.opts.Namespace, s.opts.MustExist, s.random); err != nil {
		return nil, err
	}
	s.space = keys.New(s.record.Namespace, s.record.Secret)
	s.blobs = blob.New(s.engine, s.space, s.record.Chunks)
	s.histories = history.Store{Engine: s.engine, Space: s.space, Blobs: s.blobs}
	s.commits = &commit.Store{
		Store: s.histories, Inline: s.record.Inline, Bases: commit.NewBases(s.opts.CacheBytes),
		Limits: commit.Limits{Parts: MaxParts, Models: MaxSessionModels, NodeBytes: MaxCommitNodeBytes, Writes: MaxCommitWrites, Bytes: MaxCommitBytes},
		Now:    s.now, Random: s.random, NewUpload: s.newUpload,
	}
	s.lifecycle = &lifecycle.Store{Store: s.commits, Limits: lifecycle.Limits{Ancestors: MaxAncestors, Kept: MaxKept, Labels: MaxLabels}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.sealing = seal.NewQueue(s.ctx)
	return s, nil
}

// Close ends the store's background work and waits for it. The engine stays
// open, and so handles go on working until it is closed.
func (s *Store) Close() error {
	if _, err := s.usable(context.Background()); err != nil {
		return err
	}
	s.cancel()
	s.sealing.Wait()
	s.background.Wait()
	return nil
}

// random fills b.
func (s *Store) random(b []byte) {
	if _, err := io.ReadFull(s.opts.Random, b); err != nil {
		panic(fmt.Sprintf("turnstone: Options.Random failed: %v", err))
	}
}

// now is the time that records get: whole nanoseconds, UTC, no monotonic clock.
func (s *Store) now() time.Time { return time.Unix(0, s.opts.Now().UnixNano()).UTC() }

// Metadata is what a host may say of a session at any time: see
// Session.SaveMetadata. No label has an empty value.
type Metadata struct {
	Name   string // for people
	Model  string
	Cwd    string // working directory
	Labels map[string]string
	// Retention of this session, before the one of Options; 0 is none of its own.
	Retention Retention
}

// A Request asks for a new session.
type Request struct {
	ID string // the caller's; unique in the namespace
	Metadata
	// Checkpoint says that this is a summarisation session.
	Checkpoint bool
	// Parent is the id of the session that this one belongs to or forks from.
	// It must exist. When it is deleted and its children are kept, they have no
	// parent any more.
	Parent string
	// ForkNode is the node of Parent at which to fork; zero is its leaf. An
	// attached fork's checkpoint is that of the last retained turn that ended at
	// the node. If no turn ended there, it is that before the turn which made the
	// node. A checkpoint that is not retained any more is ErrRevisionPruned.
	ForkNode NodeID
	// Detached sessions record parent and fork node and start empty. Without
	// it a session with a parent is an attached fork: it shares the ancestors of
	// the fork node, and keeps them alive when the parent is deleted.
	Detached bool
}

// Create makes the session that r describes. If one of that id exists, nothing
// changes, and it is returned with created = false. An error that matches
// ErrOutcomeUnknown leaves open whether the session was made; after any other error
// it was not.
func (s *Store) Create(ctx context.Context, r Request) (session *Session, created bool, err error) {
	session, err = observed(ctx, s, OpCreate, r.ID, func(ctx context.Context) (*Session, error) {
		session, created, err = s.createOrFind(ctx, r)
		return session, err
	}, nil)
	return session, created, err
}

func (s *Store) createOrFind(ctx context.Context, r Request) (session *Session, created bool, err error) {
	if err := errors.Join(checkSessionID(r.ID), checkMetadata(&r.Metadata)); err != nil {
		return nil, false, err
	}
	if r.Parent == r.ID {
		return nil, false, invalid("request", "a session can't be its own parent")
	}
	if r.Parent == "" && (r.Detached || !r.ForkNode.IsZero()) {
		return nil, false, invalid("request", "fork without a parent")
	}
	if r.Parent != "" {
		if err := checkSessionID(r.Parent); err != nil {
			return nil, false, fmt.Errorf("parent: %w", err)
		}
	}
	h, st, created, err := s.lifecycle.Create(ctx, &lifecycle.Request{
		About: head.About{
			ID: r.ID, Name: r.Name, Model: r.Model, Cwd: r.Cwd, Labels: r.Labels,
			Detached: r.Detached, Checkpoint: r.Checkpoint, Keep: uint64(r.Retention),
		},
		Parent: r.Parent, ForkNode: r.ForkNode,
	})
	if err != nil {
		return nil, false, public(err)
	}
	return s.handle(h, st), created, nil
}
