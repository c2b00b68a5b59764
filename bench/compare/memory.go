package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/turnstonedb/turnstone/engine/open"
)

// busy measures the memory of a process with so many sessions that commit all the
// time. They commit the same few turns, so that hardly any of the memory is the
// input's.
func busy(sessions int) func(r *run) error {
	return func(r *run) error {
		in := r.input(7)
		var turns []Turn
		for len(turns) < 500 {
			turns = append(turns, in.Conversation()...)
		}
		in, r.templates = nil, nil
		debug.FreeOSMemory()
		r.out["before"] = status("RssAnon")
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
		profiled, err := r.profile()
		if err != nil {
			return err
		}
		defer profiled()
		stop := watchMemory()
		count, err := keepBusy(st, sessions, turns, time.Duration(r.Scale.Busy*float64(time.Second)))
		r.out["resident"], r.out["anonymous"] = stop()
		r.out["commits"] = float64(count)
		return err
	}
}

// keepBusy commits turns by so many sessions for a while. A session is over after
// forty commits, and another one begins.
func keepBusy(st Store, sessions int, turns []Turn, long time.Duration) (count int64, err error) {
	var wg sync.WaitGroup
	var failed atomic.Pointer[error]
	var commits atomic.Int64
	begin := time.Now()
	for w := range sessions {
		wg.Go(func() {
			for i := 0; time.Since(begin) < long && failed.Load() == nil; i++ {
				if err := st.Commit(fmt.Sprintf("busy-%d-%d", w, i/40), i%40, &turns[(w*40+i)%len(turns)]); err != nil {
					failed.CompareAndSwap(nil, &err)
				}
				commits.Add(1)
			}
		})
	}
	wg.Wait()
	if e := failed.Load(); e != nil {
		err = *e
	}
	return commits.Load(), err
}

// rewrite measures the memory of a process while it vacuums a large store: first
// a new one, of which everything is packed again, in the process that has filled
// it; then in another process the same one, after a single commit.
func rewrite(first bool) func(r *run) error {
	return func(r *run) error {
		dir, err := r.prepared("rewrite", r.fillRandom)
		if err != nil {
			return err
		}
		r.templates = nil
		st, err := r.contestant.Open(dir, false)
		if err != nil {
			return err
		}
		defer st.Close()
		if !first {
			if err := st.Commit("another", 0, &Turn{Nodes: []Node{{Kind: "user", Payload: []byte(`{"text":"more"}`)}}}); err != nil {
				return err
			}
			defer os.RemoveAll(filepath.Dir(dir))
		}
		debug.FreeOSMemory()
		taken, err := open.Allocated(dir)
		if err != nil {
			return err
		}
		r.out["store"], r.out["before"] = float64(taken), status("VmRSS")
		stop := watchMemory()
		start := time.Now()
		err = st.(Compacter).Compact()
		r.out["compact"] = float64(time.Since(start).Microseconds())
		r.out["resident"], r.out["anonymous"] = stop()
		return err
	}
}

// fillRandom commits payloads of several sizes that do not compress.
func (r *run) fillRandom(st Store) error {
	const perTurn, perSession = 128 << 10, 10
	return fill(int(r.Scale.Rewrite*1e6)/perTurn/perSession, func(i int) error {
		random := rand.New(rand.NewPCG(8, uint64(i)))
		for j := range perSession {
			var t Turn
			for _, n := range []int{1 << 10, 3 << 10, 4 << 10, 24 << 10, 96 << 10} {
				payload := make([]byte, n)
				for k := 0; k < n; k += 8 {
					binary.LittleEndian.PutUint64(payload[k:], random.Uint64())
				}
				t.Nodes = append(t.Nodes, Node{Kind: "tool", Payload: payload})
			}
			if err := st.Commit(fmt.Sprint("large-", i), j, &t); err != nil {
				return err
			}
		}
		return nil
	})
}
