package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// jsonLines is what many agents do: a file for each session, to which every turn
// appends a line for each message; then it is synced. A checkpoint part is a line
// that has all of it.
type jsonLines struct {
	dir      string
	bulk     bool
	sessions sync.Map // *lineHead by id
}

// A lineHead is what a writer remembers of a session.
type lineHead struct{ commits, messages int }

// A line is a message, the state, or the end of a turn.
type line struct {
	ID       string          `json:"id,omitempty"`
	Key      string          `json:"key,omitempty"`
	Kind     string          `json:"kind"`
	Payload  json.RawMessage `json:"payload,omitempty"`
	State    *string         `json:"state,omitempty"`    // the checkpoint part
	Revision int             `json:"revision,omitempty"` // at the end of a turn
	Usage    any             `json:"usage,omitempty"`
	Time     time.Time       `json:"time"`
}

func openJSONLines(dir string, bulk bool) (Store, error) {
	return &jsonLines{dir: dir, bulk: bulk}, os.MkdirAll(dir, 0o700)
}

func (s *jsonLines) file(id string) string { return filepath.Join(s.dir, id+".jsonl") }

func (s *jsonLines) Commit(id string, commits int, t *Turn) error {
	h, err := s.head(id, commits)
	if err != nil {
		return err
	}
	if h.commits != commits {
		return fmt.Errorf("conflict: %s is at %d, not %d", id, h.commits, commits)
	}
	var b bytes.Buffer
	now := time.Now()
	out := json.NewEncoder(&b)
	out.SetEscapeHTML(false)
	for i, n := range t.Nodes {
		l := line{ID: fmt.Sprintf("msg_%08d", h.messages+i), Key: n.Key, Kind: n.Kind, Payload: n.Payload, Time: now}
		if err := out.Encode(&l); err != nil {
			return err
		}
	}
	if t.Part != nil {
		state := string(t.Part)
		if err := out.Encode(&line{Kind: "state", State: &state, Time: now}); err != nil {
			return err
		}
	}
	if err := out.Encode(&line{Kind: "turn", Revision: commits + 1, Usage: t.Usage, Time: now}); err != nil {
		return err
	}
	if err := s.append(id, b.Bytes()); err != nil {
		return err
	}
	h.commits, h.messages = commits+1, h.messages+len(t.Nodes)
	return nil
}

// head returns what is known of a session, from its file if need be.
func (s *jsonLines) head(id string, commits int) (*lineHead, error) {
	if v, ok := s.sessions.Load(id); ok {
		return v.(*lineHead), nil
	}
	h := &lineHead{}
	if commits > 0 {
		end, err := s.read(id, func(l *line) {
			if l.Payload != nil {
				h.messages++
			}
		})
		if err != nil {
			return nil, err
		}
		h.commits = end
	}
	s.sessions.Store(id, h)
	return h, nil
}

// append opens the file for each turn, as a process that has many sessions does.
func (s *jsonLines) append(id string, lines []byte) error {
	f, err := os.OpenFile(s.file(id), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	if _, err = f.Write(lines); err == nil && !s.bulk {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// read calls f with every line of a session, and returns how many turns it has.
// Turns that do not follow each other, and a last turn that has no end, are
// errors.
func (s *jsonLines) read(id string, f func(*line)) (commits int, err error) {
	file, err := os.Open(s.file(id))
	if err != nil {
		return 0, err
	}
	defer file.Close()
	in := json.NewDecoder(bufio.NewReaderSize(file, 64<<10))
	open := false
	for {
		var l line
		if err := in.Decode(&l); errors.Is(err, io.EOF) && !open {
			return commits, nil
		} else if err != nil {
			return 0, fmt.Errorf("%s after turn %d: %w", id, commits, err)
		}
		if open = l.Revision == 0; !open {
			if commits++; l.Revision != commits {
				return 0, fmt.Errorf("%s: turn %d follows %d", id, l.Revision, commits-1)
			}
		}
		f(&l)
	}
}

func (s *jsonLines) Load(id string) (p Path, err error) {
	_, err = s.read(id, func(l *line) {
		if l.Payload != nil {
			p.IDs, p.Payloads = append(p.IDs, l.ID), append(p.Payloads, l.Payload)
		}
	})
	return p, err
}

// Last has to read all.
func (s *jsonLines) Last(id string, n int) (Path, error) {
	p, err := s.Load(id)
	return p.last(n), err
}

func (s *jsonLines) One(id, node string) ([]byte, error) {
	p, err := s.Load(id)
	return p.one(node, err)
}

func (s *jsonLines) ByKey(id, key string) (found []byte, err error) {
	_, err = s.read(id, func(l *line) {
		if l.Key == key {
			found = l.Payload
		}
	})
	if err == nil && found == nil {
		err = os.ErrNotExist
	}
	return found, err
}

func (s *jsonLines) PartAt(id string, commits int) ([]byte, error) {
	var part *string
	at := 0
	_, err := s.read(id, func(l *line) {
		if l.State != nil && at < commits {
			part = l.State
		}
		at = max(at, l.Revision)
	})
	if err == nil && part == nil {
		err = os.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	return []byte(*part), nil
}

// Fork copies the file.
func (s *jsonLines) Fork(id, fork string) error {
	data, err := os.ReadFile(s.file(id))
	if err != nil {
		return err
	}
	return s.append(fork, data)
}

// List returns the names of a page of files, the last changed ones first.
func (s *jsonLines) List(after string, limit int) (ids []string, next string, err error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, "", err
	}
	type file struct {
		time int64
		id   string
	}
	files := make([]file, 0, len(entries))
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), ".jsonl")
		info, err := e.Info()
		if ok && err == nil {
			files = append(files, file{info.ModTime().UnixNano(), id})
		}
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Or(cmp.Compare(b.time, a.time), cmp.Compare(a.id, b.id)) })
	from := 0
	if after != "" {
		from = slices.IndexFunc(files, func(f file) bool { return f.id == after }) + 1
	}
	for _, f := range files[from:min(from+limit, len(files))] {
		ids, next = append(ids, f.id), f.id
	}
	return ids, next, nil
}

func (s *jsonLines) Delete(id string) error {
	s.sessions.Delete(id)
	return os.Remove(s.file(id))
}

func (s *jsonLines) Reclaim() error { return nil }

func (s *jsonLines) Close() error { return nil }
