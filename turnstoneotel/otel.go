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
//	turnstone.checkpoint.bases       {part}      counter; turnstone.hit: whether a part could be stored as a delta
//	turnstone.gc.deleted             {blob}      counter
//	turnstone.gc.reclaimed           By          counter
//	turnstone.vacuum.removed         {record}    counter
//
// All have db.system.name = turnstone. error.type is turnstone.ErrorType; nothing
// in a metric names a session. Spans do, as gen_ai.conversation.id.
package turnstoneotel

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/turnstonedb/turnstone"
)

const scope = "github.com/turnstonedb/turnstone/turnstoneotel"

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
	m := meters.Meter(scope)
	ob := &observer{tracer: tracers.Tracer(scope), engineSpans: o.EngineSpans}
	var failed []error
	// From what memory takes to what a vacuum takes.
	bounds := metric.WithExplicitBucketBoundaries(0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5, 10, 60)
	for _, h := range []struct {
		to         *metric.Float64Histogram
		name, what string
	}{
		{&ob.duration, "db.client.operation.duration", "Duration of the operations of the store"},
		{&ob.engineDuration, "turnstone.engine.duration", "Duration of the operations of the storage engine"},
	} {
		var err error
		*h.to, err = m.Float64Histogram(h.name, metric.WithUnit("s"), metric.WithDescription(h.what), bounds)
		failed = append(failed, err)
	}
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
	if err := errors.Join(failed...); err != nil {
		return nil, err
	}
	return ob, nil
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

func (ob *observer) measure(ctx context.Context, op turnstone.Operation, ofEngine bool, took time.Duration, o *turnstone.Outcome) {
	name := attribute.String("db.operation.name", op.Name)
	attrs := []attribute.KeyValue{system, name}
	if o.Err != nil {
		attrs = append(attrs, attribute.String("error.type", turnstone.ErrorType(o.Err)))
	}
	with := metric.WithAttributeSet(attribute.NewSet(attrs...))
	if ofEngine {
		ob.engineDuration.Record(ctx, took.Seconds(), with)
		ob.engineIO.Add(ctx, o.Bytes, metric.WithAttributes(system, name))
		return
	}
	ob.duration.Record(ctx, took.Seconds(), with)
	all := metric.WithAttributes(system)
	switch op.Name {
	case turnstone.OpCommit:
		ob.nodes.Add(ctx, int64(o.Items), all)
		ob.written.Add(ctx, o.Bytes, all)
		if o.Replayed {
			ob.replays.Add(ctx, 1, all)
		}
		if errors.Is(o.Err, turnstone.ErrConflict) {
			ob.conflicts.Add(ctx, 1, all)
		}
		for _, b := range []struct {
			hit bool
			n   int
		}{{true, o.BaseHits}, {false, o.BaseMisses}} {
			if b.n > 0 {
				ob.bases.Add(ctx, int64(b.n), metric.WithAttributes(system, attribute.Bool("turnstone.hit", b.hit)))
			}
		}
	case turnstone.OpLoad, turnstone.OpNode:
		ob.readNodes.Add(ctx, int64(o.Items), all)
		ob.readIO.Add(ctx, o.Bytes, metric.WithAttributes(system, name))
	case turnstone.OpCheckpoint, turnstone.OpReadAttachment:
		ob.readIO.Add(ctx, o.Bytes, metric.WithAttributes(system, name))
	case turnstone.OpGC:
		if o.GC != nil {
			ob.deleted.Add(ctx, int64(o.GC.Deleted), all)
			ob.freed.Add(ctx, int64(o.GC.Bytes), all)
		}
	case turnstone.OpVacuum:
		if o.Vacuum != nil {
			ob.deleted.Add(ctx, int64(o.Vacuum.Deleted), all)
			ob.freed.Add(ctx, int64(o.Vacuum.Bytes), all)
			ob.vacuumed.Add(ctx, int64(o.Vacuum.Records), all)
		}
	}
}

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
		kind := turnstone.ErrorType(o.Err)
		span.SetAttributes(attribute.String("error.type", kind))
		span.SetStatus(codes.Error, kind) // the text of an error may name files and sessions
	}
	span.End()
}
