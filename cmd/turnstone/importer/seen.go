package importer

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/turnstonedb/turnstone"
)

// SeenPrefix begins the keys of the records that say which files sessions were read from. The rest of a key is a
// hash of the path. The value is the Seen.
const SeenPrefix = "import.file/"

// Seen is a version of a file, as far as that can be told without reading it.
type Seen struct {
	key   string
	value string
}

// A Source is what conversations are read from: a file, or a session in a database, whose path is that of the
// database and the session's id.
type Source struct {
	Path    string
	Version *Seen // nil if the source is no file and no database, or is not there
	Size    int64 // of the file, in bytes; that of a database counts for its first session
	// Beside has the other folders in which the agent will write what comes next. Instead of a folder that does not
	// exist yet, it has the nearest one above. It is empty if the agent has not written to the session for a day.
	Beside []string
}

// Look returns the sources at a path: the sessions of a database, or the file itself, whatever it is.
func Look(ctx context.Context, path string) []Source {
	info, err := os.Stat(path)
	switch {
	case err != nil || !info.Mode().IsRegular():
		return []Source{{Path: path}}
	case IsDatabase(path):
		if all, err := sessionsIn(ctx, path); err == nil { // An error is reported when the file is read.
			if len(all) > 0 {
				all[0].Size = info.Size()
			}
			return all
		}
	}
	version := fmt.Sprintf("%d %d", info.Size(), info.ModTime().UnixNano())
	s := Source{Path: path, Size: info.Size()}
	if dir := filepath.Dir(filepath.Dir(path)); filepath.Base(dir) == "session" && filepath.Base(filepath.Dir(dir)) == "storage" {
		more, written, beside := opencodeVersion(filepath.Dir(dir), strings.TrimSuffix(filepath.Base(path), ".json"))
		version += more
		if written = latest(written, info.ModTime()); time.Since(written) < late {
			s.Beside = beside
		}
	}
	s.Version = seenOf(path, version)
	return []Source{s}
}

// late is the time after which an agent is not expected to go on with a session.
const late = 24 * time.Hour

func seenOf(path, version string) *Seen { return &Seen{SeenPrefix + hashPath(realPath(path)), version} }

// opencodeVersion returns the version of the other files of a session of OpenCode, when they were written last, and
// their folders. The files are its messages and the parts of the last few messages, to which OpenCode still writes.
func opencodeVersion(storage, id string) (version string, written time.Time, folders []string) {
	h := sha256.New()
	list := func(kind, of string) (names []string) {
		folder := filepath.Join(storage, kind, of)
		files, err := os.ReadDir(folder)
		for up := err; errors.Is(up, fs.ErrNotExist) && folder != storage; {
			folder = filepath.Dir(folder)
			_, up = os.Stat(folder)
		}
		folders = append(folders, folder)
		for _, f := range files {
			if info, err := f.Info(); err == nil {
				fmt.Fprintln(h, f.Name(), info.Size(), info.ModTime().UnixNano())
				names, written = append(names, strings.TrimSuffix(f.Name(), ".json")), latest(written, info.ModTime())
			}
		}
		return names
	}
	messages := list("message", id)
	for _, message := range messages[max(len(messages)-4, 0):] {
		list("part", message)
	}
	return " " + sum(h), written, folders
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Note notes the version in the session with an id, one of those that have all that is in the file.
func (s *Seen) Note(ctx context.Context, st *turnstone.Store, id string) error {
	ses, err := st.Session(ctx, id)
	if err == nil {
		if have, err := ses.Record(ctx, s.key); err == nil && string(have.Value) == s.value {
			return nil
		}
		_, err = ses.ChangeRecords(ctx, turnstone.RecordChange{Key: s.key, Value: []byte(s.value)})
	}
	if errors.Is(err, turnstone.ErrSessionNotFound) || errors.Is(err, turnstone.ErrSessionDeleted) {
		return nil // The file is read again.
	}
	return err
}

// A SeenSet has the versions of files that the sessions of a store have. Several sessions may have had a file.
type SeenSet map[Seen]bool

// ReadSeen reads the versions of files that st has all of.
func ReadSeen(ctx context.Context, st *turnstone.Store) (SeenSet, error) {
	set := SeenSet{}
	for q := (turnstone.RecordQuery{Prefix: SeenPrefix, Limit: turnstone.MaxPage}); ; {
		page, err := st.Records(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, r := range page.Records {
			set[Seen{r.Key, string(r.Value)}] = true
		}
		if q.After = page.Next; q.After == "" {
			return set, nil
		}
	}
}
