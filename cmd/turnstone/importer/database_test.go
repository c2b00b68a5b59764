package importer

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/ncruces/go-sqlite3"
)

// A database that is written while it is read without locks is read again; if that never ends, it may be read later.
func TestADatabaseThatChangesIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "opencode.db")
	db, err := sqlite3.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Exec("CREATE TABLE t (a)"); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	for changes, want := range map[int]error{0: nil, 1: nil, 2: nil, 3: errChanged} {
		tries := 0
		err := queryDatabase(t.Context(), path, func(*sqlite3.Conn) error {
			if tries++; tries > changes {
				return nil
			}
			at := time.Now().Add(time.Duration(tries) * time.Hour)
			return os.Chtimes(path, at, at)
		})
		if !errors.Is(err, want) || tries != min(changes+1, 3) || isBusy(err) != (want != nil) {
			t.Errorf("%d changes: %d tries, %v", changes, tries, err)
		}
	}
}

func TestIDsAreThoseOfOpenCodesFiles(t *testing.T) {
	for object, want := range map[string]string{
		`{"a":1}`: `{"id":"x","b":"\"","a":1}`, ` { } `: `{"id":"x","b":"\"" }`, `{}`: `{"id":"x","b":"\""}`,
	} {
		if got := string(withIDs(object, "id", "x", "b", `"`)); got != want || !valid([]byte(got)) {
			t.Errorf("%s: %s", object, got)
		}
	}
	for _, broken := range []string{"", "torn", "[1]", "{", `"a"`} {
		if got := withIDs(broken, "id", "x"); valid(got) {
			t.Errorf("%q: %s", broken, got)
		}
	}
}
