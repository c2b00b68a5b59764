package main

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/client"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// A served is a process of `turnstone serve`.
type served struct {
	*exec.Cmd
	address string
}

// startServe starts the command, and waits until it serves.
func startServe(t *testing.T, args ...string) *served {
	t.Helper()
	s := &served{Cmd: exec.Command(os.Args[0], append([]string{"serve"}, args...)...)}
	s.Env = append(os.Environ(), "TURNSTONE_TEST_COMMAND=1", storeVariable+"=")
	s.Stderr = os.Stderr
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.Process.Kill() // unless it has ended
		_ = s.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	_, s.address, _ = strings.Cut(strings.TrimSpace(line), " on ")
	return s
}

// stop ends the process with a signal.
func (s *served) stop(t *testing.T) {
	t.Helper()
	if err := s.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := s.Wait(); err != nil {
		t.Errorf("serve ends with %v", err)
	}
}

func TestServeOnASocketBesideTheCommand(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := startServe(t, "--store", dir, "--maintain", "1m")
	if want := "unix:" + filepath.Join(dir, socketName); s.address != want {
		t.Errorf("it serves on %s, not on %s", s.address, want)
	}
	if i, err := os.Stat(filepath.Join(dir, socketName)); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", i, err)
	}
	c, err := client.Open(t.Context(), s.address, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	p, _, err := c.Create(t.Context(), turnstone.Request{ID: "chat"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Commit(t.Context(), turnstone.Commit{Nodes: []turnstone.NewNode{{Kind: "user", Payload: []byte("hello")}}}); err != nil {
		t.Fatal(err)
	}
	if out := must(t, "show", "chat", "--store", dir); !strings.Contains(out, "hello") {
		t.Errorf("%s", out)
	}
	if _, errs, ok := turnstoneCmd(t, "serve", "--store", dir); ok || !strings.Contains(errs, "another process serves on") {
		t.Errorf("a second one: %s", errs)
	}
	if err := s.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = s.Wait()
	s = startServe(t, "--store", dir) // The socket of the one that was killed is there.
	if i, err := p.Info(t.Context()); err != nil || i.Revision != 1 {
		t.Errorf("%+v, %v", i, err)
	}
	s.stop(t)
	if _, err := os.Stat(filepath.Join(dir, socketName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket: %v", err)
	}
}

// certificate writes a certificate for localhost, and returns the files and who trusts it.
func certificate(t *testing.T, dir string) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, about, about, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "EC PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool = x509.NewCertPool()
	pool.AddCert(parsed)
	return cert, key, pool
}

func TestServeOverTLSReadsItsSecretsAgain(t *testing.T) {
	dir := t.TempDir()
	newToken := func(name string) (token, line string) {
		token, line, _ = strings.Cut(must(t, "token", "read", "write", "--name", name, "--namespace", "n"), "\n")
		return token, line
	}
	first, firstLine := newToken("first")
	second, secondLine := newToken("second")
	tokens := filepath.Join(dir, "tokens")
	if err := os.WriteFile(tokens, []byte(firstLine), 0o600); err != nil {
		t.Fatal(err)
	}
	cert, key, pool := certificate(t, dir)
	s := startServe(t, "--store", filepath.Join(dir, "store"), "--listen", "0.0.0.0:0", "--tokens", tokens, "--tls-cert", cert, "--tls-key", key)
	_, port, err := net.SplitHostPort(strings.TrimPrefix(s.address, "https://"))
	if err != nil {
		t.Fatal(s.address, err)
	}
	connect := func(token, namespace string) error {
		c, err := client.Open(t.Context(), "https://localhost:"+port, &client.Options{
			Token: token, Namespace: namespace, TLS: &tls.Config{RootCAs: pool}, Patience: 100 * time.Millisecond,
		})
		if err == nil {
			_, _, err = c.Create(t.Context(), turnstone.Request{ID: "s"})
			c.Close()
		}
		return err
	}
	if err := connect(first, "n"); err != nil {
		t.Error(err)
	}
	if err := connect(first, ""); !errors.Is(err, wire.ErrScope) {
		t.Errorf("in another namespace: %v", err)
	}
	if err := connect(second, "n"); !errors.Is(err, wire.ErrToken) {
		t.Errorf("with another token: %v", err)
	}
	if err := os.WriteFile(tokens, []byte(secondLine), 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, pool = certificate(t, dir)
	if err := s.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); connect(second, "n") != nil; {
		if time.Now().After(deadline) {
			t.Fatal(connect(second, "n"))
		}
	}
	if err := connect(first, "n"); !errors.Is(err, wire.ErrToken) {
		t.Errorf("with the token that is out of the file: %v", err)
	}
	s.stop(t)
}

func TestServeEndsWhenItIsIdle(t *testing.T) {
	s := startServe(t, "--store", filepath.Join(t.TempDir(), "store"), "--idle", "300ms")
	c, err := client.Open(t.Context(), s.address, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	begun := time.Now()
	if err := s.Wait(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took < 200*time.Millisecond {
		t.Errorf("it ends after %v", took)
	}
}

func TestServeRefusesWhatWouldNotBeSafe(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	tokens := write(t, "tokens", "")
	for _, c := range []struct {
		want string
		args []string
	}{
		{"needs --tokens", []string{"--listen", "127.0.0.1:0"}},
		{"no loopback address", []string{"--listen", "0.0.0.0:0", "--tokens", tokens}},
		{"no loopback address", []string{"--listen", ":0", "--tokens", tokens}},
		{"no loopback address", []string{"--listen", "example.org:0", "--tokens", tokens}},
		{"go together", []string{"--listen", "127.0.0.1:0", "--tls-cert", "x"}},
		{"want unix:PATH or HOST:PORT", []string{"--listen", "here"}},
		{"has no TLS", []string{"--listen", "unix:/x", "--tls-cert", "x", "--tls-key", "y"}},
		{"line 1", []string{"--tokens", write(t, "bad", "{}")}},
		{"no such file", []string{"--tokens", filepath.Join(dir, "none")}},
		{"not below zero", []string{"--idle", "-1s"}},
		{"no socket", []string{"--listen", "unix:" + tokens}},
		{"for its last name", []string{"--listen", "unix:" + filepath.Join(dir, strings.Repeat("x", 120))}},
	} {
		if _, errs, ok := turnstoneCmd(t, append([]string{"serve", "--store", dir}, c.args...)...); ok || !strings.Contains(errs, c.want) {
			t.Errorf("%q: %q, want %q", c.args, errs, c.want)
		}
	}
	if _, errs, ok := turnstoneCmd(t, "serve", "--store", "mem:"); ok || !strings.Contains(errs, "say where to listen") {
		t.Errorf("%s", errs)
	}
	if _, errs, ok := turnstoneCmd(t, "token", "everything"); ok || !strings.Contains(errs, "no scope") {
		t.Errorf("%s", errs)
	}
}
