package bucket_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/backup"
	"github.com/turnstonedb/turnstone/backup/bucket"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/engine/memory"
	"github.com/turnstonedb/turnstone/internal/storetest"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

var ctx = context.Background()

// s3 starts a server that speaks S3, with a bucket, and returns HOST:PORT of it.
func s3(t *testing.T) string {
	t.Helper()
	server, err := exec.LookPath("versitygw")
	if err != nil {
		const missing = "no S3 server: install one with `go install github.com/versity/versitygw/cmd/versitygw@v1.8.0`"
		if os.Getenv("TURNSTONE_TEST_REQUIRE") != "" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := l.Addr().String()
	l.Close()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "backups"), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(server, "--port", at, "--quiet", "posix", "--sidecar", t.TempDir(), dir)
	cmd.Env = append(os.Environ(), "ROOT_ACCESS_KEY_ID=user", "ROOT_SECRET_ACCESS_KEY=secret")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("versitygw: %s", out.String())
		}
	})
	t.Setenv("AWS_ACCESS_KEY_ID", "user")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret")
	t.Setenv("AWS_REGION", "us-east-1")
	for range 200 {
		if c, err := net.Dial("tcp", at); err == nil {
			c.Close()
			return at
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("versitygw does not answer: %s", out.String())
	return ""
}

// open opens a place in the bucket of a server.
func open(t *testing.T, at, prefix string) backup.Target {
	t.Helper()
	to, closer, err := bucket.Open(ctx, "s3://backups/"+prefix+"?use_path_style=true&endpoint=http://"+at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closer.Close() })
	return to
}

func onMemory(t *testing.T) *turnstone.Store {
	t.Helper()
	e := memory.New()
	st, err := turnstone.Open(ctx, e, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { st.Close(); e.Close() })
	return st
}

// work makes sessions, commits and forks.
func work(t *testing.T, st *turnstone.Store, r *rand.Rand, most int) {
	t.Helper()
	for range 6 {
		q := turnstone.Request{ID: fmt.Sprint("s", r.IntN(8))}
		if parent := fmt.Sprint("s", r.IntN(8)); r.IntN(3) == 0 && parent != q.ID {
			if _, err := st.Session(ctx, parent); err == nil {
				q.Parent = parent
			}
		}
		s, _, err := st.Create(ctx, q)
		if errors.Is(err, turnstone.ErrExists) { // with another parent
			s, err = st.Session(ctx, q.ID)
		}
		if err != nil {
			t.Fatal(err)
		}
		c := turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "k", Payload: random(r, r.IntN(most))}}}
		if r.IntN(4) == 0 {
			a, err := s.PutAttachment(ctx, bytes.NewReader(random(r, most)), -1, "image/png", "x")
			if err != nil {
				t.Fatal(err)
			}
			c.Nodes[0].Attachments = []blob.Attachment{a}
		}
		if _, err := s.Commit(ctx, c); err != nil {
			t.Fatal(err)
		}
	}
}

func random(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	return b
}

// standings returns where all sessions stand.
func standings(t *testing.T, st *turnstone.Store) []turnstone.Standing {
	t.Helper()
	page, err := st.List(ctx, turnstone.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var of []turnstone.StandingQuery
	for i := range page.Sessions {
		of = append(of, turnstone.StandingQuery{ID: page.Sessions[i].ID})
	}
	out, err := st.Standings(ctx, of...)
	if err != nil {
		t.Fatal(err)
	}
	for i := range out {
		out[i].Incarnation = "" // which each store has its own of
	}
	slices.SortFunc(out, func(a, b turnstone.Standing) int { return strings.Compare(a.ID, b.ID) })
	return out
}

// same fails the test unless two stores have the same sessions at the same commits, with the same of all the rest.
func same(t *testing.T, a, b *turnstone.Store) {
	t.Helper()
	if want, got := fmt.Sprintf("%+v", standings(t, a)), fmt.Sprintf("%+v", standings(t, b)); want != got {
		t.Fatalf("got %s\nwant %s", got, want)
	}
}

// A bucket of S3 keeps what a target has to keep: exclusive names, ranges, and a list by directories.
func TestBK8_ABucketIsATarget(t *testing.T) {
	to := open(t, s3(t), "a/b")
	put := func(name, content string) error { return to.Put(ctx, name, strings.NewReader(content)) }
	get := func(name string, offset, length int64) (string, error) {
		r, err := to.Get(ctx, name, offset, length)
		if err != nil {
			return "", err
		}
		defer r.Close()
		b, err := io.ReadAll(r)
		return string(b), err
	}
	for _, name := range []string{"g/runs/1", "g/runs/2", "g/packs/1", "h/runs/1"} {
		if err := put(name, "content of "+name); err != nil {
			t.Fatal(err)
		}
	}
	if err := put("g/runs/1", "other"); !errors.Is(err, fs.ErrExist) {
		t.Error(err)
	}
	for _, part := range []struct {
		offset, length int64
		want           string
	}{{0, -1, "content of g/runs/1"}, {8, 2, "of"}, {11, -1, "g/runs/1"}, {0, 7, "content"}} {
		if got, err := get("g/runs/1", part.offset, part.length); got != part.want || err != nil {
			t.Errorf("%q, %v", got, err)
		}
	}
	if _, err := get("g/runs/3", 0, -1); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	list := func(dir string) (out []string) {
		for name, err := range to.List(ctx, dir) {
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, name)
		}
		return out
	}
	for dir, want := range map[string][]string{"": {"g/", "h/"}, "g/": {"packs/", "runs/"}, "g/runs/": {"1", "2"}, "x/": nil} {
		if got := list(dir); !slices.Equal(got, want) {
			t.Errorf("%s: %q", dir, got)
		}
	}
	failed := errors.New("the reader failed")
	if err := to.Put(ctx, "g/runs/4", io.MultiReader(strings.NewReader("begin"), failing{failed})); !errors.Is(err, failed) {
		t.Error(err)
	}
	if _, err := get("g/runs/4", 0, -1); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
	for range 2 {
		if err := to.Delete(ctx, "g/runs/2"); err != nil {
			t.Error(err)
		}
	}
	if got := list("g/runs/"); !slices.Equal(got, []string{"1"}) {
		t.Error(got)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

// A backup to S3 over connections that are cut all the time has what the store has, and is restored over such.
func TestBK8_ABackupToS3GoesOnWhereTheNetworkIsCut(t *testing.T) {
	at := s3(t)
	r := rand.New(rand.NewPCG(8, 8))
	var connections atomic.Int64
	cut := &storetest.Cutter{To: at, Budget: func() (up, down int64) {
		if connections.Add(1) == 1 {
			return 10_000, -1 // One is cut in any case.
		}
		switch rand.IntN(3) { // r is not for several goroutines.
		case 0:
			return 1 + rand.Int64N(300_000), -1
		case 1:
			return -1, 1 + rand.Int64N(300_000)
		}
		return -1, -1
	}}
	near, far := open(t, at, "here"), open(t, cut.ListenTCP(t), "here")
	st := onMemory(t)
	for round := range testkit.Pick(20, 6, 3) {
		work(t, st, r, 50_000)
		for {
			if _, err := backup.Run(ctx, st, far, backup.Options{NewGeneration: round == 3}); err == nil {
				break
			}
		}
		to := onMemory(t)
		for {
			if _, err := backup.Restore(ctx, far, to, backup.RestoreOptions{}); err == nil {
				break
			}
		}
		same(t, st, to)
	}
	if cut.Cuts.Load() == 0 {
		t.Error("no connection was cut")
	}
	v, err := backup.Verify(ctx, near, backup.VerifyOptions{})
	if err != nil || v.Err() != nil {
		t.Fatal(err, v.Err())
	}
}

// A pack that S3 takes in parts, and a session that does not fit into memory when it is restored, come whole.
func TestBK8_LargeSessionsComeWhole(t *testing.T) {
	to := open(t, s3(t), "large")
	st := onMemory(t)
	r := rand.New(rand.NewPCG(1, 1))
	for range 2 {
		work(t, st, r, 4<<20)
	}
	if _, err := backup.Run(ctx, st, to, backup.Options{}); err != nil {
		t.Fatal(err)
	}
	got := onMemory(t)
	o := backup.RestoreOptions{Dir: t.TempDir()}
	if _, err := backup.Restore(ctx, to, got, o); err != nil {
		t.Fatal(err)
	}
	same(t, st, got)
	if left, err := os.ReadDir(o.Dir); err != nil || len(left) > 0 {
		t.Error(left, err)
	}
}

func TestBK8_AnAddressThatIsWrongIsRefused(t *testing.T) {
	for _, address := range []string{"", "ftp://host/dir", "s4://bucket"} {
		if _, _, err := bucket.Open(ctx, address); !errors.Is(err, turnstone.ErrInvalid) {
			t.Errorf("%q: %v", address, err)
		}
	}
}
