package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
)

// sshDialer returns a function that connects with `turnstone serve --stdio` on another machine, by the command ssh.
func sshDialer(address string, mustExist bool) (func(context.Context) (net.Conn, error), error) {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || strings.Trim(u.Path, "/") == "" || u.Fragment != "" {
		return nil, fmt.Errorf("%w: %q: want ssh://[USER@]HOST[:PORT]/DIR", ErrAddress, address)
	}
	if _, password := u.User.Password(); password {
		return nil, fmt.Errorf("%w: ssh asks for a password itself, and %s has one", ErrAddress, u.Redacted())
	}
	command := "turnstone"
	for name, values := range u.Query() {
		if name != "command" || len(values) != 1 || values[0] == "" {
			return nil, fmt.Errorf("%w: %q: the only parameter is command, the path of turnstone there", ErrAddress, address)
		}
		command = values[0]
	}
	host := u.Hostname()
	if name := u.User.Username(); name != "" {
		host = name + "@" + host
	}
	if strings.HasPrefix(host, "-") || strings.ContainsAny(host, " \t\n") {
		return nil, fmt.Errorf("%w: %q is no host for ssh", ErrAddress, host)
	}
	dir := u.Path
	if rest, home := strings.CutPrefix(dir, "/~/"); home && rest != "" {
		dir = rest
	} else if strings.HasPrefix(dir, "/~") {
		return nil, fmt.Errorf("%w: %q: a directory of the home is /~/DIR", ErrAddress, address)
	}
	args := []string{"-T"}
	if port := u.Port(); port != "" {
		args = append(args, "-p", port)
	}
	serve := quoted(command) + " serve --stdio --store=" + quoted(dir) // for the shell there
	if mustExist {
		serve += " --must-exist"
	}
	args = append(args, "--", host, serve)
	return func(ctx context.Context) (net.Conn, error) { return startConn(ctx, exec.Command("ssh", args...)) }, nil
}

// quoted returns text as one word of a POSIX shell.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// A processConn is a connection with the standard input and output of a process.
type processConn struct {
	io.ReadCloser
	io.WriteCloser
	command *exec.Cmd
	said    *tail
	ended   sync.Once
	err     error
}

// startConn starts a process. It goes on when ctx ends, until the connection is closed.
func startConn(ctx context.Context, c *exec.Cmd) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	out := &processConn{command: c, said: &tail{}}
	c.Stderr = out.said
	c.WaitDelay = time.Second
	var err error
	if out.WriteCloser, err = c.StdinPipe(); err != nil {
		return nil, err
	}
	if out.ReadCloser, err = c.StdoutPipe(); err != nil {
		return nil, err
	}
	return out, c.Start()
}

// Read implements net.Conn. When the process has ended, the error has what it said last.
func (p *processConn) Read(b []byte) (int, error) {
	n, err := p.ReadCloser.Read(b)
	if err == nil {
		return n, nil
	}
	_ = p.Close()
	return n, &endError{err, p.command.Args[0], p.said.String(), p.command.ProcessState.ExitCode()}
}

// An endError says how a process has ended. It matches the error that reading ended with.
type endError struct {
	err           error
	command, said string
	code          int
}

func (e *endError) Error() string {
	switch {
	case e.said != "":
		return e.command + ": " + e.said
	case e.code > 0:
		return fmt.Sprintf("%s: exit status %d", e.command, e.code)
	}
	return fmt.Sprintf("%s: %v", e.command, e.err)
}

func (e *endError) Unwrap() error { return e.err }

// openError is the error of Open for one of the first request through ssh. The command there ends with exit codes of
// its own: see docs/cli.md.
func openError(err error) error {
	var end *endError
	if errors.As(err, &end) {
		switch err = end; end.code {
		case 2:
			return &remoteError{err, ErrAddress}
		case 3:
			return &remoteError{err, turnstone.ErrStoreNotFound}
		}
	}
	return &remoteError{err, engine.ErrUnavailable}
}

// A remoteError has the text of one error, and matches another one as well.
type remoteError struct {
	error
	also error
}

func (e *remoteError) Unwrap() []error { return []error{e.error, e.also} }

// Close implements net.Conn. A process that does not end by itself is killed.
func (p *processConn) Close() error {
	p.ended.Do(func() {
		_ = p.WriteCloser.Close()
		kill := time.AfterFunc(time.Second, func() { _ = p.command.Process.Kill() })
		defer kill.Stop()
		p.err = p.command.Wait()
		var exit *exec.ExitError
		if errors.As(p.err, &exit) {
			p.err = nil // Who reads is told.
		}
	})
	return p.err
}

// The process has neither addresses nor deadlines.
func (p *processConn) LocalAddr() net.Addr              { return processAddr{} }
func (p *processConn) RemoteAddr() net.Addr             { return processAddr{} }
func (p *processConn) SetDeadline(time.Time) error      { return nil }
func (p *processConn) SetReadDeadline(time.Time) error  { return nil }
func (p *processConn) SetWriteDeadline(time.Time) error { return nil }

type processAddr struct{}

func (processAddr) Network() string { return "ssh" }
func (processAddr) String() string  { return "ssh" }

// A tail keeps the end of what is written to it.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const tailBytes = 2 << 10

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, b...)
	t.text = t.text[max(0, len(t.text)-tailBytes):]
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}
