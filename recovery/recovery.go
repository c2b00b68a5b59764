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
	copied := newSpill(o.Dir)
	defer func() { err = errors.Join(err, copied.Close()) }()
	read, err := repair.Gather(ctx, from, copied, engine.PrefixRange(keys.Prefix(o.Namespace)), repair.Letters)
	if err != nil {
		return out, err
	}
	out.Records, out.Damaged, out.Gaps = read.Records, len(read.Damaged), len(read.Gaps)
	if files, ok := from.(interface{ Lost() []string }); ok {
		out.Files = files.Lost()
	}
	for _, g := range read.Gaps[:min(len(read.Gaps), maxFiles)] {
		out.Files = append(out.Files, g.Err.Error())
	}
	if read.Records+len(read.Damaged) == 0 && len(read.Gaps) > 0 {
		return out, read.Gaps[0].Err
	}
	mended := copied
	key := keys.StoreKey(o.Namespace)
	vs, err := copied.Get(ctx, key)
	if err != nil {
		return out, err
	}
	if vs[0] == nil && read.Records+len(read.Damaged)+len(read.Gaps) == 0 {
		return out, turnstone.ErrStoreNotFound
	}
	if vs[0] == nil {
		renamed := newSpill(o.Dir)
		defer func() { err = errors.Join(err, renamed.Close()) }()
		if vs[0], err = rekey(ctx, copied, renamed, o.Namespace); err != nil {
			return out, err
		}
		mended = renamed
		out.Lost = append(out.Lost, Loss{"", "store record: versions of checkpoint parts may be lost with it", damage.ErrMissing})
	}
	record, err := head.DecodeStore(key, vs[0], head.Known)
	if err != nil {
		return out, codec.Corrupt(err, "store record of namespace %q", o.Namespace)
	}
	found, err := repair.Sessions(ctx, session.Histories(mended, &record), read.Damaged)
	if err != nil {
		return out, err
	}
	c := &clock{now: time.Now(), random: randv2.NewChaCha8(record.Secret)}
	st, err := turnstone.Open(ctx, mended, &turnstone.Options{Namespace: o.Namespace, MustExist: true, NoAutoSeal: true, Now: c.time, Random: c})
	if err != nil {
		return out, err
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	var ids []string
	lose := func(session, what string, err error) { out.Lost = append(out.Lost, Loss{session, what, err}) }
	for i := range found {
		s := &found[i]
		for _, l := range s.Lost {
			lose(s.ID, l.What, l.Err)
		}
		if s.Rest != nil {
			p, err := piece(ctx, st, s, c, lose)
			switch {
			case err != nil && ofTheMachine(ctx, err):
				return out, err
			case err != nil:
				lose(s.ID, fmt.Sprintf("what came after revision %d", p.Last), err)
			}
			if p.Session != "" {
				out.Pieces = append(out.Pieces, *p)
				ids = append(ids, p.Session)
			}
		}
		if s.Gone {
			continue
		}
		if s.Changed {
			if err := try(ctx, st, s.ID, o.Dir); ofTheCopy(err) {
				lose(s.ID, "all of it", err)
				continue
			} else if err != nil {
				return out, err
			}
		}
		ids = append(ids, s.ID)
	}
	if len(ids) == 0 {
		return out, nil
	}
	r, err := push.Sessions(ctx, st, to, push.Options{Sessions: ids, Progress: o.Progress})
	out.Report = *r
	if !ofTheCopy(err) {
		return out, err
	}
	// The records of a session say something else together than each by itself. The others come without it.
	came := map[string]bool{}
	for _, s := range out.Sessions {
		came[s.ID] = true
	}
	out.Same = 0
	var failed []error
	for _, id := range ids {
		r, err := push.Sessions(ctx, st, to, push.Options{Sessions: []string{id}, Progress: o.Progress})
		out.Bytes += r.Bytes
		for _, s := range r.Sessions {
			if !came[s.ID] {
				out.Sessions = append(out.Sessions, s)
				came[s.ID] = true
			}
		}
		switch {
		case ofTheCopy(err):
			lose(id, "all of it, or what the other store does not have yet", err)
		case err != nil:
			failed = append(failed, err)
		case !came[id]:
			out.Same++
		}
	}
	return out, errors.Join(failed...)
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

// ofTheMachine reports whether an error is none of the damaged store's.
func ofTheMachine(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, engine.ErrNoSpace) || errors.Is(err, engine.ErrUnavailable) || errors.Is(err, engine.ErrClosed)
}

// rekey copies records whose store record is lost to another engine, with a new one, which it returns.
func rekey(ctx context.Context, from, to engine.Engine, namespace string) ([]byte, error) {
	record := head.Store{Format: head.Known.Newest, Namespace: namespace, Chunks: blob.DefaultChunking}
	_, _ = rand.Read(record.ID[:])
	_, _ = rand.Read(record.Secret[:])
	key := keys.StoreKey(namespace)
	value := record.Encode(key)
	if err := to.Apply(ctx, &engine.Batch{Sets: []engine.Pair{{Key: key, Value: value}}}); err != nil {
		return nil, err
	}
	return value, repair.Rekey(ctx, from, engine.PrefixRange(keys.Prefix(namespace)), session.Histories(to, &record))
}

// try returns an error if a session that was mended does not come whole to another store.
func try(ctx context.Context, st *turnstone.Store, id, dir string) (err error) {
	e := newSpill(dir)
	defer func() { err = errors.Join(err, e.Close()) }()
	to, err := turnstone.Open(ctx, e, &turnstone.Options{NoAutoSeal: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	r, w := io.Pipe()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, err := st.Bundle(ctx, w, turnstone.Bundled{ID: id})
		_ = w.CloseWithError(err)
	}()
	_, err = to.Unbundle(ctx, r, turnstone.UnbundleOptions{})
	err = errors.Join(err, r.Close())
	<-ended
	return err
}
