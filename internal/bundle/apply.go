package bundle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/commit"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/session"
)

// This file applies a bundle that was checked.

// A Received says what Read did with a session of the bundle.
type Received struct {
	ID      string // of the session here
	Session *history.Session
	Created bool
	Changed bool          // it was made, or something of it changed
	From    head.Revision // where it stood before
	To      head.Revision // where it stands
	Branch  head.Revision // the end of the branch that it has become, or 0
}

// Read reads a bundle, checks all of it, and then makes its sessions, or brings those that exist forward, one after the
// other. A new session is visible at once and whole. One that exists goes from revision to revision, as many in a batch
// as it has room for. A bundle that was read in part can be read again: what is there already stays as it is.
func Read(ctx context.Context, st *commit.Lifecycle, from io.Reader, o Options) ([]Received, error) {
	up := st.NewUpload(head.Incarnation{})
	r := &reader{Lifecycle: st, options: o, room: room{roomFor}, wanted: map[graph.ID]bool{}, contents: contents{by: map[blob.ID][]byte{}}}
	r.ids, r.users, r.suspects = map[string]bool{}, map[int][]*incoming{}, map[suspect]int{}
	r.stock = stock{store: st.Blobs, upload: up, space: st.Space, pinned: map[keys.Hash]int64{}, room: &r.room}
	r.spool = &spool{stock: &r.stock, ctx: ctx}
	r.spooled = frameWriter{w: r.spool}
	defer func() { _ = up.Abandon(context.WithoutCancel(ctx)) }() // What sessions refer to by now stays.
	if err := r.receive(ctx, from); err != nil {
		return nil, r.orGone(ctx, public(err))
	}
	r.contents = contents{}
	if err := r.links(ctx); err != nil {
		return nil, r.orGone(ctx, public(err))
	}
	if err := r.decide(ctx); err != nil {
		return nil, r.orGone(ctx, err)
	}
	// What is done stays done, whatever comes then.
	changed := history.Change{}
	const attempts = 5
	for attempt := 1; ; attempt++ {
		err := r.apply(ctx)
		if err == nil {
			return r.received, nil
		}
		if attempt < attempts && isBeside(err) {
			if err = r.decide(ctx); err == nil {
				continue
			}
		}
		if errors.Is(err, commit.ErrRemoved) {
			err = fmt.Errorf("%w: %w", history.ErrConflict, err)
		}
		changed.Partly = r.changed
		return r.received, changed.Result(r.orGone(ctx, err))
	}
}

// orGone returns err, or history.ErrSessionDeleted if err says that something is damaged and a session was deleted meanwhile.
func (r *reader) orGone(ctx context.Context, err error) error {
	var corrupt *damage.CorruptError
	if !errors.As(err, &corrupt) {
		return err
	}
	for _, in := range r.sections {
		if in.target == nil {
			continue
		}
		if _, gone := in.target.Lifecycles(ctx); errors.Is(gone, history.ErrSessionDeleted) {
			return gone
		}
	}
	return err
}

// isBeside reports whether err may come of what others have done meanwhile: a vacuum has removed what was written of a
// session and not shown, or somebody has made, changed or deleted one.
func isBeside(err error) bool {
	var corrupt *damage.CorruptError
	for _, of := range []error{commit.ErrRemoved, commit.ErrExists, commit.ErrRecordConflict, commit.ErrBlobGone, history.ErrConflict, history.ErrSessionDeleted, history.ErrSessionNotFound} {
		if errors.Is(err, of) {
			return true
		}
	}
	return errors.As(err, &corrupt)
}

// public makes an error about what a bundle has an *Error.
func public(err error) error {
	var already *Error
	if err == nil || errors.As(err, &already) || !isWrong(err) {
		return err
	}
	return &Error{Err: err}
}

// An applier applies a section.
type applier struct {
	*reader
	in       *incoming
	state    head.State // after the turns that were read
	arrival  *commit.Arrival
	origin   *head.Origin
	head     *head.Head // of a session that is brought forward
	tip      head.State // of one that gets a branch, after the commits that were added
	versions map[head.Revision][]engine.Pair
	steps    []commit.Step
	size     int
	added    map[graph.ID]bool        // nodes of the steps
	stones   map[[8]byte]commit.Stone // of a session that is brought forward
	records  map[string]bool          // the keys of those that it has in the bundle
}

// apply applies the spool.
func (r *reader) apply(ctx context.Context) error {
	r.copies = map[int]*commit.Arrival{}
	var a *applier
	return r.each(ctx, func(in *incoming, kind byte, body []byte, frames *frameReader) error {
		switch kind {
		case kindSection:
			a = &applier{reader: r, in: in, versions: map[head.Revision][]engine.Pair{}, added: map[graph.ID]bool{}, stones: map[[8]byte]commit.Stone{}, records: map[string]bool{}}
			return a.begin(ctx)
		case kindStones:
			stones, err := decodeStones(body)
			if err != nil {
				return err
			}
			return a.takeStones(ctx, stones)
		case kindVersion:
			v, err := decodeVersion(body)
			if err != nil {
				return err
			}
			return a.version(ctx, v, frames)
		case kindTurns:
			return a.turns(ctx, body)
		case kindRecords:
			records, err := decodeRecords(body)
			if err != nil {
				return err
			}
			return a.takeRecords(ctx, records)
		case kindEnd:
			return a.end(ctx)
		}
		return nil
	})
}

// neededCopy reports whether a session that is to be made inherits from a copy.
func (r *reader) neededCopy(in *incoming) bool {
	return slices.ContainsFunc(r.users[in.number], func(other *incoming) bool { return other.target == nil })
}

// begin begins to write what arrives.
func (a *applier) begin(ctx context.Context) (err error) {
	in := a.in
	if a.state, err = a.start(ctx, in); err != nil {
		return err
	}
	if in.copy {
		if a.neededCopy(in) {
			a.arrival, err = a.Arrive(ctx, nil, 0)
			a.copies[in.number] = a.arrival
		}
		return err
	}
	if in.target != nil {
		a.head, _, err = in.target.Head(ctx)
		if err == nil && a.head.Base != in.here {
			err = history.ErrConflict
		}
		if err == nil {
			a.tip = a.head.State
		}
		return err
	}
	if a.origin, err = a.originOf(in); err != nil {
		return err
	}
	a.arrival, err = a.Arrive(ctx, a.origin, in.epoch)
	return err
}

// originOf returns the origin of a session here, where its ancestors have other incarnations.
func (a *applier) originOf(in *incoming) (*head.Origin, error) {
	out := &head.Origin{Genesis: in.genesis}
	o := in.origin
	if o == nil {
		return out, nil
	}
	out.Depth, out.Parts = o.Depth, o.Parts
	if in.sees != nil {
		p := a.sections[in.parent-1].target
		if p.Origin != nil {
			out.Ancestors = append(out.Ancestors, p.Origin.Ancestors...)
		}
		own := *in.own()
		own.Incarnation = p.Inc
		out.Ancestors = append(out.Ancestors, own)
		if n := len(out.Ancestors); n > head.MaxAncestors {
			return nil, &history.LimitError{Limit: "ancestors", Where: "session " + in.id, Have: int64(n), Max: head.MaxAncestors}
		}
		return out, nil
	}
	if in.copied > 0 {
		c := a.copies[in.copied-1]
		out.Ancestors = []head.Ancestor{{
			Incarnation: c.Incarnation(), Revision: c.End().Revision, Commit: c.End().Commit, Node: o.Node(),
		}}
	}
	if in.parent > 0 { // It shares nothing of the parent, not even tombstones.
		out.Ancestors = append(out.Ancestors, head.Ancestor{Incarnation: a.sections[in.parent-1].target.Inc, Node: o.Node()})
	}
	return out, nil
}

// takeStones takes tombstones.
func (a *applier) takeStones(ctx context.Context, stones []commit.Stone) error {
	switch {
	case a.arrival != nil && a.in.copy:
		return a.arrival.HideNow(ctx, stones)
	case a.arrival != nil:
		return a.arrival.Hide(ctx, stones)
	case !a.in.copy:
		for _, s := range stones {
			a.stones[s.ID] = s
		}
	}
	return nil
}

// version takes a version of a checkpoint part.
func (a *applier) version(ctx context.Context, v *version, frames *frameReader) error {
	var data bytes.Buffer
	if err := frames.content(v.size, func(b []byte) error { data.Write(b); return nil }); err != nil {
		return err
	}
	inc := a.in.incarnation(a.arrival)
	if a.skips(v.revision) || a.in.copy || a.in.branches {
		return nil
	}
	stored := data.Bytes()
	if v.base == v.revision {
		content, err := codec.Decompress(stored, nil, int(a.Store.Limits.Part))
		if err != nil {
			return err
		}
		stored = codec.Compress(nil, content, codec.Best)
	}
	chain := blob.Chain{Session: inc, Part: a.Space.PartHash(v.part)}
	first, others := a.Blobs.Pairs(chain, uint64(v.revision), uint64(v.base), stored)
	if a.arrival != nil {
		return a.arrival.Store(ctx, append(others, first))
	}
	for len(others) > 0 {
		n, size := 0, 0
		for n < len(others) && (n == 0 || size+len(others[n].Value) <= stockBytes) {
			size, n = size+len(others[n].Value), n+1
		}
		if err := a.StoreAhead(ctx, a.in.target, others[:n]); err != nil {
			return err
		}
		others = others[n:]
	}
	a.versions[v.revision] = append(a.versions[v.revision], first)
	return nil
}

// incarnation returns the one that the section gets, or has here.
func (in *incoming) incarnation(a *commit.Arrival) head.Incarnation {
	if a != nil {
		return a.Incarnation()
	}
	if in.target != nil {
		return in.target.Inc
	}
	return head.Incarnation{}
}

// skips reports whether what a revision brings is here.
func (a *applier) skips(r head.Revision) bool {
	here := a.in.here.Revision
	if a.in.branches {
		here = a.in.common
	}
	return a.arrival == nil && (a.head == nil || r <= here)
}

// turns takes a frame of turns.
func (a *applier) turns(ctx context.Context, raw []byte) error {
	turns, err := history.DecodeTurns(bytes.Clone(raw), a.state.Base) // They are kept until their batch.
	if err != nil {
		return err
	}
	for i := range turns {
		t := &turns[i]
		before := a.state.Base
		if a.state, err = a.state.Then(&t.Commit, t.ID); err != nil {
			return err
		}
		switch {
		case a.skips(t.Revision):
		case a.in.copy:
			t.Previous = a.arrival.End().Commit
			t.ID = t.Commit.ID()
			err = a.arrival.Add(ctx, t)
		case a.arrival != nil:
			err = a.arrival.Add(ctx, t)
		case a.in.branches:
			err = a.branchTurn(ctx, t)
		default:
			err = a.step(ctx, t, &before)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// takeRecords takes records.
func (a *applier) takeRecords(ctx context.Context, records []*session.Record) error {
	if a.arrival == nil {
		if err := a.flush(ctx); err != nil || a.head == nil || a.in.made {
			return err
		}
		if a.options.Exact {
			for _, r := range records {
				a.records[r.Key] = true
			}
		}
		return a.mergeRecords(ctx, records)
	}
	var pairs []engine.Pair
	for _, r := range records {
		pairs = append(pairs, a.RecordPairs(a.arrival.Incarnation(), r)...)
	}
	return a.arrival.Store(ctx, pairs)
}

// end ends the section.
func (a *applier) end(ctx context.Context) error {
	in := a.in
	if a.arrival != nil {
		if err := a.arrival.Flush(ctx); err != nil || in.copy {
			return err
		}
		return a.show(ctx)
	}
	if in.copy || in.made { // An attempt before this one has made it.
		return nil
	}
	if err := a.flush(ctx); err != nil {
		return err
	}
	if in.branches {
		if err := a.endBranch(ctx); err != nil {
			return err
		}
	}
	if a.options.Exact && !in.branches {
		if err := a.dropRest(ctx); err != nil {
			return err
		}
	}
	rest := &commit.Rest{Kept: a.kept()}
	for _, s := range a.stones {
		if !s.Pruned { // What is pruned of what was here is a matter of this store.
			rest.Stones = append(rest.Stones, s)
		}
	}
	added, err := a.AddRest(ctx, in.target, rest)
	a.altered(added)
	if err != nil {
		return err
	}
	if err := a.merge(ctx); err != nil {
		return err
	}
	a.report(Received{ID: in.id, Session: in.target, From: in.from, To: a.head.Revision, Branch: in.branchEnd})
	return nil
}

// altered notes that something of the session has changed, if it has.
func (a *applier) altered(yes bool) {
	a.changed, a.in.altered = a.changed || yes, a.in.altered || yes
}

// report says once what was done with a session.
func (a *applier) report(r Received) {
	if !a.in.reported {
		a.in.reported = true
		r.Changed = a.in.altered
		a.received = append(a.received, r)
	}
}

// show makes a new session visible.
func (a *applier) show(ctx context.Context) error {
	in := a.in
	about := *in.about
	about.ID = in.id
	about.Parent = head.Incarnation{} // Show sets that of a fork.
	if in.parent > 0 {
		about.Parent = a.sections[in.parent-1].target.Inc
	}
	w := &commit.Showing{
		About: about, Origin: *a.origin, Floor: in.floor, Kept: in.kept, Bytes: in.bytes, Upload: a.stock.upload,
	}
	if in.copied > 0 {
		w.Copy = a.copies[in.copied-1]
	}
	if in.sees != nil {
		p := a.sections[in.parent-1]
		w.Now = !p.made
		w.Check = func(life *head.Life) error { return a.parentStands(ctx, in, p, life) }
	}
	s, err := a.arrival.Show(ctx, w)
	if err != nil {
		return err
	}
	in.target, in.here, in.made = s, a.arrival.End().Base, true
	a.altered(true)
	a.report(Received{ID: in.id, Session: s, Created: true, To: in.here.Revision})
	return nil
}

// parentStands checks that the fork sees in its parent what it saw where it comes from.
func (a *applier) parentStands(ctx context.Context, in, p *incoming, life *head.Life) (err error) {
	var ids [][8]byte
	more := false // it hides more than the fork
	for pair, err := range a.Engine.Scan(ctx, a.Space.Of(keys.Tombstone, p.target.Inc)) {
		if err != nil {
			return err
		}
		id, stone, err := history.DecodeStone(a.Space, pair)
		if err != nil {
			return err
		}
		if p.made && stone.Epoch > in.own().Epoch {
			more = true
			continue
		}
		ids = append(ids, id)
	}
	stands := sumOf(ids) == *in.sees && life.State == head.Live
	if stands && more {
		if stands, err = a.hasContents(ctx, in); err != nil {
			return err
		}
	}
	if !stands {
		return fmt.Errorf("%w: its parent %q hides other nodes here; a bundle of the fork alone brings what it inherits", history.ErrConflict, p.id)
	}
	return nil
}

// hasContents reports whether all nodes that a fork shows of its ancestors have their contents. If its parent hides more
// nodes than it does, a vacuum may have erased them since the parent was shown.
func (a *applier) hasContents(ctx context.Context, in *incoming) (bool, error) {
	hidden := map[[8]byte]bool{}
	for id := range in.stones {
		hidden[id] = true
	}
	shared := history.Inherited{Store: a.Uncached(), Ancestors: a.origin.Ancestors}
	stones, err := shared.Tombstones(ctx)
	if err != nil {
		return false, err
	}
	for id := range stones {
		hidden[id] = true
	}
	has := true
	err = shared.Turns(ctx, func(_ context.Context, t *history.Turn, _ []head.Part, cut int) error {
		for i := range t.Pack.Nodes {
			n := &t.Pack.Nodes[i]
			if n.Erased && (cut == 0 || i < cut) && !hidden[[8]byte(n.ID[:])] {
				has = false
			}
		}
		return nil
	})
	return has, err
}
