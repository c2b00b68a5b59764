package gc_test

import (
	"context"
	"errors"
	"iter"
	"slices"
	"testing"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// A mutant is an engine that changes the batches or reads of one party, as if the party did not
// keep a rule of the protocol.
type mutant struct {
	name   string
	in     string                     // the scenario that is to find it
	party  func(b *engine.Batch) bool // whose batches; nil: all
	change func(b *engine.Batch)
	blind  bool // the second witness of what changed, the list of all sessions, sees nothing
	stale  bool // reads of what refers to blobs are as before the first condemnation
	far    bool // only schedules with three preemptions find it: tens of thousands are tried, in a long run
}

func letter(key []byte) byte { return key[4] }

func unguard(b *engine.Batch, drop func(engine.Pair) bool) {
	b.Guards = slices.DeleteFunc(b.Guards, drop)
}

// without drops guards on records of a letter.
func without(l byte) func(*engine.Batch) {
	return func(b *engine.Batch) { unguard(b, func(p engine.Pair) bool { return letter(p.Key) == l }) }
}

// marks drops guards on marks of a kind: absent, live or condemned.
func marks(absent, condemned bool) func(*engine.Batch) {
	return func(b *engine.Batch) {
		unguard(b, func(p engine.Pair) bool {
			if letter(p.Key) != keys.Mark || (p.Value == nil) != absent {
				return false
			}
			m, err := blob.DecodeMark(p.Key, p.Value)
			return absent || err == nil && m.Condemned == condemned
		})
	}
}

func writes(b *engine.Batch, l byte) bool {
	return slices.ContainsFunc(b.Sets, func(p engine.Pair) bool { return letter(p.Key) == l })
}

func guards(b *engine.Batch, l byte) bool {
	return slices.ContainsFunc(b.Guards, func(p engine.Pair) bool { return letter(p.Key) == l })
}

func deletes(b *engine.Batch, l byte) bool {
	return slices.ContainsFunc(b.Deletes, func(k []byte) bool { return letter(k) == l })
}

// These tell from the records that a batch writes which party it comes from.
func byCollector(b *engine.Batch) bool { return writes(b, keys.Cycle) }
func byCommit(b *engine.Batch) bool    { return writes(b, keys.Segment) && writes(b, keys.Head) }
func byFork(b *engine.Batch) bool      { return writes(b, keys.Origin) }
func byDelete(b *engine.Batch) bool    { return writes(b, keys.Predecessor) }
func bySeal(b *engine.Batch) bool      { return writes(b, keys.Index) && !byCollector(b) }
func byKeep(b *engine.Batch) bool      { return writes(b, keys.Ref) }
func byStone(b *engine.Batch) bool     { return writes(b, keys.Tombstone) && !byCollector(b) }
func byRecords(b *engine.Batch) bool   { return writes(b, keys.Record) && !writes(b, keys.Head) }
func byPrune(b *engine.Batch) bool {
	return writes(b, keys.Life) && writes(b, keys.Dirty) && b.Ops() == 2
}
func byUpload(b *engine.Batch) bool { return writes(b, keys.Upload) }

func condemns(b *engine.Batch) bool { return byCollector(b) && writes(b, keys.Mark) }
func sweeps(b *engine.Batch) bool   { return byCollector(b) && deletes(b, keys.Mark) }

var mutants = []mutant{
	{name: "a commit does not guard the live mark of a blob that it uses again", in: "two commits share a blob that is garbage", party: byCommit, change: marks(false, false)},
	{name: "a commit does not guard the condemned mark that it revives", far: true, in: "two commits share a blob that is garbage", party: byCommit, change: marks(false, true)},
	{name: "a commit uses a condemned blob without reviving it", in: "two commits share a blob that is garbage", party: byCommit, change: func(b *engine.Batch) {
		for _, g := range b.Guards {
			if m, err := blob.DecodeMark(g.Key, g.Value); letter(g.Key) == keys.Mark && err == nil && m.Condemned {
				b.Sets = slices.DeleteFunc(b.Sets, func(p engine.Pair) bool { return string(p.Key) == string(g.Key) })
			}
		}
	}},
	{name: "a commit leaves no dirty record", in: "two commits share a blob that is garbage", party: byCommit, blind: true, change: func(b *engine.Batch) {
		b.Sets = slices.DeleteFunc(b.Sets, func(p engine.Pair) bool { return letter(p.Key) == keys.Dirty })
	}},
	{name: "the collector does not look again", in: "upload of what expires", stale: true},
	{name: "the collector does not guard marks that it deletes", in: "two commits share a blob that is garbage", party: sweeps, change: without(keys.Mark)},
	{name: "the collector does not guard the cycle record", in: "two collectors and a commit", party: byCollector, change: without(keys.Cycle)},
	{name: "the collector guards neither the dirty record that it removes nor the head", in: "vacuum of tombstoned nodes against a commit", party: byCollector, change: func(b *engine.Batch) {
		without(keys.Dirty)(b)
		without(keys.Head)(b)
	}, blind: true},
	{name: "the collector does not guard the lifecycle", in: "a fork's fork, delete and vacuum", party: byCollector, change: without(keys.Life)},
	{name: "the collector does not guard an upload that expires", far: true, in: "upload of what expires", party: byCollector, change: without(keys.Upload)},
	{name: "a commit that rewinds does not set the lifecycle", in: "vacuum against a commit that rewinds to what it prunes, and a load", party: byCommit, change: func(b *engine.Batch) {
		b.Sets = slices.DeleteFunc(b.Sets, func(p engine.Pair) bool { return letter(p.Key) == keys.Life })
	}},
	{name: "vacuum does not set the lifecycle", in: "vacuum against a commit that rewinds to what it prunes, and a load", party: func(b *engine.Batch) bool { return byCollector(b) && writes(b, keys.Segment) }, change: func(b *engine.Batch) {
		b.Sets = slices.DeleteFunc(b.Sets, func(p engine.Pair) bool { return letter(p.Key) == keys.Life })
	}},
	{name: "an upload does not guard the live mark of what is stored", in: "upload of what expires", party: byUpload, change: marks(false, false)},
	{name: "a fork does not guard the lifecycle of its ancestors", in: "fork, delete and gc", party: byFork, change: without(keys.Life)},
	{name: "a fork does not say that it is dirty", in: "fork, delete and gc", party: byFork, blind: true, change: func(b *engine.Batch) {
		b.Sets = slices.DeleteFunc(b.Sets, func(p engine.Pair) bool { return letter(p.Key) == keys.Dirty })
	}},
	{name: "a deletion does not guard the lifecycle", in: "fork, delete and gc", party: byDelete, change: without(keys.Life)},
	{name: "a deletion does not guard the head", in: "commit, delete and gc", party: byDelete, change: without(keys.Head)},
	{name: "a change of records does not guard the lifecycle", in: "records, delete and vacuum", party: byRecords, change: without(keys.Life)},
	{name: "a vacuum leaves records in the list", in: "records, delete and vacuum", party: byCollector, change: func(b *engine.Batch) {
		b.Deletes = slices.DeleteFunc(slices.Clone(b.Deletes), func(k []byte) bool { return letter(k) == keys.Listing })
	}},
	{name: "a first commit does not guard the lifecycle of its ancestors", in: "a fork with its first commit, delete and vacuum", party: byFork, change: without(keys.Life)},
	{name: "a seal does not guard the lifecycle", in: "seal, load, tombstone and delete", party: bySeal, change: without(keys.Life)},
	{name: "retention does not guard the lifecycle", in: "a revision is kept while it is pruned", party: byPrune, change: without(keys.Life)},
	{name: "keep does not guard the lifecycle", in: "a revision is kept while it is pruned", party: byKeep, change: without(keys.Life)},
	{name: "a tombstone does not guard the lifecycle", in: "seal, load, tombstone and delete", party: byStone, change: without(keys.Life)},
	{name: "a commit that goes on from an older node does not guard the lifecycle", in: "vacuum against a commit that rewinds to what it prunes, and a load", party: byCommit, change: without(keys.Life)},
}

// mutated is the engine of a party, changed by a mutant.
type mutated struct {
	engine.Engine
	m      *mutant
	frozen engine.Engine // what stale reads see
}

func (e *mutated) Apply(ctx context.Context, b *engine.Batch) error {
	c := &engine.Batch{Guards: slices.Clone(b.Guards), Sets: slices.Clone(b.Sets), Deletes: b.Deletes}
	if e.m.change != nil && (e.m.party == nil || e.m.party(c)) {
		e.m.change(c)
	}
	if e.m.stale && condemns(c) && e.frozen == nil {
		e.frozen = memory.New()
		var all engine.Batch
		for p, err := range e.Engine.Scan(ctx, engine.Range{}) {
			if err != nil {
				return err
			}
			all.Sets = append(all.Sets, p)
		}
		if err := e.frozen.Apply(ctx, &all); err != nil {
			return err
		}
	}
	return e.Engine.Apply(ctx, c)
}

func (e *mutated) Scan(ctx context.Context, r engine.Range) iter.Seq2[engine.Pair, error] {
	if e.m.blind && len(r.Start) > 4 && letter(r.Start) == keys.Entry {
		return e.Engine.Scan(ctx, engine.Range{Start: []byte{0}, End: []byte{0, 0}})
	}
	if e.frozen != nil && len(r.Start) > 4 {
		switch letter(r.Start) {
		case keys.Dirty, keys.Entry, keys.Upload:
			return e.frozen.Scan(ctx, r)
		}
	}
	return e.Engine.Scan(ctx, r)
}

// Obligation 2: for each rule that is left out, some schedule fails. The test prints it.
func TestEveryMutantIsFound(t *testing.T) {
	for i := range mutants {
		m := &mutants[i]
		if m.far && !testkit.Long() || i%testkit.Pick(1, 1, 6) != 0 {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			j := slices.IndexFunc(scenarios, func(sc scenario) bool { return sc.name == m.in })
			tried := 0
			for bound := 1; bound <= 3; bound++ {
				x, err := enginetest.Explore(bound, 0, scenarios[j].build(t, func(e engine.Engine) engine.Engine { return &mutated{Engine: e, m: m} }))
				tried += x.Schedules
				var failed *enginetest.ScheduleError
				if errors.As(err, &failed) {
					t.Logf("found after %d schedules with %d preemptions at most, the last one %v: %v", tried, bound, failed.Schedule, failed.Err)
					return
				}
			}
			t.Errorf("%d schedules did not find it", tried)
		})
	}
}
