package main

import (
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"google.golang.org/adk/v2/session"
	"google.golang.org/adk/v2/session/database"
	"google.golang.org/genai"
	gormsqlite "gorm.io/driver/sqlite"
	"gorm.io/gorm"
	"gorm.io/gorm/logger"
)

// adk is the database session service of Google's Agent Development Kit. It
// stores an event at a time, each in a transaction of its own: a turn is not
// atomic. It has neither forks nor pages of lists nor checkpoints; the part is
// session state, of which it keeps the last version, and which every event
// that carries it keeps, too.
type adk struct {
	db       *sql.DB
	service  session.Service
	sessions sync.Map // session.Session by id
}

const adkApp, adkUser = "bench", "user"

func openADK(dir string, bulk bool) (Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	level := "FULL"
	if bulk {
		level = "OFF"
	}
	db, err := sql.Open("sqlite3", fmt.Sprintf("file:%s?_journal_mode=WAL&_synchronous=%s&_busy_timeout=10000&_txlock=immediate", filepath.Join(dir, "adk.db"), level))
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1) // SQLite has one writer
	service, err := database.NewSessionService(gormsqlite.New(gormsqlite.Config{Conn: db}),
		&gorm.Config{Logger: logger.Discard, PrepareStmt: true})
	if err == nil {
		err = database.AutoMigrate(service)
	}
	return &adk{db: db, service: service}, err
}

func (a *adk) Close() error { return a.db.Close() }

func (a *adk) Commit(id string, commits int, t *Turn) error {
	s, ok := a.sessions.Load(id)
	if !ok {
		if commits == 0 {
			r, err := a.service.Create(ctx, &session.CreateRequest{AppName: adkApp, UserID: adkUser, SessionID: id})
			if err != nil {
				return err
			}
			s = r.Session
		} else {
			r, err := a.service.Get(ctx, &session.GetRequest{AppName: adkApp, UserID: adkUser, SessionID: id})
			if err != nil {
				return err
			}
			s = r.Session
		}
		a.sessions.Store(id, s)
	}
	for i, n := range t.Nodes {
		e := session.NewEvent(ctx, fmt.Sprint("turn-", commits))
		e.Author = n.Kind
		e.Content = genai.NewContentFromText(string(n.Payload), genai.RoleModel)
		if t.Part != nil && i == len(t.Nodes)-1 {
			e.Actions.StateDelta = map[string]any{"execution": string(t.Part)}
		}
		if err := a.service.AppendEvent(ctx, s.(session.Session), e); err != nil {
			return err
		}
	}
	return nil
}

func (a *adk) Load(id string) (Path, error) { return a.Last(id, 0) }

func (a *adk) Last(id string, n int) (p Path, err error) {
	r, err := a.service.Get(ctx, &session.GetRequest{AppName: adkApp, UserID: adkUser, SessionID: id, NumRecentEvents: n})
	if err != nil {
		return p, err
	}
	for e := range r.Session.Events().All() {
		p.IDs, p.Payloads = append(p.IDs, e.ID), append(p.Payloads, []byte(e.Content.Parts[0].Text))
	}
	return p, nil
}

// One reads the whole session to find one event.
func (a *adk) One(id, node string) ([]byte, error) {
	p, err := a.Load(id)
	if err != nil {
		return nil, err
	}
	i := slices.Index(p.IDs, node)
	if i < 0 {
		return nil, os.ErrNotExist
	}
	return p.Payloads[i], nil
}

func (a *adk) Fork(string, string) error { return errLeftOut }

// List returns everything: there are no pages.
func (a *adk) List(after string, limit int) ([]string, string, error) {
	if after != "" {
		return nil, "", errLeftOut
	}
	r, err := a.service.List(ctx, &session.ListRequest{AppName: adkApp, UserID: adkUser})
	if err != nil {
		return nil, "", err
	}
	ids := make([]string, 0, limit)
	for _, s := range r.Sessions {
		if len(ids) < limit {
			ids = append(ids, s.ID())
		}
	}
	return ids, "all", nil
}

func (a *adk) Delete(id string) error {
	a.sessions.Delete(id)
	return a.service.Delete(ctx, &session.DeleteRequest{AppName: adkApp, UserID: adkUser, SessionID: id})
}

func (a *adk) Reclaim() error { return nil }

func (a *adk) Compact() error {
	_, err := a.db.Exec(`VACUUM; PRAGMA wal_checkpoint(TRUNCATE)`)
	return err
}
