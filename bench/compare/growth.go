package main

import (
	"fmt"
	"sync"
	"time"
)

// growth measures a commit and a load as the store grows.
func growth(r *run) error {
	st, dir, remove, err := r.freshStore()
	if err != nil {
		return err
	}
	defer remove()
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
