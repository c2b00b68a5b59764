package gc_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/enginetest"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

var (
	// seeds is how many histories TestRandomHistories tries, firstSeed the first of them.
	seeds     = flag.Uint64("seeds", 0, "how many random histories to try; 0 is what testscale says")
	firstSeed = flag.Uint64("seed", 0, "the first random history to try")
)

// Random histories of sessions, forks, uploads, retention, erasure and maintenance by
// several hosts. A call of the engine in the middle of what a host does may fail, be the
// last one of the host, have an unknown outcome, or take effect later; or others do
// something then. After every step everything reachable is there, and now and then all
// that was acknowledged is read back. After two vacuums nothing else is there; a dry run
// says what the collection does, and a full collection derives the index that stands.
//
// One of them: go test ./gc -run RandomHistories -seed 17 -seeds 1
func TestRandomHistories(t *testing.T) {
	n := *seeds
	if n == 0 {
		n = testkit.Pick[uint64](80, 25, 8)
	}
	struck := map[string]int{}
	for seed := *firstSeed; seed < *firstSeed+n; seed++ {
		if !t.Run(fmt.Sprint(seed), func(t *testing.T) { newHistory(t, seed, struck).run() }) {
			return
		}
	}
	t.Log(struck)
}

// A randomHistory is a store that several hosts have open, and what is known of it.
type randomHistory struct {
	t    *testing.T
	rng  *rand.Rand
	base engine.Engine // beneath the hosts
	now  time.Time
	// keeps is set if revisions are kept by name in this history.
	keeps  bool
	hosts  []*host
	opened byte // stores
	log    []string
	struck map[string]int // what has gone wrong so far, by kind

	live     []*shadow
	ever     []*shadow
	intents  []*intent
	late     []*lateBatch
	contents map[blob.ID][]byte // of uploads
	next     int                // number of the next session
	serial   uint64             // of the last commit
	uploaded bool               // an upload of which nobody knows may pin blobs
}

// A host has the store open, and dies now and then.
type host struct {
	*randomHistory
	store *turnstone.Store
	busy  bool
	// strike is what becomes of a call from the n-th on, of the operation that the host is
	// at, unless it says that it waits for another one.
	strike func(enginetest.Call) (f enginetest.Fault, waits bool)
	n      int
	struck bool // of the operation: something happened in its middle
	dead   bool
	errs   []error // that the operation may end with
	at     *intent
	its    context.Context // of the operation
	cancel context.CancelFunc
}

// ctx is the context of the operation that the host is at.
func (x *host) ctx() context.Context { return x.its }

// A lateBatch takes effect when so many calls were made since.
type lateBatch struct {
	batch *engine.Batch
	calls int
	of    *intent
}

func newHistory(t *testing.T, seed uint64, struck map[string]int) *randomHistory {
	h := &randomHistory{
		t: t, rng: rand.New(rand.NewPCG(seed, 1)), base: memory.New(), now: epoch, keeps: seed%2 == 0, struck: struck,
		contents: map[blob.ID][]byte{},
	}
	for range 3 {
		h.hosts = append(h.hosts, h.host(h.base))
	}
	return h
}

func (h *randomHistory) options() *turnstone.Options {
	h.opened++
	return &turnstone.Options{
		InlineBytes: 1, NoAutoSeal: true, TakeOverAfter: -1, SealBytes: 8000, Now: func() time.Time { return h.now }, UploadTTL: time.Hour,
		Random: rand.NewChaCha8([32]byte{byte(h.rng.Uint32()), byte(h.rng.Uint32()), h.opened}),
	}
}

// host opens the store as a host that may die.
func (h *randomHistory) host(e engine.Engine) *host {
	x := &host{randomHistory: h}
	var err error
	x.store, err = turnstone.Open(ctx, &enginetest.Faulty{Engine: e, Plan: x.plan}, h.options())
	if err != nil {
		h.t.Fatal("open:", err)
	}
	return x
}

// observer opens the store anew, with nothing at hand, to look at what stands there.
func (h *randomHistory) observer() *turnstone.Store {
	st, err := turnstone.Open(ctx, h.base, &turnstone.Options{InlineBytes: 1, NoAutoSeal: true, TakeOverAfter: -1, MustExist: true, Now: func() time.Time { return h.now }})
	if err != nil {
		h.t.Fatal("open:", err)
	}
	return st
}

func (h *randomHistory) say(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

func (h *randomHistory) run() {
	defer func() {
		if h.t.Failed() {
			for _, l := range h.log[max(0, len(h.log)-60):] {
				h.t.Log(l)
			}
		}
	}()
	for range 30 + h.rng.IntN(60) {
		h.step(operations())
		if h.rng.IntN(12) == 0 {
			h.readBack(func() bool { return h.rng.IntN(4) == 0 })
		}
	}
	for _, l := range h.late {
		h.land(l)
	}
	h.late = nil
	h.must("at last", h.lookAgain())
	h.readBack(func() bool { return true })
	h.end()
}

// step does something at random, on a host that is not at anything.
func (h *randomHistory) step(of []operation) {
	var free []*host
	for _, x := range h.hosts {
		if !x.busy {
			free = append(free, x)
		}
	}
	x := free[h.rng.IntN(len(free))]
	total := 0
	for _, o := range of {
		total += o.weight
	}
	n := h.rng.IntN(total)
	for _, o := range of {
		if n -= o.weight; n >= 0 {
			continue
		}
		if o.alone || len(h.live) > 0 {
			x.busy = true
			o.do(x)
			x.busy = false
		}
		break
	}
	if x.dead {
		for i := range h.hosts {
			if h.hosts[i] == x {
				h.hosts[i] = h.host(h.base)
			}
		}
	}
	h.must("after the step", h.lookAgain())
	h.must("after the step", reachable(h.base, false))
}

func (h *randomHistory) must(what string, err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatalf("%s: %v", what, err)
	}
}

// readBack reads what was acknowledged, and what choose says of it in full.
func (h *randomHistory) readBack(choose func() bool) {
	for _, s := range h.live {
		hd, err := h.observer().Session(ctx, s.id)
		if err == nil {
			err = s.check(hd, h.contents, choose)
		}
		if err != nil {
			h.t.Fatalf("what %s has acknowledged: %v", s.id, err)
		}
	}
}

// end vacuums twice, after which all is well and nothing is left behind.
func (h *randomHistory) end() {
	st := h.observer()
	h.healthy(st)
	h.now = h.now.Add(3 * time.Hour)
	for range 2 {
		_, err := st.Vacuum(ctx, gc.VacuumOptions{})
		h.must("vacuum", err)
	}
	h.must("exact", reachable(h.base, true))
	h.noSecrets(h.ever...)
	r, err := st.GC(ctx, gc.Options{Full: true})
	if err != nil || r.Repaired || r.Deleted != 0 {
		h.t.Errorf("full at the end: %+v, %v", r, err)
	}
	h.healthy(st)
	h.readBack(func() bool { return true })
}

func (h *randomHistory) healthy(st *turnstone.Store) {
	h.t.Helper()
	v, err := st.Verify(ctx, turnstone.VerifyOptions{})
	h.must("verify", err)
	if !v.OK() {
		h.t.Fatal("verify:", v.Problems)
	}
}

// noSecrets looks for payloads of nodes of some sessions that no session shows.
func (h *randomHistory) noSecrets(of ...*shadow) {
	shown := map[graph.ID]bool{}
	for _, s := range h.live {
		for id, n := range s.nodes {
			shown[id] = shown[id] || !n.dead
		}
	}
	for _, s := range of {
		for id, n := range s.nodes {
			if n.secret && !shown[id] && holds(h.base, n.payload) {
				h.t.Fatalf("the payload of node %.8s, which %s has had, is in the records", id, s.id)
			}
		}
	}
}

// plan is what becomes of a call of the host.
func (x *host) plan(c enginetest.Call) enginetest.Fault {
	for i := 0; i < len(x.late); i++ {
		if x.late[i].calls--; x.late[i].calls <= 0 {
			x.land(x.late[i])
			x.late = append(x.late[:i], x.late[i+1:]...)
			i--
		}
	}
	if x.n--; x.strike == nil || x.n > 0 {
		return enginetest.Fault{}
	}
	f, waits := x.strike(c)
	if !waits {
		x.strike, x.struck = nil, true
	}
	return f
}

func (h *randomHistory) land(l *lateBatch) {
	err := h.base.Apply(ctx, l.batch)
	if l.of != nil {
		l.of.late--
	}
	h.say("a late batch lands: %v", err)
}

// arm makes something happen in the middle of the host's next operation, now and then.
func (x *host) arm(in *intent, calls int) context.Context {
	x.calm(in)
	x.n = 1 + x.rng.IntN(calls)
	b := hostBlow{"others", false, (*host).others}
	if x.rng.IntN(4) > 0 {
		b = blowsOfHosts[x.rng.IntN(len(blowsOfHosts))]
	}
	if x.rng.IntN(3) == 0 {
		x.strike = func(c enginetest.Call) (enginetest.Fault, bool) {
			if b.applies && c.Op != "Apply" {
				return enginetest.Fault{}, true
			}
			x.randomHistory.struck[b.name]++
			x.say("  %s at call %d, %s", b.name, c.N, c.Op)
			return b.strike(x, c), false
		}
	}
	return x.its
}

// calm begins an operation in whose middle nothing happens.
func (x *host) calm(in *intent) {
	x.its, x.cancel = context.WithCancel(ctx)
	x.t.Cleanup(x.cancel)
	x.strike, x.struck, x.errs, x.at = nil, false, nil, in
	if in != nil {
		x.intents = append(x.intents, in)
		in.flying = true
	}
}

// ended is called with the error of the host's operation. It reports whether the outcome
// is unknown.
func (x *host) ended(what string, err error) (unknown bool) {
	in := x.at
	x.strike, x.at = nil, nil
	x.say("%s: %v", what, err)
	var corrupt *damage.CorruptError
	switch {
	case errors.As(err, &corrupt):
		x.t.Fatalf("%s: %v", what, err)
	case err == nil, x.struck && x.excused(err), expected(err):
	default:
		x.t.Fatalf("%s: %v", what, err)
	}
	if in != nil {
		in.flying = false
		if unknown = err != nil && (x.dead || errors.Is(err, turnstone.ErrOutcomeUnknown) || errors.Is(err, turnstone.ErrIncomplete)); !unknown {
			x.known(what, in, err)
		}
	}
	x.must(what, x.lookAgain())
	return unknown
}

// known is called with an intent whose outcome err tells.
func (x *host) known(what string, in *intent, err error) {
	if err != nil { // what is seen of it from here on was not announced
		if x.forget(in); in.happened {
			x.t.Fatalf("%s has failed, and stands", what)
		}
		x.must(what, x.look(in))
		return
	}
	x.must(what, x.look(in))
	others := x.struck && (in.name != "" || in.to != "" || in.removes) // may have undone it, or renamed the session before
	if !in.holds() && !others {
		x.t.Fatalf("%s was acknowledged, and does not stand", what)
	}
	x.forget(in)
}

// excused reports whether an error is what was done to the operation.
func (x *host) excused(err error) bool {
	for _, e := range x.errs {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// expected reports whether an operation may end with err although nothing failed.
func expected(err error) bool {
	for _, e := range []error{turnstone.ErrInvalid, turnstone.ErrExists, turnstone.ErrRevisionNotFound, turnstone.ErrBlobNotFound, gc.ErrSuperseded} {
		if errors.Is(err, e) {
			return true
		}
	}
	return fair(err) == nil
}
