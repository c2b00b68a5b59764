package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/disk"
)

// A Cell is one measurement of one contestant. Each runs in a process of its
// own, so that none inherits another's heap, caches or open files.
type Cell struct {
	Workload   string
	Contestant string
	Round      int
	Corpus     string // folder of transcripts, or ""
	Input      string // file of the conversations, which the parent has read
	Dir        string // of this contestant and what it shares between cells
	Profile    string // folder for profiles of commits, or ""
	Scale      Scale
}

// A Scale says how much is done.
type Scale struct {
	Seconds  float64 // of a commit measurement
	Turns    int     // at most so many of them
	Repeats  int     // of a read
	Sessions int     // of the large list
	Hot      int     // commits by 64 hot sessions before the list and memory are measured
	Growth   []int   // nodes
	Slow     float64 // a preparation that takes longer, in seconds, is given up
}

// Metrics of a cell, by name; times in microseconds, sizes in bytes.
type Metrics map[string]float64

// A Workload measures one thing.
type Workload struct {
	Name, Title string
	Once        bool // one round is enough: it is not about time, or long
	Full        bool // not in a quick run
	Who         func(c *Contestant) bool
	Run         func(r *run) error
}

// onDisk contestants can be opened again.
func onDisk(c *Contestant) bool { return c.Durable != nothing }

// A run is a cell that runs.
type run struct {
	Cell
	contestant *Contestant
	templates  [][]Turn
	out        Metrics
}

// runCell is the child process: it prints the metrics as JSON.
func runCell(arg string) error {
	r := run{out: Metrics{}}
	if err := json.Unmarshal([]byte(arg), &r.Cell); err != nil {
		return err
	}
	var err error
	if r.contestant, err = contestant(r.Contestant); err != nil {
		return err
	}
	if r.templates, err = openTemplates(r.Input); err != nil {
		return err
	}
	i := slices.IndexFunc(workloads, func(w Workload) bool { return w.Name == r.Workload })
	if i < 0 {
		return fmt.Errorf("no workload %q", r.Workload)
	}
	if err := workloads[i].Run(&r); err != nil && !errors.Is(err, errLeftOut) {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r.out)
}

func (r *run) input(stream uint64) *Input {
	return newInput(r.templates, uint64(r.Round)<<32|stream)
}

// fresh returns an empty directory.
func (r *run) fresh() (dir string, remove func(), err error) {
	dir, err = os.MkdirTemp(r.Dir, "fresh-")
	return filepath.Join(dir, "store"), func() { os.RemoveAll(dir) }, err
}

// profile begins to record where the time goes, if that is asked for.
func (r *run) profile() (stop func(), err error) {
	if r.Profile == "" {
		return func() {}, nil
	}
	file := func(kind string) (*os.File, error) {
		return os.Create(filepath.Join(r.Profile, fmt.Sprintf("%s-%s-%d.%s", r.Workload, strings.ReplaceAll(r.Contestant, " ", "-"), r.Round, kind)))
	}
	cpu, err := file("cpu")
	if err == nil {
		err = pprof.StartCPUProfile(cpu)
	}
	runtime.SetBlockProfileRate(10_000)
	return func() {
		pprof.StopCPUProfile()
		cpu.Close()
		for _, kind := range []string{"allocs", "block"} {
			if f, err := file(kind); err == nil {
				_ = pprof.Lookup(kind).WriteTo(f, 0)
				f.Close()
			}
		}
	}, err
}

// commits measures turns of so many concurrent sessions: each commits its next
// turn when the one before is acknowledged, and begins another conversation
// when one is over.
func commits(sessions int, withPart bool) func(r *run) error {
	return func(r *run) error {
		dir, remove, err := r.fresh()
		if err != nil {
			return err
		}
		defer remove()
		turns := r.Scale.Turns
		if withPart {
			turns = min(turns, int(8000*r.Scale.Seconds))
		}
		scripts := make([]*script, sessions)
		for i := range scripts {
			if scripts[i], err = r.script(i, max(turns/sessions, 5), withPart); err != nil {
				return err
			}
		}
		st, err := r.contestant.Open(dir, false)
		if err != nil {
			return err
		}
		stop, err := r.profile()
		if err != nil {
			return err
		}
		defer stop()
		took, elapsed, err := together(st, scripts, time.Duration(r.Scale.Seconds*float64(time.Second)))
		scripts, r.templates = nil, nil // what is left of the input is not the store's
		r.out["resident"], r.out["resident of files"] = resident()
		if err := errors.Join(err, st.Close()); err != nil {
			return err
		}
		r.out["commits/s"] = float64(len(took)) / elapsed.Seconds()
		r.out["p50 µs"] = quantile(took, 0.5)
		r.out["p99 µs"] = quantile(took, 0.99)
		r.out["commits"] = float64(len(took))
		return nil
	}
}

// A script is what one worker commits: conversations, one after the other.
type script struct {
	turns   []scripted
	batches [][]*engine.Batch // of each turn, for stores that take them
	part    *Part
}

type scripted struct {
	Turn
	session string
	commits int
}

// script draws conversations of so many turns for a worker.
func (r *run) script(worker, turns int, withPart bool) (*script, error) {
	in := r.input(uint64(worker))
	var part *Part
	if withPart {
		part = in.Part()
	}
	var conversations [][]Turn
	for left := turns; left > 0; {
		c := in.Conversation()
		c = c[:min(len(c), left)]
		conversations, left = append(conversations, c), left-len(c)
	}
	return r.scripted(fmt.Sprintf("w%d-%d", worker, r.Round), conversations, part)
}

// scripted makes a script of conversations, whose sessions are called name and a
// number.
func (r *run) scripted(name string, conversations [][]Turn, part *Part) (*script, error) {
	s := &script{part: part}
	for i, c := range conversations {
		for j := range c {
			s.turns = append(s.turns, scripted{c[j], fmt.Sprint(name, "-", i), j})
		}
	}
	if r.contestant.Replay {
		recorded, err := record(conversations, part)
		if err != nil {
			return nil, err
		}
		for _, c := range recorded {
			s.batches = append(s.batches, c...)
		}
	}
	return s, nil
}

// commit commits the i-th turn, and returns how long it took.
func (s *script) commit(st Store, i int) (time.Duration, error) {
	if s.batches != nil {
		to := st.(Replayer)
		start := time.Now()
		for _, b := range s.batches[i] {
			if err := to.Apply(b); err != nil {
				return 0, err
			}
		}
		return time.Since(start), nil
	}
	t := s.turns[i]
	if s.part != nil {
		t.Part = s.part.Next()
	}
	start := time.Now()
	err := st.Commit(t.session, t.commits, &t.Turn)
	return time.Since(start), err
}

// together runs the scripts concurrently for so long, or until one is at its
// end, and returns how long each commit took after a warm-up of a tenth of that.
func together(st Store, scripts []*script, limit time.Duration) (took []time.Duration, elapsed time.Duration, err error) {
	type commit struct{ ended, took time.Duration }
	var over atomic.Bool
	var mu sync.Mutex // guards all and err
	var all []commit
	var wg sync.WaitGroup
	begin := time.Now()
	var once sync.Once
	end := func() {
		once.Do(func() { elapsed = time.Since(begin) })
		over.Store(true)
	}
	timer := time.AfterFunc(limit, end)
	defer timer.Stop()
	for _, s := range scripts {
		wg.Go(func() {
			mine := make([]commit, 0, len(s.turns))
			var failed error
			for i := range s.turns {
				d, cerr := s.commit(st, i)
				if failed = cerr; failed != nil || over.Load() {
					break
				}
				mine = append(mine, commit{time.Since(begin), d})
			}
			end()
			mu.Lock()
			all, err = append(all, mine...), errors.Join(err, failed)
			mu.Unlock()
		})
	}
	wg.Wait()
	warm := elapsed / 10
	for _, c := range all {
		if c.ended > warm {
			took = append(took, c.took)
		}
	}
	if err == nil && len(took) == 0 {
		err = errors.New("no commit in the time that was given")
	}
	return took, elapsed - warm, err
}

// quantile of took in microseconds.
func quantile(took []time.Duration, q float64) float64 {
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return float64(took[int(q*float64(len(took)-1))].Nanoseconds()) / 1000
}

// median of f's time over so many calls, or as many as fit into the time that is
// given for it, in microseconds.
func (r *run) median(calls int, f func() error) (float64, error) {
	took := make([]time.Duration, 0, calls)
	for begin := time.Now(); len(took) < calls && time.Since(begin).Seconds() < r.Scale.Seconds; {
		start := time.Now()
		if err := f(); err != nil {
			return 0, err
		}
		took = append(took, time.Since(start))
	}
	return quantile(took, 0.5), nil
}

// prepared returns the directory of a store that f fills once, in bulk; cells of
// later rounds find it, unless it was spoiled.
func (r *run) prepared(name string, f func(st Store) error) (string, error) {
	dir := filepath.Join(r.Dir, name)
	done := filepath.Join(dir, "done")
	if _, err := os.Stat(done); err == nil {
		return filepath.Join(dir, "store"), nil
	}
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return "", err
	}
	st, err := r.contestant.Open(filepath.Join(dir, "store"), true)
	if err != nil {
		return "", err
	}
	if err := errors.Join(f(st), st.Close()); err != nil {
		return "", err
	}
	return filepath.Join(dir, "store"), os.WriteFile(done, nil, 0o600)
}

// spoil says that this cell changes the store that was prepared under a name.
func (r *run) spoil(name string) error { return os.Remove(filepath.Join(r.Dir, name, "done")) }

// commitAll commits a conversation as one session.
func commitAll(st Store, id string, turns []Turn) error {
	for i := range turns {
		if err := st.Commit(id, i, &turns[i]); err != nil {
			return err
		}
	}
	return nil
}

// fill commits turns of n sessions by several workers.
func fill(n int, f func(session int) error) error {
	var wg sync.WaitGroup
	var next atomic.Int64
	var mu sync.Mutex
	var failed error
	for range 32 {
		wg.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				mu.Lock()
				stop := failed != nil
				mu.Unlock()
				if i >= n || stop {
					return
				}
				if err := f(i); err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return failed
}

var lengths = []int{10, 1000, 10_000}

// reads measures loads of histories of several lengths, hot, and after dropping
// caches and opening the store again; parts of one; forks.
func reads(r *run) error {
	in := r.input(1)
	in.rand = rand.New(rand.NewPCG(1, 1)) // the same in every round
	ids := func(n int) string { return fmt.Sprint("long-", n) }
	fillStore := func(st Store) error {
		for _, n := range lengths {
			if err := commitAll(st, ids(n), in.Long(n)); err != nil {
				return err
			}
		}
		// Others, so that these do not stand alone.
		for i := range 100 {
			if err := commitAll(st, fmt.Sprint("other-", i), in.Conversation()); err != nil {
				return err
			}
		}
		return nil
	}
	var st Store
	var err error
	if !onDisk(r.contestant) {
		if st, err = r.contestant.Open("", true); err == nil {
			err = fillStore(st)
		}
		if err != nil {
			return err
		}
	} else {
		dir, err := r.prepared("reads", fillStore)
		if err != nil {
			return err
		}
		for _, n := range lengths {
			if err := evict(dir); err != nil {
				return err
			}
			start := time.Now()
			if st, err = r.contestant.Open(dir, false); err != nil {
				return err
			}
			opened := time.Now()
			if _, err := st.(Reader).Load(ids(n)); err != nil {
				return err
			}
			end := time.Now()
			r.out[fmt.Sprint("cold load ", n)] = float64(end.Sub(opened).Microseconds())
			r.out[fmt.Sprint("open and cold load ", n)] = float64(end.Sub(start).Microseconds())
			if err := st.Close(); err != nil {
				return err
			}
		}
		if st, err = r.contestant.Open(dir, false); err != nil {
			return err
		}
	}
	defer st.Close()
	from := st.(Reader)
	for _, n := range lengths {
		p, err := from.Load(ids(n)) // warm
		if err != nil {
			return err
		}
		if len(p.Payloads) != n {
			return fmt.Errorf("%d nodes instead of %d", len(p.Payloads), n)
		}
		if r.out[fmt.Sprint("load ", n)], err = r.median(max(3, r.Scale.Repeats*1000/max(n, 100)), func() error {
			_, err := from.Load(ids(n))
			return err
		}); err != nil {
			return err
		}
	}
	long := ids(10_000)
	if r.out["last 20"], err = r.median(10*r.Scale.Repeats, func() error {
		p, err := from.Last(long, 20)
		if err == nil && len(p.Payloads) != 20 {
			err = fmt.Errorf("%d nodes instead of 20", len(p.Payloads))
		}
		return err
	}); err != nil {
		return err
	}
	all, err := from.Load(long)
	if err != nil {
		return err
	}
	if r.out["one node"], err = r.median(10*r.Scale.Repeats, func() error {
		_, err := from.One(long, all.IDs[in.rand.IntN(len(all.IDs))])
		return err
	}); err != nil {
		return err
	}
	i := 0
	fork, err := r.median(5, func() error {
		i++
		return from.Fork(long, fmt.Sprintf("fork-%d-%d", r.Round, i))
	})
	if err == nil {
		r.out["fork"] = fork
	}
	return err
}

// lists measures the first page and one in the middle, and opening; then again
// after many commits by a few hot sessions, with the memory that is resident.
func lists(large, hot bool) func(r *run) error {
	return func(r *run) error {
		n := 1000
		if large {
			n = r.Scale.Sessions
		}
		in := r.input(2)
		in.rand = rand.New(rand.NewPCG(2, 2))
		var mu sync.Mutex
		fillStore := func(st Store) error {
			start := time.Now()
			return fill(n, func(i int) error {
				if time.Since(start).Seconds() > r.Scale.Slow {
					return fmt.Errorf("preparing took more than %.0f s", r.Scale.Slow)
				}
				mu.Lock()
				c := in.Conversation()
				mu.Unlock()
				turn := Turn{Nodes: []Node{{"user", fmt.Appendf(nil, `{"session":%d}`, i)}}, Usage: c[0].Usage}
				for _, t := range c { // a small one: the list is about heads
					if t.Bytes() < 2000 {
						turn = t
						break
					}
				}
				return st.Commit(fmt.Sprintf("listed-%06d", i), 0, &turn)
			})
		}
		var st Store
		var err error
		if onDisk(r.contestant) {
			name := fmt.Sprint("list-", n)
			dir, err := r.prepared(name, fillStore)
			if err == nil && hot {
				err = r.spoil(name)
			}
			if err != nil {
				return err
			}
			if err := evict(dir); err != nil {
				return err
			}
			start := time.Now()
			if st, err = r.contestant.Open(dir, false); err != nil {
				return err
			}
			if _, _, err := st.(Lister).List("", 50); err != nil {
				return err
			}
			r.out["open and first page, cold"] = float64(time.Since(start).Microseconds())
		} else {
			if st, err = r.contestant.Open("", true); err == nil {
				err = fillStore(st)
			}
			if err != nil {
				return err
			}
		}
		defer func() { st.Close() }()
		if hot {
			if err := heat(r, st); err != nil {
				return err
			}
			r.templates = nil // what is left of the input is not the store's
			r.out["resident"], r.out["resident of files"] = resident()
		}
		from := st.(Lister)
		if r.out["first page"], err = r.median(r.Scale.Repeats, func() error {
			ids, _, err := from.List("", 50)
			if err == nil && len(ids) != 50 {
				err = fmt.Errorf("%d sessions instead of 50", len(ids))
			}
			return err
		}); err != nil {
			return err
		}
		if hot {
			return nil
		}
		cursor := ""
		for i := 0; i < n/2; i += 1000 {
			if _, cursor, err = from.List(cursor, min(1000, n/2)); err != nil {
				return err
			}
		}
		r.out["middle page"], err = r.median(r.Scale.Repeats, func() error {
			_, _, err := from.List(cursor, 50)
			return err
		})
		return err
	}
}

// heat commits turns by 64 sessions.
func heat(r *run, st Store) error {
	const hot = 64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	in := newInput(r.templates, 1000)
	var turns []Turn // small ones: it is about many commits, not many bytes
	for len(turns) < 20_000 {
		for _, t := range in.Conversation() {
			if t.Bytes() <= 4000 {
				turns = append(turns, t)
			}
		}
	}
	start := time.Now()
	for w := range hot {
		wg.Go(func() {
			for at := range r.Scale.Hot / hot {
				if failed.Load() != nil {
					return
				}
				if err := st.Commit(fmt.Sprint("hot-", w), at, &turns[(w*300+at)%len(turns)]); err != nil {
					failed.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	r.out["hot commits/s"] = float64(r.Scale.Hot) / time.Since(start).Seconds()
	time.Sleep(2 * time.Second) // steady: what runs in the background ends
	return nil
}

// diskCorpus stores every transcript of the corpus but images.
func diskCorpus(r *run) error {
	templates := r.templates
	if r.Corpus != "" {
		templates = nil
		convs, err := readCorpus(r.Corpus)
		if err != nil {
			return err
		}
		for _, c := range convs {
			if hasImages(&c) {
				continue
			}
			var turns []Turn
			for j, e := range c.Events {
				if j == 0 || e.Turn {
					turns = append(turns, Turn{})
				}
				t := &turns[len(turns)-1]
				t.Nodes = append(t.Nodes, Node{e.Kind, e.Payload})
				t.Usage = append(t.Usage, e.Usage...)
			}
			templates = append(templates, turns)
		}
	}
	return r.disk(templates, nil)
}

// hasImages reports whether a conversation carries images in its payloads.
func hasImages(c *importer.Conversation) bool {
	return slices.ContainsFunc(c.Events, func(e importer.Event) bool {
		return bytes.Contains(e.Payload, []byte(`"media_type":"image/`))
	})
}

// diskParts stores 100 turns with the checkpoint part.
func diskParts(r *run) error {
	in := r.input(3)
	in.rand = rand.New(rand.NewPCG(3, 3))
	turns := make([]Turn, 100)
	for i := range turns { // with little else: it is about the part
		turns[i].Nodes = []Node{{"assistant", fmt.Appendf(nil, `{"turn":%d}`, i)}}
	}
	return r.disk([][]Turn{turns}, in.Part())
}

// disk fills a store with conversations, compacts it, and measures what it takes.
func (r *run) disk(conversations [][]Turn, part *Part) error {
	dir, remove, err := r.fresh()
	if err != nil {
		return err
	}
	defer remove()
	st, err := r.contestant.Open(dir, true)
	if err != nil {
		return err
	}
	s, err := r.scripted("c", conversations, part)
	if err != nil {
		return err
	}
	for i := range s.turns {
		if _, err := s.commit(st, i); err != nil {
			return err
		}
	}
	if c, ok := st.(Compacter); ok {
		if err := c.Compact(); err != nil {
			return err
		}
	}
	if err := st.Close(); err != nil {
		return err
	}
	taken, err := disk.Allocated(dir)
	r.out["bytes"] = float64(taken)
	return err
}

// reclaims deletes every other session and gives back the space.
func reclaims(r *run) error {
	dir, remove, err := r.fresh()
	if err != nil {
		return err
	}
	defer remove()
	st, err := r.contestant.Open(dir, true)
	if err != nil {
		return err
	}
	defer st.Close()
	c, ok := st.(Reclaimer)
	if !ok {
		return errLeftOut
	}
	in := r.input(4)
	in.rand = rand.New(rand.NewPCG(4, 4))
	const n = 400
	for i := range n {
		turns := in.Conversation()
		turns = turns[:min(len(turns), 40)]
		if err := commitAll(st, fmt.Sprint("s", i), turns); err != nil {
			return err
		}
	}
	for i := 0; i < n; i += 2 {
		if err := c.Delete(fmt.Sprint("s", i)); err != nil {
			return err
		}
	}
	start := time.Now()
	if err := c.Reclaim(); err != nil {
		return err
	}
	r.out["reclaim"] = float64(time.Since(start).Microseconds())
	if c, ok := st.(Compacter); ok {
		start = time.Now()
		if err := c.Compact(); err != nil {
			return err
		}
		r.out["compact"] = float64(time.Since(start).Microseconds())
	}
	return nil
}

// growth measures a commit and a load as the store grows.
func growth(r *run) error {
	dir, remove, err := r.fresh()
	if err != nil {
		return err
	}
	defer remove()
	st, err := r.contestant.Open(dir, true)
	if err != nil {
		return err
	}
	defer func() { st.Close() }()
	in := r.input(5)
	probe := in.Long(1000)
	nodes, session := 0, 0
	var mu sync.Mutex
	start := time.Now()
	targets := r.Scale.Growth
	if n := len(targets); n > 3 && r.contestant.Name != us { // the others up to a tenth
		targets = targets[:n-1]
	}
	for step, target := range targets {
		for nodes < target {
			err := fill(200, func(int) error {
				mu.Lock()
				if nodes >= target {
					mu.Unlock()
					return nil
				}
				session++
				id, turns := fmt.Sprint("grow-", session), in.Conversation()
				mu.Unlock()
				// Several turns a commit, so that it takes minutes only; and small
				// ones, as 10⁷ nodes have to fit the disk.
				var large []Turn
				count := 0
				for _, t := range turns {
					if t.Bytes() >= 4000 {
						continue
					}
					count += len(t.Nodes)
					if n := len(large); n > 0 && len(large[n-1].Nodes) < 20 {
						large[n-1].Nodes = append(large[n-1].Nodes, t.Nodes...)
					} else {
						large = append(large, t)
					}
				}
				mu.Lock()
				nodes += count
				mu.Unlock()
				return commitAll(st, id, large)
			})
			if err != nil {
				return err
			}
			if time.Since(start).Seconds() > r.Scale.Slow {
				return nil // as far as it came
			}
		}
		// As its users have it: durable, opened anew.
		if err := st.Close(); err != nil {
			return err
		}
		if st, err = r.contestant.Open(dir, false); err != nil {
			return err
		}
		for i := range 20 {
			if err := commitAll(st, fmt.Sprintf("warm-%d-%d", step, i), in.Long(20)); err != nil {
				return err
			}
		}
		stop, err := r.profile() // the last one stays
		if err != nil {
			return err
		}
		var took []time.Duration
		for i, t := range probe {
			begin := time.Now()
			if err := st.Commit(fmt.Sprint("probe-", step), i, &t); err != nil {
				stop()
				return err
			}
			took = append(took, time.Since(begin))
		}
		stop()
		r.out[fmt.Sprint("commit at ", target)] = quantile(took, 0.5)
		load, err := r.median(r.Scale.Repeats, func() error {
			_, err := st.(Reader).Load(fmt.Sprint("probe-", step))
			return err
		})
		if err != nil {
			return err
		}
		r.out[fmt.Sprint("load at ", target)] = load
		if err := st.Close(); err != nil {
			return err
		}
		if st, err = r.contestant.Open(dir, true); err != nil {
			return err
		}
	}
	return nil
}
