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
		if err := commitAll(st, "keyed", keyed(in.Long(10_000))); err != nil {
			return err
		}
		for i := range r.firstLoads() {
			if err := commitAll(st, fmt.Sprint("first-", i), in.Long(1000)); err != nil {
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
		if err := warm(dir); err != nil {
			return err
		}
		if st, err = r.contestant.Open(dir, false); err != nil {
			return err
		}
		if err := r.firstTime(st.(Reader), ids(lengths[0])); err != nil {
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
	if err := r.oneByKey(st); err != nil {
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

// firstLoads is the number of sessions of 1,000 nodes that are loaded once.
func (r *run) firstLoads() int { return min(7, max(r.Scale.Repeats-2, 1)) }

// firstTime measures loads of sessions that this process has not read yet, while
// the files are in the page cache. The session other is loaded before.
func (r *run) firstTime(from Reader, other string) error {
	if _, err := from.Load(other); err != nil {
		return err
	}
	took := make([]time.Duration, r.firstLoads())
	for i := range took {
		start := time.Now()
		p, err := from.Load(fmt.Sprint("first-", i))
		if err == nil && len(p.Payloads) != 1000 {
			err = fmt.Errorf("%d nodes instead of 1,000", len(p.Payloads))
		}
		if err != nil {
			return err
		}
		took[i] = time.Since(start)
	}
	r.out["first load 1000"] = quantile(took, 0.5)
	return nil
}

// keyed gives the nodes of turns keys.
func keyed(turns []Turn) []Turn {
	n := 0
	for _, t := range turns {
		for i := range t.Nodes {
			t.Nodes[i].Key = keyOf(n)
			n++
		}
	}
	return turns
}

func keyOf(i int) string { return fmt.Sprintf("event-%06d-of-the-host", i) }

// oneByKey measures single nodes by their keys, in a session of 10,000 that was
// loaded before.
func (r *run) oneByKey(st Store) error {
	from, ok := st.(KeyReader)
	if !ok {
		return nil
	}
	all, err := st.(Reader).Load("keyed")
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(9, uint64(r.Round)))
	r.out["one node by key"], err = r.median(10*r.Scale.Repeats, func() error {
		i := random.IntN(len(all.Payloads))
		got, err := from.ByKey("keyed", keyOf(i))
		if err == nil && len(got) != len(all.Payloads[i]) {
			err = fmt.Errorf("the node %s is another one", keyOf(i))
		}
		return err
	})
	return err
}
