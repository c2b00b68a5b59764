package importer

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/turnstonedb/turnstone"
)

// seenPrefix begins the keys of the records that say which files sessions were read from. The rest of a key is a
// hash of the path, because names of directories are private. The value is the Seen.
const seenPrefix = "import.file/"

// Seen is a version of a file, as far as that can be told without reading it.
type Seen struct {
	key   string
	value string
}

// SeenOf returns the version of the file at a path.
func SeenOf(path string, info os.FileInfo) *Seen {
	hash := sha256.Sum256([]byte(fullPath(path)))
	s := &Seen{fmt.Sprintf("%s%x", seenPrefix, hash[:16]), fmt.Sprintf("%d %d", info.Size(), info.ModTime().UnixNano())}
	if dir := filepath.Dir(filepath.Dir(path)); filepath.Base(dir) == "session" && filepath.Base(filepath.Dir(dir)) == "storage" {
		s.value += opencodeVersion(filepath.Dir(dir), strings.TrimSuffix(filepath.Base(path), ".json"))
	}
	return s
}

// opencodeVersion returns the version of the other files of a session of OpenCode: of its messages, and of the
// parts of the last one, which is what OpenCode writes to.
func opencodeVersion(storage, id string) string {
	h := sha256.New()
	last := ""
	list := func(dir string) {
		files, _ := os.ReadDir(filepath.Join(storage, dir))
		for _, f := range files {
			if info, err := f.Info(); err == nil {
				fmt.Fprintln(h, f.Name(), info.Size(), info.ModTime().UnixNano())
				last = strings.TrimSuffix(f.Name(), ".json")
			}
		}
	}
	list(filepath.Join("message", id))
	if last != "" {
		list(filepath.Join("part", last))
	}
	return " " + sum(h)
}

// record returns the change that notes the version in a session.
func (s *Seen) record() []turnstone.RecordChange {
	if s == nil {
		return nil
	}
	return []turnstone.RecordChange{{Key: s.key, Value: []byte(s.value)}}
}

// note notes the version in a session that has all of the file.
func (s *Seen) note(ctx context.Context, ses *turnstone.Session) error {
	if s == nil {
		return nil
	}
	last, err := ses.Record(ctx, s.key)
	if err != nil && !errors.Is(err, turnstone.ErrRecordNotFound) || bytes.Equal(last.Value, []byte(s.value)) {
		return err
	}
	_, err = ses.ChangeRecords(ctx, s.record()...)
	return err
}

// A SeenSet has the versions of files that the sessions of a store have.
type SeenSet map[string]string

// ReadSeen reads the versions of files that st has all of.
func ReadSeen(ctx context.Context, st *turnstone.Store) (SeenSet, error) {
	set := SeenSet{}
	for q := (turnstone.RecordQuery{Prefix: seenPrefix, Limit: turnstone.MaxPage}); ; {
		page, err := st.Records(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, r := range page.Records {
			if old, ok := set[r.Key]; ok && old != string(r.Value) {
				r.Value = nil // One of the file's sessions lacks a part of it.
			}
			set[r.Key] = string(r.Value)
		}
		if q.After = page.Next; q.After == "" {
			return set, nil
		}
	}
}

// Has reports whether the set has a version.
func (s SeenSet) Has(v *Seen) bool { return s[v.key] == v.value }

// Add adds a version.
func (s SeenSet) Add(v *Seen) { s[strings.Clone(v.key)] = v.value }
