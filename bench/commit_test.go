// Package bench measures commits, loads, lists, collection, erasure and serving. Run, for example,
//
//	go test ./bench -bench . -count 6 | tee new.txt && benchstat new.txt
//
// Machines are noisy: compare lines of one run, quote ratios.
package bench

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	badgerdb "github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/badger"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/engine/pebble"
	"github.com/turnstonedb/turnstone/engine/postgres"
	"github.com/turnstonedb/turnstone/engine/sealed"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/pgtest"
	"github.com/turnstonedb/turnstone/internal/storetest"
)

var ctx = context.Background()

const (
	concurrent = 64
	// turns of each session in a round: enough that creating the sessions,
	// which is not measured, and warming up weigh little.
	turns = 40
)

// turn is the commit of four nodes, about 1.2 KB, as a turn of the corpus has.
func turn(session, i int) turnstone.Commit {
	c := turnstone.Commit{Expected: head.Revision(i), Turn: fmt.Sprintf("turn-%d", i)}
	for j, kind := range []string{"user", "assistant", "tool", "assistant"} {
		c.Nodes = append(c.Nodes, turnstone.NewNode{Kind: kind, Payload: fmt.Appendf(nil,
			`{"role":%q,"id":"msg_%04x%04x%02x","content":"Let me look at reservation %d for the user %d, who wants to change the return flight to a later date and add a bag. The policy says that basic economy can't be changed, but %d other fares can.","tokens":%d}`,
			kind, session*7919, i*104729, j, session*31+i, session, j+i, 100+i)})
	}
	c.Usage = []head.Usage{{Model: "m", Input: 1200, Output: 80}}
	return c
}

// BenchmarkCommit64 commits turns of 64 concurrent sessions, each waiting for
// its own commits only, and reports commits/s. "plain-badger" is the yardstick:
// 64 goroutines that commit the same batches, each in a Badger transaction of
// its own with SyncWrites, without guards.
func BenchmarkCommit64(b *testing.B) {
	engines := map[string]func(b *testing.B, dir string) (engine.Engine, error){
		"pebble": func(_ *testing.B, dir string) (engine.Engine, error) { return pebble.Open(dir, nil) },
		"pebble-process": func(_ *testing.B, dir string) (engine.Engine, error) {
			return pebble.Open(dir, &pebble.Options{Durability: pebble.Process})
		},
		"badger": func(_ *testing.B, dir string) (engine.Engine, error) { return badger.Open(dir, nil) },
		"postgres": func(b *testing.B, _ string) (engine.Engine, error) { // a private server, which syncs
			return postgres.Open(ctx, pgtest.Private(b).URL("postgres"), nil)
		},
		"memory": func(*testing.B, string) (engine.Engine, error) { return memory.New(), nil },
	}
	for _, name := range []string{"pebble", "sealed/pebble", "pebble-process", "sealed/pebble-process", "badger", "postgres", "sealed/postgres", "memory", "sealed/memory"} {
		b.Run(name, func(b *testing.B) {
			round := 0
			base, encrypted := strings.CutPrefix(name, "sealed/")
			e, err := engines[base](b, b.TempDir()+"/store")
			if err == nil && encrypted {
				e, err = encrypt(b, e)
			}
			if err != nil {
				b.Fatal(err)
			}
			st := storeOn(b, e)
			for b.Loop() {
				b.StopTimer()
				sessions, commits := newSessions(b, st, round), script()
				round++
				b.StartTimer()
				commitAll(b, sessions, commits)
			}
			report(b)
		})
	}
	b.Run("plain-badger", func(b *testing.B) {
		db, err := badgerdb.Open(badgerdb.DefaultOptions(b.TempDir()).WithSyncWrites(true).WithLogger(nil).WithMetricsEnabled(false).
			WithCompression(options.None).WithBlockCacheSize(0))
		if err != nil {
			b.Fatal(err)
		}
		defer db.Close()
		round := 0
		for b.Loop() {
			b.StopTimer()
			batches := recorded(b, round)
			round++
			b.StartTimer()
			var wg sync.WaitGroup
			for _, list := range batches {
				wg.Go(func() {
					for _, batch := range list {
						if err := db.Update(func(txn *badgerdb.Txn) error {
							for _, p := range batch.Sets {
								if err := txn.Set(p.Key, p.Value); err != nil {
									return err
								}
							}
							for _, k := range batch.Deletes {
								if err := txn.Delete(k); err != nil {
									return err
								}
							}
							return nil
						}); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		}
		report(b)
	})
}

// encrypt returns an engine that encrypts what it keeps in another one.
func encrypt(b *testing.B, e engine.Engine) (engine.Engine, error) {
	return sealed.Open(ctx, e, storetest.Keyring(b, ""), "")
}

func report(b *testing.B) {
	b.ReportMetric(float64(b.N*concurrent*turns)/b.Elapsed().Seconds(), "commits/s")
}

func newSessions(b *testing.B, st *turnstone.Store, round int) []*turnstone.Session {
	out := make([]*turnstone.Session, concurrent)
	for i := range out {
		s, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint("s", round, "/", i)})
		if err != nil {
			b.Fatal(err)
		}
		out[i] = s
	}
	return out
}

// script is what each session commits.
func script() [][]turnstone.Commit {
	out := make([][]turnstone.Commit, concurrent)
	for i := range out {
		for t := range turns {
			out[i] = append(out[i], turn(i, t))
		}
	}
	return out
}

func commitAll(b *testing.B, sessions []*turnstone.Session, script [][]turnstone.Commit) {
	var wg sync.WaitGroup
	for i, s := range sessions {
		wg.Go(func() {
			for _, c := range script[i] {
				if _, err := s.Commit(ctx, c); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// recorded returns the batches that the same commits make, by session.
func recorded(b *testing.B, round int) [][]*engine.Batch {
	r := &recorder{Engine: memory.New()}
	st, err := turnstone.Open(ctx, r, &turnstone.Options{NoAutoSeal: true})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	sessions := newSessions(b, st, round)
	out := make([][]*engine.Batch, len(sessions))
	for i, s := range sessions {
		for t := range turns {
			r.last = nil
			if _, err := s.Commit(ctx, turn(i, t)); err != nil {
				b.Fatal(err)
			}
			out[i] = append(out[i], r.last)
		}
	}
	return out
}

// A recorder keeps the last batch that was applied, and counts the bytes of all.
type recorder struct {
	engine.Engine
	last  *engine.Batch
	bytes int
}

func (r *recorder) Apply(ctx context.Context, b *engine.Batch) error {
	r.last, r.bytes = b, r.bytes+b.Bytes()
	return r.Engine.Apply(ctx, b)
}

// BenchmarkCommit commits a turn of four nodes in one session, in memory: what
// the store itself costs.
func BenchmarkCommit(b *testing.B) {
	st, err := turnstone.Open(ctx, null{memory.New()}, &turnstone.Options{NoAutoSeal: true})
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	var s *turnstone.Session
	c := turn(1, 1)
	c.Expected = turnstone.AnyRevision
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		s = sessionOf(b, st, s, i)
		c.Turn = fmt.Sprint(i)
		if _, err := s.Commit(ctx, c); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCommitAll commits a turn of four nodes to one session, and to so many in one call, on
// Badger.
func BenchmarkCommitAll(b *testing.B) {
	for name, d := range map[string]pebble.Durability{"power": pebble.Power, "process": pebble.Process} {
		for _, n := range []int{1, 2, 8} {
			b.Run(fmt.Sprintf("%s/sessions=%d", name, n), func(b *testing.B) {
				st := onPebble(b, d)
				parts := make([]turnstone.SessionCommit, n)
				for i := 0; b.Loop(); i++ {
					for j := range parts {
						if i%perSession == 0 {
							s, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint(i, "/", j)})
							if err != nil {
								b.Fatal(err)
							}
							parts[j] = turnstone.SessionCommit{Session: s, Commit: turn(j, j)}
						}
						parts[j].Expected, parts[j].Turn = head.Revision(i%perSession), fmt.Sprint(i)
					}
					if _, err := st.CommitAll(ctx, parts...); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkCommitRecords commits a turn of four nodes, with so many records of 200 bytes that are
// set at the version that they have, on Badger.
func BenchmarkCommitRecords(b *testing.B) {
	for name, d := range map[string]pebble.Durability{"power": pebble.Power, "process": pebble.Process} {
		for _, n := range []int{0, 2, 20} {
			b.Run(fmt.Sprintf("%s/records=%d", name, n), func(b *testing.B) {
				st := onPebble(b, d)
				var s *turnstone.Session
				c := turn(1, 1)
				for i := 0; b.Loop(); i++ {
					s = sessionOf(b, st, s, i)
					if i%perSession == 0 {
						c.Records = nil
						for j := range n {
							c.Records = append(c.Records, turnstone.RecordChange{Key: fmt.Sprint("state/", j), Value: []byte(strings.Repeat("value ", 35)), Expect: turnstone.NoRecord})
						}
					}
					c.Expected, c.Turn = head.Revision(i%perSession), fmt.Sprint(i)
					r, err := s.Commit(ctx, c)
					if err != nil {
						b.Fatal(err)
					}
					for j, v := range r.Records {
						c.Records[j].Expect = v
					}
				}
			})
		}
	}
}

// BenchmarkCommitFeed commits a turn of four nodes on Badger, with the feed off, on, and on while one watch reads it.
func BenchmarkCommitFeed(b *testing.B) {
	for name, d := range map[string]pebble.Durability{"power": pebble.Power, "process": pebble.Process} {
		for _, feed := range []string{"off", "on", "watched"} {
			b.Run(name+"/feed="+feed, func(b *testing.B) {
				st := onPebble(b, d)
				if feed != "off" {
					if err := st.StartFeed(ctx, turnstone.FeedOptions{Keep: time.Hour}); err != nil {
						b.Fatal(err)
					}
				}
				if feed == "watched" {
					f, err := st.Feed(ctx)
					if err != nil {
						b.Fatal(err)
					}
					watched, stop := context.WithCancel(ctx)
					ended := make(chan struct{})
					go func() {
						defer close(ended)
						for _, err := range st.Watch(watched, f.End) {
							if err != nil && watched.Err() == nil {
								b.Error(err)
							}
						}
					}()
					defer func() { stop(); <-ended }()
				}
				var s *turnstone.Session
				c := turn(1, 1)
				for i := 0; b.Loop(); i++ {
					s = sessionOf(b, st, s, i)
					c.Expected, c.Turn = head.Revision(i%perSession), fmt.Sprint(i)
					if _, err := s.Commit(ctx, c); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// perSession is how many turns are committed to a session: about as many as it gathers until it is sealed.
const perSession = 200

// sessionOf returns the session of the i-th turn: s, that of the turn before, or a new one.
func sessionOf(b *testing.B, st *turnstone.Store, s *turnstone.Session, i int) *turnstone.Session {
	if i%perSession > 0 {
		return s
	}
	s, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint(i)})
	if err != nil {
		b.Fatal(err)
	}
	return s
}

// null accepts batches of commits and forgets them.
type null struct{ engine.Engine }

func (n null) Apply(ctx context.Context, b *engine.Batch) error {
	if slices.ContainsFunc(b.Sets, func(p engine.Pair) bool { return p.Key[4] == 'p' }) { // a segment
		return nil
	}
	return n.Engine.Apply(ctx, b)
}

// onBadger opens a store on Badger that is closed with b.
func onPebble(b *testing.B, d pebble.Durability) *turnstone.Store {
	e, err := pebble.Open(b.TempDir()+"/store", &pebble.Options{Durability: d})
	if err != nil {
		b.Fatal(err)
	}
	st, err := turnstone.Open(ctx, e, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		st.Close()
		e.Close()
	})
	return st
}

// history fills a session with n nodes, four a commit.
func history(b *testing.B, st *turnstone.Store, id string, n int) *turnstone.Session {
	s, _, err := st.Create(ctx, turnstone.Request{ID: id})
	if err != nil {
		b.Fatal(err)
	}
	for i := range n / 4 {
		if _, err := s.Commit(ctx, turn(1, i)); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Seal(ctx); err != nil {
		b.Fatal(err)
	}
	return s
}

// BenchmarkLoad reads by scope; every hash is checked. What reads a part must
// not cost what reads all costs.
func BenchmarkLoad(b *testing.B) {
	st := onPebble(b, pebble.Process)
	for _, n := range []int{1000, 10000} {
		s := history(b, st, fmt.Sprint(n), n)
		revision := head.Revision(n / 4)
		for _, c := range []struct {
			name  string
			scope turnstone.Scope
		}{
			{"all", turnstone.Scope{}}, {"last-20", turnstone.Scope{Last: 20}}, {"after-last-5-commits", turnstone.Scope{After: revision - 5}},
		} {
			b.Run(fmt.Sprintf("%d-nodes/%s", n, c.name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if _, err := s.Load(ctx, c.scope); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkFork forks a session of 10,000 nodes and reports the bytes written.
func BenchmarkFork(b *testing.B) {
	r := &recorder{Engine: memory.New()}
	st, err := turnstone.Open(ctx, r, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer st.Close()
	history(b, st, "long", 10_000)
	i := 0
	for b.Loop() {
		i++
		if _, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint("fork", i), Parent: "long"}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(r.last.Bytes()), "written-B")
}

// BenchmarkList reads the first page of many sessions, while some are hot.
func BenchmarkList(b *testing.B) {
	for _, n := range sizes(1000, 20_000) {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			st := onPebble(b, pebble.Process)
			var wg sync.WaitGroup
			for w := range 32 {
				wg.Go(func() {
					for i := w; i < n; i += 32 {
						if _, _, err := st.Create(ctx, turnstone.Request{ID: fmt.Sprint(i)}); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
			commitAll(b, newSessions(b, st, 0), script())
			for b.Loop() {
				page, err := st.List(ctx, turnstone.ListOptions{})
				if err != nil || len(page.Sessions) != 50 {
					b.Fatal(len(page.Sessions), err)
				}
			}
		})
	}
}

// BenchmarkResume reads the checkpoint of a session whose part of 200 KB changed a
// little with each of so many turns: the last version is as many deltas away
// from one that stands by itself.
func BenchmarkResume(b *testing.B) {
	for _, turns := range []int{1, 60, 120} {
		b.Run(fmt.Sprint(turns, "-turns"), func(b *testing.B) {
			st := onPebble(b, pebble.Process)
			s, _, err := st.Create(ctx, turnstone.Request{ID: "a"})
			if err != nil {
				b.Fatal(err)
			}
			var part []byte
			for len(part) < 200<<10 {
				part = append(part, turn(len(part), 1).Nodes[0].Payload...)
			}
			for i := range turns {
				part = bytes.Clone(part)
				for j := range 5 {
					copy(part[(i*7919+j*40_009)%(len(part)-400):], turn(i, j).Nodes[1].Payload[:60])
				}
				if _, err := s.Commit(ctx, turnstone.Commit{Expected: head.Revision(i), Checkpoint: map[string][]byte{"state": part}}); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				got, err := s.Checkpoint(ctx, head.Revision(turns))
				if err != nil || !bytes.Equal(got["state"], part) {
					b.Fatal(err)
				}
			}
		})
	}
}

// messages returns the versions of a checkpoint part that is a list of messages, as a
// host saves it that knows nothing of deltas: each one is the whole list with one message more,
// and the number of messages behind it. Every third message has what an earlier one had.
func messages(n int) (versions [][]byte) {
	r := rand.New(rand.NewPCG(1, 2))
	zipf := rand.NewZipf(r, 1.1, 3, 3999)
	var list, seen []byte
	for i := range n {
		var text []byte
		for len(text) < 6<<10 {
			text = fmt.Appendf(text, "%x ", 7919*zipf.Uint64())
		}
		if at := r.IntN(len(seen) + 1); i%3 == 2 && at+4<<10 < len(seen) {
			copy(text[1<<10:], seen[at:at+4<<10])
		}
		seen = append(seen, text...)
		list = fmt.Appendf(list, `,{"role":"tool","id":"call_%x","content":%q}`, r.Uint64(), text)
		versions = append(versions, fmt.Appendf(nil, `{"messages":[%s],"count":%d}`, list[1:], i))
	}
	return versions
}

// BenchmarkGrowingPart saves a list of messages that grows to 2 MB whole at each of 340 steps, and
// reads the last version, which is up to 120 deltas away from one that stands by itself.
func BenchmarkGrowingPart(b *testing.B) {
	versions := messages(340)
	raw := 0
	for _, v := range versions {
		raw += len(v)
	}
	var s *turnstone.Session
	b.Run("save", func(b *testing.B) {
		r := &recorder{Engine: memory.New()}
		st, err := turnstone.Open(ctx, r, nil)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { st.Close() })
		b.ReportAllocs()
		n := 0
		for b.Loop() {
			n++
			if s, _, err = st.Create(ctx, turnstone.Request{ID: fmt.Sprint(n)}); err != nil {
				b.Fatal(err)
			}
			for i, v := range versions {
				if _, err := s.Commit(ctx, turnstone.Commit{Expected: head.Revision(i), Checkpoint: map[string][]byte{"state": v}}); err != nil {
					b.Fatal(err)
				}
			}
		}
		steps := float64(n * len(versions))
		b.ReportMetric(float64(b.Elapsed().Microseconds())/steps, "µs/step")
		b.ReportMetric(float64(r.bytes)/steps, "stored-B/step")
		b.ReportMetric(float64(raw)/float64(len(versions)), "raw-B/step")
	})
	b.Run("read", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.Checkpoint(ctx, head.Revision(len(versions))); err != nil {
				b.Fatal(err)
			}
		}
	})
}
