package main

import (
	"database/sql"
	"fmt"
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

// BenchmarkADKAppend appends events that change the state of their user, in so many sessions of that user at once.
func BenchmarkADKAppend(b *testing.B) {
	for _, sessions := range []int{1, 16} {
		for name, open := range adkServices {
			b.Run(fmt.Sprintf("sessions=%d/service=%s", sessions, name), func(b *testing.B) {
				s, end := open(b, b.TempDir())
				defer end()
				var all []adksession.Session
				for i := range sessions {
					all = append(all, adkCreate(b, s, i))
				}
				adkAppend(b, s, all[0], 0)
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
	}
}

// adkFilled returns a directory with a session of 200 events.
func adkFilled(b *testing.B, open func(*testing.B, string) (adksession.Service, func())) string {
	b.Helper()
	dir := b.TempDir()
	s, end := open(b, dir)
	defer end()
	to := adkCreate(b, s, 0)
	for i := range 200 {
		adkAppend(b, s, to, i)
	}
	return dir
}

func adkGet(b *testing.B, s adksession.Service) {
	r, err := s.Get(ctx, &adksession.GetRequest{AppName: "app", UserID: "user", SessionID: "0"})
	if err != nil || r.Session.Events().Len() != 200 {
		b.Fatal(r, err)
	}
}

// BenchmarkADKResume opens a store and reads a session of 200 events, and reports what the store takes on disk.
func BenchmarkADKResume(b *testing.B) {
	for name, open := range adkServices {
		b.Run("service="+name, func(b *testing.B) {
			dir := adkFilled(b, open)
			for b.Loop() {
				s, end := open(b, dir)
				adkGet(b, s)
				b.StopTimer()
				end()
				b.StartTimer()
			}
			reportDisk(b, dir)
		})
	}
}

// BenchmarkADKGet reads a session of 200 events from a store that is open.
func BenchmarkADKGet(b *testing.B) {
	for name, open := range adkServices {
		b.Run("service="+name, func(b *testing.B) {
			s, end := open(b, adkFilled(b, open))
			defer end()
			for b.Loop() {
				adkGet(b, s)
			}
		})
	}
}
