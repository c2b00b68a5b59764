package server

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"github.com/zeebo/blake3"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/gc"
	"github.com/turnstonedb/turnstone/graph"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/wire"
)

// An operation is a call that is made with POST /v1/ and its name. A document asks, and another one answers, or several.
type operation struct {
	name     string
	summary  string
	scope    Scope
	in, out  reflect.Type // messages
	several  bool         // the answer is several wire.Items
	handle   func(*Server, *request) error
	repeated bool // it may be repeated without an id
}

// operations are all of them.
var operations = []operation{
	read("list", "Lists sessions, the most recently updated first.", func(ctx context.Context, sp *space, in *turnstone.ListOptions) (*turnstone.Page, error) {
		return pointer(sp.store.List(ctx, *in))
	}),
	read("info", "Returns metadata, head and totals of a session.", func(ctx context.Context, sp *space, in *wire.Target) (*turnstone.Info, error) {
		s, err := sp.session(ctx, *in)
		if err != nil {
			return nil, err
		}
		i, err := s.Info(ctx)
		if err == nil {
			sp.keep(i.Of, s)
		}
		return &i, err
	}),
	several("load", "Reads history by scope: an item with the state, then one with each node.", Read,
		func(ctx context.Context, sp *space, in *wire.Load, send sender) error {
			s, err := sp.session(ctx, in.Target)
			if err != nil {
				return err
			}
			st, err := s.Load(ctx, in.Scope)
			if err != nil {
				return err
			}
			if err := send(&wire.Item{State: wire.StateOf(st)}); err != nil {
				return err
			}
			for _, n := range st.Nodes {
				if err := send(&wire.Item{Node: wire.NodeOf(n)}); err != nil {
					return err
				}
			}
			return nil
		}),
	several("nodes", "Reads the nodes of a scope, one at a time, of a history of any length.", Read,
		func(ctx context.Context, sp *space, in *wire.LoadNodes, send sender) error {
			s, err := sp.session(ctx, in.Target)
			if err != nil {
				return err
			}
			if in.At == 0 { // Who is cut off goes on with the same revision.
				i, err := s.Info(ctx)
				if err != nil {
					return err
				}
				in.At = cmp.Or(i.Revision, turnstone.RevisionZero)
			}
			if err := send(&wire.Item{At: &in.At}); err != nil {
				return err
			}
			for n, err := range s.Nodes(ctx, in.Scope) {
				switch {
				case err != nil:
					return err
				case !in.Behind.IsZero():
					if n.ID == in.Behind {
						in.Behind = graph.ID{}
					}
					continue
				}
				if err := send(&wire.Item{Node: wire.NodeOf(n)}); err != nil {
					return err
				}
			}
			if !in.Behind.IsZero() {
				return fmt.Errorf("%w: %s, behind which the rest was to be sent", turnstone.ErrNodeNotFound, in.Behind)
			}
			return nil
		}),
	read("node", "Returns one node, by its id or by the caller's key.", func(ctx context.Context, sp *space, in *wire.NodeRequest) (*wire.Node, error) {
		s, err := sp.session(ctx, in.Target)
		if err != nil {
			return nil, err
		}
		var n turnstone.Node
		if in.Key != "" && in.Node.IsZero() {
			n, err = s.NodeByKey(ctx, in.Key)
		} else {
			n, err = s.Node(ctx, in.Node)
		}
		return wire.NodeOf(n), err
	}),
	several("nodes-by-key", "Returns those nodes that have one of the caller's keys.", Read,
		func(ctx context.Context, sp *space, in *wire.NodesByKey, send sender) error {
			s, err := sp.session(ctx, in.Target)
			if err != nil {
				return err
			}
			nodes, err := s.NodesByKey(ctx, in.Keys...)
			for _, n := range nodes {
				if err == nil {
					err = send(&wire.Item{Node: wire.NodeOf(n)})
				}
			}
			return err
		}),
	several("leaves", "Returns the ends of branches, without payloads.", Read, func(ctx context.Context, sp *space, in *wire.Target, send sender) error {
		s, err := sp.session(ctx, *in)
		if err != nil {
			return err
		}
		leaves, err := s.Leaves(ctx)
		for _, n := range leaves {
			if err == nil {
				err = send(&wire.Item{Node: wire.NodeOf(n)})
			}
		}
		return err
	}),
	read("kept", "Returns the revisions that are kept by name.", func(ctx context.Context, sp *space, in *wire.Target) (*wire.Kept, error) {
		s, err := sp.session(ctx, *in)
		if err != nil {
			return nil, err
		}
		kept, err := s.Kept(ctx)
		return &wire.Kept{Kept: kept}, err
	}),
	read("checkpoint", "Returns the checkpoint parts at a revision.", func(ctx context.Context, sp *space, in *wire.At) (*wire.Checkpoint, error) {
		s, err := sp.session(ctx, in.Target)
		if err != nil {
			return nil, err
		}
		parts, err := s.Checkpoint(ctx, in.At)
		return wire.CheckpointOf(parts), err
	}),
	read("record", "Returns one record of a session.", func(ctx context.Context, sp *space, in *wire.RecordRequest) (*wire.Record, error) {
		s, err := sp.session(ctx, in.Target)
		if err != nil {
			return nil, err
		}
		r, err := s.Record(ctx, in.Key)
		return wire.RecordOf(r), err
	}),
	read("records", "Lists records of a session, or of all, in the order of their keys.", func(ctx context.Context, sp *space, in *wire.ListRecords) (*wire.RecordPage, error) {
		list := sp.store.Records
		if t, one := in.Target(); one {
			s, err := sp.session(ctx, t)
			if err != nil {
				return nil, err
			}
			list = s.Records
		}
		p, err := list(ctx, in.RecordQuery)
		return wire.PageOf(p), err
	}),
	several("log", "Reads the commits after a revision, up to the head.", Read, func(ctx context.Context, sp *space, in *wire.After, send sender) error {
		s, err := sp.session(ctx, in.Target)
		if err != nil {
			return err
		}
		for e, err := range s.Log(ctx, in.After) {
			if err == nil {
				err = send(&wire.Item{Entry: &e})
			}
			if err != nil {
				return err
			}
		}
		return nil
	}),
	read("uploads", "Returns the attachments that wait for a commit to refer to them.", func(ctx context.Context, sp *space, in *wire.Target) (*wire.Uploads, error) {
		s, err := sp.session(ctx, *in)
		if err != nil {
			return nil, err
		}
		all, err := s.Uploads(ctx)
		return &wire.Uploads{Uploads: all}, err
	}),
	read("feed", "Returns what the feed of changes has.", func(ctx context.Context, sp *space, _ *wire.None) (*turnstone.Feed, error) {
		return pointer(sp.store.Feed(ctx))
	}),

	write("create", "Makes a session, or returns the one that exists.", Write, func(ctx context.Context, sp *space, in *turnstone.Request) (*wire.Created, error) {
		s, created, err := sp.store.Create(ctx, *in)
		if err != nil {
			return nil, err
		}
		i, err := s.Info(ctx)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", turnstone.ErrOutcomeUnknown, err) // Create has succeeded.
		}
		sp.keep(i.Of, s)
		return &wire.Created{Info: i, New: created}, nil
	}),
	write("commit", "Stores one turn, whole or not at all.", Write, func(ctx context.Context, sp *space, in *wire.CommitRequest) (*turnstone.Result, error) {
		s, err := sp.session(ctx, in.Target)
		if err != nil {
			return nil, err
		}
		return pointer(s.Commit(ctx, in.Commit.Public()))
	}),
	write("commit-all", "Stores a turn in each of several sessions, all or none.", Write, func(ctx context.Context, sp *space, in *wire.CommitAll) (*wire.Results, error) {
		commits := make([]turnstone.SessionCommit, len(in.Commits))
		for i := range in.Commits {
			m := &in.Commits[i]
			commits[i] = turnstone.SessionCommit{Create: m.Create, RecordsOnly: m.RecordsOnly, Commit: m.Commit.Public()}
			if m.Target != (wire.Target{}) {
				s, err := sp.session(ctx, m.Target)
				if err != nil {
					return nil, fmt.Errorf("session %q: %w", m.Session, err)
				}
				commits[i].Session = s
			}
		}
		results, err := sp.store.CommitAll(ctx, commits...)
		return &wire.Results{Results: results}, err
	}),
	write("change-records", "Sets, deletes and checks records of a session, all or none, without a commit.", Write,
		func(ctx context.Context, sp *space, in *wire.ChangeRecords) (*wire.Versions, error) {
			s, err := sp.session(ctx, in.Target)
			if err != nil {
				return nil, err
			}
			versions, err := s.ChangeRecords(ctx, in.Public()...)
			return &wire.Versions{Versions: versions}, err
		}),
	write("save-metadata", "Empties fields of a session's metadata, and merges others.", Write, func(ctx context.Context, sp *space, in *wire.SaveMetadata) (*wire.None, error) {
		return inSession(ctx, sp, in.Target, func(s *turnstone.Session) error { return s.SaveMetadata(ctx, in.Metadata, in.Empty...) })
	}),
	write("tombstone", "Soft-deletes nodes.", Write, func(ctx context.Context, sp *space, in *wire.Tombstone) (*wire.None, error) {
		return inSession(ctx, sp, in.Target, func(s *turnstone.Session) error { return s.Tombstone(ctx, in.Nodes...) })
	}),
	write("keep", "Keeps a revision under a name.", Write, func(ctx context.Context, sp *space, in *wire.Keep) (*wire.None, error) {
		return inSession(ctx, sp, in.Target, func(s *turnstone.Session) error { return s.Keep(ctx, in.Name, in.Revision) })
	}),
	write("release", "Ends the keeping of a revision.", Write, func(ctx context.Context, sp *space, in *wire.Release) (*wire.None, error) {
		return inSession(ctx, sp, in.Target, func(s *turnstone.Session) error { return s.Release(ctx, in.Name) })
	}),
	write("delete", "Removes a session.", Write, func(ctx context.Context, sp *space, in *wire.Delete) (*wire.None, error) {
		policy, known := wire.Policies[in.Children]
		if !known && in.Children != "" {
			return nil, &turnstone.InvalidError{Where: "delete", Reason: fmt.Sprintf("there is no policy %q", in.Children)}
		}
		return &wire.None{}, sp.store.Delete(ctx, in.Session, policy)
	}),

	write("start-feed", "Turns the feed of changes on.", Maintain, func(ctx context.Context, sp *space, in *wire.StartFeed) (*wire.None, error) {
		return &wire.None{}, sp.store.StartFeed(ctx, time.Duration(in.Keep))
	}),
	write("stop-feed", "Turns the feed of changes off.", Maintain, func(ctx context.Context, sp *space, _ *wire.None) (*wire.None, error) {
		return &wire.None{}, sp.store.StopFeed(ctx)
	}),
	long("gc", "Deletes the blobs that nothing refers to, of a session or of all.", func(ctx context.Context, sp *space, in *wire.Collect, tell func(gc.Progress)) (*wire.Item, error) {
		collect := sp.store.GC
		if t, one := in.Target(); one {
			s, err := sp.session(ctx, t)
			if err != nil {
				return nil, err
			}
			collect = s.GC
		}
		report, err := collect(ctx, gc.Options{DryRun: in.DryRun, Full: in.Full, Pace: in.Pace, Progress: tell})
		return &wire.Item{Report: report}, err
	}),
	long("vacuum", "Removes what is detached, of a session or of all, and gives the space back.", func(ctx context.Context, sp *space, in *wire.VacuumRequest, tell func(gc.Progress)) (*wire.Item, error) {
		vacuum := sp.store.Vacuum
		if t, one := in.Target(); one {
			s, err := sp.session(ctx, t)
			if err != nil {
				return nil, err
			}
			vacuum = s.Vacuum
		}
		report, err := vacuum(ctx, gc.VacuumOptions{Pace: in.Pace, Progress: tell})
		return &wire.Item{Vacuum: report}, err
	}),
}

func pointer[T any](v T, err error) (*T, error) { return &v, err }

func inSession(ctx context.Context, sp *space, t wire.Target, f func(*turnstone.Session) error) (*wire.None, error) {
	s, err := sp.session(ctx, t)
	if err != nil {
		return nil, err
	}
	return &wire.None{}, f(s)
}

// read is an operation that changes nothing.
func read[In, Out any](name, summary string, f func(context.Context, *space, *In) (*Out, error)) operation {
	return operation{
		name: name, summary: summary, scope: Read, in: reflect.TypeFor[In](), out: reflect.TypeFor[Out](), repeated: true,
		handle: func(s *Server, r *request) error {
			return asked(s, r, func(in *In, _ [32]byte) error {
				out, err := f(r.Context(), r.space, in)
				if err != nil {
					return err
				}
				send(r.w, http.StatusOK, wire.ContentType, out)
				return nil
			})
		},
	}
}

// write is an operation that is made once, however often it is asked for with one id.
func write[In, Out any](name, summary string, scope Scope, f func(context.Context, *space, *In) (*Out, error)) operation {
	return operation{
		name: name, summary: summary, scope: scope, in: reflect.TypeFor[In](), out: reflect.TypeFor[Out](),
		handle: func(s *Server, r *request) error {
			unpin, err := s.pin(r)
			if err != nil {
				return err
			}
			defer unpin()
			return asked(s, r, func(in *In, sum [32]byte) error {
				result, err := s.once(r, sum, func(ctx context.Context) ([]byte, error) {
					out, err := f(ctx, r.space, in)
					if err != nil {
						return nil, err
					}
					var b bytes.Buffer
					err = wire.Write(&b, out)
					return b.Bytes(), err
				})
				if err != nil {
					return err
				}
				r.w.Header().Set("Content-Type", wire.ContentType)
				r.w.Header().Set("Content-Length", strconv.Itoa(len(result)))
				_, _ = r.w.Write(result) // If the caller is gone, it asks again.
				return nil
			})
		},
	}
}

// A sender sends an item of an answer.
type sender func(*wire.Item) error

// several is an operation whose answer is several items.
func several[In any](name, summary string, scope Scope, f func(context.Context, *space, *In, sender) error) operation {
	return operation{
		name: name, summary: summary, scope: scope, in: reflect.TypeFor[In](), out: reflect.TypeFor[wire.Item](), several: true, repeated: true,
		handle: func(s *Server, r *request) error {
			return asked(s, r, func(in *In, _ [32]byte) error {
				out := s.stream(r)
				err := f(r.Context(), r.space, in, out.send)
				return out.end(err)
			})
		},
	}
}

// asked reads what a request asks for, and calls f with it and its hash.
func asked[In any](s *Server, r *request, f func(*In, [32]byte) error) error {
	size := r.ContentLength
	if size < 0 {
		size = s.o.MaxRequestBytes
	}
	if size > s.o.MaxRequestBytes {
		return fmt.Errorf("%w: its body has %d bytes, at most %d are read", wire.ErrTooLarge, size, s.o.MaxRequestBytes)
	}
	release, err := s.acquire(r.Context(), s.limits.bytes, size, "bytes of requests", s.o.MaxBodyBytes)
	if err != nil {
		return err
	}
	defer release()
	sum := blake3.New()
	_, _ = sum.WriteString(r.URL.Path)
	in := new(In)
	d := wire.NewReader(io.TeeReader(limited(s.body(r), s.o.MaxRequestBytes), sum))
	d.Strict = true
	if err = d.Read(in); errors.Is(err, io.EOF) {
		err = nil // Nothing asks for the default.
	}
	if err == nil {
		err = d.End()
	}
	if err != nil {
		if !errors.Is(err, wire.ErrDocument) && !errors.Is(err, wire.ErrTooLarge) {
			err = fmt.Errorf("%w: its body: %w", wire.ErrRequest, err)
		}
		return err
	}
	return f(in, [32]byte(sum.Sum(nil)))
}

// A plainRoute is a route that is no operation of a store.
type plainRoute struct {
	name, path string // of GET
	summary    string
	mediaType  string
	scope      Scope // none if no token is needed
	handle     func(*Server, *answer, *http.Request) error
}

var plainRoutes = []plainRoute{
	{"hello", "/v1/{$}", "Names the process that serves.", "application/json", "", (*Server).hello},
	{"openapi", "/v1/openapi.json", "This document.", "application/json", "", (*Server).openAPI},
	{"health", "/healthz", "Answers whether the server can read its default namespace.", "text/plain", "", (*Server).health},
	{"metrics", "/metrics", "Metrics in the text format of Prometheus.", "text/plain", Read, (*Server).metricsText},
}

// routes returns the handler of all routes.
func (s *Server) routes() *http.ServeMux {
	m := http.NewServeMux()
	for _, o := range operations {
		m.Handle("POST /v1/"+o.name, s.handle(o.name, o.scope, o.handle))
	}
	for _, r := range streams {
		m.Handle(r.method+" "+r.path, s.handle(r.name, r.scope, r.handle))
	}
	for _, p := range plainRoutes {
		m.HandleFunc("GET "+p.path, func(w http.ResponseWriter, r *http.Request) {
			namespace, err := namespaceOf(r)
			if err == nil && p.scope != "" {
				_, err = s.allowed(r, p.scope, namespace)
			}
			if err == nil {
				err = p.handle(s, w.(*answer), r)
			}
			if err != nil {
				s.fail(w.(*answer), r, err)
			}
		})
	}
	m.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.fail(w.(*answer), r, fmt.Errorf("%w: %s %q", wire.ErrRoute, r.Method, r.URL.Path))
	})
	return m
}

// hello answers which process serves.
func (s *Server) hello(w *answer, _ *http.Request) error {
	send(w, http.StatusOK, "application/json", &struct {
		Server string `json:"server"`
	}{s.id})
	return nil
}

// openAPI sends the description of all routes.
func (s *Server) openAPI(w *answer, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(openAPI) // If the caller is gone, nobody reads it.
	return nil
}

// revision reads a revision in a query: a number, "any" or "zero".
func revision(text string) (r head.Revision, err error) {
	switch text {
	case "":
		return 0, nil
	case "any", "zero":
		text = `"` + text + `"`
	}
	if err := r.UnmarshalJSON([]byte(text)); err != nil {
		return 0, fmt.Errorf("%w: %w", wire.ErrRequest, err)
	}
	return r, nil
}
