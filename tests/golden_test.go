package tests

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/klauspost/compress/zstd"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/engine/postgres"
	"github.com/turnstonedb/turnstone/internal/pgtest"
)

// golden are the directories of testdata/stores: a store of each format and engine that was
// ever released, and what reads of it give. Until the first release there is the one of the
// format of today: `go test ./tests -run FV5 -update` writes it anew.
const golden = "testdata/stores"

// released says that the newest format is that of a release, whose stores never change.
const released = false

const goldenSchema = "turnstone_golden"

// FV5: every store that a release of Turnstone wrote, on any engine, can be read, committed
// to, collected and vacuumed.
func TestFV5_StoresOfEveryReleasedFormatAreRead(t *testing.T) {
	if *update && !released {
		writeGolden(t)
	}
	formats, err := filepath.Glob(golden + "/format-*")
	if err != nil || len(formats) == 0 {
		t.Fatalf("no stores in %s: %v", golden, err)
	}
	for _, dir := range formats {
		for _, name := range append(open.Schemes(), "postgres") {
			t.Run(filepath.Base(dir)+"/"+name, func(t *testing.T) {
				data, err := os.ReadFile(filepath.Join(dir, name+".zst"))
				if os.IsNotExist(err) && dir != formats[len(formats)-1] {
					t.Skip("the engine is younger than the format")
				}
				if err != nil {
					t.Fatal(err)
				}
				want, err := os.ReadFile(filepath.Join(dir, "reads.txt"))
				if err != nil {
					t.Fatal(err)
				}
				e, err := openArchive(t, name, unpacked(t, data))
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { e.Close() })
				st := openStore(t, e, &turnstone.Options{MustExist: true})
				if got := reads(t, st); got != string(want) {
					t.Fatalf("reads are other ones than those of the release:\n%s", got)
				}
				if err := addTurns(st); err != nil {
					t.Fatal(err)
				}
				maintain(t, name, st)
				extended := reads(t, st)
				for line := range strings.Lines(string(want)) {
					if strings.HasPrefix(line, "  node ") && !strings.Contains(extended, line) {
						t.Errorf("gone after commits, gc and vacuum: %s", line)
					}
				}
				again := openStore(t, e, &turnstone.Options{MustExist: true, Upgrade: true})
				if reads(t, again) != extended {
					t.Error("reads are other ones after an upgrade")
				}
				maintain(t, name+", upgraded", again)
				if err := foreignReads(t, e, again, ""); err != nil {
					t.Errorf("a stranger: %v", err)
				}
			})
		}
	}
}

// lines returns n bytes of text.
func lines(n int, seed uint64) []byte {
	var b bytes.Buffer
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, "line %d of %d\n", i, seed)
	}
	return b.Bytes()[:n]
}

// reads tells what a store has in a form that does not change with the API: every session
// with its nodes, the contents of its checkpoint parts and its attachments.
func reads(t *testing.T, st *turnstone.Store) string {
	t.Helper()
	var out strings.Builder
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	page, err := st.List(ctx, turnstone.ListOptions{})
	must(err)
	for _, i := range page.Sessions {
		fmt.Fprintf(&out, "session %s: revision %d, commit %s, leaf %s, parent %q, name %q, labels %v, usage %v\n",
			i.ID, i.Revision, i.Commit, i.Leaf, i.Parent, i.Name, i.Labels, i.Usage)
		s, err := st.Session(ctx, i.ID)
		must(err)
		state, err := s.Load(ctx, turnstone.Scope{Full: true})
		must(err)
		for _, n := range state.Nodes {
			fmt.Fprintf(&out, "  node %s: parent %s, kind %s, key %q, payload %x\n", n.ID, n.Parent, n.Kind, n.Key, sha256.Sum256(n.Payload))
			for _, a := range n.Attachments {
				content := sha256.New()
				_, err := s.ReadAttachment(ctx, content, a.ID)
				must(err)
				fmt.Fprintf(&out, "    attachment %q of %s: %x\n", a.Name, a.MediaType, content.Sum(nil))
			}
		}
		parts, err := s.Checkpoint(ctx, 0)
		must(err)
		for _, name := range slices.Sorted(maps.Keys(parts)) {
			fmt.Fprintf(&out, "  part %s: %x\n", name, sha256.Sum256(parts[name]))
		}
		kept, err := s.Kept(ctx)
		must(err)
		fmt.Fprintf(&out, "  kept %v\n", kept)
	}
	return out.String()
}

// writeGolden writes the stores of the format of today.
func writeGolden(t *testing.T) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	source := fullOf(t, lines) // which compress
	dir := filepath.Join(golden, fmt.Sprintf("format-%d", formatOf(t, source)))
	must(os.MkdirAll(dir, 0o755))
	must(os.WriteFile(filepath.Join(dir, "reads.txt"), []byte(reads(t, openStore(t, source, nil))), 0o644))
	put := func(e engine.Engine, err error) {
		t.Helper()
		must(err)
		var b engine.Batch
		for p, err := range source.Scan(ctx, engine.Range{}) {
			must(err)
			b.Set(p.Key, p.Value)
		}
		must(e.Apply(ctx, &b))
		must(e.Close())
	}
	stores := map[string][]byte{"postgres": statements(t, source)}
	for _, name := range open.Schemes() {
		at := filepath.Join(t.TempDir(), "store")
		put(open.Open(ctx, name+":"+at, &open.Options{Exclusive: true}))
		stores[name] = archive(t, at)
	}
	for name, content := range stores {
		w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression))
		must(err)
		must(os.WriteFile(filepath.Join(dir, name+".zst"), w.EncodeAll(content, nil), 0o644))
	}
}

func unpacked(t *testing.T, data []byte) []byte {
	t.Helper()
	r, err := zstd.NewReader(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	out, err := r.DecodeAll(data, nil)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// archive returns the files of a directory as a tar archive.
func archive(t *testing.T, dir string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// openArchive opens the store of an engine that archive or statements put away.
func openArchive(t *testing.T, name string, data []byte) (engine.Engine, error) {
	t.Helper()
	if name == "postgres" {
		return openDump(t, data)
	}
	dir := filepath.Join(t.TempDir(), "store")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		content, err := io.ReadAll(r)
		if err == nil && h.Typeflag == tar.TypeReg {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(h.Name)), content, 0o600)
		}
		if err != nil {
			return nil, err
		}
	}
	return open.Open(ctx, name+":"+dir, &open.Options{Exclusive: true})
}

// statements returns the statements that make a schema with the records of an engine, one a line.
func statements(t *testing.T, e engine.Engine) []byte {
	t.Helper()
	lines := postgres.Definition(goldenSchema)
	for p, err := range e.Scan(ctx, engine.Range{}) {
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf(`INSERT INTO %s.pairs (k, v) VALUES ('\x%x', '\x%x')`, goldenSchema, p.Key, p.Value))
	}
	return []byte(strings.Join(lines, "\n"))
}

// openDump opens the schema that the statements make, under a name of its own.
func openDump(t *testing.T, data []byte) (engine.Engine, error) {
	t.Helper()
	url, schema := pgtest.URL(t), pgtest.Schema(t)
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, strings.ReplaceAll(strings.ReplaceAll(string(data), goldenSchema, schema), "\n", ";\n")); err != nil {
		return nil, err
	}
	return postgres.Open(ctx, url, &postgres.Options{Schema: schema})
}
