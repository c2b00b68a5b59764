package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/head"
)

type service struct {
	store    *turnstone.Store
	products *products
	pace     time.Duration
	turns    sync.WaitGroup // that were resumed
}

func (s *service) routes() *http.ServeMux {
	mux := http.NewServeMux()
	handle := func(pattern string, f func(w http.ResponseWriter, r *http.Request) error) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := f(w, r); err != nil {
				fail(w, err)
			}
		})
	}
	handle("POST /chats", s.create)
	handle("GET /chats", s.list)
	handle("GET /chats/{chat}", s.history)
	handle("POST /chats/{chat}/messages", s.post)
	handle("POST /chats/{chat}/attachments", s.upload)
	handle("GET /chats/{chat}/attachments/{id}", s.download)
	handle("GET /chats/{chat}/events", s.events)
	handle("GET /{$}", page("chat.html"))
	handle("GET /chat.js", page("chat.js"))
	return mux
}

// fail answers with the status that an error stands for. Only the store's own
// errors are told to the client.
func fail(w http.ResponseWriter, err error) {
	kind := turnstone.KindOf(err)
	status, body := kind.Status, map[string]any{"error": kind.Name}
	var bad badRequest
	var conflict *turnstone.ConflictError
	switch {
	case errors.As(err, &bad):
		status, body = http.StatusBadRequest, map[string]any{"error": "invalid", "message": bad.Error()}
	case status >= 500 && kind.Name != "canceled":
		slog.Error("request failed", "error", err)
	case errors.As(err, &conflict):
		body["revision"], body["leaf"] = conflict.Revision, conflict.Leaf.String()
	default:
		body["message"] = err.Error()
	}
	reply(w, status, body)
}

type badRequest struct{ error }

func reply(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body) // the client is gone
}

func read(r *http.Request, into any) error {
	d := json.NewDecoder(io.LimitReader(r.Body, 1<<20))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return badRequest{err}
	}
	return nil
}

func (s *service) create(w http.ResponseWriter, r *http.Request) error {
	var c chat
	if err := read(r, &c); err != nil {
		return err
	}
	c.ID = rand.Text()
	if err := s.products.add(r.Context(), &c); err != nil {
		return err
	}
	reply(w, http.StatusCreated, c)
	return nil
}

func (s *service) list(w http.ResponseWriter, r *http.Request) error {
	chats, err := s.products.chats(r.Context())
	if err != nil {
		return err
	}
	for i := range chats {
		session, err := s.store.Session(r.Context(), chats[i].ID)
		if errors.Is(err, turnstone.ErrSessionNotFound) {
			continue // nothing was said yet
		}
		if err != nil {
			return err
		}
		info, err := session.Info(r.Context())
		if errors.Is(err, turnstone.ErrSessionDeleted) {
			continue
		}
		if err != nil {
			return err
		}
		chats[i].Revision, chats[i].Messages = uint64(info.Revision), info.Nodes
	}
	reply(w, http.StatusOK, chats)
	return nil
}

// session returns the session of a chat, and makes it if that has none yet.
func (s *service) session(ctx context.Context, id string) (*turnstone.Session, error) {
	ok, err := s.products.has(ctx, id)
	if err == nil && !ok {
		err = fmt.Errorf("%w: chat %q", turnstone.ErrSessionNotFound, id)
	}
	if err != nil {
		return nil, err
	}
	session, _, err := s.store.Create(ctx, turnstone.Request{ID: id})
	return session, err
}

// history sends the messages, or with ?after=REVISION those that came after it.
func (s *service) history(w http.ResponseWriter, r *http.Request) error {
	session, err := s.session(r.Context(), r.PathValue("chat"))
	if err != nil {
		return err
	}
	var scope turnstone.Scope
	if after := r.URL.Query().Get("after"); after != "" {
		n, err := strconv.ParseUint(after, 10, 64)
		if err != nil {
			return badRequest{err}
		}
		scope.After = head.Revision(n)
	}
	state, err := session.Load(r.Context(), scope)
	if err != nil {
		return err
	}
	type item struct {
		Revision    uint64          `json:"revision"`
		Message     json.RawMessage `json:"message"`
		Attachments []attachment    `json:"attachments,omitempty"`
	}
	out := []item{}
	for _, n := range state.Nodes {
		i := item{Revision: uint64(n.Revision), Message: n.Payload}
		for _, a := range n.Attachments {
			i.Attachments = append(i.Attachments, attachmentOf(a))
		}
		out = append(out, i)
	}
	reply(w, http.StatusOK, map[string]any{"revision": state.Revision, "messages": out})
	return nil
}

//go:embed chat.html chat.js
var pages embed.FS

// page returns a handler that sends a file of the page for chats.
func page(name string) func(w http.ResponseWriter, r *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		w.Header().Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		http.ServeFileFS(w, r, pages, name)
		return nil
	}
}

// events tells of each commit after a revision, as a server-sent event.
func (s *service) events(w http.ResponseWriter, r *http.Request) error {
	session, err := s.session(r.Context(), r.PathValue("chat"))
	if err != nil {
		return err
	}
	after, err := strconv.ParseUint(cmp.Or(r.Header.Get("Last-Event-ID"), r.URL.Query().Get("after"), "0"), 10, 63)
	if err != nil {
		return badRequest{err}
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for e, err := range session.Watch(r.Context(), head.Revision(after)) {
		if err != nil {
			return nil // The page asks again, after the last revision that it got.
		}
		fmt.Fprintf(w, "id: %d\ndata: committed\n\n", e.Revision)
		_ = http.NewResponseController(w).Flush()
	}
	return nil
}

// messages decodes a history for the agent.
func messages(nodes []turnstone.Node) ([]message, error) {
	out := make([]message, len(nodes))
	for i := range nodes {
		if err := json.Unmarshal(nodes[i].Payload, &out[i]); err != nil {
			return nil, fmt.Errorf("node %s: %w", nodes[i].ID, err)
		}
	}
	return out, nil
}

// post claims a turn, and streams the reply as lines of JSON: the revision of
// the claim, the words as they come, the revision of the whole.
func (s *service) post(w http.ResponseWriter, r *http.Request) error {
	var in struct {
		Text        string       `json:"text"`
		Revision    *uint64      `json:"revision"` // that the client saw; default: the head
		Attachments []attachment `json:"attachments"`
	}
	if err := read(r, &in); err != nil {
		return err
	}
	id := r.PathValue("chat")
	session, err := s.session(r.Context(), id)
	if err != nil {
		return err
	}
	state, err := session.Load(r.Context(), turnstone.Scope{Last: 1})
	if err != nil {
		return err
	}
	ask := turnstone.Commit{Expected: state.Revision}
	if key := r.Header.Get("Idempotency-Key"); key != "" {
		ask.Turn = "ask " + key // the client's names and ours must not meet
	}
	if in.Revision != nil {
		ask.Expected = head.Revision(*in.Revision)
		if ask.Expected > state.Revision { // it is guessed
			return &turnstone.ConflictError{Session: id, Expected: ask.Expected, Revision: state.Revision, Leaf: state.Leaf, Commit: state.Commit}
		}
	}
	if len(state.Nodes) == 1 && state.Nodes[0].Kind == "user" {
		ask.Expected = state.Revision - 1 // a turn is running: nothing but a post sent again can succeed
	}
	question := message{Role: "user", Content: in.Text}
	n, err := question.node()
	if err != nil {
		return err
	}
	for _, a := range in.Attachments {
		ref, err := a.ref()
		if err != nil {
			return badRequest{err}
		}
		n.Attachments = append(n.Attachments, ref)
	}
	ask.Nodes = []turnstone.NewNode{n}
	// The turn goes on if the client hangs up: it finds the reply later.
	ctx := context.WithoutCancel(r.Context())
	turn := rand.Text()
	if err := s.products.waits(ctx, turn, id); err != nil {
		return err
	}
	claim, err := session.Commit(ctx, ask)
	if err != nil && !errors.Is(err, turnstone.ErrOutcomeUnknown) || claim.Replayed {
		err = errors.Join(err, s.products.answered(ctx, turn)) // nothing is to be answered
	}
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	send := func(event map[string]any) {
		if json.NewEncoder(w).Encode(event) == nil {
			_ = http.NewResponseController(w).Flush()
		}
	}
	send(map[string]any{"claimed": claim.Revision})
	if claim.Replayed { // a post sent again: what it got is what it gets
		return s.replay(r.Context(), session, claim, send)
	}
	done, err := s.answer(ctx, session, turn, claim.Revision, func(word string) { send(map[string]any{"delta": word}) })
	if err != nil {
		slog.Error("turn failed", "chat", id, "error", err)
		send(map[string]any{"error": turnstone.KindOf(err).Name})
		return nil
	}
	send(map[string]any{"done": done})
	return nil
}

// replay sends the reply to a claim that was made before, if it is there.
func (s *service) replay(ctx context.Context, session *turnstone.Session, claim turnstone.Result, send func(map[string]any)) error {
	state, err := session.Load(ctx, turnstone.Scope{After: claim.Revision})
	if err == nil {
		var after []message
		after, err = messages(state.Nodes)
		for i := range after {
			if after[i].Role == "assistant" && after[i].Content != "" {
				send(map[string]any{"delta": after[i].Content})
				send(map[string]any{"done": state.Nodes[i].Revision})
				return nil
			}
		}
	}
	if err != nil {
		slog.Error("replay failed", "chat", session.ID(), "error", err)
	}
	send(map[string]any{"error": "in_progress"})
	return nil
}

// answer runs the turn that was claimed at a revision, and commits the reply.
func (s *service) answer(ctx context.Context, session *turnstone.Session, turn string, claim head.Revision, say func(word string)) (head.Revision, error) {
	state, err := session.Load(ctx, turnstone.Scope{At: claim})
	if err != nil {
		return 0, err
	}
	history, err := messages(state.Nodes)
	if err != nil {
		return 0, err
	}
	in := turnstone.Commit{Expected: claim, Turn: fmt.Sprint("answer ", claim)}
	replies := answer(history)
	for _, m := range replies {
		for _, word := range strings.SplitAfter(m.Content, " ") {
			if m.Role == "assistant" && word != "" {
				time.Sleep(s.pace)
				say(word)
			}
		}
		n, err := m.node()
		if err != nil {
			return 0, err
		}
		in.Nodes = append(in.Nodes, n)
	}
	in.Usage = []head.Usage{{Model: "scripted", Input: uint64(len(history)), Output: uint64(len(replies))}}
	in.Checkpoint = map[string][]byte{"agent": fmt.Appendf(nil, `{"turns":%d}`, claim/2+1)}
	r, err := session.Commit(ctx, in)
	for wait := 100 * time.Millisecond; err != nil && wait < 10*time.Second && turnstone.KindOf(err).Name != "conflict"; wait *= 2 {
		time.Sleep(wait) // a full disk, a server that is started again; what is left is for the next start
		r, err = session.Commit(ctx, in)
	}
	if err != nil {
		return 0, err
	}
	return r.Revision, s.products.answered(ctx, turn)
}

// resume answers what a server that was killed left unanswered.
func (s *service) resume(ctx context.Context) error {
	notes, err := s.products.unanswered(ctx)
	if err != nil {
		return err
	}
	for turn, id := range notes {
		session, err := s.session(ctx, id)
		if err != nil {
			return err
		}
		state, err := session.Load(ctx, turnstone.Scope{Last: 1})
		if err != nil {
			return err
		}
		if len(state.Nodes) == 0 || state.Nodes[0].Kind != "user" { // killed before the claim, or after the answer
			if err := s.products.answered(ctx, turn); err != nil {
				return err
			}
			continue
		}
		s.turns.Go(func() {
			if _, err := s.answer(context.WithoutCancel(ctx), session, turn, state.Revision, func(string) {}); err != nil {
				slog.Error("not resumed", "chat", id, "error", err)
				return
			}
			slog.Info("resumed", "chat", id)
		})
	}
	return nil
}

// An attachment is blob.Attachment as the client sees it.
type attachment struct {
	ID        string `json:"id"`
	Size      int64  `json:"size"`
	MediaType string `json:"mediaType"`
	Name      string `json:"name,omitempty"`
}

func attachmentOf(a blob.Attachment) attachment {
	return attachment{ID: a.ID.String(), Size: a.Size, MediaType: a.MediaType, Name: a.Name}
}

func (a *attachment) ref() (blob.Attachment, error) {
	id, err := turnstone.ParseBlobID(a.ID)
	return blob.Attachment{ID: id, Size: a.Size, MediaType: a.MediaType, Name: a.Name}, err
}

// upload stores the body, for a message to refer to. The name comes from the query
// alone: FormValue would also look for it in the body, and use the body up, when the
// client calls the body a form, which curl does unless it is told otherwise.
func (s *service) upload(w http.ResponseWriter, r *http.Request) error {
	session, err := s.session(r.Context(), r.PathValue("chat"))
	if err != nil {
		return err
	}
	name := r.URL.Query().Get("name")
	a, err := session.PutAttachment(r.Context(), r.Body, r.ContentLength, mediaType(r.Header.Get("Content-Type"), name), name)
	if err != nil {
		return err
	}
	reply(w, http.StatusCreated, attachmentOf(a))
	return nil
}

// mediaType returns the media type of an upload: the one that the client announced,
// or the one that the ending of the name stands for. The type of a form is what a
// client sends that knows no better; an upload is no form.
func mediaType(announced, name string) string {
	switch announced {
	case "", "application/x-www-form-urlencoded":
		return cmp.Or(mime.TypeByExtension(path.Ext(name)), "application/octet-stream")
	}
	return announced
}

func (s *service) download(w http.ResponseWriter, r *http.Request) error {
	session, err := s.session(r.Context(), r.PathValue("chat"))
	if err != nil {
		return err
	}
	id, err := turnstone.ParseBlobID(r.PathValue("id"))
	if err != nil {
		return badRequest{err}
	}
	// ReadAttachment has verified the whole content only when it returns, so the
	// service sends the content after that. For larger attachments, announce a
	// digest, and abort the connection after an error.
	var content bytes.Buffer
	if _, err := session.ReadAttachment(r.Context(), &content, id); err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/octet-stream") // it is what somebody uploaded
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = content.WriteTo(w) // the client is gone
	return nil
}
