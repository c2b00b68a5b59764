//go:build unix

package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	writers  = 4
	batch    = 128 // pairs of a commit
	keyBytes = 33
)

// columns of a row of growth.
var columns = []string{"", "GiB", "pairs/s", "written", "in turn", "commit p50", "p99", "Get p50", "p99", "absent p99", "anon MB", "files", "MB"}

// A growth is what one turn has shown.
type growth struct {
	GiB                        float64
	PairsPerSecond             float64
	Written, InTurn            float64 // bytes that reached the disk for each byte of pairs: from the start, and in this turn
	Commit50, Commit99         time.Duration
	Get50, Get99, Absent99     time.Duration
	AnonymousMB, Files, DiskMB int
}

func (g growth) row() string {
	return fmt.Sprintf("%.2f\t%.0f\t%.2f\t%.2f\t%v\t%v\t%v\t%v\t%v\t%d\t%d\t%d", g.GiB, g.PairsPerSecond, g.Written, g.InTurn,
		g.Commit50, g.Commit99, g.Get50, g.Get99, g.Absent99, g.AnonymousMB, g.Files, g.DiskMB)
}

// An ending is what a full store shows at the end.
type ending struct {
	Close, Open                       time.Duration
	Get50, Get99, Scan                time.Duration
	Pairs                             int
	Vacuum                            time.Duration
	VacuumMB, RoomMB                  int // that a vacuum wrote, and needed beside the store
	Beside50, Beside99                time.Duration
	PeakMB, DiskMB                    int
	CloseAfterVacuum, OpenAfterVacuum time.Duration
}

func (e ending) String() string {
	return fmt.Sprintf("close %v, open %v; random Gets p50 %v, p99 %v; scan of %d pairs %v; vacuum %v, wrote %d MB, needed %d MB beside %d, small commits beside it p50 %v, p99 %v; anonymous memory at most %d MB; close %v, open %v",
		e.Close, e.Open, e.Get50, e.Get99, e.Pairs, e.Scan, e.Vacuum, e.VacuumMB, e.RoomMB, e.DiskMB, e.Beside50, e.Beside99, e.PeakMB, e.CloseAfterVacuum, e.OpenAfterVacuum)
}

// A store is an engine that grows.
type store struct {
	open    func() (kv, error)
	kv      kv
	dir     string
	next    atomic.Uint64 // number of the next key
	logical int64
	began   int64 // bytes that this process had written when the store was empty
	peak    atomic.Int64
	pool    []byte // random bytes, of which values are pieces
}

// serve reads commands from in, grows the store of an engine as they say, and writes its
// answers to out.
func serve(engine, dir string, in io.Reader, out io.Writer) error {
	s := &store{dir: dir, open: func() (kv, error) { return open(engine, dir) }, began: written(), pool: make([]byte, 1<<20)}
	r := rand.NewChaCha8([32]byte{1})
	if _, err := r.Read(s.pool); err != nil {
		return err
	}
	var err error
	if s.kv, err = s.open(); err != nil {
		return err
	}
	go s.watchMemory()
	for lines := bufio.NewScanner(in); lines.Scan(); {
		var answer any
		if bytes, ok := strings.CutPrefix(lines.Text(), "grow "); ok {
			n, err := strconv.ParseInt(bytes, 10, 64)
			if err != nil {
				return err
			}
			if answer, err = s.grow(n); err != nil {
				return err
			}
		} else if answer, err = s.end(); err != nil {
			return err
		}
		if err := json.NewEncoder(out).Encode(answer); err != nil {
			return err
		}
	}
	return s.kv.Close()
}

func (s *store) watchMemory() {
	for {
		if now := int64(anonymous()); now > s.peak.Load() {
			s.peak.Store(now)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// key returns the key of a number. Keys are spread over the whole range.
func key(n uint64) []byte {
	r := rand.NewPCG(n, 77)
	b := make([]byte, 0, keyBytes)
	b = append(b, 'n')
	for len(b) < keyBytes {
		b = binary.BigEndian.AppendUint64(b, r.Uint64())
	}
	return b
}

func (s *store) value(r *rand.Rand) []byte {
	at := r.IntN(len(s.pool) - *value)
	return s.pool[at : at+*value]
}

// grow adds so many bytes of pairs.
func (s *store) grow(bytes int64) (*growth, error) {
	var (
		left                  atomic.Int64
		mu                    sync.Mutex // guards the durations and failed
		commits, gets, absent []time.Duration
		failed                error
		wg                    sync.WaitGroup
	)
	left.Store(bytes / int64(batch*(keyBytes+*value)))
	groups, io, begun := left.Load(), written(), time.Now()
	for w := range writers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(w), s.next.Load()))
			for n := 0; left.Add(-1) >= 0; n++ {
				c, g, a, err := s.commit(r, n%8 == 0)
				mu.Lock()
				commits = append(commits, c)
				if n%8 == 0 {
					gets, absent = append(gets, g), append(absent, a)
				}
				failed = cmpErr(failed, err)
				mu.Unlock()
				if err != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	if failed != nil {
		return nil, failed
	}
	took := time.Since(begun)
	size := groups * int64(batch*(keyBytes+*value))
	s.logical += size
	files, disk := s.files()
	now := written()
	return &growth{
		GiB: float64(s.logical) / (1 << 30), PairsPerSecond: float64(groups*batch) / took.Seconds(),
		Written: float64(now-s.began) / float64(s.logical), InTurn: float64(now-io) / float64(size),
		Commit50: at(commits, 50), Commit99: at(commits, 99), Get50: at(gets, 50), Get99: at(gets, 99), Absent99: at(absent, 99),
		AnonymousMB: anonymous(), Files: files, DiskMB: disk,
	}, nil
}

func cmpErr(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// commit commits new pairs, and if it is told to reads an old and an absent one.
func (s *store) commit(r *rand.Rand, read bool) (took, get, absent time.Duration, err error) {
	first := s.next.Add(batch) - batch
	keys, values := make([][]byte, batch), make([][]byte, batch)
	for i := range batch {
		keys[i], values[i] = key(first+uint64(i)), s.value(r)
	}
	begun := time.Now()
	if err := s.kv.Apply(keys, values); err != nil {
		return 0, 0, 0, err
	}
	took = time.Since(begun)
	if !read || first < 16*batch {
		return took, 0, 0, nil
	}
	begun = time.Now()
	if err := s.get(r.Uint64N(first - 8*batch)); err != nil { // other writers may still commit the last keys
		return 0, 0, 0, err
	}
	get = time.Since(begun)
	begun = time.Now()
	_, err = s.kv.Get(key(1<<60 + r.Uint64N(1<<50)))
	return took, get, time.Since(begun), err
}

func (s *store) get(n uint64) error {
	v, err := s.kv.Get(key(n))
	if err == nil && len(v) != *value {
		err = fmt.Errorf("pair %d is gone", n)
	}
	return err
}

// reopen closes the store and opens it again.
func (s *store) reopen() (closing, opening time.Duration, err error) {
	begun := time.Now()
	if err := s.kv.Close(); err != nil {
		return 0, 0, err
	}
	closing, begun = time.Since(begun), time.Now()
	s.kv, err = s.open()
	return closing.Round(time.Millisecond), time.Since(begun).Round(time.Millisecond), err
}

func (s *store) end() (e *ending, err error) {
	e = &ending{}
	if e.Close, e.Open, err = s.reopen(); err != nil {
		return nil, err
	}
	r := rand.New(rand.NewPCG(9, 9))
	var gets []time.Duration
	for range 3000 {
		begun := time.Now()
		if err := s.get(r.Uint64N(s.next.Load())); err != nil {
			return nil, err
		}
		gets = append(gets, time.Since(begun))
	}
	e.Get50, e.Get99 = at(gets, 50), at(gets, 99)
	begun := time.Now()
	if e.Pairs, err = s.kv.Scan(); err != nil {
		return nil, err
	}
	e.Scan = time.Since(begun).Round(time.Millisecond)
	if err := s.vacuum(e, r); err != nil {
		return nil, err
	}
	e.PeakMB = int(s.peak.Load())
	e.CloseAfterVacuum, e.OpenAfterVacuum, err = s.reopen()
	return e, err
}

// vacuum vacuums beside small commits.
func (s *store) vacuum(e *ending, r *rand.Rand) error {
	_, e.DiskMB = s.files()
	io, begun := written(), time.Now()
	done := make(chan error, 1)
	go func() { done <- s.kv.Vacuum() }()
	var beside []time.Duration
	for {
		select {
		case err := <-done:
			e.Vacuum, e.VacuumMB = time.Since(begun).Round(time.Millisecond), int((written()-io)>>20)
			e.Beside50, e.Beside99 = at(beside, 50), at(beside, 99)
			return err
		default:
		}
		one := time.Now()
		if err := s.kv.Apply([][]byte{key(1<<40 + uint64(len(beside)))}, [][]byte{s.value(r)}); err != nil {
			return err
		}
		beside = append(beside, time.Since(one))
		if len(beside)%20 == 0 {
			_, now := s.files()
			e.RoomMB = max(e.RoomMB, now-e.DiskMB)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// files returns how many files the store has, and how many megabytes they take.
func (s *store) files() (n, megabytes int) {
	blocks := int64(0)
	_ = filepath.WalkDir(s.dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // it was removed meanwhile
		}
		if info, err := d.Info(); err == nil {
			n++
			blocks += allocated(info)
		}
		return nil
	})
	return n, int(blocks >> 20)
}

// at returns the p-th percentile of durations.
func at(d []time.Duration, p int) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[len(d)*p/100].Round(10 * time.Microsecond)
}

// proc returns the number behind a name in a file of /proc/self, or 0 where there is none.
func proc(file, name string) int64 {
	b, err := os.ReadFile("/proc/self/" + file)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			if f := strings.Fields(rest); len(f) > 0 {
				n, _ := strconv.ParseInt(f[0], 10, 64)
				return n
			}
		}
	}
	return 0
}

// written returns how many bytes this process has sent to disks (proc_pid_io(5)).
func written() int64 { return proc("io", "write_bytes") }

// anonymous returns how many megabytes of memory are no pages of files (proc_pid_status(5)).
func anonymous() int { return int(proc("status", "RssAnon") >> 10) }
