package main

import (
	"database/sql"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	_ "github.com/ncruces/go-sqlite3/driver"
)

// opencodeTables are those of OpenCode's database that have its sessions, as far as they matter here.
const opencodeTables = `PRAGMA journal_mode = WAL;
CREATE TABLE session (id text PRIMARY KEY, project_id text NOT NULL, parent_id text, slug text, directory text NOT NULL, title text NOT NULL, version text NOT NULL,
	permission text, time_created integer NOT NULL, time_updated integer NOT NULL);
CREATE TABLE message (id text PRIMARY KEY, session_id text NOT NULL, time_created integer NOT NULL, time_updated integer, data text NOT NULL);
CREATE TABLE part (id text PRIMARY KEY, message_id text NOT NULL, session_id text NOT NULL, time_created integer NOT NULL, time_updated integer NOT NULL, data text NOT NULL);
INSERT INTO session VALUES ('ses_1', 'p', NULL, 's', '/w', 'The title', '1.2', '{"a":[1]}', 1730000000000, 1730000000000), ('ses_2', 'p', 'ses_1', 's', '/w', 'Below', '1.2', NULL, 1730000000001, 1730000000001);
INSERT INTO message VALUES ('msg_1', 'ses_1', 1, 1, '{"role":"user","time":{"created":1730000000000}}'), ('msg_2', 'ses_1', 2, 2, '{"role":"assistant","modelID":"m"}'), ('msg_9', 'ses_2', 1, 1, '{}');
INSERT INTO part VALUES ('prt_1', 'msg_1', 'ses_1', 1, 1, '{"type":"text","text":"hi"}'), ('prt_3', 'msg_2', 'ses_1', 3, 3, '{"type":"step-finish","cost":0.5,"tokens":{"input":7,"output":1}}'),
	('prt_2', 'msg_2', 'ses_1', 2, 2, '{"type":"text","text":"ho"}');`

// A session in OpenCode's database is that of its files in older versions of OpenCode. It grows as the agent writes it.
func TestP28_SessionsInADatabaseAreReadAndFollowed(t *testing.T) {
	home, store := t.TempDir(), t.TempDir()+"/store"
	data := filepath.Join(home, ".local", "share", "opencode")
	appendTo(t, data+"/storage/session/p/ses_1.json", `{"id":"ses_1","projectID":"p","directory":"/w","title":"Old title","time":{"created":1730000000000}}`)
	appendTo(t, data+"/storage/message/ses_1/msg_1.json", `{"id":"msg_1","role":"user"}`)
	appendTo(t, data+"/storage/part/msg_1/prt_1.json", `{"id":"prt_1","type":"text","text":"hi"}`)
	follow := func(want ...string) {
		t.Helper()
		code, out, errs := status(t, agents(home), "follow", "--once", "--store", store)
		for _, w := range want {
			if code != 0 || !strings.Contains(out, w) {
				t.Errorf("%d no %q in %s%s", code, w, out, errs)
			}
		}
		if len(want) == 0 && out+errs != "" {
			t.Errorf("%s%s", out, errs)
		}
	}
	follow("opencode imported ses_1")
	path := filepath.Join(data, "opencode.db")
	db, err := sql.Open("sqlite3", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	do := func(query string) {
		t.Helper()
		if _, err := db.Exec(query); err != nil {
			t.Fatal(err)
		}
	}
	do(opencodeTables)
	follow("opencode branched ses_1", "opencode imported ses_2")
	follow()
	if out := must(t, "show", "ses_1", "--store", store); !strings.Contains(out, "The title") || !strings.Contains(out, "hi") || !strings.Contains(out, "ho") {
		t.Errorf("%s", out)
	}
	if out := must(t, "usage", "ses_1", "--csv", "--store", store); !strings.HasSuffix(out, "m,7,1,0,0,0,0.50\n") {
		t.Errorf("%s", out)
	}
	do(`INSERT INTO message VALUES ('msg_3', 'ses_1', 4, 4, '{"role":"user"}'); INSERT INTO part VALUES ('prt_4', 'msg_3', 'ses_1', 4, 4, '{"type":"text","text":"more"}')`)
	follow("opencode grown ses_1: 2 nodes new\n")
	do(`UPDATE part SET data = '{"type":"text","text":"changed"}', time_updated = 9 WHERE id = 'prt_4'`)
	follow("opencode branched ses_1")
	want := `{"directory":"/w","id":"ses_1","permission":{"a":[1]},"projectID":"p","slug":"s","time":{"created":1730000000000,"updated":1730000000000},"title":"The title","version":"1.2"}
{"id":"msg_1","sessionID":"ses_1","role":"user","time":{"created":1730000000000}}
{"id":"prt_1","messageID":"msg_1","sessionID":"ses_1","type":"text","text":"hi"}
{"id":"msg_2","sessionID":"ses_1","role":"assistant","modelID":"m"}
{"id":"prt_2","messageID":"msg_2","sessionID":"ses_1","type":"text","text":"ho"}
{"id":"prt_3","messageID":"msg_2","sessionID":"ses_1","type":"step-finish","cost":0.5,"tokens":{"input":7,"output":1}}
{"id":"msg_3","sessionID":"ses_1","role":"user"}
{"id":"prt_4","messageID":"msg_3","sessionID":"ses_1","type":"text","text":"changed"}
`
	if out := must(t, "export", "ses_1", "--store", store); strings.TrimSpace(out) != strings.TrimSpace(want) {
		t.Errorf("%s", out)
	}
	if out := must(t, "tree", "--store", store); !strings.Contains(out, "└─ ses_2") {
		t.Errorf("%s", out)
	}
	if code, out, errs := status(t, agents(home), "status", "--store", store, "--json"); code != 0 || !strings.Contains(out, `opencode.db","files":2,"stored":2`) {
		t.Errorf("%d %s%s", code, out, errs)
	}
	// A database alone is imported like a file.
	if out := must(t, "import", path, "--store", t.TempDir()+"/other"); strings.Count(out, "imported") != 2 {
		t.Errorf("%s", out)
	}
}

// What is no database of OpenCode, or is broken, is named, and the others are read.
func TestP28_ADatabaseThatCannotBeReadIsNamed(t *testing.T) {
	dir, store := t.TempDir(), t.TempDir()+"/store"
	appendTo(t, filepath.Join(dir, "opencode.db"), strings.Repeat("no database ", 100))
	appendTo(t, filepath.Join(dir, "a.jsonl"), spoken("a", 0))
	db, err := sql.Open("sqlite3", "file:"+filepath.Join(dir, "opencode-dev.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(opencodeTables + `UPDATE message SET data = 'torn' WHERE id = 'msg_1'; UPDATE part SET data = '[1]' WHERE id = 'prt_2'; INSERT INTO session SELECT '../x', 'p', NULL, 's', '/w', 't', 'v', NULL, 1, 1;`); err != nil {
		t.Fatal(err)
	}
	code, out, errs := status(t, nil, "import", dir, "--store", store)
	for _, want := range []string{"opencode.db: ", "message/ses_1/msg_1.json can't be read", "part/msg_2/prt_2.json can't be read"} {
		if code != 0 || !strings.Contains(errs, want) {
			t.Errorf("%d no %q in %s%s", code, want, out, errs)
		}
	}
	if strings.Count(out, "imported") != 3 {
		t.Errorf("%s", out)
	}
	if _, err := os.Stat(filepath.Join(dir, "opencode-dev.db")); err != nil {
		t.Error(err)
	}
	if code, _, errs := status(t, nil, "import", filepath.Join(dir, "opencode.db"), "--store", store); code == 0 || !strings.Contains(errs, "opencode.db: ") {
		t.Errorf("%d %s", code, errs)
	}
}

// Only the database is followed in its folder, and not once but as it changes. One that nobody has open is read without
// a trace; one that is locked is read when it no longer is.
func TestP28_ADatabaseIsFollowedByItself(t *testing.T) {
	store := t.TempDir() + "/store"
	path := filepath.Join(t.TempDir(), "opencode.db")
	appendTo(t, filepath.Join(filepath.Dir(path), "auth.json"), `{"key":"x"}`)
	appendTo(t, filepath.Join(filepath.Dir(path), "other.jsonl"), spoken("other", 0))
	open := func() *sql.DB {
		db, err := sql.Open("sqlite3", "file:"+path)
		if err != nil {
			t.Fatal(err)
		}
		db.SetMaxOpenConns(1)
		return db
	}
	do := func(db *sql.DB, query string) {
		t.Helper()
		if _, err := db.Exec(query); err != nil {
			t.Fatal(err)
		}
	}
	db := open()
	do(db, opencodeTables)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	var out output
	stop := followed(t, store, &out, "--poll", "1s", path)
	out.waitFor(t, "imported ses_2", 1)
	for _, ending := range []string{"-wal", "-shm"} {
		if _, err := os.Stat(path + ending); err == nil {
			t.Errorf("%s was made", ending)
		}
	}
	appendTo(t, filepath.Join(filepath.Dir(path), "other2.jsonl"), spoken("other2", 0))
	db = open()
	defer db.Close()
	do(db, `INSERT INTO message VALUES ('msg_95', 'ses_2', 5, 5, '{"role":"user"}'), ('msg_96', 'ses_2', 5, NULL, '{"role":"user"}')`)
	out.waitFor(t, "grown ses_2: 2 nodes new", 1)
	do(db, `DELETE FROM message WHERE id = 'msg_96'; INSERT INTO message VALUES ('msg_97', 'ses_2', 5, 5, '{"role":"user"}')`)
	out.waitFor(t, "ses_2: 1 node new", 1)
	do(db, `PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE; INSERT INTO message VALUES ('msg_98', 'ses_2', 6, 6, '{"role":"user"}')`)
	time.Sleep(3 * time.Second)
	do(db, `COMMIT; PRAGMA locking_mode = NORMAL; SELECT count(*) FROM message`)
	out.waitFor(t, "ses_2: 1 node new", 2)
	stop()
	out.mu.Lock()
	defer out.mu.Unlock()
	if said := out.b.String(); strings.Contains(said, "other") || strings.Contains(said, "auth") {
		t.Errorf("%s", said)
	}
}
