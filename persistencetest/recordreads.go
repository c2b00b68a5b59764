package persistencetest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

var recordReads = []behaviour{
	{name: "RC6_RecordsAreListedInTheOrderOfTheirKeys", test: func(s *suite) {
		want := map[string][]string{}
		for i := range 4 {
			id := fmt.Sprint("s", i)
			p := s.create(turnstone.Request{ID: id})
			for j := range 25 {
				k := fmt.Sprintf("q/%d", j*j*7%(40+i))
				if !slices.Contains(want[id], k) {
					s.change(p, set(k, id)...)
					want[id] = append(want[id], k)
				}
			}
			for _, k := range []string{"q", "q/", "r", "q/\xc3\xa9", ".q/1"} {
				s.change(p, set(k, id)...)
				want[id] = append(want[id], k)
			}
			slices.Sort(want[id])
		}
		under := func(id, prefix string) (out []string) {
			for _, k := range want[id] {
				if strings.HasPrefix(k, prefix) {
					out = append(out, k)
				}
			}
			return out
		}
		s.twice(func() {
			for _, prefix := range []string{"", "q", "q/", "q/1", "x", ".", "\xc3\xa9"} {
				var all []string
				for id := range want {
					for _, k := range under(id, prefix) {
						if k[0] != '.' {
							all = append(all, k+" of "+id)
						}
					}
					for _, limit := range []int{1, 7, 0, 1000} {
						var got []string
						for q := (turnstone.RecordQuery{Prefix: prefix, Limit: limit}); ; {
							page, err := s.session(id).Records(ctx, q)
							s.must(err)
							for _, r := range page.Records {
								s.equal("value", string(r.Value), id)
								got = append(got, r.Key)
							}
							if limit > 0 && len(page.Records) > limit {
								s.Fatalf("%d records in a page of %d", len(page.Records), limit)
							}
							if q.After = page.Next; q.After == "" {
								break
							}
						}
						s.equal(fmt.Sprintf("records of %s under %q", id, prefix), got, under(id, prefix))
					}
				}
				for _, limit := range []int{1, 7, 0, 1000} {
					var got, inOrder []string
					for q := (turnstone.RecordQuery{Prefix: prefix, Limit: limit}); ; {
						page, err := s.Factory.Records(ctx, q)
						s.must(err)
						for _, r := range page.Records {
							s.equal("value", string(r.Value), r.Session)
							got, inOrder = append(got, r.Key+" of "+r.Session), append(inOrder, r.Key)
						}
						if q.After = page.Next; q.After == "" {
							break
						}
					}
					if !slices.IsSorted(inOrder) {
						s.Fatalf("%q is not in order", inOrder)
					}
					slices.Sort(got)
					slices.Sort(all)
					s.equal(fmt.Sprintf("records of all under %q", prefix), got, all)
				}
			}
		})
		// Pages end early when values are large.
		p := s.create(turnstone.Request{ID: "large"})
		for i := range 40 {
			s.change(p, set(fmt.Sprintf("large/%02d", i), string(pattern(turnstone.MaxRecord, byte(i))))...)
		}
		for _, list := range []func(turnstone.RecordQuery) (turnstone.RecordPage, error){
			func(q turnstone.RecordQuery) (turnstone.RecordPage, error) { return p.Records(ctx, q) },
			func(q turnstone.RecordQuery) (turnstone.RecordPage, error) { return s.Factory.Records(ctx, q) },
		} {
			n := 0
			for q := (turnstone.RecordQuery{Prefix: "large/", Limit: 1000}); ; {
				page, err := list(q)
				s.must(err)
				for _, r := range page.Records {
					s.equal("key", r.Key, fmt.Sprintf("large/%02d", n))
					n++
				}
				if len(page.Records) == 40 {
					s.Fatal("2.5 MiB are in one page")
				}
				if q.After = page.Next; q.After == "" {
					break
				}
			}
			s.equal("records", n, 40)
		}
	}},
	{name: "RC7_ALoadReadsRecordsOfItsMoment", test: func(s *suite) {
		p := s.create(turnstone.Request{ID: "a"})
		s.change(p, set("k", "0")...)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		var failed error
		wg.Go(func() {
			w, err := s.Factory.Session(ctx, "a")
			for i := 1; err == nil && i <= 300; i++ {
				select {
				case <-stop:
					return
				default:
				}
				_, err = w.Commit(ctx, turnstone.Commit{Expected: head.Revision(i - 1), Nodes: texts(fmt.Sprint(i)), Records: set("k", fmt.Sprint(i))})
			}
			failed = err
		})
		for range 60 {
			st, err := p.Load(ctx, turnstone.Scope{Last: 1, Records: []string{"k", "none", "k"}})
			s.must(err)
			s.equal("records", []any{len(st.Records), st.Records["none"].Version}, []any{2, turnstone.NoRecord})
			s.equal("record of revision "+strconv.Itoa(int(st.Revision)), string(st.Records["k"].Value), fmt.Sprint(st.Revision))
		}
		close(stop)
		wg.Wait()
		s.must(failed)
		_, err := p.Load(ctx, turnstone.Scope{Records: []string{""}})
		s.is(err, turnstone.ErrInvalid)
	}},
	{name: "RC6_APageShowsOneMoment", test: func(s *suite) {
		// Ten records that change with every commit: more bytes than an engine reads at a time.
		p := s.create(turnstone.Request{ID: "a"})
		turn := func(r head.Revision) turnstone.Commit {
			c := turnstone.Commit{Expected: r - 1}
			for i := range 10 {
				c.Records = append(c.Records, set(fmt.Sprint("k", i), fmt.Sprint(r, " ", string(pattern(50_000, byte(i)))))...)
			}
			return c
		}
		s.commit(p, turn(1))
		stop, done := make(chan struct{}), make(chan error)
		go func() {
			w, err := s.Factory.Session(ctx, "a")
			for r := head.Revision(2); err == nil; r++ {
				select {
				case <-stop:
					done <- nil
					return
				default:
				}
				_, err = w.Commit(ctx, turn(r))
			}
			done <- err
		}()
		for range 25 {
			page, err := p.Records(ctx, turnstone.RecordQuery{})
			s.must(err)
			s.equal("records", len(page.Records), 10)
			for _, r := range page.Records {
				at, _, _ := strings.Cut(string(r.Value), " ")
				s.equal("revision of "+r.Key, at, fmt.Sprint(page.Revision))
			}
		}
		close(stop)
		s.must(<-done)
	}},
}
