package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"time"
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
	Steps    int     // that save a growing part
	Commits  int     // of the session whose past is read
	Many     int     // sessions of the list by a label, and beside the one that is vacuumed
	Busy     float64 // seconds for which sessions commit while memory is measured
	Rewrite  float64 // megabytes of the store that is rewritten
	Slow     float64 // a preparation that takes longer, in seconds, is given up
}

// Metrics of a cell, by name; times in microseconds, sizes in bytes.
type Metrics map[string]float64

// A Workload measures one thing.
type Workload struct {
	Name, Title string
	Once        bool // one round is enough: it is not about time, or long
	Full        bool // not in a quick run
	Real        bool // about real transcripts: left out without a corpus
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

// freshStore opens a store in one.
func (r *run) freshStore() (st Store, dir string, remove func(), err error) {
	if dir, remove, err = r.fresh(); err != nil {
		return nil, "", nil, err
	}
	if st, err = r.contestant.Open(dir, true); err != nil {
		remove()
	}
	return st, dir, remove, err
}

// profile starts to record where the time goes, if Profile is set.
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

// filled opens the store that f has filled: one that was prepared, or a new one if
// the contestant keeps nothing.
func (r *run) filled(name string, f func(st Store) error) (Store, error) {
	if !onDisk(r.contestant) {
		st, err := r.contestant.Open("", true)
		if err == nil {
			err = f(st)
		}
		return st, err
	}
	dir, err := r.prepared(name, f)
	if err != nil {
		return nil, err
	}
	return r.contestant.Open(dir, false)
}

// spoil says that this cell changes the store that was prepared under a name.
func (r *run) spoil(name string) error { return os.Remove(filepath.Join(r.Dir, name, "done")) }
