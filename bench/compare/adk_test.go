package main

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	adksession "google.golang.org/adk/v2/session"
	"google.golang.org/adk/v2/session/database"
	"google.golang.org/genai"
	gormsqlite "gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"

	turnstoneadk "github.com/turnstonedb/turnstone/adapters/adk"
)

// adkServices are what ADK has as its session service, each durable against loss of power. They open what is in dir.
var adkServices = map[string]func(b *testing.B, dir string) (s adksession.Service, end func()){
	"turnstone": func(b *testing.B, dir string) (adksession.Service, func()) {
		st, end := openPebble(b, dir)
		return turnstoneadk.NewSessions(st), end
	},
	"database": func(b *testing.B, dir string) (adksession.Service, func()) {
		db, err := sql.Open("sqlite3", "file:"+filepath.Join(dir, "adk.db")+"?_journal_mode=WAL&_synchronous=FULL&_busy_timeout=10000&_txlock=immediate")
		if err != nil {
			b.Fatal(err)
		}
		db.SetMaxOpenConns(1) // SQLite has one writer
		s, err := database.NewSessionService(gormsqlite.New(gormsqlite.Config{Conn: db}), &gorm.Config{Logger: logger.Discard, PrepareStmt: true})
		if err == nil {
			err = database.AutoMigrate(s)
		}
		if err != nil {
			b.Fatal(err)
		}
		return s, func() {
			if err := db.Close(); err != nil {
				b.Fatal(err)
			}
		}
	},
}

func adkCreate(b *testing.B, s adksession.Service, id int) adksession.Session {
	b.Helper()
	r, err := s.Create(ctx, &adksession.CreateRequest{AppName: "app", UserID: "user", SessionID: fmt.Sprint(id)})
	if err != nil {
		b.Fatal(err)
	}
	return r.Session
}

// adkAppend appends an event of 500 bytes that changes the state of its user.
func adkAppend(b *testing.B, s adksession.Service, to adksession.Session, i int) {
	e := adksession.NewEvent(ctx, "invocation")
	e.Author = "agent"
	e.Content = genai.NewContentFromText(strings.Repeat(fmt.Sprintf("word %06d ", i), 42), genai.RoleModel)
	e.Actions.StateDelta["user:turns"] = i
	if err := s.AppendEvent(ctx, to, e); err != nil {
		b.Error(err)
	}
}

// adkFilled returns a directory with sessions of so many events each. One of many events is filled once for all runs of
// a benchmark, which may append some.
func adkFilled(b *testing.B, service string, sessions, events int) string {
	b.Helper()
	benchmark, _, _ := strings.Cut(b.Name(), "/")
	name := fmt.Sprintf("%s-%s-%d-%d", benchmark, service, sessions, events)
	adkDirs.Lock()
	defer adkDirs.Unlock()
	if dir, ok := adkDirs.of[name]; ok {
		return dir
	}
	dir := b.TempDir()
	if events > 100 {
		dir = filepath.Join(adkDirs.root(b), name)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			b.Fatal(err)
		}
		adkDirs.of[name] = dir
	}
	s, end := adkServices[service](b, dir)
	defer end()
	var wg sync.WaitGroup
	for id := range sessions {
		wg.Go(func() {
			to := adkCreate(b, s, id)
			for i := range events {
				adkAppend(b, s, to, i)
			}
		})
	}
	wg.Wait()
	return dir
}

// adkDirs are the directories that were filled.
var adkDirs = filledDirs{of: map[string]string{}}

type filledDirs struct {
	sync.Mutex
	at string
	of map[string]string
}

// root returns the directory of all. It goes when the tests end.
func (f *filledDirs) root(b *testing.B) string {
	if f.at == "" {
		at, err := os.MkdirTemp("", "adk")
		if err != nil {
			b.Fatal(err)
		}
		f.at = at
	}
	return f.at
}

func TestMain(m *testing.M) {
	code := m.Run()
	if adkDirs.at != "" {
		_ = os.RemoveAll(adkDirs.at)
	}
	os.Exit(code)
}

// adkEach runs a benchmark for each service, and for sessions of 30 and of 3,000 events.
func adkEach(b *testing.B, sessions []int, f func(b *testing.B, service, dir string, sessions, events int)) {
	for _, n := range sessions {
		for _, events := range []int{30, 3000} {
			for service := range adkServices {
				b.Run(fmt.Sprintf("sessions=%d/events=%d/service=%s", n, events, service), func(b *testing.B) {
					f(b, service, adkFilled(b, service, n, events), n, events)
				})
			}
		}
	}
}

// BenchmarkADKAppend appends events to sessions that have some, in turn or at once.
func BenchmarkADKAppend(b *testing.B) {
	adkEach(b, []int{1, 16}, func(b *testing.B, service, dir string, sessions, _ int) {
		s, end := adkServices[service](b, dir)
		defer end()
		var all []adksession.Session
		for id := range sessions {
			all = append(all, adkGet(b, s, id, 10))
		}
		b.ResetTimer()
		var next atomic.Int64
		var wg sync.WaitGroup
		for _, one := range all {
			wg.Go(func() {
				for n := int(next.Add(1)); n <= b.N; n = int(next.Add(1)) {
					adkAppend(b, s, one, n)
				}
			})
		}
		wg.Wait()
		b.StopTimer()
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	})
}

// adkGet reads a session with its last events, or with all.
func adkGet(b *testing.B, s adksession.Service, id, last int) adksession.Session {
	b.Helper()
	r, err := s.Get(ctx, &adksession.GetRequest{AppName: "app", UserID: "user", SessionID: fmt.Sprint(id), NumRecentEvents: last})
	if err != nil || last > 0 && r.Session.Events().Len() != last {
		b.Fatal(r, err)
	}
	return r.Session
}

// BenchmarkADKGet reads a session from a store that is open: its last 10 events, and all.
func BenchmarkADKGet(b *testing.B) {
	for _, last := range []int{10, 0} {
		b.Run(fmt.Sprintf("last=%d", last), func(b *testing.B) {
			adkEach(b, []int{1}, func(b *testing.B, service, dir string, _, _ int) {
				s, end := adkServices[service](b, dir)
				defer end()
				for b.Loop() {
					adkGet(b, s, 0, last)
				}
			})
		})
	}
}

// BenchmarkADKResume opens a store and reads a session, and reports what the store takes on disk.
func BenchmarkADKResume(b *testing.B) {
	adkEach(b, []int{1}, func(b *testing.B, service, dir string, _, _ int) {
		for b.Loop() {
			s, end := adkServices[service](b, dir)
			adkGet(b, s, 0, 0)
			b.StopTimer()
			end()
			b.StartTimer()
		}
		reportDisk(b, dir)
	})
}
