package postgres_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/turnstonedb/turnstone/internal/pgtest"
	"github.com/turnstonedb/turnstone/internal/testkit"
)

// A member is a server that Patroni looks after.
type member struct {
	name, data string
	port       int
	patroni    *exec.Cmd
}

// query asks the member for one value.
func (m *member) query(sql string) (value string, err error) {
	c, err := pgx.Connect(ctx, fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?connect_timeout=2", m.port))
	if err != nil {
		return "", err
	}
	defer c.Close(ctx)
	err = c.QueryRow(ctx, sql).Scan(&value)
	return value, err
}

// kill ends the member at once, Patroni and server, as a machine that goes dark does.
func (m *member) kill() error {
	err := m.patroni.Process.Kill()
	_ = m.patroni.Wait() // it was killed
	text, rerr := os.ReadFile(filepath.Join(m.data, "postmaster.pid"))
	if rerr != nil {
		return errors.Join(err, rerr)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, perr := strconv.Atoi(first)
	if perr != nil {
		return errors.Join(err, perr)
	}
	return errors.Join(err, syscall.Kill(pid, syscall.SIGKILL))
}

// freePorts returns ports that nobody listens on.
func freePorts(t *testing.T, n int) (ports []int) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

// cluster starts etcd, and two servers that Patroni looks after. It returns when one of them, the first, leads, and
// replicates to the other synchronously.
func cluster(t *testing.T) []*member {
	t.Helper()
	for _, program := range []string{"patroni", "etcd"} {
		if _, err := exec.LookPath(program); err != nil {
			pgtest.Missing(t, errors.New("Patroni and etcd are not installed (Debian: apt-get install patroni etcd-server)"))
		}
	}
	srv := pgtest.Private(t) // for its directory, user and programs
	ports := freePorts(t, 6)
	dir := filepath.Dir(srv.Socket())
	run := func(program, name, config string, flags ...string) *exec.Cmd {
		cmd, err := srv.Command(program, name, config)
		if err != nil {
			t.Fatal(err)
		}
		cmd.Args = append(append(cmd.Args[:1:1], flags...), cmd.Args[1:]...)
		log, err := os.Create(filepath.Join(t.TempDir(), name+".log"))
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
				t.Logf("%s: %s", name, text[max(0, len(text)-3000):])
			}
			log.Close()
		})
		return cmd
	}
	etcd := fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	peer := fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	run("etcd", "etcd.yml", fmt.Sprintf("name: one\ndata-dir: %s/etcd\nlisten-client-urls: %s\nadvertise-client-urls: %s\nlisten-peer-urls: %s\ninitial-advertise-peer-urls: %s\ninitial-cluster: one=%s\nenable-grpc-gateway: true\n",
		dir, etcd, etcd, peer, peer, peer), "--config-file")
	var members []*member
	for i, name := range []string{"a", "b"} {
		m := &member{name: name, data: filepath.Join(dir, "member-"+name), port: ports[2+i]}
		m.patroni = run("patroni", "patroni-"+name+".yml", fmt.Sprintf(`scope: turnstone
name: %[1]s
restapi: {listen: "127.0.0.1:%[2]d", connect_address: "127.0.0.1:%[2]d"}
etcd3: {host: "127.0.0.1:%[3]d"}
bootstrap:
  dcs: {ttl: 20, loop_wait: 1, retry_timeout: 3, synchronous_mode: true}
  initdb: [{encoding: UTF8}]
  pg_hba: ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]
postgresql:
  listen: 127.0.0.1:%[4]d
  connect_address: 127.0.0.1:%[4]d
  data_dir: %[5]s
  bin_dir: %[6]s
  authentication: {superuser: {username: postgres}, replication: {username: postgres}}
  parameters: {unix_socket_directories: %[7]s}
`, name, ports[4+i], ports[0], m.port, m.data, srv.Programs(), dir))
		t.Cleanup(func() { _ = m.kill() }) // unless it was killed
		members = append(members, m)
	}
	testkit.Until(t, "a leader", func() bool {
		for _, m := range members {
			if in, err := m.query("SELECT pg_is_in_recovery()::text"); err == nil && in == "false" {
				return true
			}
		}
		return false
	})
	if in, err := members[0].query("SELECT pg_is_in_recovery()::text"); err != nil || in != "false" {
		members[0], members[1] = members[1], members[0]
	}
	testkit.Until(t, "a synchronous standby", func() bool {
		state, err := members[0].query("SELECT sync_state FROM pg_stat_replication")
		return err == nil && state == "sync"
	})
	return members
}

// The leader of a cluster that Patroni and etcd look after goes dark beside eight writers, who reach the servers by a
// URL that names both. The other server is promoted: what was acknowledged is there, once.
func TestPatroniFailsOver(t *testing.T) {
	if !testkit.Long() {
		t.Skip("it waits 20 seconds and more, until Patroni takes a leader for dead: set TURNSTONE_LONG=1")
	}
	t.Parallel() // it waits most of the time
	members := cluster(t)
	url := fmt.Sprintf("postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/postgres?target_session_attrs=read-write", members[0].port, members[1].port)
	besideCommits(t, url, func() {
		time.Sleep(time.Second)
		if err := members[0].kill(); err != nil {
			t.Fatal(err)
		}
		dark := time.Now()
		testkit.Until(t, "a new leader", func() bool {
			in, err := members[1].query("SELECT pg_is_in_recovery()::text")
			return err == nil && in == "false"
		})
		t.Logf("the standby was promoted after %v", time.Since(dark).Round(time.Second))
	})
}
