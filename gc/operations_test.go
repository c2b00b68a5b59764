package gc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
)

// An operation is what a host does in a random history.
type operation struct {
	weight int
	alone  bool // needs no session
	do     func(*host)
}

// changes are also made in the middle of other operations.
func changes() []operation {
	return []operation{
		{2, true, (*host).create},
		{4, false, (*host).fork},
		{14, false, (*host).commit},
		{2, false, (*host).remove},
		{2, false, (*host).prune},
		{2, false, (*host).keepOrRelease},
		{2, false, (*host).tombstone},
		{2, false, (*host).upload},
		{1, false, (*host).seal},
		{1, false, (*host).rename},
	}
}

func operations() []operation {
	return append(changes(), []operation{
		{2, true, (*host).collect},
		{1, true, (*host).predicted},
		{1, false, (*host).collectSession},
		{1, true, (*host).collectAll},
		{1, true, (*host).vacuum},
		{1, false, (*host).vacuumSession},
		{2, false, (*host).eraseSession},
		{2, false, (*host).eraseNode},
		{1, true, (*host).later},
	}...)
}

// A hostBlow is what may happen to a call in the middle of what a host does.
type hostBlow struct {
	name    string
	applies bool // only to an Apply
	strike  func(x *host, c enginetest.Call) enginetest.Fault
}

var blowsOfHosts = []hostBlow{
	{"cancelled", false, func(x *host, _ enginetest.Call) enginetest.Fault {
		x.cancel()
		x.errs = append(x.errs, context.Canceled)
		return enginetest.Fault{}
	}},
	{"unavailable", false, func(x *host, c enginetest.Call) enginetest.Fault {
		x.errs = append(x.errs, engine.ErrUnavailable)
		return enginetest.Fault{Err: engine.ErrUnavailable, Pairs: x.rng.IntN(4)}
	}},
	{"the host dies", false, func(x *host, c enginetest.Call) enginetest.Fault {
		return x.die(c, enginetest.Fault{Pairs: x.rng.IntN(4)})
	}},
	{"the host dies, applied", true, func(x *host, c enginetest.Call) enginetest.Fault { return x.die(c, enginetest.Fault{Applied: true}) }},
	{"the host dies, applied late", true, func(x *host, c enginetest.Call) enginetest.Fault { return x.delay(c, x.die(c, enginetest.Fault{})) }},
	{"unknown, not applied", true, func(*host, enginetest.Call) enginetest.Fault { return enginetest.Fault{Err: engine.ErrUnknown} }},
	{"unknown, applied", true, func(*host, enginetest.Call) enginetest.Fault {
		return enginetest.Fault{Err: engine.ErrUnknown, Applied: true}
	}},
	{"unknown, applied late", true, func(x *host, c enginetest.Call) enginetest.Fault {
		return x.delay(c, enginetest.Fault{Err: engine.ErrUnknown})
	}},
	{"unknown and cancelled", true, func(x *host, c enginetest.Call) enginetest.Fault {
		x.cancel()
		x.errs = append(x.errs, context.Canceled, engine.ErrUnknown)
		return enginetest.Fault{Err: engine.ErrUnknown, Applied: x.rng.IntN(2) == 0}
	}},
	{"unknown and cancelled, applied late", true, func(x *host, c enginetest.Call) enginetest.Fault {
		x.cancel()
		x.errs = append(x.errs, context.Canceled, engine.ErrUnknown)
		return x.delay(c, enginetest.Fault{Err: engine.ErrUnknown})
	}},
}

func (x *host) die(_ enginetest.Call, f enginetest.Fault) enginetest.Fault {
	x.dead, f.Crash = true, true
	x.errs = append(x.errs, engine.ErrClosed)
	return f
}

// delay makes a batch take effect some calls later.
func (x *host) delay(c enginetest.Call, f enginetest.Fault) enginetest.Fault {
	calls := []int{1, 2, 10, 100, 1000}[x.rng.IntN(5)]
	x.randomHistory.late = append(x.randomHistory.late, &lateBatch{batch: c.Batch, calls: calls, of: x.at})
	if x.at != nil {
		x.at.late++
	}
	return f
}

// others do something while the host waits for a call.
func (x *host) others(enginetest.Call) enginetest.Fault {
	for _, other := range x.hosts {
		if other != x && other.busy {
			return enginetest.Fault{} // these are in the middle of something already
		}
	}
	x.errs = append(x.errs, turnstone.ErrIncomplete) // of an erasure: they may let go of what it was to remove
	for range 1 + x.rng.IntN(3) {
		x.step(changes())
	}
	x.say("  end of others")
	return enginetest.Fault{}
}

// pick returns a session at random.
func (x *host) pick() *shadow { return x.live[x.rng.IntN(len(x.live))] }

// with does something with the handle of a session.
func (x *host) with(c context.Context, s *shadow, f func(*turnstone.Session) error) error {
	hd, err := x.store.Session(c, s.id)
	if err == nil {
		err = f(hd)
	}
	return err
}

// payload is one of a few that sessions share.
func (x *host) payload() []byte {
	i := x.rng.IntN(10)
	if i < 7 {
		return version(i)
	}
	return noise(6000+i, uint64(i))
}

func (x *host) born(parent *shadow) *intent {
	x.next++
	n := &shadow{
		id: fmt.Sprint("s", x.next), parent: parent, nodes: map[graph.ID]*shadowNode{},
		kept: map[string]head.Revision{}, uploads: map[blob.ID]bool{},
	}
	x.ever = append(x.ever, n)
	return &intent{on: parent, born: n}
}

func (x *host) create() {
	in := x.born(nil)
	_, _, err := x.store.Create(x.arm(in, 4), turnstone.Request{ID: in.born.id})
	x.ended("create "+in.born.id, err)
}

func (x *host) fork() {
	p := x.pick()
	in := x.born(p)
	in.start, in.dead = p.head(), map[graph.ID]bool{}
	for id, n := range p.nodes {
		in.dead[id] = n.dead
	}
	if ids := p.ids(); len(ids) > 0 && x.rng.IntN(2) == 0 {
		in.node = ids[x.rng.IntN(len(ids))]
	}
	_, _, err := x.store.Create(x.arm(in, 20), turnstone.Request{ID: in.born.id, Parent: p.id, ForkNode: in.node})
	x.ended(fmt.Sprintf("fork %s of %s at %.8s", in.born.id, p.id, in.node), err)
}

func (x *host) commit() {
	s := x.pick()
	x.serial++
	c := &turnstone.Commit{Expected: turnstone.AnyRevision, Usage: []head.Usage{{Model: "m", Input: x.serial}}, Checkpoint: map[string][]byte{}}
	in := &intent{on: s, commit: c, serial: x.serial}
	if x.rng.IntN(2) == 0 {
		c.Turn = fmt.Sprint("turn", x.serial)
	}
	have := slices.SortedFunc(maps.Keys(x.contents), func(a, b blob.ID) int { return bytes.Compare(a[:], b[:]) })
	refers := true
	for i := range x.rng.IntN(3) {
		n := turnstone.NewNode{Kind: "u", Payload: x.payload()}
		switch {
		case i == 0 && x.rng.IntN(3) == 0:
			in.secret = true
			n.Payload = noise([]int{60, 6000}[x.rng.IntN(2)], 1<<40+x.serial)
		case x.rng.IntN(3) == 0:
			n.Payload = fmt.Append(nil, x.serial)
		}
		if len(have) > 0 && x.rng.IntN(3) == 0 {
			id := have[x.rng.IntN(len(have))]
			if s.mayRefer(id) || x.rng.IntN(4) == 0 {
				refers = refers && s.mayRefer(id)
				n.Attachments = append(n.Attachments, blob.Attachment{ID: id, Size: int64(len(x.contents[id]))})
			}
		}
		c.Nodes = append(c.Nodes, n)
	}
	if ids := s.ids(); len(ids) > 0 && x.rng.IntN(4) == 0 {
		in.from = &ids[x.rng.IntN(len(ids))]
		if len(c.Nodes) > 0 {
			c.Nodes[0].Parent = turnstone.RefTo(*in.from)
		} else {
			c.Leaf = turnstone.RefTo(*in.from)
		}
	}
	if ids := s.ids(); len(ids) > 0 && x.rng.IntN(8) == 0 {
		in.stones = ids[:1:1]
		c.Tombstone = in.stones
	}
	if x.keeps && x.rng.IntN(6) == 0 {
		in.name, in.at = fmt.Sprint("k", x.rng.IntN(3)), turnstone.AnyRevision // until it is known
		c.Keep = in.name
	}
	for _, p := range []string{"p", "q"} {
		switch x.rng.IntN(5) {
		case 0, 1, 2:
			c.Checkpoint[p] = x.payload()
			if x.keeps {
				c.Checkpoint[p] = version(100 + int(x.serial)) // never one that was there before
			}
		case 3:
			c.Drop = append(c.Drop, p)
		}
	}
	at := x.now
	err := x.with(x.arm(in, 10), s, func(hd *turnstone.Session) error { _, err := hd.Commit(x.ctx(), *c); return err })
	unknown := x.ended(fmt.Sprintf("commit %d to %s: %d nodes, parts %d, drop %v", in.serial, s.id, len(c.Nodes), len(c.Checkpoint), c.Drop), err)
	s.tried = s.tried || unknown
	if errors.Is(err, turnstone.ErrBlobNotFound) && refers && !x.struck && !s.tried && at == x.now {
		x.t.Fatalf("%s has the attachments: %v", s.id, err)
	}
}

func (x *host) remove() {
	s := x.pick()
	in := &intent{on: s, removes: true}
	x.ended("delete "+s.id, x.store.Delete(x.arm(in, 8), s.id, turnstone.KeepChildren))
}

func (x *host) prune() {
	s := x.pick()
	in := &intent{on: s, keep: head.Retention(1 + x.rng.IntN(3)), start: s.head()}
	var moved bool
	err := x.with(x.arm(in, 6), s, func(hd *turnstone.Session) (err error) { moved, err = hd.Prune(x.ctx(), in.keep); return err })
	x.ended(fmt.Sprintf("prune %s to %d: %v", s.id, in.keep, moved), err)
	if to := head.Revision(in.keep); err == nil && in.start >= to {
		s.floor = max(s.floor, in.start-to+1)
	}
}

func (x *host) keepOrRelease() {
	if !x.keeps {
		return
	}
	s := x.pick()
	in := &intent{on: s, name: fmt.Sprint("k", x.rng.IntN(3))}
	if x.rng.IntN(2) == 0 {
		err := x.with(x.arm(in, 6), s, func(hd *turnstone.Session) error { return hd.Release(x.ctx(), in.name) })
		x.ended("release "+s.id, err)
		return
	}
	in.at = head.Revision(1 + x.rng.IntN(5))
	err := x.with(x.arm(in, 8), s, func(hd *turnstone.Session) error { return hd.Keep(x.ctx(), in.name, in.at) })
	x.ended(fmt.Sprintf("keep %s %d as %s", s.id, in.at, in.name), err)
}

func (x *host) tombstone() {
	s := x.pick()
	ids := s.ids()
	if len(ids) == 0 {
		return
	}
	x.rng.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] })
	in := &intent{on: s, stones: ids[:min(len(ids), 1+x.rng.IntN(2))]}
	err := x.with(x.arm(in, 10), s, func(hd *turnstone.Session) error { return hd.Tombstone(x.ctx(), in.stones...) })
	x.ended(fmt.Sprintf("tombstone %.8s of %s", in.stones, s.id), err)
}

func (x *host) upload() {
	s := x.pick()
	b := x.payload()
	if x.rng.IntN(3) == 0 {
		b = noise(300_000, uint64(x.rng.IntN(2)))
	}
	var a blob.Attachment
	err := x.with(x.arm(nil, 10), s, func(hd *turnstone.Session) (err error) {
		a, err = hd.PutAttachment(x.ctx(), bytes.NewReader(b), -1, "", "")
		return err
	})
	x.uploaded = true
	if x.ended(fmt.Sprintf("upload %d to %s", len(b), s.id), err); err == nil {
		x.contents[a.ID] = b
		s.uploads[a.ID] = true
	}
}

func (x *host) seal() {
	s := x.pick()
	err := x.with(x.arm(nil, 8), s, func(hd *turnstone.Session) error { return hd.Seal(x.ctx()) })
	x.ended("seal "+s.id, err)
}

func (x *host) rename() {
	s := x.pick()
	x.next++
	in := &intent{on: s, to: fmt.Sprint("s", x.next)}
	ctx := x.arm(in, 8)
	err := x.with(ctx, s, func(hd *turnstone.Session) error { return hd.Rename(ctx, in.to) })
	x.ended(fmt.Sprintf("rename %s to %s", s.id, in.to), err)
}

// later moves the clock; uploads expire.
func (x *host) later() {
	d := time.Duration(x.rng.IntN(90)) * time.Minute
	x.now = x.now.Add(d)
	x.say("%v later", d)
	for _, s := range x.ever {
		clear(s.uploads)
	}
}

func (x *host) collect() {
	_, err := x.store.GC(x.arm(nil, 60), gc.Options{})
	x.ended("gc", err)
}

// predicted is a collection that does what a dry run says.
func (x *host) predicted() {
	if len(x.late) > 0 {
		return
	}
	plan, err := x.store.GC(ctx, gc.Options{DryRun: true})
	x.must("plan", err)
	r, err := x.store.GC(ctx, gc.Options{})
	x.must("gc", err)
	x.say("gc: %+v", *r)
	plan.Duration = r.Duration
	if *plan != *r {
		x.t.Fatalf("plan %+v, run %+v", *plan, *r)
	}
}

func (x *host) collectSession() {
	s := x.pick()
	err := x.with(x.arm(nil, 40), s, func(hd *turnstone.Session) error { _, err := hd.GC(x.ctx(), gc.Options{}); return err })
	x.ended("gc of "+s.id, err)
}

func (x *host) collectAll() {
	quiet := len(x.late) == 0
	r, err := x.store.GC(x.arm(nil, 60), gc.Options{Full: true})
	if x.ended("gc --full", err); err == nil && r.Repaired && quiet && !x.struck {
		x.t.Fatalf("repaired: %+v", r)
	}
}

func (x *host) vacuum() {
	_, err := x.store.Vacuum(x.arm(nil, 80), gc.VacuumOptions{})
	x.ended("vacuum", err)
}

func (x *host) vacuumSession() {
	s := x.pick()
	err := x.with(x.arm(nil, 60), s, func(hd *turnstone.Session) error { _, err := hd.Vacuum(x.ctx(), gc.VacuumOptions{}); return err })
	x.ended("vacuum of "+s.id, err)
}
