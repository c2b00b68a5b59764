package importer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ncruces/go-sqlite3"
)

// A session of OpenCode's database is a file of its own here, whose path is that of the database and the session's
// id. Its events have the keys of the files in which older versions of OpenCode kept them.

// IsDatabase reports whether a file is a database of OpenCode by its name.
func IsDatabase(path string) bool {
	ok, _ := filepath.Match("opencode*.db", filepath.Base(path))
	return ok
}

// IsInDatabase reports whether a source is read by ParseDatabase: a session in a database, or a database in which Look
// could not find the sessions.
func IsInDatabase(path string) bool {
	_, _, ok := inDatabase(path)
	return ok || IsDatabase(path)
}

// inDatabase divides the path of a session in a database.
func inDatabase(path string) (database, session string, ok bool) {
	database, session = filepath.Split(path)
	database = filepath.Clean(database)
	if !IsDatabase(database) {
		return "", "", false
	}
	info, err := os.Stat(database)
	return database, session, err == nil && info.Mode().IsRegular()
}

// errChanged: a database was written while it was read without locks.
var errChanged = errors.New("the database was changed while it was read")

// maxQuery is how long all queries of a database may take at once.
const maxQuery = time.Minute

// queryDatabase calls f with a connection that reads a database in one transaction, beside the agent that writes it. A
// database that no other process has open is read without locks, because the files that SQLite makes for these would
// be in the way of an agent of another user.
func queryDatabase(ctx context.Context, path string, f func(*sqlite3.Conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, maxQuery)
	defer cancel()
	err := errChanged
	for try := 0; try < 3 && errors.Is(err, errChanged); try++ {
		err = queryOnce(ctx, path, f)
	}
	return err
}

func queryOnce(ctx context.Context, path string, f func(*sqlite3.Conn) error) error {
	path = realPath(path) // SQLite's other files are beside the file that a link leads to.
	before, err := os.Stat(path)
	if err != nil {
		return err
	}
	open := "mode=ro&_pragma=busy_timeout(1000)&_pragma=query_only(1)"
	alone := func() bool {
		_, wal := os.Stat(path + "-wal")
		_, journal := os.Stat(path + "-journal")
		return errors.Is(wal, fs.ErrNotExist) && errors.Is(journal, fs.ErrNotExist)
	}
	unlocked := alone()
	if unlocked {
		open += "&immutable=1"
	}
	db, err := sqlite3.OpenContext(ctx, (&url.URL{Scheme: "file", Path: filepath.ToSlash(path), RawQuery: open}).String())
	if err != nil {
		return err
	}
	defer db.Close()
	db.SetInterrupt(ctx)
	if err = db.Exec("BEGIN"); err == nil { // so that all is of one time
		err = f(db)
	}
	if after, e := os.Stat(path); unlocked && (e != nil || after.Size() != before.Size() || !after.ModTime().Equal(before.ModTime()) || !alone()) {
		return errChanged
	}
	return err
}

// isBusy reports whether an error of a database may be gone when it is read again.
func isBusy(err error) bool {
	return errors.Is(err, sqlite3.BUSY) || errors.Is(err, sqlite3.LOCKED) || errors.Is(err, errChanged)
}

// sessionsIn returns the sessions of a database. The version of one is how many messages and parts it has, the last
// ones of these, and when they were changed last.
func sessionsIn(ctx context.Context, path string) (all []Source, err error) {
	err = queryDatabase(ctx, path, func(db *sqlite3.Conn) error {
		all = nil
		tables := 0
		err := each(db, `SELECT name FROM sqlite_master WHERE type = 'table' AND name IN ('session', 'message', 'part')`, func(*sqlite3.Stmt) { tables++ })
		if err == nil && tables < 3 {
			err = errors.New("is no database of OpenCode")
		}
		if err != nil {
			return err
		}
		last := map[string]string{}
		for _, table := range []string{"message", "part"} {
			err := each(db, `SELECT session_id, count(*) || ' ' || coalesce(max(time_updated), '') || ' ' || coalesce(max(id), '') FROM `+table+` GROUP BY session_id`, func(row *sqlite3.Stmt) {
				last[row.ColumnText(0)] += " " + row.ColumnText(1)
			})
			if err != nil {
				return err
			}
		}
		return each(db, `SELECT id, time_updated FROM session ORDER BY id`, func(row *sqlite3.Stmt) {
			id, updated := row.ColumnText(0), row.ColumnText(1)
			if id != filepath.Base(id) || id == ".." || id == "." || strings.ContainsAny(id, `/\`) {
				return // It is none of OpenCode's.
			}
			at := filepath.Join(path, id)
			all = append(all, Source{Path: at, Version: seenOf(at, updated+last[id])})
		})
	})
	return all, err
}

// ParseDatabase reads a session in a database. See Parse, whose results it has.
func ParseDatabase(ctx context.Context, path string, secrets Secrets) ([]Conversation, []*BadInput, error) {
	p := newParser(path, secrets)
	database, session, ok := inDatabase(path)
	var err error
	if ok {
		err = queryDatabase(ctx, database, func(db *sqlite3.Conn) error { return p.session(db, session) })
	} else if _, err = sessionsIn(ctx, path); err == nil { // Look could not read it.
		err = errChanged
	}
	if ctx.Err() != nil {
		return nil, nil, ctx.Err()
	}
	if err != nil {
		p.fail(0, "%v", err)
		p.bad[len(p.bad)-1].Again = isBusy(err)
	}
	convs, bad := p.conversations()
	return convs, bad, nil
}

// session reads a session of a database.
func (p *parser) session(db *sqlite3.Conn, session string) error {
	p.out, p.bad, p.redacted = nil, nil, nil // Of a try before this one.
	row, err := rowOf(db, session)
	if err != nil {
		return err
	}
	o := opencodeEntries{parser: p}
	o.add("", row)
	parts := map[string][][2]string{} // of messages
	err = each(db, `SELECT message_id, id, data FROM part WHERE session_id = ? ORDER BY message_id, id`, func(row *sqlite3.Stmt) {
		message := row.ColumnText(0)
		parts[message] = append(parts[message], [2]string{row.ColumnText(1), row.ColumnText(2)})
	}, session)
	if err != nil {
		return err
	}
	err = each(db, `SELECT id, data FROM message WHERE session_id = ? ORDER BY id`, func(row *sqlite3.Stmt) {
		message := row.ColumnText(0)
		if !o.add("message/"+session+"/"+message+".json", withIDs(row.ColumnText(1), "id", message, "sessionID", session)) {
			return
		}
		for _, part := range parts[message] {
			o.add("part/"+message+"/"+part[0]+".json", withIDs(part[1], "id", part[0], "messageID", message, "sessionID", session))
		}
	}, session)
	if err == nil {
		p.take(opencode.build(session, o.all).talks, nil)
	}
	return err
}

// withIDs puts the names and values of ids, which OpenCode keeps in columns of their own, before the fields of an object.
func withIDs(object string, ids ...string) []byte {
	var out strings.Builder
	for i := 0; i < len(ids); i += 2 {
		fmt.Fprintf(&out, ",%q:%s", ids[i], marshal(ids[i+1]))
	}
	fields := strings.TrimPrefix(strings.TrimSpace(object), "{")
	if strings.TrimSpace(fields) != "}" {
		fields = "," + fields
	}
	return []byte("{" + out.String()[1:] + fields)
}

// each calls f with each row of a query. Values of another type are text as well, and null is none.
func each(db *sqlite3.Conn, query string, f func(row *sqlite3.Stmt), args ...string) error {
	stmt, _, err := db.Prepare(query)
	if err != nil {
		return err
	}
	defer stmt.Close()
	for i, arg := range args {
		if err := stmt.BindText(i+1, arg); err != nil {
			return err
		}
	}
	for stmt.Step() {
		f(stmt)
	}
	return stmt.Err()
}

// sessionFields are the fields of a session in OpenCode's files, by the columns of its table.
var sessionFields = map[string]string{"project_id": "projectID", "parent_id": "parentID", "workspace_id": "workspaceID"}

// rowOf returns the row of a session as the object that OpenCode's file of a session had. Other columns keep their
// names; those that are not set are left out.
func rowOf(db *sqlite3.Conn, session string) (object []byte, err error) {
	err = each(db, `SELECT * FROM session WHERE id = ?`, func(row *sqlite3.Stmt) {
		fields, times := map[string]any{}, map[string]any{}
		for i := range row.ColumnCount() {
			var v any
			switch row.ColumnType(i) {
			case sqlite3.NULL:
				continue
			case sqlite3.INTEGER:
				v = row.ColumnInt64(i)
			case sqlite3.FLOAT:
				v = row.ColumnFloat(i)
			default:
				text := row.ColumnText(i)
				if v = text; (strings.HasPrefix(text, "{") || strings.HasPrefix(text, "[")) && valid([]byte(text)) {
					v = json.RawMessage(text)
				}
			}
			name := row.ColumnName(i)
			if of, ok := strings.CutPrefix(name, "time_"); ok {
				times[of] = v
			} else {
				fields[cmp.Or(sessionFields[name], name)] = v
			}
		}
		fields["time"] = times
		object = marshal(fields)
	}, session)
	if err == nil && object == nil {
		err = fmt.Errorf("the database has no session %q", session)
	}
	return object, err
}
