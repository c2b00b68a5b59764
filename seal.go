package turnstone

import (
	"context"
	"errors"
	"sync"

	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
)

// Sealing puts the packs of a run of commits into one segment: one frame that
// compresses twice as well, one key instead of many. It runs off the commit path
// and excludes tombstones, forks and deletion by the lifecycle record; commits
// go on beside it, as it only touches packs of commits that stand. As it shares
// the processor with them, it compresses fast in the background; who asks for it,
// as Vacuum does, gets segments that are as small as they can be.

// Seal seals what the session has gathered, also when it is little, and compresses
// again what was sealed in the background.
func (s *Session) Seal(ctx context.Context) error { return s.seal(ctx, true) }

// Seal seals what all sessions have gathered.
func (s *Store) Seal(ctx context.Context) error {
	if _, err := s.usable(ctx); err != nil {
		return err
	}
	var failed []error
	for o := (ListOptions{Limit: 1000}); ; {
		page, err := s.List(ctx, o)
		if err != nil {
			return err
		}
		for _, i := range page.Sessions {
			ses, err := s.Session(ctx, i.ID)
			if err == nil {
				err = ses.Seal(ctx)
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil && !errors.Is(err, ErrSessionNotFound) && !errors.Is(err, ErrSessionDeleted) {
				if len(failed) < 10 { // the others can be sealed all the same
					failed = append(failed, err)
				}
			}
		}
		if o.After = page.Next; o.After == "" {
			return errors.Join(failed...)
		}
	}
}

// sealNext is one attempt to seal the next segment of an incarnation, if it lives. It
// reports whether there may be another one. engine.ErrConflict: the session changed
// meanwhile.
func (s *Store) sealNext(ctx context.Context, inc head.Incarnation) (more bool, err error) {
	ses, err := s.byIncarnation(ctx, inc)
	if err != nil || ses == nil {
		return false, err
	}
	more, err = ses.sealOne(ctx, &change{store: s}, true)
	if errors.Is(err, ErrSessionNotFound) || errors.Is(err, ErrSessionDeleted) { // or renamed
		err = engine.ErrConflict
	}
	return more, err
}

// seal makes segments of the packs after the last full one. The rest is sealed
// too if all is set; the next run then takes that up again.
func (s *Session) seal(ctx context.Context, all bool) error {
	_, err := observed(ctx, s, OpSeal, s.ID(), func(ctx context.Context) (struct{}, error) {
		for more := true; more; {
			// A conflict: somebody else has changed the session's lifecycle, and is done.
			err := s.store.settle(ctx, func(c *change) (err error) {
				more, err = s.sealOne(ctx, c, all)
				return err
			})
			if err != nil {
				return struct{}{}, err
			}
		}
		return struct{}{}, nil
	}, nil)
	return err
}

// sealOne seals at most one segment and reports whether there may be another.
func (s *Session) sealOne(ctx context.Context, c *change, all bool) (more bool, err error) {
	sealed := uint64(0) // the raw bytes that are in full segments when this is done
	err = s.alter(ctx, c, func(next *head.Life, b *engine.Batch) (needed bool, err error) {
		more = false
		h, _, err := s.readHead(ctx)
		if err != nil {
			return false, err
		}
		sealed = next.SealedRaw
		level, after := codec.Medium, next.Sealed
		if all {
			level, after = codec.Best, next.Packed
		}
		run, err := s.gather(ctx, after, next.Sealed, h.Revision)
		if err != nil {
			return false, err
		}
		more = run.raw >= uint64(s.store.opts.SealBytes) || run.more
		anew := run.segments > 1 || run.level < level
		if len(run.packs) == 0 || !more && (!all || !anew) {
			more = false
			return false, nil
		}
		if last := Revision(run.packs[len(run.packs)-1].Revision); more {
			if last > next.Sealed {
				next.Sealed, next.SealedRaw = last, next.SealedRaw+run.fresh
			}
			if all {
				next.Packed = last
			}
		}
		sealed = next.SealedRaw
		b.Reclaim = true // a segment takes less than the packs that it replaces
		if anew {
			err = s.replace(b, run, level)
		}
		return true, err
	})
	if err == nil {
		s.sealedRaw.Store(sealed)
	}
	return more, err
}

// replace makes b store run as one segment instead of as it is stored.
func (s *Session) replace(b *engine.Batch, run *run, level codec.Level) error {
	ks, vs, err := graph.EncodeSegment(s.store.space, s.history.Inc, run.packs, run.before, level)
	if err != nil {
		return err
	}
	indexKey, index := graph.SealIndex(s.store.space, s.history.Inc, run.packs)
	ks, vs = append(ks, indexKey), append(vs, index)
	set := map[string]bool{}
	for i := range ks {
		b.Set(ks[i], vs[i])
		set[string(ks[i])] = true
	}
	for _, k := range run.keys {
		if !set[string(k)] {
			b.Delete(k)
		}
	}
	return nil
}

// A run is packs that become one segment.
type run struct {
	packs    []graph.Pack
	keys     [][]byte // that store them now
	before   NodeID   // the last node before them
	raw      uint64
	fresh    uint64      // of raw, what is in no full segment yet
	size     int         // bounds what they take encoded
	segments int         // how many they are now
	level    codec.Level // of the one that is compressed least
	more     bool        // it ends because the next one does not fit
}

// gather reads the packs after a revision, at which a segment ends, until there
// is enough for another one.
func (s *Session) gather(ctx context.Context, after, sealed, last Revision) (*run, error) {
	layers := s.history.Layers(last)
	before, err := s.history.LastBefore(ctx, layers[len(layers)-1], after+1)
	if err != nil {
		return nil, err
	}
	r := &run{before: before, level: codec.Best}
	for seg, err := range graph.Segments(ctx, s.store.engine, s.store.space, s.history.Inc, uint64(after+1), uint64(last)) {
		if err != nil {
			return nil, err
		}
		raw, size := uint64(0), 0
		for i := range seg.Packs {
			if before, err = seg.Packs[i].Resolve(before); err != nil {
				return nil, codec.Corrupt(err, "pack of revision %d of session %q", seg.Packs[i].Revision, s.history.ID)
			}
			raw, size = raw+seg.Packs[i].Raw(), size+seg.Packs[i].Size()
		}
		if r.more = len(r.packs) > 0 && (r.size+size > MaxSeal || len(r.keys) > 6000); r.more {
			break
		}
		r.packs, r.keys = append(r.packs, seg.Packs...), append(r.keys, seg.Keys...)
		end := seg.Packs[len(seg.Packs)-1].Revision
		if seg.Level != codec.Fast {
			r.keys = append(r.keys, s.store.space.Index(s.history.Inc, end))
		}
		r.raw, r.size, r.level = r.raw+raw, r.size+size, min(r.level, seg.Level)
		if Revision(end) > sealed {
			r.fresh += raw
		}
		if r.segments++; r.raw >= uint64(s.store.opts.SealBytes) {
			break
		}
	}
	return r, nil
}

// A sealer seals in the background, one session at a time.
type sealer struct {
	store  *Store
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex // guards queue and queued
	queue  []*Session
	queued map[head.Incarnation]bool
	wake   chan struct{} // of one element: the queue is not empty
}

func newSealer(s *Store) *sealer {
	w := &sealer{store: s, done: make(chan struct{}), queued: map[head.Incarnation]bool{}, wake: make(chan struct{}, 1)}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	go w.run()
	return w
}

func (w *sealer) stop() {
	w.cancel()
	<-w.done
}

// add asks for ses to be sealed, once.
func (w *sealer) add(ses *Session) {
	if w.store.opts.NoAutoSeal {
		return
	}
	w.mu.Lock()
	if !w.queued[ses.history.Inc] {
		w.queued[ses.history.Inc] = true
		w.queue = append(w.queue, ses)
	}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *sealer) run() {
	defer close(w.done)
	for {
		select {
		case <-w.ctx.Done():
			return
		case <-w.wake:
		}
		for ses := w.next(); ses != nil; ses = w.next() {
			err := ses.seal(w.ctx, false)
			if err != nil && w.ctx.Err() == nil && !errors.Is(err, ErrSessionDeleted) && w.store.opts.Logger != nil {
				w.store.opts.Logger.Error("turnstone: seal", "error", err)
			}
			w.mu.Lock()
			delete(w.queued, ses.history.Inc)
			w.mu.Unlock()
		}
	}
}

func (w *sealer) next() *Session {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.queue) == 0 || w.ctx.Err() != nil {
		return nil
	}
	ses := w.queue[0]
	w.queue = w.queue[1:]
	return ses
}
