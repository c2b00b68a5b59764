package turnstone

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/internal/commit"
)

// An Observer is told what a store does, for metrics, traces and logs. Package
// turnstoneotel, which is a module of its own, is one that speaks OpenTelemetry.
// Methods are called from the goroutine of the operation, and so must be fast
// and safe for concurrent use. Nothing that an observer is told contains
// payloads or checkpoints.
type Observer interface {
	// Begin is called when an operation begins. The operation goes on with the
	// context that is returned, so that a span in it is the parent of those of
	// the operations within. End, if not nil, is called once, when it is over.
	Begin(ctx context.Context, o Operation) (_ context.Context, end func(Outcome))
}

// An Operation is something that a store does. What reads or writes metadata
// only (Session, Info, SaveMetadata, Rename, Keep, Log, Watch, Stats) is seen in the
// operations of the engine.
type Operation struct {
	Name    string // one of those below
	Session string // the id; "" if it is of the store, or of its engine
}

// Names of operations.
const (
	OpCreate         = "create"
	OpCommit         = "commit"
	OpCommitAll      = "commit_all"
	OpLoad           = "load"
	OpNode           = "node" // by id or key
	OpCheckpoint     = "checkpoint"
	OpList           = "list"
	OpRecords        = "records"
	OpChangeRecords  = "change_records"
	OpTombstone      = "tombstone"
	OpPutAttachment  = "put_attachment"
	OpReadAttachment = "read_attachment"
	OpBundle         = "bundle"
	OpUnbundle       = "unbundle"
	OpStandings      = "standings"
	OpSeal           = "seal"
	OpDelete         = "delete"
	OpVerify         = "verify"
	OpScrub          = "scrub"
	OpPrune          = "prune"
	OpGC             = "gc"
	OpVacuum         = "vacuum"
	OpEngineGet      = "engine.get"
	OpEngineScan     = "engine.scan"
	OpEngineApply    = "engine.apply"
)

// An Outcome says how an operation went. What does not apply is zero.
type Outcome struct {
	Err error
	// Items are the nodes that were added or read, the sessions of a list, records, the
	// problems that a verification found, or the keys of an engine's operation.
	Items int
	// Bytes are those of payloads, attachments or checkpoint parts that were
	// written or read; of an engine's operation, of keys and values.
	Bytes int64
	// Replayed: the turn had been committed before.
	Replayed bool
	// BaseHits and BaseMisses count the checkpoint parts of a commit whose last
	// version was in memory, and was not: those are stored whole. See Options.Memory.
	BaseHits, BaseMisses int
	GC                   *gc.Report       // of OpGC, when it succeeded and was no dry run
	Vacuum               *gc.VacuumReport // of OpVacuum, when it succeeded
	Scrub                *ScrubReport     // of OpScrub, when it succeeded
}

var engineOps = [...]string{engine.OpGet: OpEngineGet, engine.OpScan: OpEngineScan, engine.OpApply: OpEngineApply}

// observe returns e as the observer sees it.
func observe(e engine.Engine, o Observer) engine.Engine {
	return &engine.Observed{Engine: e, Begin: func(ctx context.Context, op engine.Op) (context.Context, func(engine.OpOutcome)) {
		ctx, end := o.Begin(ctx, Operation{Name: engineOps[op]})
		if end == nil {
			return ctx, nil
		}
		return ctx, func(out engine.OpOutcome) { end(Outcome{Err: out.Err, Items: out.Keys, Bytes: out.Bytes}) }
	}}
}

// begin tells the observer, if there is one. Without one end is nil.
func (s *Store) begin(ctx context.Context, name, session string) (_ context.Context, end func(Outcome)) {
	if s.opts.Observer == nil {
		return ctx, nil
	}
	return s.opts.Observer.Begin(ctx, Operation{Name: name, Session: session})
}

// observed calls f and tells the observer of it. If tell is not nil, it adds to the outcome
// what the result says. A typed error of f gets its public type.
func observed[T any](ctx context.Context, on callee, name, session string, f func(context.Context) (T, error), tell func(T, *Outcome)) (T, error) {
	s, err := on.usable(ctx)
	if err != nil {
		var none T
		return none, err
	}
	switch name {
	case OpGC, OpVacuum, OpVerify, OpScrub, OpPrune:
		ctx = engine.ForMaintenance(ctx)
	}
	ctx, end := s.begin(ctx, name, session)
	if end == nil {
		out, err := f(ctx)
		return out, public(err)
	}
	o := Outcome{Err: errPanicked}
	defer func() { end(o) }()
	out, err := f(ctx)
	if o.Err = public(err); err == nil && tell != nil {
		tell(out, &o)
	}
	return out, o.Err
}

// errPanicked is the outcome of an operation in which the caller's own code panicked.
var errPanicked = errors.New("turnstone: panic")

// outcomeOf returns the outcome of a commit.
func outcomeOf(c *Commit, r *Result, stats *commit.Stats, err error) Outcome {
	o := Outcome{Err: err, Replayed: r.Replayed, BaseHits: stats.Hits, BaseMisses: stats.Misses}
	if err == nil && !r.Replayed {
		o.Items = len(r.Nodes)
		for i := range c.Nodes {
			o.Bytes += int64(len(c.Nodes[i].Payload))
		}
		for _, content := range c.Checkpoint {
			o.Bytes += int64(len(content))
		}
	}
	return o
}

func tellNodes(nodes []Node, o *Outcome) {
	o.Items = len(nodes)
	for i := range nodes {
		o.Bytes += int64(len(nodes[i].Payload))
	}
}

// LogObserver logs operations with their duration. It logs a success at debug level. It
// logs an error that a caller caused (a conflict, a refused request, a cancelled context)
// at info, and any other failure at warn. Operations of the engine are left out. A nil
// logger logs nothing.
func LogObserver(l *slog.Logger) Observer {
	if l == nil {
		l = slog.New(slog.DiscardHandler)
	}
	return logObserver{l}
}

type logObserver struct{ log *slog.Logger }

func (l logObserver) Begin(ctx context.Context, op Operation) (context.Context, func(Outcome)) {
	switch op.Name {
	case OpEngineGet, OpEngineScan, OpEngineApply:
		return ctx, nil
	}
	start := time.Now()
	return ctx, func(o Outcome) {
		level := slog.LevelDebug
		attrs := []slog.Attr{slog.String("operation", op.Name), slog.Duration("duration", time.Since(start))}
		add := func(name string, n int64) {
			if n != 0 {
				attrs = append(attrs, slog.Int64(name, n))
			}
		}
		if op.Session != "" {
			attrs = append(attrs, slog.String("session", op.Session))
		}
		add("items", int64(o.Items))
		add("bytes", o.Bytes)
		if o.Replayed {
			attrs = append(attrs, slog.Bool("replayed", true))
		}
		if g := o.GC; g != nil {
			add("deleted", int64(g.Deleted))
			add("deleted_bytes", int64(g.Bytes))
		}
		if v := o.Vacuum; v != nil {
			add("nodes", int64(v.Nodes))
			add("records", int64(v.Records))
			add("deleted", int64(v.Deleted))
		}
		if o.Err != nil {
			level = slog.LevelWarn
			kind := KindOf(o.Err)
			if kind.Status < 500 && kind.Name != "read-only" || kind.Name == "canceled" || kind.Name == "timeout" {
				level = slog.LevelInfo
			}
			attrs = append(attrs, slog.String("error_type", kind.Name), slog.Any("error", o.Err))
		}
		l.log.LogAttrs(ctx, level, "turnstone", attrs...)
	}
}
