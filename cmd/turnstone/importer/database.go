package importer

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"

	_ "github.com/ncruces/go-sqlite3/driver" // registers "sqlite3"
	"github.com/tidwall/gjson"
)

// A session of OpenCode's database is a file of its own here, whose path is that of the database and the session's
// id. Its events have the keys of the files in which older versions of OpenCode kept them.

// IsDatabase reports whether a file is a database of OpenCode by its name.
func IsDatabase(path string) bool {
	ok, _ := filepath.Match("opencode*.db", filepath.Base(path))
	return ok
}

// InDatabase reports whether a path is that of a session in a database.
func InDatabase(path string) bool {
	_, _, ok := inDatabase(path)
	return ok
}

// inDatabase divides the path of a session in a database.
func inDatabase(path string) (database, session string, ok bool) {
	database, session = filepath.Split(path)
	database = filepath.Clean(database)
	return database, session, IsDatabase(database)
}

// openDatabase opens a database for reading, beside the agent that writes it.
func openDatabase(path string) (*sql.DB, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	u := url.URL{Scheme: "file", Path: filepath.ToSlash(absolute), RawQuery: "mode=ro&_pragma=busy_timeout(5000)&_pragma=query_only(1)"}
	db, err := sql.Open("sqlite3", u.String())
	if err == nil {
		db.SetMaxOpenConns(1)
	}
	return db, err
}

// sessionsIn returns the sessions of a database. The version of one is how many messages and parts it has, and when
// they were changed last.
func sessionsIn(ctx context.Context, path string) (all []Source, err error) {
	db, err := openDatabase(path)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	rows, err := db.QueryContext(ctx, `SELECT s.id, s.time_updated,
		(SELECT count(*) || ' ' || coalesce(max(m.time_updated), 0) FROM message m WHERE m.session_id = s.id),
		(SELECT count(*) || ' ' || coalesce(max(p.time_updated), 0) FROM part p WHERE p.session_id = s.id)
		FROM session s ORDER BY s.id`)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer rows.Close()
	for rows.Next() {
		var id, updated, messages, parts string
		if err := rows.Scan(&id, &updated, &messages, &parts); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if id == "" || strings.ContainsAny(id, `/\`) {
			continue // It is none of OpenCode's.
		}
		at := filepath.Join(path, id)
		all = append(all, Source{Path: at, Version: seenOf(at, strings.Join([]string{updated, messages, parts}, " "))})
	}
	return all, rows.Err()
}

// parseSession reads a session of a database.
func (p *parser) parseSession(ctx context.Context, database, session string) error {
	db, err := openDatabase(database)
	if err != nil {
		return err
	}
	defer db.Close()
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true}) // so that all is of one time
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // It changes nothing.
	var all []*entry
	add := func(key string, raw []byte) bool {
		raw = p.redact(raw)
		if len(all) == maxObjects || !valid(raw) || !gjson.ParseBytes(raw).IsObject() || !p.fits(0, cmp.Or(key, session)+" ", raw) {
			p.fail(0, "%s can't be read", cmp.Or(key, session))
			return false
		}
		e := opencode.entry(piece{raw: raw}, len(all))
		e.id = key
		all = append(all, e)
		return true
	}
	row, err := rowOf(ctx, tx, session)
	if err != nil {
		return err
	}
	add("", row)
	// The data of a row lacks the ids.
	object := func(data string, ids ...string) []byte {
		var fields strings.Builder
		for i := 0; i < len(ids); i += 2 {
			fmt.Fprintf(&fields, "%q:%s,", ids[i], marshal(ids[i+1]))
		}
		body := strings.TrimPrefix(strings.TrimSpace(data), "{")
		if body == "}" {
			return []byte("{" + strings.TrimSuffix(fields.String(), ",") + "}")
		}
		return []byte("{" + fields.String() + body)
	}
	parts := map[string][][2]string{} // of messages
	err = each(ctx, tx, `SELECT message_id, id, data FROM part WHERE session_id = ? ORDER BY message_id, id`, session, func(message, id, data string) {
		parts[message] = append(parts[message], [2]string{id, data})
	})
	if err != nil {
		return err
	}
	err = each(ctx, tx, `SELECT '', id, data FROM message WHERE session_id = ? ORDER BY id`, session, func(_, message, data string) {
		if !add("message/"+session+"/"+message+".json", object(data, "id", message, "sessionID", session)) {
			return
		}
		said := all[len(all)-1].kind
		for _, part := range parts[message] {
			if add("part/"+message+"/"+part[0]+".json", object(part[1], "id", part[0], "messageID", message, "sessionID", session)) && all[len(all)-1].kind == "part" {
				all[len(all)-1].kind = said
			}
		}
	})
	if err == nil {
		p.take(opencode.build(session, all), nil)
	}
	return err
}

// each calls f with the rows of a query for a session, which have three columns of text.
func each(ctx context.Context, tx *sql.Tx, query, session string, f func(a, b, c string)) error {
	rows, err := tx.QueryContext(ctx, query, session)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var a, b, c string
		if err := rows.Scan(&a, &b, &c); err != nil {
			return err
		}
		f(a, b, c)
	}
	return rows.Err()
}

// sessionFields are the fields of a session in OpenCode's files, by the columns of its table.
var sessionFields = map[string]string{"project_id": "projectID", "parent_id": "parentID", "workspace_id": "workspaceID"}

// rowOf returns the row of a session as the object that OpenCode's file of a session had. Other columns keep their
// names; those that are not set are left out.
func rowOf(ctx context.Context, tx *sql.Tx, session string) ([]byte, error) {
	rows, err := tx.QueryContext(ctx, `SELECT * FROM session WHERE id = ?`, session)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		return nil, err
	}
	if !rows.Next() {
		return nil, cmp.Or(rows.Err(), fmt.Errorf("the database has no session %q", session))
	}
	values := make([]any, len(names))
	for i := range values {
		values[i] = new(any)
	}
	if err := rows.Scan(values...); err != nil {
		return nil, err
	}
	fields, time := map[string]any{}, map[string]any{}
	for i, name := range names {
		v := *values[i].(*any)
		switch text, isText := v.(string); {
		case v == nil:
			continue
		case isText && (strings.HasPrefix(text, "{") || strings.HasPrefix(text, "[")) && valid([]byte(text)):
			v = json.RawMessage(text)
		}
		if of, ok := strings.CutPrefix(name, "time_"); ok {
			time[of] = v
		} else {
			fields[cmp.Or(sessionFields[name], name)] = v
		}
	}
	fields["time"] = time
	return marshal(fields), rows.Err()
}
