package turnstone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/turnstonedb/turnstone/blob"
	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/codec"
	"github.com/turnstonedb/turnstone/internal/keys"
)

// A Verification is what Verify found.
type Verification struct {
	Sessions, Commits, Nodes int
	Blobs                    int // stored
	Unreferenced             int // blobs that nothing refers to: garbage, no damage
	Condemned                int // blobs that a collector was about to delete
	Records                  int // all records, each with its checksum checked
	Problems                 []error
	More                     int // problems beyond the first 1,000
}

// OK reports whether nothing is wrong.
func (v *Verification) OK() bool { return len(v.Problems) == 0 }

// Verify checks every hash, link, checksum and reference of the namespace and
// names what is wrong: usually a *CorruptError. It reads everything and changes
// nothing. It may run beside commits; a session that changes meanwhile is
// checked as it was when Verify came to it. The returned error says that Verify
// itself could not go on.
//
// The progress callback, if not nil, is called with the number of sessions and
// blobs done, from the calling goroutine.
func (s *Store) Verify(ctx context.Context, progress func(done int)) (*Verification, error) {
	return observed(ctx, s, OpVerify, "", func(ctx context.Context) (*Verification, error) { return s.verify(ctx, progress) },
		func(v *Verification, o *Outcome) {
			if o.Items = len(v.Problems) + v.More; !v.OK() {
				o.Err = v.Problems[0]
			}
		})
}

func (s *Store) verify(ctx context.Context, progress func(done int)) (*Verification, error) {
	for attempt := 0; ; attempt++ {
		v := &verifier{s: s, progress: progress, blobs: map[blob.ID]bool{}, incs: map[head.Incarnation]bool{}}
		for _, step := range []func(context.Context) error{v.records, v.sessions, v.orphans, v.contents, v.index} {
			if err := step(ctx); err != nil {
				return &v.Verification, err
			}
		}
		// What maintenance removed meanwhile looks like missing: look again.
		if attempt == 2 || v.More > 0 || !slices.ContainsFunc(v.Problems, func(err error) bool { return errors.Is(err, codec.ErrMissing) }) {
			return &v.Verification, nil
		}
	}
}

type verifier struct {
	Verification
	s        *Store
	progress func(int)
	done     int
	blobs    map[blob.ID]bool          // referred to by sessions
	incs     map[head.Incarnation]bool // whose history was checked
}

func (v *verifier) problem(err error, format string, args ...any) {
	if err == nil {
		return
	}
	if len(v.Problems) == 1000 {
		v.More++
		return
	}
	v.Problems = append(v.Problems, codec.Corrupt(err, format, args...))
}

func (v *verifier) step() {
	if v.done++; v.progress != nil {
		v.progress(v.done)
	}
}

// stopped reports errors that end Verify, as opposed to what it looks for.
func stopped(err error) bool {
	var damage *CorruptError
	return err != nil && !errors.As(err, &damage) && !errors.Is(err, ErrFormat) &&
		!errors.Is(err, ErrNodeNotFound) && !errors.Is(err, ErrSessionNotFound) && !errors.Is(err, ErrSessionDeleted)
}

// records checks the checksum of every record, in whatever place it is, and
// that each blob has a mark and the other way round.
func (v *verifier) records(ctx context.Context) error {
	var lastBlob, blobs, marks []byte // hashes, 16 bytes each, ascending
	for p, err := range v.s.engine.Scan(ctx, v.s.space.Everything()) {
		if err != nil {
			return err
		}
		v.Records++
		letter, fields, ok := v.s.space.Fields(p.Key)
		if !ok {
			v.problem(fmt.Errorf("%w: no key of the format", codec.ErrMalformed), "record at key %x", p.Key)
			continue
		}
		if _, err := codec.Open(p.Key, p.Value, letter); err != nil {
			v.problem(err, "record at key %x", p.Key)
		}
		switch letter {
		case keys.Blob:
			if h := fields[:16]; !bytes.Equal(h, lastBlob) {
				lastBlob = h
				blobs = append(blobs, h...)
			}
		case keys.Mark:
			marks = append(marks, fields...)
			if m, err := blob.OpenMark(p.Key, p.Value); err == nil && m.Condemned {
				v.Condemned++
			}
		}
	}
	v.Blobs = len(blobs) / 16
	for len(blobs) > 0 || len(marks) > 0 {
		var odd keys.Hash
		switch c := bytes.Compare(blobs[:min(16, len(blobs))], marks[:min(16, len(marks))]); {
		case len(marks) == 0 || len(blobs) > 0 && c < 0:
			odd, blobs = keys.Hash(blobs[:16]), blobs[16:]
		case len(blobs) == 0 || c > 0:
			odd, marks = keys.Hash(marks[:16]), marks[16:]
		default:
			blobs, marks = blobs[16:], marks[16:]
			continue
		}
		// Pages of the scan are of different moments: look at both at once.
		vs, err := v.s.engine.Get(ctx, v.s.space.Blob(odd, 0), v.s.space.Mark(odd))
		if err != nil {
			return err
		}
		if (vs[0] == nil) != (vs[1] == nil) {
			v.problem(codec.ErrMissing, "blob or mark at %x: one is there without the other", odd)
		}
	}
	return nil
}

// sessions checks every session: those that have a head, and those that only
// forks still hold.
func (v *verifier) sessions(ctx context.Context) error {
	for p, err := range v.s.engine.Scan(ctx, v.s.space.All(keys.About)) {
		if err != nil {
			return err
		}
		about, err := head.OpenAbout(p.Key, p.Value)
		if err != nil {
			v.problem(err, "metadata at key %x", p.Key)
			continue
		}
		if err := v.byID(ctx, about.ID); err != nil {
			return err
		}
	}
	// A head without metadata would be in no list; and what was renamed
	// meanwhile is found here.
	for p, err := range v.s.engine.Scan(ctx, v.s.space.All(keys.Head)) {
		if err != nil {
			return err
		}
		h, err := head.OpenHead(p.Key, p.Value)
		_, fields, ok := v.s.space.Fields(p.Key)
		if err != nil || !ok {
			v.problem(err, "head at key %x", p.Key)
			continue
		}
		if v.incs[h.Incarnation] {
			continue
		}
		key := v.s.space.About(keys.Hash(fields))
		vs, err := v.s.engine.Get(ctx, key, p.Key)
		if err != nil {
			return err
		}
		if vs[1] == nil {
			continue // deleted meanwhile
		}
		about, err := head.OpenAbout(key, vs[0])
		if err != nil {
			v.problem(err, "metadata of the session with head at key %x", p.Key)
			continue
		}
		if err := v.byID(ctx, about.ID); err != nil {
			return err
		}
	}
	return nil
}

// orphans looks for sessions that live by their lifecycle record and have no
// head: it, or the way to it, was lost.
func (v *verifier) orphans(ctx context.Context) error {
	for p, err := range v.s.engine.Scan(ctx, v.s.space.All(keys.Life)) {
		if err != nil {
			return err
		}
		life, err := head.OpenLife(p.Key, p.Value)
		_, fields, ok := v.s.space.Fields(p.Key)
		if err != nil || !ok || life.State != head.Live || v.incs[head.Incarnation(fields)] {
			continue // records has named what is damaged
		}
		vs, err := v.s.engine.Get(ctx, v.s.space.Head(life.Session), p.Key)
		if err != nil {
			return err
		}
		if vs[0] == nil && string(vs[1]) == string(p.Value) {
			v.problem(codec.ErrMissing, "head of incarnation %x", fields)
		}
	}
	return nil
}

// byID checks the session of an id, if it is still there.
func (v *verifier) byID(ctx context.Context, id string) error {
	ses, err := v.s.Session(ctx, id)
	if err == nil && !v.incs[ses.inc] {
		v.Sessions++
		v.incs[ses.inc] = true
		err = v.session(ctx, ses)
	}
	if stopped(err) {
		return err
	}
	if !errors.Is(err, ErrSessionNotFound) && !errors.Is(err, ErrSessionDeleted) { // deleted or renamed meanwhile
		v.problem(err, "session %q", id)
	}
	v.step()
	return nil
}
