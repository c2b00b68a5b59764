// Package turnstoneotel reports what a store does to OpenTelemetry: metrics and
// traces, named after its semantic conventions for database clients.
//
// The package is a module of its own: a host that does not import it is free to
// require any version of OpenTelemetry.
//
//	observer, err := turnstoneotel.New(nil) // the global providers
//	store, err := turnstone.Open(ctx, eng, &turnstone.Options{Observer: observer})
//
// Metrics, with their units:
//
//	db.client.operation.duration     s           histogram; db.operation.name, error.type
//	turnstone.engine.duration        s           histogram; db.operation.name, error.type
//	turnstone.engine.io              By          counter; db.operation.name
//	turnstone.commit.nodes           {node}      counter
//	turnstone.commit.io              By          counter: payloads and checkpoint parts, before compression
//	turnstone.commit.replays         {commit}    counter: turns that had been committed before
//	turnstone.commit.conflicts       {commit}    counter: commits that lost the compare-and-swap
//	turnstone.read.nodes             {node}      counter
//	turnstone.read.io                By          counter; db.operation.name
//	turnstone.checkpoint.bases       {part}      counter; turnstone.hit: whether a part's last version was in memory
//	turnstone.gc.deleted             {blob}      counter
//	turnstone.gc.reclaimed           By          counter
//	turnstone.vacuum.removed         {record}    counter
//	turnstone.scrub.age              s           gauge: since the last complete scrub began; none before that, and of one store for each observer
//
// All have db.system.name = turnstone. error.type is turnstone.KindOf; nothing
// in a metric names a session. Spans do, as gen_ai.conversation.id.
package turnstoneotel

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/turnstonedb/turnstone"
)

const scope = "github.com/turnstonedb/turnstone/adapters/turnstoneotel"

// Options of New. Nil and the zero value mean the defaults.
type Options struct {
	// MeterProvider and TracerProvider; default the global ones.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
	// EngineSpans makes spans of the engine's operations as well: several for
	// each of the store's.
	EngineSpans bool
}

var system = attribute.String("db.system.name", "turnstone")

type observer struct {
	tracer      trace.Tracer
	engineSpans bool

	duration, engineDuration                           metric.Float64Histogram
	engineIO, nodes, written, replays, conflicts       metric.Int64Counter
	readNodes, readIO, bases, deleted, freed, vacuumed metric.Int64Counter

	scrubbed atomic.Int64 // when the last complete scrub began, in nanoseconds since 1970; 0 if that is not known
}

// New returns an observer for turnstone.Options.
func New(o *Options) (turnstone.Observer, error) {
	if o == nil {
		o = &Options{}
	}
	meters, tracers := o.MeterProvider, o.TracerProvider
	if meters == nil {
		meters = otel.GetMeterProvider()
	}
	if tracers == nil {
		tracers = otel.GetTracerProvider()
	}
	ob := &observer{tracer: tracers.Tracer(scope), engineSpans: o.EngineSpans}
	m := meters.Meter(scope)
	if err := errors.Join(ob.makeHistograms(m), ob.makeCounters(m), ob.makeGauge(m)); err != nil {
		return nil, err
	}
	return ob, nil
}

// makeHistograms makes the histograms of durations. Their buckets reach from what an engine in
// memory takes to what a vacuum takes.
func (ob *observer) makeHistograms(m metric.Meter) error {
	bounds := metric.WithExplicitBucketBoundaries(0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 10, 60)
	var store, engine error
	ob.duration, store = m.Float64Histogram("db.client.operation.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of the operations of the store"), bounds)
	ob.engineDuration, engine = m.Float64Histogram("turnstone.engine.duration", metric.WithUnit("s"),
		metric.WithDescription("Duration of the operations of the storage engine"), bounds)
	return errors.Join(store, engine)
}

// makeCounters makes the counters.
func (ob *observer) makeCounters(m metric.Meter) error {
	var failed []error
	for _, c := range []struct {
		to               *metric.Int64Counter
		name, unit, what string
	}{
		{&ob.engineIO, "turnstone.engine.io", "By", "Keys and values read from and written to the storage engine"},
		{&ob.nodes, "turnstone.commit.nodes", "{node}", "Nodes committed"},
		{&ob.written, "turnstone.commit.io", "By", "Payloads and checkpoint parts committed, before compression"},
		{&ob.replays, "turnstone.commit.replays", "{commit}", "Turns that had been committed before"},
		{&ob.conflicts, "turnstone.commit.conflicts", "{commit}", "Commits that lost the compare-and-swap"},
		{&ob.readNodes, "turnstone.read.nodes", "{node}", "Nodes read"},
		{&ob.readIO, "turnstone.read.io", "By", "Payloads, attachments and checkpoint parts read"},
		{&ob.bases, "turnstone.checkpoint.bases", "{part}", "Checkpoint parts committed, by whether their last version was at hand"},
		{&ob.deleted, "turnstone.gc.deleted", "{blob}", "Blobs deleted by garbage collection"},
		{&ob.freed, "turnstone.gc.reclaimed", "By", "Bytes of blobs deleted by garbage collection"},
		{&ob.vacuumed, "turnstone.vacuum.removed", "{record}", "Records removed by vacuum"},
	} {
		var err error
		*c.to, err = m.Int64Counter(c.name, metric.WithUnit(c.unit), metric.WithDescription(c.what))
		failed = append(failed, err)
	}
	return errors.Join(failed...)
}

// makeGauge makes the gauge of the age of the last scrub.
func (ob *observer) makeGauge(m metric.Meter) error {
	_, err := m.Float64ObservableGauge("turnstone.scrub.age", metric.WithUnit("s"), metric.WithDescription("Time since the last complete scrub began"),
		metric.WithFloat64Callback(func(_ context.Context, to metric.Float64Observer) error {
			if at := ob.scrubbed.Load(); at != 0 {
				to.Observe(time.Since(time.Unix(0, at)).Seconds(), metric.WithAttributes(system))
			}
			return nil
		}))
	return err
}

// Begin implements turnstone.Observer.
func (ob *observer) Begin(ctx context.Context, op turnstone.Operation) (context.Context, func(turnstone.Outcome)) {
	ofEngine := op.Name == turnstone.OpEngineGet || op.Name == turnstone.OpEngineScan || op.Name == turnstone.OpEngineApply
	start := time.Now()
	var span trace.Span
	if !ofEngine || ob.engineSpans {
		attrs := []attribute.KeyValue{system, attribute.String("db.operation.name", op.Name)}
		if op.Session != "" {
			attrs = append(attrs, attribute.String("gen_ai.conversation.id", op.Session))
		}
		ctx, span = ob.tracer.Start(ctx, "turnstone."+op.Name, trace.WithSpanKind(trace.SpanKindInternal), trace.WithTimestamp(start), trace.WithAttributes(attrs...))
	}
	return ctx, func(o turnstone.Outcome) {
		ob.measure(ctx, op, ofEngine, time.Since(start), &o)
		if span != nil {
			finish(span, &o)
		}
	}
}

// measure records an operation and how it went.
func (ob *observer) measure(ctx context.Context, op turnstone.Operation, ofEngine bool, took time.Duration, o *turnstone.Outcome) {
	name := attribute.String("db.operation.name", op.Name)
	attrs := []attribute.KeyValue{system, name}
	if o.Err != nil {
		attrs = append(attrs, attribute.String("error.type", turnstone.KindOf(o.Err).Name))
	}
	with, named := metric.WithAttributeSet(attribute.NewSet(attrs...)), metric.WithAttributes(system, name)
	if ofEngine {
		ob.engineDuration.Record(ctx, took.Seconds(), with)
		ob.engineIO.Add(ctx, o.Bytes, named)
		return
	}
	ob.duration.Record(ctx, took.Seconds(), with)
	switch op.Name {
	case turnstone.OpCommit, turnstone.OpCommitAll:
		ob.measureCommit(ctx, o)
	case turnstone.OpLoad, turnstone.OpNode:
		ob.readNodes.Add(ctx, int64(o.Items), metric.WithAttributes(system))
		ob.readIO.Add(ctx, o.Bytes, named)
	case turnstone.OpCheckpoint, turnstone.OpReadAttachment, turnstone.OpRecords:
		ob.readIO.Add(ctx, o.Bytes, named)
	case turnstone.OpGC, turnstone.OpVacuum:
		ob.measureReclaimed(ctx, o)
	case turnstone.OpScrub:
		if s := o.Scrub; s != nil && !s.LastBegan.IsZero() {
			ob.scrubbed.Store(s.LastBegan.UnixNano())
		}
	}
}

// measureCommit records what a commit wrote.
func (ob *observer) measureCommit(ctx context.Context, o *turnstone.Outcome) {
	all := metric.WithAttributes(system)
	ob.nodes.Add(ctx, int64(o.Items), all)
	ob.written.Add(ctx, o.Bytes, all)
	if o.Replayed {
		ob.replays.Add(ctx, 1, all)
	}
	if errors.Is(o.Err, turnstone.ErrConflict) || errors.Is(o.Err, turnstone.ErrRecordConflict) {
		ob.conflicts.Add(ctx, 1, all)
	}
	ob.addBases(ctx, true, o.BaseHits)
	ob.addBases(ctx, false, o.BaseMisses)
}

// addBases counts n checkpoint parts by whether their last version was at hand.
func (ob *observer) addBases(ctx context.Context, hit bool, n int) {
	if n > 0 {
		ob.bases.Add(ctx, int64(n), metric.WithAttributes(system, attribute.Bool("turnstone.hit", hit)))
	}
}

// measureReclaimed records what a collection or vacuum deleted.
func (ob *observer) measureReclaimed(ctx context.Context, o *turnstone.Outcome) {
	all := metric.WithAttributes(system)
	if g := o.GC; g != nil {
		ob.deleted.Add(ctx, int64(g.Deleted), all)
		ob.freed.Add(ctx, g.Bytes, all)
	}
	if v := o.Vacuum; v != nil {
		ob.deleted.Add(ctx, int64(v.Deleted), all)
		ob.freed.Add(ctx, v.Bytes, all)
		ob.vacuumed.Add(ctx, int64(v.Records), all)
	}
}

// finish ends a span with what is known of the operation.
func finish(span trace.Span, o *turnstone.Outcome) {
	if o.Items > 0 {
		span.SetAttributes(attribute.Int("turnstone.items", o.Items))
	}
	if o.Bytes > 0 {
		span.SetAttributes(attribute.Int64("turnstone.bytes", o.Bytes))
	}
	if o.Replayed {
		span.SetAttributes(attribute.Bool("turnstone.replayed", true))
	}
	if o.Err != nil {
		kind := turnstone.KindOf(o.Err).Name
		span.SetAttributes(attribute.String("error.type", kind))
		span.SetStatus(codes.Error, kind) // the text of an error may name files and sessions
	}
	span.End()
}
