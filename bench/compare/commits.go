package main

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

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
			scripts[i] = r.script(i, max(turns/sessions, 5), withPart)
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
		before, err := processorTime()
		if err != nil {
			return err
		}
		took, all, elapsed, err := together(st, scripts, time.Duration(r.Scale.Seconds*float64(time.Second)))
		after, terr := processorTime()
		scripts, r.templates = nil, nil // what is left of the input is not the store's
		r.out["resident"], r.out["resident of files"] = resident()
		if err := errors.Join(err, terr, st.Close()); err != nil {
			return err
		}
		r.out["commits/s"] = float64(len(took)) / elapsed.Seconds()
		r.out["p50 µs"] = quantile(took, 0.5)
		r.out["p99 µs"] = quantile(took, 0.99)
		r.out["commits"] = float64(len(took))
		if !withPart { // making the next version of the part is not the store's
			r.out["processor µs"] = float64((after - before).Nanoseconds()) / 1000 / float64(all)
		}
		return nil
	}
}

// A script is what one worker commits: conversations, one after the other.
type script struct {
	turns []scripted
	part  *Part
}

type scripted struct {
	Turn
	session string
	commits int
}

// script draws conversations of so many turns for a worker.
func (r *run) script(worker, turns int, withPart bool) *script {
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
	return scriptOf(fmt.Sprintf("w%d-%d", worker, r.Round), conversations, part)
}

// scriptOf makes a script of conversations. The id of each session is name and a number.
func scriptOf(name string, conversations [][]Turn, part *Part) *script {
	s := &script{part: part}
	for i, c := range conversations {
		for j := range c {
			s.turns = append(s.turns, scripted{c[j], fmt.Sprint(name, "-", i), j})
		}
	}
	return s
}

// commit commits the i-th turn, and returns how long it took.
func (s *script) commit(st Store, i int) (time.Duration, error) {
	t := s.turns[i]
	if s.part != nil {
		t.Part = s.part.Next()
	}
	start := time.Now()
	err := st.Commit(t.session, t.commits, &t.Turn)
	return time.Since(start), err
}

// together runs the scripts concurrently for so long, or until one is at its
// end, and returns how long each commit took after a warm-up of a tenth of that,
// and the number of all commits. If no commit ends in that time, since the disk stalls, it waits for one.
func together(st Store, scripts []*script, limit time.Duration) (took []time.Duration, count int, elapsed time.Duration, err error) {
	type commit struct{ ended, took time.Duration }
	var late, measured, over atomic.Bool // the time is up; a commit ended after the warm-up; both, or a script is at its end
	var mu sync.Mutex                    // guards all and err
	var all []commit
	var wg sync.WaitGroup
	begin := time.Now()
	var once sync.Once
	end := func() {
		once.Do(func() { elapsed = time.Since(begin) })
		over.Store(true)
	}
	timer := time.AfterFunc(limit, func() {
		if late.Store(true); measured.Load() {
			end()
		}
	})
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
				ended := time.Since(begin)
				mine = append(mine, commit{ended, d})
				if ended > limit/10 {
					if measured.Store(true); late.Load() {
						end()
					}
				}
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
	return took, len(all), elapsed - warm, err
}

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
