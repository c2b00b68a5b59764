package linearizability

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/engine/open"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/lease"
	"github.com/turnstonedb/turnstone/queue"
)

// An op is a line of a worker's log: what it is about to do, and again when it is done.
type op struct {
	Worker string `json:"w"`
	N      int    `json:"n"`
	Done   bool   `json:"done,omitempty"`
	At     int64  `json:"at"` // nanoseconds of the clock that all processes share

	Kind   string `json:"kind"`             // read, set, swap, delete; put
	Key    string `json:"key"`              // of the record, or the id of the message
	Expect string `json:"expect,omitempty"` // of swap and delete: the value that was read before
	Value  string `json:"value,omitempty"`  // of set and swap; what read has read; "" for no record
	Result string `json:"result,omitempty"` // ok, conflict, none (no effect), unknown
}

const ttl = 150 * time.Millisecond // of leases and claims

// A config says what workers do. It goes to processes as JSON.
type config struct {
	URL        string
	Dir        string // of logs, and of the files "epoch" and "stop"
	Process    string
	Goroutines int
	Watch      bool // watch the session, too
}

func (c *config) file(name string) string { return c.Dir + "/" + name }

// work runs the workers of one process until the file "stop" is there.
func work(c *config) error {
	ctx := context.Background()
	for {
		e, err := open.Open(ctx, c.URL, nil)
		if err == nil {
			err = workOn(ctx, e, c)
		}
		if !temporary(err) {
			return err
		}
	}
}

func workOn(ctx context.Context, e engine.Engine, c *config) (err error) {
	defer func() { err = errors.Join(err, e.Close()) }()
	st, err := turnstone.Open(ctx, e, &turnstone.Options{PollEvery: 20 * time.Millisecond})
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	errs := make([]error, c.Goroutines)
	if c.Watch {
		watching, stop := context.WithCancel(ctx)
		watched := make(chan error)
		go func() { watched <- watch(watching, st, c) }()
		go func() { watched <- watchAll(watching, st, c) }()
		defer func() {
			stop()
			err = errors.Join(err, <-watched, <-watched)
		}()
	}
	for g := range c.Goroutines {
		wg.Go(func() { errs[g] = (&worker{config: c, store: st, name: fmt.Sprintf("%s.%d", c.Process, g)}).run(ctx) })
	}
	wg.Wait()
	for c.Watch && c.Goroutines == 0 { // It only watches.
		if _, err := os.Stat(c.file("stop")); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.Join(append(errs, st.Close())...)
}

// watch appends the commits that it sees to the file "watched", and goes on after the last one that is there.
func watch(ctx context.Context, st *turnstone.Store, c *config) error {
	var after head.Revision
	text, err := os.ReadFile(c.file("watched"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if lines := strings.Fields(string(text)); len(lines) > 0 {
		n, _, _ := strings.Cut(lines[len(lines)-1], ":")
		if _, err := fmt.Sscan(n, &after); err != nil {
			return err
		}
	}
	out, err := os.OpenFile(c.file("watched"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	for {
		s, err := st.Session(ctx, "s")
		if err == nil {
			for e, werr := range s.Watch(ctx, after) {
				if err = werr; err != nil {
					break
				}
				if _, err = fmt.Fprintf(out, "%d:%v\n", e.Revision, e.Commit); err != nil {
					break
				}
				after = e.Revision
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case !temporary(err):
			return err
		}
	}
}

// watchAll appends the changes of the feed that it sees to the file "changes", and goes on after the last one that is
// there.
func watchAll(ctx context.Context, st *turnstone.Store, c *config) error {
	begin, err := os.ReadFile(c.file("begin"))
	if err != nil {
		return err
	}
	after := turnstone.Cursor(begin)
	text, err := os.ReadFile(c.file("changes"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if lines := strings.Fields(string(text)); len(lines) > 0 {
		cursor, _, _ := strings.Cut(lines[len(lines)-1], ":")
		after = turnstone.Cursor(cursor)
	}
	out, err := os.OpenFile(c.file("changes"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer out.Close()
	for {
		for change, werr := range st.Watch(ctx, after) {
			if err = werr; err != nil {
				break
			}
			if _, err = fmt.Fprintf(out, "%s:%s:%s:%d\n", change.Cursor, change.Kind, change.Session, change.Revision); err != nil {
				break
			}
			after = change.Cursor
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case !temporary(err):
			return err
		}
	}
}

type worker struct {
	*config
	store *turnstone.Store
	name  string
	log   *os.File
	n     int
	seen  map[string]turnstone.Record // what was read last, by key
}

func (w *worker) run(ctx context.Context) (err error) {
	if w.log, err = os.OpenFile(w.file("log-"+w.name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600); err != nil {
		return err
	}
	defer w.log.Close()
	w.seen = map[string]turnstone.Record{}
	for {
		if _, err := os.Stat(w.file("stop")); err == nil {
			return nil
		}
		s, err := w.store.Session(ctx, "s")
		if temporary(err) {
			continue
		}
		if err != nil {
			return err
		}
		switch n := rand.IntN(10); {
		case n < 6:
			err = w.register(ctx, s)
		case n < 7:
			err = w.put(ctx, s)
			if err == nil {
				err = w.pass(ctx)
			}
		case n < 9:
			err = w.consume(ctx, s)
		default:
			err = w.lead(ctx, s)
		}
		if err != nil && !temporary(err) {
			return err
		}
	}
}

// pass makes a session together with a commit to another one that all share, and deletes it, so that the feed has
// more than one session.
func (w *worker) pass(ctx context.Context) error {
	id := fmt.Sprintf("of-%s-%d", w.name, w.n)
	_, err := w.store.CommitAll(ctx,
		turnstone.SessionCommit{Create: &turnstone.Request{ID: id}, Commit: turnstone.Commit{Expected: turnstone.AnyRevision}},
		turnstone.SessionCommit{Create: &turnstone.Request{ID: "shared"}, Commit: turnstone.Commit{Expected: turnstone.AnyRevision}})
	if err == nil {
		err = w.store.Delete(ctx, id, turnstone.KeepChildren)
	}
	return err
}

// temporary reports whether err is what a worker meets when its connection is cut.
func temporary(err error) bool {
	return errors.Is(err, engine.ErrUnavailable) || errors.Is(err, turnstone.ErrOutcomeUnknown) || errors.Is(err, engine.ErrUnknown)
}

// write writes a line of the log, which survives the process.
func (w *worker) write(o op) error {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &at); err != nil {
		return err
	}
	o.Worker, o.N, o.At = w.name, w.n, at.Nano()
	line, err := json.Marshal(o)
	if err == nil {
		_, err = w.log.Write(append(line, '\n'))
	}
	return err
}

// logged writes o, calls do, and writes what it did.
func (w *worker) logged(o op, do func(*op) error) error {
	w.n++
	if err := w.write(o); err != nil {
		return err
	}
	err := do(&o)
	o.Done, o.Result = true, "ok"
	switch {
	case err == nil:
	case errors.Is(err, turnstone.ErrOutcomeUnknown):
		o.Result = "unknown"
	case errors.Is(err, turnstone.ErrRecordConflict):
		o.Result = "conflict"
	case errors.Is(err, turnstone.ErrRecordNotFound):
	case errors.Is(err, engine.ErrUnavailable):
		o.Result = "none"
	default:
		return err
	}
	return w.write(o)
}

// register reads or changes a record. Which ones there are depends on the epoch, so that an operation whose
// outcome nobody knows is beside few others.
func (w *worker) register(ctx context.Context, s *turnstone.Session) error {
	epoch, err := os.ReadFile(w.file("epoch"))
	if err != nil {
		return err
	}
	key := fmt.Sprintf("%s/%d", strings.TrimSpace(string(epoch)), rand.IntN(3))
	value := fmt.Sprintf("%s-%d-%d", w.name, os.Getpid(), w.n)
	seen, known := w.seen[key]
	expect, version := string(seen.Value), seen.Version
	if !known {
		expect, version = "", turnstone.NoRecord
	}
	change := func(c turnstone.RecordChange) func(*op) error {
		return func(*op) error {
			var vs []turnstone.RecordVersion
			var err error
			if rand.IntN(4) == 0 { // with a commit
				var r turnstone.Result
				r, err = s.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Records: []turnstone.RecordChange{c}})
				vs = r.Records
			} else {
				vs, err = s.ChangeRecords(ctx, c)
			}
			delete(w.seen, key)
			if err == nil && c.Action == turnstone.SetRecord {
				w.seen[key] = turnstone.Record{Value: c.Value, Version: vs[0]}
			}
			return err
		}
	}
	switch n := rand.IntN(10); {
	case n < 4:
		return w.logged(op{Kind: "read", Key: key}, func(o *op) error {
			r, err := s.Record(ctx, key)
			delete(w.seen, key)
			if err == nil {
				o.Value, w.seen[key] = string(r.Value), r
			}
			return err
		})
	case n < 5:
		return w.logged(op{Kind: "set", Key: key, Value: value}, change(turnstone.RecordChange{Key: key, Value: []byte(value)}))
	case n < 6 && known:
		return w.logged(op{Kind: "delete", Key: key, Expect: expect}, change(turnstone.RecordChange{Key: key, Action: turnstone.DeleteRecord, Expect: version}))
	default:
		return w.logged(op{Kind: "swap", Key: key, Expect: expect, Value: value}, change(turnstone.RecordChange{Key: key, Value: []byte(value), Expect: version}))
	}
}

// put puts a message.
func (w *worker) put(ctx context.Context, s *turnstone.Session) error {
	id := fmt.Sprintf("%s-%d-%d", w.name, os.Getpid(), w.n)
	return w.logged(op{Kind: "put", Key: id}, func(*op) error {
		_, err := s.ChangeRecords(ctx, queue.PutAs("in", id, []byte(id)))
		return err
	})
}

// dawdle is longer than a lease now and then.
func dawdle() {
	if rand.IntN(6) == 0 {
		time.Sleep(ttl * 3 / 2)
	}
}

// consume claims a message and commits a node that names it.
func (w *worker) consume(ctx context.Context, s *turnstone.Session) error {
	m, err := queue.Claim(ctx, s, "in", lease.Options{Holder: w.name, TTL: ttl})
	if errors.Is(err, queue.ErrEmpty) {
		return nil
	}
	if err != nil {
		return err
	}
	dawdle()
	_, err = m.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "message", Payload: m.Value}}})
	if errors.Is(err, lease.ErrFenced) {
		return nil
	}
	return err
}

// lead acquires the lease and commits nodes that have its token.
func (w *worker) lead(ctx context.Context, s *turnstone.Session) error {
	l, err := lease.Acquire(ctx, s, "leader", lease.Options{Holder: w.name, TTL: ttl})
	if errors.Is(err, lease.ErrHeld) {
		return nil
	}
	if err != nil {
		return err
	}
	for range 1 + rand.IntN(3) {
		dawdle()
		_, err := l.Commit(ctx, turnstone.Commit{Expected: turnstone.AnyRevision, Nodes: []turnstone.NewNode{{Kind: "token", Payload: strconv.AppendUint(nil, l.Token(), 10)}}})
		if errors.Is(err, lease.ErrFenced) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	if rand.IntN(2) == 0 {
		return nil // It forgets to release.
	}
	if err = l.Release(ctx); errors.Is(err, lease.ErrFenced) {
		return nil
	}
	return err
}
