package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// jsonFiles is one JSON file for each session, written anew at every turn:
// to a file beside it, synced, renamed.
type jsonFiles struct {
	dir      string
	bulk     bool // files are written by Close
	sessions sync.Map
}

type jsonSession struct {
	ID       string        `json:"id"`
	Model    string        `json:"model"`
	Revision int           `json:"revision"`
	Updated  time.Time     `json:"updated"`
	Usage    []any         `json:"usage,omitempty"`
	State    string        `json:"state,omitempty"` // the checkpoint part
	Messages []jsonMessage `json:"messages"`
}

type jsonMessage struct {
	ID      string          `json:"id"`
	Kind    string          `json:"kind"`
	Payload json.RawMessage `json:"payload"`
}

func openJSONFiles(dir string, bulk bool) (Store, error) {
	return &jsonFiles{dir: dir, bulk: bulk}, os.MkdirAll(dir, 0o700)
}

func (s *jsonFiles) file(id string) string { return filepath.Join(s.dir, id+".json") }

func (s *jsonFiles) Commit(id string, commits int, t *Turn) error {
	v, ok := s.sessions.Load(id)
	if !ok {
		v = &jsonSession{ID: id, Model: "model"}
		if commits > 0 {
			old, err := s.read(id)
			if err != nil {
				return err
			}
			v = old
		}
		s.sessions.Store(id, v)
	}
	o := v.(*jsonSession)
	if o.Revision != commits {
		return fmt.Errorf("conflict: %s is at %d, not %d", id, o.Revision, commits)
	}
	o.Revision++
	o.Updated = time.Now()
	if t.Part != nil {
		o.State = string(t.Part)
	}
	for _, u := range t.Usage {
		o.Usage = append(o.Usage, u)
	}
	for _, n := range t.Nodes {
		o.Messages = append(o.Messages, jsonMessage{fmt.Sprintf("msg_%08d", len(o.Messages)), n.Kind, n.Payload})
	}
	if s.bulk {
		return nil
	}
	return s.write(o)
}

func (s *jsonFiles) write(o *jsonSession) error {
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(s.dir, "*.tmp")
	if err != nil {
		return err
	}
	if _, err = f.Write(data); err == nil && !s.bulk {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), s.file(o.ID))
	}
	return err
}

func (s *jsonFiles) Close() (err error) {
	if s.bulk {
		s.sessions.Range(func(_, v any) bool {
			err = s.write(v.(*jsonSession))
			return err == nil
		})
	}
	return err
}

func (s *jsonFiles) read(id string) (*jsonSession, error) {
	data, err := os.ReadFile(s.file(id))
	if err != nil {
		return nil, err
	}
	o := &jsonSession{}
	return o, json.Unmarshal(data, o)
}

func (s *jsonFiles) Load(id string) (p Path, err error) {
	o, err := s.read(id)
	if err != nil {
		return p, err
	}
	for _, m := range o.Messages {
		p.IDs, p.Payloads = append(p.IDs, m.ID), append(p.Payloads, m.Payload)
	}
	return p, nil
}

// Last has to read all.
func (s *jsonFiles) Last(id string, n int) (Path, error) {
	p, err := s.Load(id)
	return p.last(n), err
}

func (s *jsonFiles) One(id, node string) ([]byte, error) {
	p, err := s.Load(id)
	return p.one(node, err)
}

func (s *jsonFiles) Fork(id, fork string) error {
	o, err := s.read(id)
	if err != nil {
		return err
	}
	o.ID = fork
	return s.write(o)
}

// List looks at the times of all files, and reads those of the page.
func (s *jsonFiles) List(after string, limit int) (ids []string, next string, err error) {
	page, next, err := listFiles(s.dir, ".json", after, limit)
	for _, id := range page {
		o, err := s.read(id)
		if err != nil {
			return nil, "", err
		}
		ids = append(ids, o.ID)
	}
	return ids, next, err
}

// listFiles returns the names of a page of files, the last changed ones first.
func listFiles(dir, suffix, after string, limit int) (ids []string, next string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, "", err
	}
	type file struct {
		time int64
		id   string
	}
	files := make([]file, 0, len(entries))
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), suffix)
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

func (s *jsonFiles) Delete(id string) error {
	s.sessions.Delete(id)
	if err := os.Remove(s.file(id)); !errors.Is(err, os.ErrNotExist) { // in bulk it may not be written yet
		return err
	}
	return nil
}

func (s *jsonFiles) Reclaim() error { return nil }
