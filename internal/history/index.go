package history

import (
	"context"
	"errors"
	"sync"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/cache"
	"github.com/turnstonedb/turnstone/internal/codec"
)

// An Index finds the nodes and commits of one incarnation as of a revision. What it knows stays
// true, since revisions don't change: a commit that guards the head of that revision needs no guard
// to know that nobody has its event keys or its turn id. It is safe for concurrent use.
type Index struct {
	inc head.Incarnation

	mu       sync.Mutex    // guards the fields below
	revision head.Revision // the last one that the index knows
	runs     []run         // up to their last revision the entries are stored
	loose    looseTable    // the entries of the revisions after that
	counted  int           // how many entries of loose the cache knows of
	most     int           // how many loose entries there may be before somebody else may have sealed much of them
}

// Indexes keeps the indexes of sessions.
type Indexes = cache.Cache[head.Incarnation, *Index]

// NewIndexes returns an empty cache within a budget.
func NewIndexes(b *cache.Budget) *Indexes { return cache.New[head.Incarnation, *Index](b) }

const (
	mostLoose = 8192 // entries: more than what a session gathers until it is sealed
	// mostCounted is what an index counts for at most. So the index of a session that is never sealed
	// is kept as well: to read it at each commit would take ever longer.
	mostCounted = 64 << 10
)

// Index returns the index of an incarnation, which knows the revisions up to last at least. It
// reads only what is new since it was asked for before.
func (r Reader) Index(ctx context.Context, inc head.Incarnation, last head.Revision) (*Index, error) {
	ix, ok := r.Indexes.Get(inc)
	if ok {
		done, grown, err := ix.advance(ctx, r, last)
		if grown {
			ix.keep(r)
		}
		if done || err != nil {
			return ix, err
		}
	}
	ix = &Index{inc: inc}
	if err := ix.read(ctx, r, last); err != nil {
		return nil, err
	}
	ix.keep(r)
	return ix, nil
}

// keep puts the index into the cache, with the size that it has now.
func (ix *Index) keep(r Reader) {
	ix.mu.Lock()
	ix.counted = len(ix.loose.entries)
	size := min(512+looseBytes*ix.counted, mostCounted)
	ix.mu.Unlock()
	r.Indexes.Put(ix.inc, ix, size)
}

// Begin puts the index of a new session into the cache.
func (r Reader) Begin(inc head.Incarnation) {
	r.Indexes.Put(inc, &Index{inc: inc}, 512)
}

// read reads the index anew, up to a revision and to what it knows: the lifecycle record says which
// runs there are, and what is loose is read itself. If that fails, the index stays as it is, since
// others may look something up in it.
func (ix *Index) read(ctx context.Context, r Reader, last head.Revision) error {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	last = max(last, ix.revision)
	for range 3 { // Sealing may go on meanwhile.
		life, err := ix.life(ctx, r)
		if err != nil {
			return err
		}
		next := Index{inc: ix.inc, runs: runsOf(ix.inc, life.Runs), revision: life.Indexed()}
		done, err := next.follow(ctx, r, last)
		if err != nil {
			return err
		}
		if done {
			ix.runs, ix.loose, ix.revision = next.runs, next.loose, next.revision
			return nil
		}
	}
	return codec.Corrupt(damage.ErrMissing, "index of incarnation %x", ix.inc)
}

// life reads the lifecycle record.
func (ix *Index) life(ctx context.Context, r Reader) (*head.Life, error) {
	key := r.Space.Life(ix.inc)
	values, err := r.Engine.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	life, err := head.DecodeLife(key, values[0])
	return life, codec.Corrupt(err, "lifecycle of incarnation %x", ix.inc)
}

// advance adds the entries of new turns up to a revision. done is false if one of these turns was
// sealed meanwhile. grown reports whether the cache has to be told the new size of the index.
func (ix *Index) advance(ctx context.Context, r Reader, last head.Revision) (done, grown bool, err error) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if len(ix.loose.entries) > max(ix.most, mostLoose) {
		life, err := ix.life(ctx, r)
		if err != nil {
			return false, false, err
		}
		ix.sealed(life)
		ix.most = 2 * len(ix.loose.entries)
	}
	done, err = ix.follow(ctx, r, last)
	return done, done && (len(ix.loose.entries) > 2*ix.counted+64 || 2*len(ix.loose.entries)+64 < ix.counted), err
}

// follow adds the entries of the loose segments up to a revision. It reports false if one of the
// turns is sealed.
func (ix *Index) follow(ctx context.Context, r Reader, last head.Revision) (bool, error) {
	if last <= ix.revision {
		return true, nil
	}
	of := Revisions{Inc: ix.inc, Name: turnName(ix.inc), After: ix.revision, Last: last}
	for s, err := range r.Segments(ctx, of) {
		if err != nil {
			return false, err
		}
		if !s.Loose() {
			return false, nil
		}
		ix.add(&s.Turns[0])
	}
	return true, nil
}

// Add adds the entries of a turn, if the index knows all turns before it and not the turn itself.
func (ix *Index) Add(t *Turn) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	if t.Revision == ix.revision+1 {
		ix.add(t)
	}
}

func (ix *Index) add(t *Turn) {
	ix.loose.addTurn(t)
	ix.revision = t.Revision
}

// Sealed tells the index of the runs of a lifecycle record. The entries up to their last revision
// need not be kept in memory any more. A record that is older than the runs of the index has no
// effect: of two who seal, the first can be the last to tell.
func (ix *Index) Sealed(life *head.Life) {
	ix.mu.Lock()
	defer ix.mu.Unlock()
	ix.sealed(life)
}

func (ix *Index) sealed(life *head.Life) {
	if n := len(ix.runs); n > 0 && life.Indexed() < ix.runs[n-1].last {
		return
	}
	if ix.revision < life.Indexed() {
		ix.revision = life.Indexed()
	}
	ix.runs, ix.loose = runsOf(ix.inc, life.Runs), ix.loose.after(uint64(life.Indexed()))
}

// Find returns the positions of the entries of a name, those of the newest revisions first. What
// is there may have another name with the same hash.
func (r Reader) Find(ctx context.Context, ix *Index, name Name) ([]graph.Position, error) {
	for attempt := 0; ; attempt++ {
		out, err := ix.find(ctx, r, name)
		if !errors.Is(err, damage.ErrMissing) || attempt == 3 {
			return out, err
		}
		// Runs were merged meanwhile.
		if err := ix.read(ctx, r, 0); err != nil {
			return nil, err
		}
	}
}

func (ix *Index) find(ctx context.Context, r Reader, name Name) (out []graph.Position, err error) {
	hash := name.loose()
	ix.mu.Lock()
	out = ix.loose.find(hash)
	runs := ix.runs
	ix.mu.Unlock()
	if len(runs) == 0 {
		return out, nil
	}
	stored, err := r.find(ctx, runs, name.Kind, name.stored(r))
	for i := len(stored); i > 0; i-- {
		out = append(out, stored[i-1])
	}
	return out, err
}
