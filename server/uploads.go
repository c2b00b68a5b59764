package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/turnstonedb/turnstone/internal/wire"
)

// uploads are those that have begun. What has come of an upload goes to the store at once, so that
// nothing is kept here but how far it has got.
type uploads struct {
	s *Server

	mu     sync.Mutex // guards the fields below
	byID   map[writeID]*upload
	closed bool
}

// An upload is one call of the store, which reads what requests bring: an attachment, or a bundle.
type upload struct {
	u      *uploads
	id     writeID
	what   string // is brought, and where
	by     string // the token of who brings it
	to     *sink
	in     *io.PipeWriter
	done   chan struct{} // closed when stored or err is set
	stored wire.Progress
	err    error
	idle   *time.Timer

	turn chan struct{} // holds one element while a request brings bytes

	mu     sync.Mutex // guards the fields below
	offset int64      // of the bytes that have come
	came   time.Time  // when bytes have come last
	stop   func()     // ends the request that brings bytes, because another one does
}

func newUploads(s *Server) uploads { return uploads{s: s, byID: map[writeID]*upload{}} }

// close ends all uploads. Callers begin them again.
func (u *uploads) close() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.closed = true
	for _, up := range u.byID {
		up.in.CloseWithError(errStops)
	}
}

// find returns an upload that has begun, or nil.
func (u *uploads) find(id writeID) *upload {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.byID[id]
}

// A sink takes what is uploaded.
type sink struct {
	store func(io.Reader, *wire.Progress) error // stores what it reads, and notes that
	free  func()                                // gives back the place that it has among others
	idle  time.Duration                         // after so long without a byte the upload is given up
}

// begin begins an upload, or returns the one of that id.
func (u *uploads) begin(by *request, id writeID, what string, to *sink) (*upload, error) {
	up, err := u.start(by, id, what, to)
	if err != nil || up.to != to {
		to.free()
	}
	return up, err
}

func (u *uploads) start(by *request, id writeID, what string, to *sink) (*upload, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if up := u.byID[id]; up != nil {
		return up, nil
	}
	if u.closed {
		return nil, errStops
	}
	release, ok := u.s.limits.uploads.try(by.party, 1)
	if !ok {
		return nil, u.s.limits.uploads.busy(0)
	}
	r, w := io.Pipe()
	up := &upload{u: u, id: id, what: what, by: by.party.token, to: to, came: time.Now(), in: w, done: make(chan struct{}), turn: make(chan struct{}, 1), stop: func() {}}
	up.idle = time.AfterFunc(to.idle, func() { w.CloseWithError(silent(to.idle)) })
	begun := by.space.work(u.s)(func() {
		up.err = to.store(r, &up.stored)
		_ = r.CloseWithError(errors.Join(up.err, io.ErrClosedPipe)) // So that who brings more learns of it.
		up.idle.Stop()
		to.free()
		release()
		close(up.done)                       // Who has waited for it finds the place free.
		time.AfterFunc(rememberFor, func() { // Until then, who did not see the answer can ask again.
			u.mu.Lock()
			defer u.mu.Unlock()
			delete(u.byID, id)
		})
	})
	if !begun {
		release()
		return nil, errStops
	}
	u.byID[id] = up
	return up, nil
}

func silent(since time.Duration) error {
	return fmt.Errorf("%w: nothing has come for %v", wire.ErrUpload, since.Round(time.Second))
}

// endSilent gives up those uploads of a token to a path of which nothing has come for a while: who has brought them is
// gone, as a rule.
func (u *uploads) endSilent(token, path string, since time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, up := range u.byID {
		up.mu.Lock()
		waits := up.by == token && strings.HasPrefix(up.what, path+"?") && time.Since(up.came) > since
		up.mu.Unlock()
		if waits {
			up.in.CloseWithError(silent(since)) // It has no effect on one that has come whole.
		}
	}
}

// progress returns how far an upload has got, or what it has failed with.
func (up *upload) progress() (*wire.Progress, error) {
	up.mu.Lock()
	defer up.mu.Unlock()
	p := wire.Progress{}
	var err error
	select {
	case <-up.done:
		p, err = up.stored, up.err
	default:
	}
	p.Offset = up.offset
	return &p, err
}

// uploadID returns the id of the upload that a request is about.
func uploadID(r *request) (writeID, error) {
	id := r.URL.Query().Get("upload")
	if id == "" || len(id) > maxRequestID {
		return writeID{}, fmt.Errorf("%w: upload has %d bytes, want 1 to %d", wire.ErrRequest, len(id), maxRequestID)
	}
	return writeID{r.space.name, id}, nil
}

// upload answers how far an upload has got.
func (s *Server) upload(r *request) error {
	id, err := uploadID(r)
	if err != nil {
		return err
	}
	up := s.uploads.find(id)
	if up == nil {
		return wire.ErrUpload
	}
	return up.answer(r)
}

func (up *upload) answer(r *request) error {
	p, err := up.progress()
	if err != nil {
		return err
	}
	send(r.w, http.StatusOK, wire.ContentType, p)
	return nil
}

// endUpload gives an upload up.
func (s *Server) endUpload(r *request) error {
	id, err := uploadID(r)
	if err != nil {
		return err
	}
	up := s.uploads.find(id)
	if up == nil {
		return wire.ErrUpload
	}
	up.in.CloseWithError(fmt.Errorf("%w: it was given up", wire.ErrUpload))
	select {
	case <-up.done:
	case <-r.Context().Done():
		return r.Context().Err()
	}
	r.w.WriteHeader(http.StatusNoContent)
	return nil
}

// putAttachment takes bytes of an attachment.
func (s *Server) putAttachment(r *request) error {
	q := r.URL.Query()
	size, err := number(q, "size", -1)
	if err != nil {
		return err
	}
	if q.Get("size") == "" {
		size = -1
	}
	return s.put(r, func(ctx context.Context) (*sink, error) {
		session, err := r.space.find(ctx, target(r))
		if err != nil {
			return nil, err
		}
		return &sink{func(in io.Reader, p *wire.Progress) error {
			a, err := session.PutAttachment(context.Background(), in, size, q.Get("mediaType"), q.Get("name"))
			p.Attachment = &a
			return err
		}, func() {}, s.o.UploadTimeout}, nil
	})
}

// put takes bytes of an upload. If it has not begun, open returns where it goes.
func (s *Server) put(r *request, open func(context.Context) (*sink, error)) error {
	id, err := uploadID(r)
	if err != nil {
		return err
	}
	q := r.URL.Query()
	offset, err := number(q, "offset", 0)
	if err != nil {
		return err
	}
	more := q.Get("more") != ""
	for _, name := range []string{"upload", "offset", "more"} { // The others are the same in all requests of an upload.
		q.Del(name)
	}
	what := r.URL.Path + "?" + q.Encode()
	up := s.uploads.find(id)
	if up == nil {
		if offset > 0 {
			return wire.ErrUpload
		}
		to, err := open(r.Context())
		if err != nil {
			return err
		}
		if up, err = s.uploads.begin(r, id, what, to); err != nil {
			return err
		}
	}
	if up.what != what {
		return fmt.Errorf("%w: the upload of this id is another one", wire.ErrRequest)
	}
	if err := up.take(r, s, offset, more); err != nil {
		return err
	}
	return up.answer(r)
}

// take passes the body of a request on to the store. Unless more is to come, it waits until the attachment is stored.
func (up *upload) take(r *request, s *Server, offset int64, more bool) error {
	// A request that brings bytes may be one whose caller is gone, which the server has not noticed.
	up.mu.Lock()
	up.stop()
	up.mu.Unlock()
	stopped := &atomic.Bool{}
	select {
	case up.turn <- struct{}{}:
		defer func() { <-up.turn }()
	case <-r.Context().Done():
		return r.Context().Err()
	}
	up.mu.Lock()
	at := up.offset
	up.stop = func() {
		stopped.Store(true)
		_ = r.w.rc.SetReadDeadline(time.Unix(1, 0))
	}
	up.mu.Unlock()
	defer func() {
		up.mu.Lock()
		up.stop = func() {}
		up.mu.Unlock()
	}()
	if at != offset {
		p := wire.ErrorOf(fmt.Errorf("%w: at %d, and not at %d", wire.ErrOffset, at, offset))
		p.Offset = &at
		return p
	}
	buf := make([]byte, 64<<10)
	body := s.body(r)
	for {
		if stopped.Load() {
			return fmt.Errorf("%w: another request goes on with the upload", wire.ErrRequest)
		}
		n, err := body.Read(buf)
		if n > 0 {
			up.idle.Reset(up.to.idle)
			if _, failed := up.in.Write(buf[:n]); failed != nil {
				break // PutAttachment has ended.
			}
			up.mu.Lock()
			up.offset, up.came = up.offset+int64(n), time.Now()
			up.mu.Unlock()
		}
		if errors.Is(err, io.EOF) {
			if more {
				return nil
			}
			_ = up.in.Close()
			break
		}
		if err != nil {
			return fmt.Errorf("%w: its body: %w", wire.ErrRequest, err) // The caller goes on from where the upload is.
		}
	}
	select {
	case <-up.done: // answer says how it has ended.
	case <-time.After(s.o.Heartbeat): // The caller asks again.
	case <-r.Context().Done():
		return r.Context().Err()
	}
	return nil
}
