package shared

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone/internal/socket"
)

// lookEvery is how often a Listener looks whether its socket is still there.
const lookEvery = 500 * time.Millisecond

// A Listener listens on a Unix socket, for processes of this user: it asks the system who has connected. If somebody
// removes the socket, the Listener makes it again, and connections that were made before go on.
type Listener struct {
	path    func() string
	accept  func(*net.UnixConn)
	refused func(error)

	closing chan struct{}
	looks   sync.WaitGroup // watch
	once    sync.Once
	closed  error // what Close returned

	// Only Listen, then watch and then Close use these.
	on     *net.UnixListener // of the socket that was made last
	socket os.FileInfo       // it, to remove no other one
}

// Listen begins to listen on the socket at a path, where it replaces what is there. Its caller makes sure that no other
// process listens there. path is called again when the socket is made again. accept is called with each connection, and
// refused, unless it is nil, with the reason why there is none. Until accept returns, no other connection is taken.
func Listen(path func() string, accept func(*net.UnixConn), refused func(error)) (*Listener, error) {
	l := &Listener{path: path, accept: accept, refused: refused, closing: make(chan struct{})}
	if err := l.make(); err != nil {
		return nil, err
	}
	l.looks.Go(l.watch)
	return l, nil
}

// Close ends the listening, and removes the socket unless somebody has replaced it. Connections go on.
func (l *Listener) Close() error {
	l.once.Do(func() {
		close(l.closing)
		l.looks.Wait()
		var err error
		path := l.path()
		if now, lerr := os.Lstat(path); lerr == nil && os.SameFile(now, l.socket) {
			err = os.Remove(path)
		}
		l.closed = errors.Join(err, l.on.Close())
	})
	return l.closed
}

// make makes the socket.
func (l *Listener) make() error {
	path := l.path()
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	on, err := socket.Listen(path)
	if err != nil {
		return err
	}
	made, err := os.Lstat(path)
	if err == nil {
		err = os.Chmod(path, 0o600)
	}
	if err != nil {
		return errors.Join(err, on.Close())
	}
	if before := l.on; before != nil { // Nobody can connect to it any more, and who has is accepted by then.
		time.AfterFunc(5*time.Second, func() { _ = before.Close() })
	}
	l.on, l.socket = on, made
	go l.take(on)
	return nil
}

// watch makes the socket again when it is gone.
func (l *Listener) watch() {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-l.closing:
			return
		case <-look.C:
		}
		if _, err := os.Lstat(l.path()); errors.Is(err, fs.ErrNotExist) {
			_ = l.make() // The directory may be gone as well: then it is tried again.
		}
	}
}

// take accepts connections until on is closed.
func (l *Listener) take(on *net.UnixListener) {
	for {
		c, err := on.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // For example, this process has no file descriptors left.
			continue
		}
		if err := sameUser(c); err != nil && !errors.Is(err, errSystem) {
			if l.refused != nil {
				l.refused(err)
			}
			_ = c.Close()
			continue
		}
		l.accept(c)
	}
}
