package main

import (
	"fmt"
	"math/rand/v2"
	"time"
)

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
