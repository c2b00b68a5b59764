package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// A stream is an answer of several items.
type stream struct {
	r     *request
	w     *bufio.Writer
	begun bool
}

// stream returns the answer to r.
func (s *Server) stream(r *request) *stream {
	return &stream{r: r, w: bufio.NewWriterSize(r.w, maxWrite)}
}

// send sends an item.
func (st *stream) send(i *wire.Item) error {
	pieces, err := wire.Encode(i)
	if err != nil {
		return err
	}
	return st.raw(pieces...)
}

func (st *stream) raw(pieces ...[]byte) error {
	if !st.begun {
		st.begun = true
		st.r.w.Header().Set("Content-Type", wire.ContentType)
	}
	for _, p := range pieces {
		if _, err := st.w.Write(p); err != nil {
			return err
		}
	}
	return nil
}

// end ends the answer with err, the result of the operation. If that is an error and nothing was sent yet, end only
// returns it.
func (st *stream) end(err error) error {
	if err != nil && !st.begun {
		return err
	}
	last := &wire.Item{End: true}
	if err != nil {
		last = &wire.Item{Problem: wire.ErrorOf(err)}
	}
	_ = st.send(last) // If the caller is gone, nobody reads it.
	_ = st.w.Flush()
	return nil
}

// flush sends what was written to the caller.
func (st *stream) flush() {
	_ = st.w.Flush() // If the caller is gone, the context ends.
	_ = st.r.w.rc.Flush()
}

// A streamRoute is a route whose body, or answer, is no document.
type streamRoute struct {
	name, method, path string
	summary            string
	scope              Scope
	query              []parameter
	watch              bool // it goes on until the caller goes away
	handle             func(*Server, *request) error
}

// checked returns a handler that refuses a request whose query has another parameter than those of the route, or one of
// them twice: a misspelt parameter would be taken for an absent one.
func checked(parameters []parameter, handle func(*Server, *request) error) func(*Server, *request) error {
	return func(s *Server, r *request) error {
		if err := checkQuery(parameters, r.URL.RawQuery); err != nil {
			return err
		}
		return handle(s, r)
	}
}

func checkQuery(parameters []parameter, text string) error {
	query, err := url.ParseQuery(text)
	if err != nil {
		return fmt.Errorf("%w: the query: %w", wire.ErrRequest, err)
	}
	for name, values := range query {
		known := slices.ContainsFunc(parameters, func(p parameter) bool { return p.name == name })
		if !known || len(values) > 1 {
			return fmt.Errorf("%w: the parameter %q of the query is unknown, or there more than once", wire.ErrRequest, name)
		}
	}
	return nil
}

// A parameter of a query.
type parameter struct{ name, meaning string }

var (
	ofSession = []parameter{{"session", "the id of the session"}, {"incarnation", "the session itself, as info returns it; another one of that id is another session"}}
	streams   = []streamRoute{
		{
			"watch", "GET", "/v1/watch", "Sends the commits of a session after a revision, and those that come, as server-sent events.", Read,
			append(ofSession[:2:2], parameter{"after", "the revision; the header Last-Event-ID comes before it"}), true, (*Server).watch,
		},
		{
			"changes", "GET", "/v1/changes", "Sends the changes of all sessions after a cursor of the feed, and those that come, as server-sent events.", Read,
			[]parameter{{"after", "the cursor; the header Last-Event-ID comes before it"}},
			true, (*Server).changes,
		},
		{
			"watch-records", "GET", "/v1/watch-records", "Sends the records of a session, or of all, whose keys begin with a prefix, and the changes of them that come, as server-sent events.", Read,
			append(ofSession[:2:2], parameter{"prefix", "what the keys begin with"}), true, (*Server).watchRecords,
		},
		{
			"read-attachment", "GET", "/v1/attachment", "Sends the bytes of an attachment. An answer that is cut off is not whole.", Read,
			append(ofSession[:2:2], parameter{"id", "the id of the attachment"}, parameter{"offset", "where to begin"}), false, (*Server).readAttachment,
		},
		{
			"put-attachment", "PUT", "/v1/attachment", "Takes the bytes of an attachment, or more of them.", Write,
			append(ofSession[:2:2],
				parameter{"upload", "the caller's id of this upload, to go on with it"}, parameter{"offset", "where in the attachment the body begins"},
				parameter{"size", "how many bytes the attachment has, if that is known"},
				parameter{"more", "anything, if the body is not the rest of the attachment"},
				parameter{"mediaType", "of the attachment"}, parameter{"name", "of the attachment"}),
			false, (*Server).putAttachment,
		},
		{
			"unbundle", "PUT", "/v1/bundle", "Takes a bundle, or more of it, and makes the sessions of it or brings them forward.", Write,
			[]parameter{
				{"upload", "the caller's id of this upload, to go on with it"},
				{"offset", "where in the bundle the body begins"},
				{"more", "anything, if the body is not the rest of the bundle"},
				{"as", "the id of the session here, if the bundle has only one"},
				{"branch", "the name that is kept for what has diverged, which becomes a branch, if the bundle has only one session"},
			},
			false, (*Server).putBundle,
		},
		{
			"upload", "GET", "/v1/upload", "Returns how many bytes of an upload have come.", Write,
			[]parameter{{"upload", "the caller's id of the upload"}},
			false, (*Server).upload,
		},
		{
			"end-upload", "DELETE", "/v1/upload", "Gives an upload up.", Write,
			[]parameter{{"upload", "the caller's id of the upload"}},
			false, (*Server).endUpload,
		},
	}
)

func target(r *request) wire.Target {
	q := r.URL.Query()
	return wire.Target{Session: q.Get("session"), Incarnation: q.Get("incarnation")}
}

// after returns where a watch begins.
func after(r *request) string {
	if last := r.Header.Get("Last-Event-ID"); last != "" {
		return last
	}
	return r.URL.Query().Get("after")
}

// watch sends the commits of a session as events. The id of each is its revision.
func (s *Server) watch(r *request) error {
	from, err := revision(after(r))
	if err != nil {
		return err
	}
	session, err := r.space.find(r.Context(), target(r))
	if err != nil {
		return err
	}
	entries := func(ctx context.Context) iter.Seq2[turnstone.LogEntry, error] {
		return func(yield func(turnstone.LogEntry, error) bool) {
			for e, err := range session.Watch(ctx, from) {
				if !yield(withoutRequest(e), err) {
					return
				}
			}
		}
	}
	return events(s, r, "commit", entries,
		func(e turnstone.LogEntry) string { return strconv.FormatUint(uint64(e.Revision), 10) })
}

// changes sends the changes of all sessions as events. The id of each is its cursor.
func (s *Server) changes(r *request) error {
	from := turnstone.Cursor(after(r))
	return events(s, r, "change", func(ctx context.Context) iter.Seq2[turnstone.Change, error] { return r.space.store.Watch(ctx, from) },
		func(c turnstone.Change) string { return string(c.Cursor) })
}

// watchRecords sends records, and the changes of them, as events. They have no ids: a watch that goes on begins anew.
func (s *Server) watchRecords(r *request) error {
	of, prefix := target(r), r.URL.Query().Get("prefix")
	watch := r.space.store.WatchRecords
	if of != (wire.Target{}) {
		session, err := r.space.find(r.Context(), of)
		if err != nil {
			return err
		}
		watch = session.WatchRecords
	}
	return events(s, r, "records", func(ctx context.Context) iter.Seq2[turnstone.RecordUpdate, error] { return watch(ctx, prefix) },
		func(turnstone.RecordUpdate) string { return "" })
}

// events sends what a sequence yields as server-sent events, until the caller goes away, the server stops or it fails.
func events[T any](s *Server, r *request, kind string, begin func(context.Context) iter.Seq2[T, error], id func(T) string) error {
	s.metrics.watches.Inc()
	defer s.metrics.watches.Dec()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	var mu sync.Mutex
	begun := false
	write := func(text string) error {
		mu.Lock()
		defer mu.Unlock()
		if !begun {
			begun = true
			r.w.Header().Set("Content-Type", "text/event-stream")
			r.w.Header().Set("Cache-Control", "no-store")
		}
		if _, err := io.WriteString(r.w, text); err != nil {
			return err
		}
		return r.w.rc.Flush()
	}
	var beats sync.WaitGroup
	beats.Go(func() {
		// The first comment tells the caller that the watch has begun, unless it has failed meanwhile.
		beat := time.NewTimer(min(s.o.Heartbeat, 50*time.Millisecond))
		defer beat.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-s.stopping:
				cancel()
				return
			case <-beat.C:
				// A token may have been revoked.
				if _, err := s.allowed(r.Request, r.scope, r.space.name); err != nil || write(":\n\n") != nil {
					cancel()
					return
				}
				beat.Reset(s.o.Heartbeat)
			}
		}
	})
	var err error
	for v, failed := range begin(ctx) {
		if err = failed; err == nil {
			var text string
			if text, err = data(&v); err == nil {
				event := "event: " + kind + text
				if at := id(v); at != "" {
					event = "id: " + at + "\n" + event
				}
				err = write(event)
			}
		}
		if err != nil {
			break
		}
	}
	ended := ctx.Err() != nil
	cancel()
	beats.Wait()
	switch {
	case err == nil || ended: // The caller is gone, or the server stops: the caller asks again where it was.
		return nil
	case !begun:
		return err
	}
	p := wire.ErrorOf(err)
	r.w.problem = p.Kind()
	text, err := data(p)
	if err != nil {
		return err
	}
	_ = write("event: problem" + text) // If the caller is gone, nobody reads it.
	return nil
}

// data returns the last lines of an event.
func data(message any) (string, error) {
	pieces, err := wire.Encode(message)
	if err != nil {
		return "", err
	}
	return "\ndata: " + string(pieces[0]) + "\n", nil
}

// readAttachment sends an attachment, from an offset on.
func (s *Server) readAttachment(r *request) error {
	q := r.URL.Query()
	id, err := turnstone.ParseBlobID(q.Get("id"))
	if err != nil {
		return err
	}
	skip, err := number(q, "offset", 0)
	if err != nil {
		return err
	}
	session, err := r.space.find(r.Context(), target(r))
	if err != nil {
		return err
	}
	is, err := session.Attachment(r.Context(), id)
	if err != nil {
		return err
	}
	tag, size := `"`+id.String()+`"`, is.Size
	part, ok := spanOf(r.Request, tag, size)
	h := r.w.Header()
	switch {
	case skip > size:
		return fmt.Errorf("%w: offset %d of an attachment of %d bytes", wire.ErrRequest, skip, size)
	case skip > 0:
		part = span{skip, size, size}
	case !ok:
		h.Set("Content-Range", fmt.Sprintf("bytes */%d", size))
		return fmt.Errorf("%w: the attachment has %d bytes", wire.ErrRange, size)
	}
	h.Set("ETag", tag)
	h.Set("Cache-Control", "private, max-age=31536000, immutable") // The id is the hash of the content.
	h.Set("Accept-Ranges", "bytes")
	if matchesTag(r.Header.Get("If-None-Match"), tag) {
		r.w.WriteHeader(http.StatusNotModified)
		return nil
	}
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Length", strconv.FormatInt(part.to-part.from, 10))
	if skip == 0 && !part.whole() {
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", part.from, part.to-1, size))
		r.w.WriteHeader(http.StatusPartialContent)
	}
	at := int64(0)
	var last []byte // of the attachment: it is sent when the hash of the whole matches
	_, err = session.ReadAttachment(r.Context(), writerFunc(func(b []byte) (int, error) {
		from, to := max(part.from-at, 0), min(part.to-at, int64(len(b)))
		if at += int64(len(b)); from < to && at == size {
			to--
			last = []byte{b[to]}
		}
		if from < to {
			if _, err := r.w.Write(b[from:to]); err != nil {
				return 0, err
			}
		}
		if at >= part.to && part.to < size {
			return 0, errSent
		}
		return len(b), nil
	}), id)
	if err != nil && !errors.Is(err, errSent) {
		if r.w.status == 0 {
			for _, name := range []string{"ETag", "Cache-Control", "Accept-Ranges", "Content-Type", "Content-Length"} {
				h.Del(name)
			}
		}
		return err // If a part was sent, the answer is cut off.
	}
	_, _ = r.w.Write(last) // If the caller is gone, nobody reads it.
	return nil
}

// errSent ends a read of which the rest is not asked for.
var errSent = errors.New("server: sent")

// matchesTag reports whether a header with tags has one.
func matchesTag(header, tag string) bool {
	for _, t := range strings.Split(header, ",") {
		if t = strings.TrimPrefix(strings.TrimSpace(t), "W/"); t == tag || t == "*" {
			return true
		}
	}
	return false
}

// number reads a number in a query, which is not below least.
func number(q url.Values, name string, least int64) (int64, error) {
	text := q.Get(name)
	if text == "" {
		return max(least, 0), nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < least {
		return 0, fmt.Errorf("%w: %s is %.40q", wire.ErrRequest, name, text)
	}
	return n, nil
}
