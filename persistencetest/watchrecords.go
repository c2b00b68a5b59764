package persistencetest

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone"
)

// A mirror is what a watch of records has told, from another goroutine.
type mirror struct {
	mu       sync.Mutex
	records  map[string]turnstone.RecordVersion // by session and key
	partial  bool                               // more comes
	ended    error
	finished chan struct{}
}

// mirrored starts to watch records, until ctx ends.
func (s *suite) mirrored(ctx context.Context, w turnstone.RecordWatcher, prefix string) *mirror {
	m := &mirror{finished: make(chan struct{})}
	go func() {
		defer close(m.finished)
		for u, err := range w.WatchRecords(ctx, prefix) {
			m.mu.Lock()
			if err != nil {
				m.ended = err
				m.mu.Unlock()
				return
			}
			if u.Anew {
				m.records = map[string]turnstone.RecordVersion{}
			}
			bytes := 0
			for _, r := range u.Records {
				id := r.Session + " " + r.Key
				if m.records[id] == r.Version {
					s.Errorf("%s comes twice", id)
				}
				if m.records[id] = r.Version; r.Version == turnstone.NoRecord {
					delete(m.records, id)
				}
				bytes += len(r.Value)
			}
			if bytes > 2<<20 {
				s.Errorf("a value of %d bytes", bytes)
			}
			m.partial = u.More
			m.mu.Unlock()
		}
	}()
	return m
}

// becomes waits until the watch has told what stands.
func (s *suite) becomes(m *mirror, list func(context.Context, turnstone.RecordQuery) (turnstone.RecordPage, error), prefix string) int {
	s.Helper()
	want := map[string]turnstone.RecordVersion{}
	for q := (turnstone.RecordQuery{Prefix: prefix}); ; {
		page, err := list(ctx, q)
		s.must(err)
		for _, r := range page.Records {
			want[r.Session+" "+r.Key] = r.Version
		}
		if q.After = page.Next; q.After == "" {
			break
		}
	}
	for range 3000 {
		m.mu.Lock()
		same, ended := m.records != nil && !m.partial && maps.Equal(m.records, want), m.ended
		m.mu.Unlock()
		if same {
			return len(want)
		}
		s.must(ended)
		time.Sleep(10 * time.Millisecond)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.Fatalf("the watch has told of %v; %v stand", slices.Sorted(maps.Keys(m.records)), slices.Sorted(maps.Keys(want)))
	return 0
}

var recordWatches = []behaviour{
	{name: "WA16_AWatchOfRecordsTellsWhatStandsAndWhatChanges", test: func(s *suite) {
		s.create(turnstone.Request{ID: "a"})
		s.create(turnstone.Request{ID: "b"})
		s.change(s.session("a"), append(set("p/1", "one"), set("q", "other")...)...)
		s.twice(func() {
			watching, end := context.WithCancel(ctx)
			defer end()
			of, empty, all := s.mirrored(watching, s.session("a"), "p/"), s.mirrored(watching, s.session("a"), "nothing"), s.mirrored(watching, s.Factory, "p/")
			check := func(ofSession, ofAll int) {
				s.Helper()
				s.equal("records of the session", s.becomes(of, s.session("a").Records, "p/"), ofSession)
				s.equal("records of all", s.becomes(all, s.Factory.Records, "p/"), ofAll)
			}
			check(1, 1)
			s.equal("no record", s.becomes(empty, s.session("a").Records, "nothing"), 0)
			s.change(s.session("a"), set("p/1", "one")...) // a new version
			check(1, 1)
			s.change(s.session("a"), append(set("p/2", "two"), set(".p/2", "two")...)...)
			s.change(s.session("b"), set("p/2", "two")...)
			check(2, 3)
			info, err := s.session("b").Info(ctx)
			s.must(err)
			s.commit(s.session("b"), turnstone.Commit{Expected: info.Revision, Nodes: texts("with a turn"), Records: set("p/3", "three")})
			check(2, 4)
			s.change(s.session("a"), turnstone.RecordChange{Key: "p/2", Action: turnstone.DeleteRecord})
			check(1, 3)
			// Large values come in parts.
			var large []string
			for i := range 40 {
				large = append(large, fmt.Sprintf("p/large/%02d", i))
				s.change(s.session("a"), turnstone.RecordChange{Key: large[i], Value: pattern(turnstone.MaxRecord, byte(i))})
			}
			check(41, 43)
			s.becomes(s.mirrored(watching, s.session("a"), "p/"), s.session("a").Records, "p/")
			var changes []turnstone.RecordChange
			for _, key := range large {
				changes = append(changes, turnstone.RecordChange{Key: key, Action: turnstone.DeleteRecord})
			}
			s.change(s.session("a"), changes...)
			check(1, 3)
			s.change(s.session("b"), turnstone.RecordChange{Key: "p/2", Action: turnstone.DeleteRecord}, turnstone.RecordChange{Key: "p/3", Action: turnstone.DeleteRecord})
			check(1, 1)
			end()
			<-of.finished
			s.is(of.ended, context.Canceled)
		})
		// A session that is gone ends its watch, and its records are gone from that of all.
		of, all := s.mirrored(ctx, s.session("a"), "p/"), s.mirrored(ctx, s.Factory, "p/")
		s.becomes(all, s.Factory.Records, "p/")
		s.must(s.session("a").Rename(ctx, "c"))
		s.becomes(all, s.Factory.Records, "p/")
		<-of.finished
		s.is(of.ended, turnstone.ErrSessionDeleted)
		s.must(s.Factory.Delete(ctx, "c", turnstone.KeepChildren))
		s.equal("records", s.becomes(all, s.Factory.Records, "p/"), 0)
		for _, err := range s.Factory.WatchRecords(ctx, strings.Repeat("x", turnstone.MaxRecordKey+1)) {
			s.is(err, turnstone.ErrLimit)
		}
		for _, err := range s.session("b").WatchRecords(ctx, "\x00") {
			s.is(err, turnstone.ErrInvalid)
		}
	}},
	{name: "WA17_AWatchOfRecordsBesideWritersEndsWithWhatStands", test: func(s *suite) {
		s.create(turnstone.Request{ID: "a"})
		s.create(turnstone.Request{ID: "b"})
		watching, end := context.WithCancel(ctx)
		defer end()
		var mirrors []*mirror
		for range 3 {
			mirrors = append(mirrors, s.mirrored(watching, s.session("a"), "p/"), s.mirrored(watching, s.Factory, "p/"))
		}
		var writers sync.WaitGroup
		for w := range 4 {
			writers.Go(func() {
				p := s.session("ab"[w%2 : w%2+1])
				random := rand.New(rand.NewPCG(uint64(w), 1))
				for i := range 60 {
					c := turnstone.RecordChange{Key: fmt.Sprint("p/", random.IntN(40)), Value: fmt.Append(nil, i)}
					if random.IntN(3) == 0 {
						c.Action, c.Value = turnstone.DeleteRecord, nil
					}
					if _, err := p.ChangeRecords(ctx, c); err != nil {
						s.Error(err)
					}
				}
			})
		}
		writers.Wait()
		for i, m := range mirrors {
			list := s.session("a").Records
			if i%2 == 1 {
				list = s.Factory.Records
			}
			s.becomes(m, list, "p/")
		}
	}},
	{name: "WA18_TooManyRecordsAreNotWatched", large: true, test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		for i := range turnstone.MaxWatchedRecords/turnstone.MaxRecords + 1 {
			var changes []turnstone.RecordChange
			for j := range turnstone.MaxRecords {
				changes = append(changes, turnstone.RecordChange{Key: fmt.Sprintf(".many/%04d/%03d", i, j)})
			}
			s.change(p, changes...)
		}
		var ended error
		for _, err := range p.WatchRecords(ctx, ".many/") {
			ended = err
		}
		s.is(ended, turnstone.ErrLimit)
		watching, end := context.WithCancel(ctx)
		defer end()
		s.equal("records", s.becomes(s.mirrored(watching, p, ".many/0001/"), p.Records, ".many/0001/"), turnstone.MaxRecords)
	}},
}
