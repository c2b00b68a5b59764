package main

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

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
				turn := Turn{Nodes: []Node{{Kind: "user", Payload: fmt.Appendf(nil, `{"session":%d}`, i)}}, Usage: c[0].Usage}
				for _, t := range c { // a small one: the list is about heads
					if t.Bytes() < 2000 {
						turn = t
						break
					}
				}
				return st.Commit(fmt.Sprintf("listed-%06d", i), 0, &turn)
			})
		}
		if !large && !hot {
			if err := r.justCreated(fillStore); err != nil {
				return err
			}
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

// justCreated measures the first page in the process that has made the sessions a
// moment ago.
func (r *run) justCreated(fillStore func(st Store) error) error {
	dir, remove, err := r.fresh()
	if err != nil {
		return err
	}
	defer remove()
	st, err := r.contestant.Open(dir, false)
	if err != nil {
		return err
	}
	defer st.Close()
	if err := fillStore(st); err != nil {
		return err
	}
	r.out["first page, just created"], err = r.median(r.Scale.Repeats, func() error {
		ids, _, err := st.(Lister).List("", 50)
		if err == nil && len(ids) != 50 {
			err = fmt.Errorf("%d sessions instead of 50", len(ids))
		}
		return err
	})
	return err
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
