// Package recovery brings what can be read of a damaged store to another one.
//
// Run first copies all records that can be read and whose checksums match, so that a failing disk is read once. In the
// copy it reads each session whole, and mends those that are not: see Run. What comes of that is pushed, so whatever
// arrives was verified like any other bundle.
package recovery

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	randv2 "math/rand/v2"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/repair"
	"github.com/turnstonedb/turnstone/internal/session"
	"github.com/turnstonedb/turnstone/internal/spill"
	"github.com/turnstonedb/turnstone/push"
)

// Options of Run.
type Options struct {
	Namespace string // of the damaged store; as in turnstone.Options
	// Dir is where a directory for a copy of the records is made, and removed, if they don't fit into memory. It needs as
	// much space as the store has. Default: os.TempDir.
	Dir string
	// Progress, if set, is called with each session that was made or brought forward.
	Progress func(turnstone.Unbundled)
}

// A Report says what Run has done.
type Report struct {
	push.Report     // of what came
	Records     int `json:"records"`       // that were read
	Damaged     int `json:"damaged"`       // records that were there, and whose checksums do not match
	Gaps        int `json:"gaps,omitzero"` // places where the database could not be read, with any number of records
	// Files says what the database says of what can't be read: which files, if the source tells, and why the first gaps
	// are there.
	Files []string `json:"files,omitempty"`
	// Pieces are sessions that have what came after a gap in others.
	Pieces []Piece `json:"pieces,omitempty"`
	Lost   []Loss  `json:"-"` // what sessions lack, those of one session together
}

// A Loss is something that a session has lost.
type Loss struct {
	Session string // the id that the session has now, or "" if it is of the store
	What    string // in words, for example `revisions 7 to 12`
	Err     error  // why; it may wrap a *damage.CorruptError
}

// Error returns all of it in a line.
func (l *Loss) Error() string {
	if l.Session == "" {
		return fmt.Sprintf("%s: %v", l.What, l.Err)
	}
	return fmt.Sprintf("session %q: %s: %v", l.Session, l.What, l.Err)
}

// Unwrap returns Err.
func (l *Loss) Unwrap() error { return l.Err }

// maxFiles is how many reasons of gaps Report.Files has.
const maxFiles = 20

// Run brings the sessions of a damaged store to another one, which may be new, or have some of them already, as a push
// does (package push). Nobody else should have the damaged store open, and nothing in it is changed. A session comes
// with what can be read of it:
//
//   - Its history ends before the first commit that is lost. What can be read of what came after is committed again to a
//     session of its own, a Piece, where nodes and commits have other ids and the same times.
//   - A node whose content, or an attachment of which, is lost becomes a tombstone. The nodes around it keep their ids.
//   - A checkpoint part that is lost is left out. If it is a part of the last checkpoint, the commits get new ids from
//     the one on that has set it; else the checkpoints before the next version of the part count as pruned.
//   - A session whose metadata are lost has an id that begins with "recovered-".
//   - Records and names of kept revisions that are lost are missing.
//
// What was tombstoned, pruned, erased or deleted does not come. All else that is lost is in Report.Lost. Without the store
// record, which has the secret of the hashes in keys, the records get keys with another one. If there are Gaps or Files,
// a record may be as it was before it was overwritten or deleted last, and there may be sessions of which nothing is left
// that tells of them.
//
// If some sessions can't be pushed, the others are, and the error is that of all of them. The report is never nil. The
// call can be repeated.
func Run(ctx context.Context, from engine.Scanner, to push.Peer, o Options) (_ *Report, err error) {
	out := &Report{}
	switch {
	case from == nil:
		return out, fmt.Errorf("%w: the source is nil", turnstone.ErrInvalid)
	case to == nil:
		return out, fmt.Errorf("%w: the store is nil", turnstone.ErrInvalid)
	}
	copied, renamed := spill.New(o.Dir), spill.New(o.Dir)
	defer func() { err = errors.Join(err, copied.Close(), renamed.Close()) }()
	r := &recovering{to: to, o: o, out: out}
	if r.e, r.record, err = r.gather(ctx, from, copied, renamed); err != nil {
		return out, err
	}
	found, err := repair.Sessions(ctx, session.Histories(r.e, r.record), r.damaged)
	if err != nil {
		return out, err
	}
	r.clock = &clock{now: time.Now(), random: randv2.NewChaCha8(r.record.Secret)}
	r.st, err = turnstone.Open(ctx, r.e, &turnstone.Options{Namespace: o.Namespace, MustExist: true, NoAutoSeal: true, Now: r.clock.time, Random: r.clock})
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, r.st.Close()) }()
	var ids []string
	for i := range found {
		some, err := r.found(ctx, &found[i])
		if err != nil {
			return out, err
		}
		ids = append(ids, some...)
	}
	if len(ids) == 0 {
		return out, nil
	}
	return out, r.send(ctx, ids)
}

// A recovering is one call of Run.
type recovering struct {
	to      push.Peer
	o       Options
	out     *Report
	e       engine.Engine // with the records
	record  *head.Store
	damaged [][]byte
	st      *turnstone.Store // on e
	clock   *clock
}

func (r *recovering) lose(session, what string, err error) {
	r.out.Lost = append(r.out.Lost, Loss{session, what, err})
}

// gather copies the records, and returns where they are. If the store record can't be read, they are in renamed.
func (r *recovering) gather(ctx context.Context, from engine.Scanner, copied, renamed engine.Engine) (engine.Engine, *head.Store, error) {
	namespace, out := r.o.Namespace, r.out
	read, err := repair.Gather(ctx, from, copied, engine.PrefixRange(keys.Prefix(namespace)), repair.Letters)
	if err != nil {
		return nil, nil, err
	}
	r.damaged = read.Damaged
	out.Records, out.Damaged, out.Gaps = read.Records, len(read.Damaged), len(read.Gaps)
	if files, ok := from.(interface{ Lost() []string }); ok {
		out.Files = files.Lost()
	}
	for _, g := range read.Gaps[:min(len(read.Gaps), maxFiles)] {
		out.Files = append(out.Files, g.Err.Error())
	}
	if read.Records+len(read.Damaged) == 0 {
		if len(read.Gaps) > 0 {
			return nil, nil, read.Gaps[0].Err
		}
		return nil, nil, turnstone.ErrStoreNotFound
	}
	key := keys.StoreKey(namespace)
	vs, err := copied.Get(ctx, key)
	if err != nil {
		return nil, nil, err
	}
	record, why := head.DecodeStore(key, vs[0], head.Known)
	switch {
	case errors.Is(why, damage.ErrFormat):
		return nil, nil, codec.Corrupt(why, "store record of namespace %q", namespace)
	case why == nil:
		return copied, &record, nil
	}
	r.lose("", "store record: versions of checkpoint parts may be lost with it", why)
	fresh, err := rekey(ctx, copied, renamed, namespace)
	return renamed, fresh, err
}

// found returns the ids of a session that was found, and of its piece, as far as they can be sent.
func (r *recovering) found(ctx context.Context, s *repair.Session) (ids []string, err error) {
	for _, l := range s.Lost {
		r.lose(s.ID, l.What, l.Err)
	}
	if s.Rest != nil {
		p, err := piece(ctx, r.st, s, r.clock, r.lose)
		switch {
		case err == nil:
		case ofTheCopy(err), errors.Is(err, turnstone.ErrInvalid), errors.Is(err, turnstone.ErrLimit), errors.Is(err, turnstone.ErrExists),
			errors.Is(err, turnstone.ErrTurnConflict), errors.Is(err, turnstone.ErrConflict):
			r.lose(s.ID, fmt.Sprintf("what came after revision %d", p.Last), err)
		default:
			return nil, err
		}
		if p.Last > 0 {
			r.out.Pieces = append(r.out.Pieces, *p)
			ids = append(ids, p.Session)
		}
	}
	if s.Gone {
		return ids, nil
	}
	if s.Changed {
		if err := r.try(ctx, s.ID); ofTheCopy(err) {
			r.lose(s.ID, "all of it", err)
			return ids, nil
		} else if err != nil {
			return nil, err
		}
	}
	return append(ids, s.ID), nil
}

// send pushes sessions.
func (r *recovering) send(ctx context.Context, ids []string) error {
	pushed, err := push.Sessions(ctx, r.st, r.to, push.Options{Sessions: ids, Progress: r.o.Progress})
	r.out.Report = *pushed
	if !ofTheCopy(err) {
		return err
	}
	// The records of a session may say something else together than each by itself. The others come without it.
	came := map[string]bool{}
	for _, s := range r.out.Sessions {
		came[s.ID] = true
	}
	r.out.Same = 0
	var failed []error
	for _, id := range ids {
		one, err := push.Sessions(ctx, r.st, r.to, push.Options{Sessions: []string{id}, Progress: r.o.Progress})
		r.out.Bytes += one.Bytes
		for _, s := range one.Sessions {
			if !came[s.ID] {
				r.out.Sessions = append(r.out.Sessions, s)
				came[s.ID] = true
			}
		}
		if ofTheCopy(err) && ofTheCopy(r.try(ctx, id)) { // and not of the store that it is sent to
			r.lose(id, "all of it, or what the other store does not have yet", err)
			continue
		}
		switch {
		case ctx.Err() != nil, errors.Is(err, engine.ErrNoSpace), errors.Is(err, engine.ErrUnavailable):
			return errors.Join(append(failed, err)...)
		case err != nil:
			failed = append(failed, err)
		case !came[id]:
			r.out.Same++
		}
	}
	return errors.Join(failed...)
}

// ofTheCopy reports whether an error says that a session can't be read from the copy.
func ofTheCopy(err error) bool {
	for _, of := range []error{damage.ErrDamaged, damage.ErrFormat, turnstone.ErrBundle, turnstone.ErrSessionNotFound, turnstone.ErrSessionDeleted} {
		if errors.Is(err, of) {
			return true
		}
	}
	return false
}

// rekey copies records whose store record is lost to another engine, with a new one, which it returns.
func rekey(ctx context.Context, from, to engine.Engine, namespace string) (*head.Store, error) {
	record := &head.Store{Format: head.Known.Newest, Namespace: namespace, Chunks: blob.DefaultChunking}
	_, _ = rand.Read(record.ID[:])
	_, _ = rand.Read(record.Secret[:])
	key := keys.StoreKey(namespace)
	if err := to.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: key, Value: record.Encode(key)}}}); err != nil {
		return nil, err
	}
	return record, repair.Rekey(ctx, from, engine.PrefixRange(keys.Prefix(namespace)), session.Histories(to, record))
}

// try returns an error if a session does not come whole to another store.
func (r *recovering) try(ctx context.Context, id string) (err error) {
	e := spill.New(r.o.Dir)
	defer func() { err = errors.Join(err, e.Close()) }()
	to, err := turnstone.Open(ctx, e, &turnstone.Options{NoAutoSeal: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	pr, pw := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, err := r.st.Bundle(ctx, pw, turnstone.Bundled{ID: id})
		_ = pw.CloseWithError(err)
	}()
	_, err = to.Unbundle(ctx, pr, turnstone.UnbundleOptions{})
	err = errors.Join(err, pr.Close())
	<-ended
	return err
}
