package importer_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/transcript"
)

// Saving the growing histories of the corpus turn by turn takes at most 5 % more bytes
// than commits of the new messages. Saving them once more takes none.
func TestCorpusTakesNoMoreThanDeltas(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it saves the whole corpus")
	}
	dir := corpus(t)
	whole, deltas := openPlain(t), openPlain(t)
	tr := transcript.New(whole.Factory())
	turns, messages := 0, 0
	final := map[string][]transcript.Message{}
	for _, c := range conversations(t, dir) {
		s, _, err := deltas.Create(ctx, turnstone.Request{ID: c.ID})
		if err != nil {
			t.Fatal(err)
		}
		var all []transcript.Message
		at := head.Revision(0)
		for i := 0; i < len(c.Events); {
			var in turnstone.Commit
			for first := true; i < len(c.Events) && (first || !c.Events[i].Turn); i, first = i+1, false {
				e := &c.Events[i]
				in.Nodes = append(in.Nodes, turnstone.NewNode{Kind: e.Kind, Payload: e.Payload})
				all = append(all, transcript.Message{Kind: e.Kind, Payload: e.Payload})
			}
			in.Expected = at
			r, err := s.Commit(ctx, in)
			if err != nil {
				t.Fatal(err)
			}
			at = r.Revision
			if got, err := tr.Save(ctx, c.ID, transcript.Snapshot{Messages: all}); err != nil || got.Added != len(in.Nodes) {
				t.Fatalf("%s: %+v of %d new messages, %v", c.ID, got, len(in.Nodes), err)
			}
			turns++
		}
		messages += len(all)
		final[c.ID] = all
	}
	a, b := stored(t, whole), stored(t, deltas)
	t.Logf("%d sessions, %d turns, %d messages: whole histories take %d bytes, deltas %d: %.4f times", len(final), turns, messages, a, b, float64(a)/float64(b))
	if len(final) < 10 || float64(a) > 1.05*float64(b) {
		t.Errorf("%d sessions: %d bytes, by deltas %d", len(final), a, b)
	}
	for id, all := range final {
		if _, err := tr.Save(ctx, id, transcript.Snapshot{Messages: all}); err != nil {
			t.Fatal(err)
		}
	}
	if again := stored(t, whole); again != a {
		t.Errorf("saving what is unchanged wrote %d bytes", again-a)
	}
}

func openPlain(t *testing.T) *turnstone.Store {
	t.Helper()
	e := memory.New()
	st, err := turnstone.Open(ctx, e, &turnstone.Options{NoAutoSeal: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close(); e.Close() })
	return st
}

func stored(t *testing.T, st *turnstone.Store) uint64 {
	t.Helper()
	s, err := st.Stats(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return s.Stored.Total()
}

// conversations returns the conversations of all transcripts.
func conversations(t *testing.T, dir string) (out []importer.Conversation) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(dir) // WalkDir does not follow symbolic links
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.Contains(path, ".json") && !strings.Contains(path, ".traj") {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		data, err := importer.Read(ctx, f)
		if err != nil {
			return err
		}
		convs, _ := parseFile(t, path, data)
		for _, c := range convs {
			if !seen[c.ID] && len(c.Events) > 0 {
				seen[c.ID] = true
				out = append(out, c)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
