// Package pgtest gives tests a PostgreSQL server: the one that TURNSTONE_TEST_POSTGRES
// points to, or a private one of whatever version is installed. Where there is
// neither, tests are skipped, or fail if TURNSTONE_TEST_REQUIRE is "postgres".
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	variable = "TURNSTONE_TEST_POSTGRES"
	require  = "TURNSTONE_TEST_REQUIRE"
)

// errNone: no PostgreSQL is installed.
var errNone = errors.New("no PostgreSQL is installed: install it (Debian: apt-get install postgresql), or point " + variable + " to one")

// shared is the server of a test binary.
var shared struct {
	sync.Mutex
	server *Server // nil until a test asks for one
	err    error   // why there is none
}

// Main runs the tests of a binary, whose server it stops at the end.
func Main(m *testing.M) int {
	code := m.Run()
	shared.Lock()
	defer shared.Unlock()
	if shared.server != nil {
		if err := shared.server.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	return code
}

// URL returns how to connect to the server that TURNSTONE_TEST_POSTGRES points to, or
// else to the one of Shared. Main must run the tests.
func URL(t testing.TB) string {
	t.Helper()
	given := os.Getenv(variable)
	switch {
	case given == "":
		return Shared(t).URL("postgres")
	case !strings.HasPrefix(given, "postgres"):
		t.Fatal(variable + ": want postgres://…, to which tests add parameters")
	case !strings.Contains(given, "?"):
		given += "?sslmode=prefer"
	}
	return given
}

// Shared returns the private server that the tests of a binary share, for a test that
// needs the server's socket. The first test that asks for the server starts it; a test
// that configures or kills its server takes a Private one. Main must run the tests.
func Shared(t testing.TB) *Server {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.server == nil && shared.err == nil {
		shared.server, shared.err = Start(context.Background(), "fsync=off", "max_connections=300")
	}
	need(t, shared.err)
	return shared.server
}

// need skips or fails a test without a server.
func need(t testing.TB, err error) {
	t.Helper()
	if errors.Is(err, errNone) {
		Missing(t, err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Missing skips a test for want of a program, or fails it where all are to be there.
func Missing(t testing.TB, why error) {
	t.Helper()
	if os.Getenv(require) == "postgres" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// Private returns a server of the test's own, with more settings as name=value.
func Private(t testing.TB, settings ...string) *Server {
	t.Helper()
	s, err := Start(context.Background(), settings...)
	need(t, err)
	s.stopAfter(t)
	return s
}

func (s *Server) stopAfter(t testing.TB) {
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
}

var schemas atomic.Int64

// Schema returns a name that no other test gives to a schema on the servers of URL and
// Shared. The schema is dropped at the end of the test if its server outlives the tests.
func Schema(t testing.TB) string {
	t.Helper()
	url := URL(t)
	name := fmt.Sprintf("test_%d_%d", os.Getpid(), schemas.Add(1))
	if os.Getenv(variable) == "" {
		return name
	}
	t.Cleanup(func() {
		ctx := context.Background()
		c, err := pgx.Connect(ctx, url)
		if err == nil {
			_, err = c.Exec(ctx, "DROP SCHEMA IF EXISTS "+pgx.Identifier{name}.Sanitize()+" CASCADE")
			err = errors.Join(err, c.Close(ctx))
		}
		if err != nil {
			t.Error(err)
		}
	})
	return name
}

// A Server is a private cluster.
type Server struct {
	dir, bin string
	port     string
	cred     *syscall.Credential // of the processes, when the tests run as root
	watch    *exec.Cmd           // stops the server when the tests are killed
	cmd      *exec.Cmd
	ended    chan struct{} // closed when cmd has ended
	args     []string
}

// Start makes a cluster in a temporary directory and starts its server, with
// more settings as name=value.
func Start(ctx context.Context, settings ...string) (*Server, error) {
	return start(ctx, settings, func(s *Server) error {
		return s.finish("initdb", "-D", s.data(), "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
	})
}

// Standby returns a server of the test's own that follows s.
func (s *Server) Standby(t testing.TB) *Server {
	t.Helper()
	follower, err := start(context.Background(), nil, func(f *Server) error {
		return f.finish("pg_basebackup", "-h", s.dir, "-p", s.port, "-U", "postgres", "-D", f.data(), "-R", "-c", "fast", "--no-sync")
	})
	need(t, err)
	follower.stopAfter(t)
	return follower
}

// Promote makes a standby a primary.
func (s *Server) Promote() error { return s.finish("pg_ctl", "promote", "-D", s.data(), "-w") }

func start(ctx context.Context, settings []string, create func(*Server) error) (*Server, error) {
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	s := &Server{bin: bin, port: "5432"}
	if s.dir, err = os.MkdirTemp(place(), "pgtest-"); err != nil {
		return nil, err
	}
	s.args = []string{"-D", s.data(), "-k", s.dir, "-c", "listen_addresses="}
	for _, set := range settings {
		s.args = append(s.args, "-c", set)
		if port, ok := strings.CutPrefix(set, "port="); ok {
			s.port = port
		}
	}
	for _, step := range []func() error{s.guard, s.credentials, func() error { return create(s) }, func() error { return s.Run(ctx) }} {
		if err := step(); err != nil {
			return nil, errors.Join(err, s.Stop())
		}
	}
	return s, nil
}

// place returns the directory for clusters: a file system in memory where there is a
// large one, else the one of os.MkdirTemp. A cluster has a thousand files, and the tests
// make and remove many clusters.
func place() string {
	const memory, enough = "/dev/shm", 8 << 30
	var fs syscall.Statfs_t
	if err := syscall.Statfs(memory, &fs); err != nil || uint64(fs.Bavail)*uint64(fs.Bsize) < enough {
		return ""
	}
	return memory
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

// atTheEnd ends what runs in directory $0, as files of process numbers tell, and
// removes it. A number may be somebody else's by now.
const atTheEnd = `read -r _
for file in data/postmaster.pid *.pid; do
	pid=$(head -n 1 "$file") || continue
	line=$(tr '\0' ' ' <"/proc/$pid/cmdline" || ps -p "$pid" -o args=)
	case "$line" in *"$0"*) kill -QUIT "$pid" ;; esac
done
sleep 1
rm -rf "$0"`

// guard starts a process that outlives the tests when they are killed: its input
// ends with theirs, and then it ends the server and removes its files.
func (s *Server) guard() error {
	s.watch = exec.Command("sh", "-c", atTheEnd, s.dir)
	s.watch.Dir = s.dir
	s.watch.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // not interrupted with the tests
	if _, err := s.watch.StdinPipe(); err != nil {
		return err
	}
	return s.watch.Start()
}

// binaries returns the directory of the newest version that is installed.
func binaries() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(path), nil
		}
	}
	all, err := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
	if err != nil || len(all) == 0 {
		return "", errNone
	}
	version := func(path string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
		return n
	}
	return filepath.Dir(slices.MaxFunc(all, func(a, b string) int { return version(a) - version(b) })), nil
}

// File writes a file that the server's user alone can read, beside its data.
func (s *Server) File(name string, content []byte) (path string, err error) {
	path = filepath.Join(s.dir, name)
	err = os.WriteFile(path, content, 0o600)
	if err == nil && s.cred != nil {
		err = os.Chown(path, int(s.cred.Uid), int(s.cred.Gid))
	}
	return path, err
}

// Command makes a command that runs beside the server, as the same user, with the
// path of a file of that name and content as its argument.
func (s *Server) Command(path, name, content string) (*exec.Cmd, error) {
	file, err := s.File(name, []byte(content))
	return s.command(path, file), err
}

// command makes a command that runs as another user when the tests run as root,
// which PostgreSQL refuses.
func (s *Server) command(path string, args ...string) *exec.Cmd {
	cmd := exec.Command(path, args...)
	cmd.Dir = s.dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "HOME="+s.dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: s.cred}
	return cmd
}

// finish runs a program of PostgreSQL.
func (s *Server) finish(name string, args ...string) error {
	if out, err := s.command(filepath.Join(s.bin, name), args...).CombinedOutput(); err != nil {
		return fmt.Errorf("pgtest: %s: %w: %s", name, err, out)
	}
	return nil
}

func (s *Server) credentials() error {
	if os.Geteuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		if u, err = user.Lookup("nobody"); err != nil {
			return err
		}
	}
	uid, uerr := strconv.ParseUint(u.Uid, 10, 32)
	gid, gerr := strconv.ParseUint(u.Gid, 10, 32)
	s.cred = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return errors.Join(uerr, gerr, os.Chown(s.dir, int(uid), int(gid)))
}

// Run starts the server, as after Kill, and waits until it answers.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := s.launch(); err != nil {
		return err
	}
	for {
		c, err := pgx.Connect(ctx, s.URL("postgres"))
		if err == nil {
			return c.Close(ctx)
		}
		select {
		case <-ctx.Done():
			text, _ := os.ReadFile(filepath.Join(s.dir, "log"))
			return fmt.Errorf("pgtest: the server does not answer: %w: %s", err, text[max(0, len(text)-4000):])
		case <-s.ended: // what was killed is not quite gone, and it refuses to start
			time.Sleep(100 * time.Millisecond)
			if err := s.launch(); err != nil {
				return err
			}
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// launch starts the process.
func (s *Server) launch() error {
	log, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	s.cmd = s.command(filepath.Join(s.bin, "postgres"), s.args...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		s.cmd = nil
		return err
	}
	ended := make(chan struct{})
	s.ended = ended
	go func(cmd *exec.Cmd) {
		_ = cmd.Wait() // its log says why
		close(ended)
	}(s.cmd)
	return nil
}

// Programs is the directory of PostgreSQL's programs.
func (s *Server) Programs() string { return s.bin }

// Socket is the path of the server's socket.
func (s *Server) Socket() string { return filepath.Join(s.dir, ".s.PGSQL."+s.port) }

// URL returns how to connect to a database.
func (s *Server) URL(database string) string {
	return fmt.Sprintf("postgres:///%s?host=%s&port=%s&user=postgres", database, s.dir, s.port)
}

// Pid returns the process id of the server's first process, which is the parent of the others.
func (s *Server) Pid() int { return s.cmd.Process.Pid }

// Kill ends the server at once, as a crash does: SIGKILL to all its processes.
func (s *Server) Kill() error {
	pid := s.cmd.Process.Pid
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil { // it starts no more of them
		return err
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	for _, child := range strings.Fields(string(children)) {
		if n, perr := strconv.Atoi(child); perr == nil {
			_ = syscall.Kill(n, syscall.SIGKILL) // it may be gone
		}
	}
	err = errors.Join(err, syscall.Kill(pid, syscall.SIGKILL))
	<-s.ended
	s.cmd = nil
	return err
}

// Stop ends the server and removes its files.
func (s *Server) Stop() error {
	if s.watch != nil && s.watch.Process != nil {
		_ = s.watch.Process.Kill()
		_ = s.watch.Wait() // it was killed
		s.watch = nil
	}
	if s.cmd != nil {
		_ = s.cmd.Process.Signal(syscall.SIGQUIT) // immediate shutdown
		<-s.ended
		s.cmd = nil
	}
	return os.RemoveAll(s.dir)
}
