package turnstone

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/turnstonedb/turnstone/head"
	"github.com/turnstonedb/turnstone/internal/bundle"
	"github.com/turnstonedb/turnstone/internal/history"
	"github.com/turnstonedb/turnstone/internal/session"
)

// Bundled names a session to write to a bundle.
type Bundled struct {
	ID string `json:"id"`
	// Since is a revision that the store has which the bundle is for: the bundle has only what came after it. With
	// RevisionZero that store has the session before its first commit, and with zero it does not have it.
	Since head.Revision `json:"since,omitzero"`
	// Incarnation, if set, is that of the session: if another one has the id, the error matches ErrSessionDeleted.
	Incarnation string `json:"incarnation,omitempty"`
}

// A BundleReport says what Bundle has written.
type BundleReport struct {
	Sessions int   `json:"sessions"`
	Commits  int   `json:"commits"`
	Nodes    int   `json:"nodes"`
	Blobs    int   `json:"blobs"`
	Content  int64 `json:"content"` // bytes of payloads, attachments and checkpoint parts, before compression
	// Expanded is how many bytes the bundle has before compression: see UnbundleOptions.MaxBytes.
	Expanded int64 `json:"-"`
	// Heads are where the sessions stand in the bundle, in the order in which Bundle was told of them.
	Heads []Point `json:"-"`
}

// Bundle writes sessions to w, as they stand now, in a form that Unbundle of any store reads: all revisions with their
// nodes, branches, checkpoints as far as they are retained, usage, labels and times; metadata, records, attachments,
// tombstones and kept revisions. What was tombstoned is not in it, but for its place in the history. A fork follows its
// parent if the parent is in the bundle; else the bundle has a copy of what it inherits.
//
// Sessions may be committed to meanwhile. If one of them is changed so that something is not there any more, the error
// matches ErrConflict. After an error, what was written is of no use. The memory that Bundle takes does not grow with
// the sessions, but for 32 bytes a blob and 8 bytes a tombstone.
func (s *Store) Bundle(ctx context.Context, w io.Writer, of ...Bundled) (*BundleReport, error) {
	if _, err := s.usable(ctx); err != nil {
		return nil, err
	}
	switch {
	case w == nil:
		return nil, invalid("bundle", "the writer is nil")
	case len(of) == 0:
		return nil, invalid("bundle", "no session is named")
	}
	sources := make([]bundle.Source, len(of))
	for i, from := range of {
		if err := errors.Join(checkSessionID(from.ID), checkRevision("bundle", "Since", from.Since)); err != nil {
			return nil, err
		}
		inc, err := parseIncarnation(from.Incarnation)
		if err != nil {
			return nil, err
		}
		sources[i] = bundle.Source{ID: from.ID, Inc: inc, Since: from.Since, There: from.Since > 0}
		if from.Since == RevisionZero {
			sources[i].Since = 0
		}
	}
	return observed(ctx, s, OpBundle, "", func(ctx context.Context) (*BundleReport, error) {
		r, err := bundle.Write(ctx, s.histories, w, sources)
		if err != nil {
			return nil, err
		}
		out := &BundleReport{Sessions: r.Sessions, Commits: r.Commits, Nodes: r.Nodes, Blobs: r.Blobs, Content: r.Content, Expanded: r.Expanded}
		for i := range r.Heads {
			out.Heads = append(out.Heads, Point{r.Heads[i].Revision, r.Heads[i].Commit})
		}
		return out, nil
	}, func(r *BundleReport, out *Outcome) { out.Items, out.Bytes = r.Sessions, r.Content })
}

// UnbundleOptions of Unbundle.
type UnbundleOptions struct {
	// As is the id that the session gets here, if the bundle has only one. Default: the one that it has in the bundle.
	As string
	// IDs are the ids that sessions get here, by those that they have in the bundle. The others keep theirs. It is not for
	// use with As.
	IDs map[string]string
	// Branch, if set, keeps both if the only session of the bundle has diverged from the one here: what that has got
	// elsewhere becomes a branch of it, whose end is kept under this name. Its nodes have their ids, and their commits are
	// new ones, with usage and labels, as of now. At the revision that is kept, leaf and checkpoint are those of the other
	// side, and after it again those of here. Commits of the other side that added no nodes don't come. A name that is in
	// use moves, and what it kept is retained no longer: give each other side a name of its own. If the session has not
	// diverged, Branch has no effect.
	Branch string
	// Exact makes a session that exists what it is in the bundle: it loses the records and the kept revisions' names that
	// the bundle does not have, and gets the values that it has. It is for a copy that nobody else writes to.
	Exact bool
	// MaxBytes is how many bytes the bundle may expand to, for bundles that come from strangers. Default: no limit.
	MaxBytes int64
}

// An UnbundleReport says what Unbundle has done.
type UnbundleReport struct {
	Sessions []Unbundled `json:"sessions"`
}

// Unbundled is a session that came in a bundle.
type Unbundled struct {
	ID      string        `json:"id"`
	Created bool          `json:"created,omitzero"`
	Changed bool          `json:"changed,omitzero"` // it was made, or something of it has changed
	From    head.Revision `json:"from"`             // where it stood before
	To      head.Revision `json:"to"`               // where it stands; From if nothing came
	// Branch is the revision that is kept for what has diverged: see UnbundleOptions.Branch.
	Branch head.Revision `json:"branch,omitzero"`
}

// Unbundle reads what Bundle has written, and makes the sessions. Nodes, commits and blobs have the ids that they have
// where they come from, and the sessions their times.
//
// Before anything is visible, all of the bundle is read and every hash computed. If something is wrong with it, the
// error is a *BundleError. Then the sessions come one by one. A new one is there at once and whole. If a session of the
// id exists, and it is the same one at an earlier revision, it goes on from there, in few batches: each leaves it at a
// revision that the other one had. Its tombstones and kept revisions become those of both, and of metadata and of each
// record the later ones stay. If the session here has more than the one in the bundle, it stays at its revision. If
// they have gone different ways, the error is a *DivergedError: with As the other one gets an id of its own, and with
// Branch it becomes a branch. If it is another session of the same id, the error matches ErrExists.
//
// After an error a call with the same bundle goes on. What was stored of sessions that are not there is removed by GC
// and Vacuum. Options.Validator is not asked.
func (s *Store) Unbundle(ctx context.Context, r io.Reader, o UnbundleOptions) (*UnbundleReport, error) {
	if _, err := s.usable(ctx); err != nil {
		return nil, err
	}
	if r == nil {
		return nil, invalid("bundle", "the reader is nil")
	}
	if o.MaxBytes < 0 {
		return nil, invalid("options", "MaxBytes is %d", o.MaxBytes)
	}
	if o.As != "" {
		if err := checkSessionID(o.As); err != nil {
			return nil, err
		}
	}
	if o.As != "" && len(o.IDs) > 0 {
		return nil, invalid("options", "As and IDs are both set")
	}
	c := checker{of: "kept revision"}
	c.text("name", o.Branch, 0, MaxLabel)
	if c.err != nil {
		return nil, c.err
	}
	return observed(ctx, s, OpUnbundle, o.As, func(ctx context.Context) (*UnbundleReport, error) {
		return s.unbundle(ctx, r, o)
	}, func(r *UnbundleReport, out *Outcome) { out.Items = len(r.Sessions) })
}

func (s *Store) unbundle(ctx context.Context, r io.Reader, o UnbundleOptions) (*UnbundleReport, error) {
	received, err := bundle.Read(ctx, s.lifecycle, r, bundle.Options{
		ID: func(id string) string { return cmp.Or(o.As, o.IDs[id], id) }, Branch: o.Branch, MaxBytes: o.MaxBytes, Exact: o.Exact, CheckID: checkSessionID, CheckTurn: checkTurn, CheckRecord: checkRecord,
		CheckAbout: func(a *head.About) error {
			_, err := CheckMetadata(a.Metadata)
			return err
		},
	})
	out := &UnbundleReport{}
	for _, in := range received {
		out.Sessions = append(out.Sessions, Unbundled{ID: in.ID, Created: in.Created, Changed: in.Changed, From: in.From, To: in.To, Branch: in.Branch})
		s.changed(in.Session.Inc)
		s.handle(in.Session, nil).sealLater()
	}
	if len(received) > 0 {
		s.changed(head.Incarnation{})
	}
	if err != nil {
		told := bundleError(err)
		for _, of := range []error{ErrIncomplete, ErrOutcomeUnknown} {
			if errors.Is(err, of) && !errors.Is(told, of) {
				told = fmt.Errorf("%w: %w", of, told)
			}
		}
		return nil, told
	}
	return out, nil
}

// bundleError makes public what an error about a bundle says.
func bundleError(err error) error {
	var diverged *bundle.Diverged
	var in *bundle.Error
	switch {
	case errors.As(err, &diverged):
		return &DivergedError{
			Session: diverged.Session, Here: Point(diverged.Here), There: Point(diverged.There), Common: Point(diverged.Common),
		}
	case errors.As(err, &in):
		err := in.Err
		var limit *history.LimitError
		var wrong *history.InvalidError
		if errors.As(err, &limit) {
			err = limit
		} else if errors.As(err, &wrong) {
			err = wrong
		}
		return &BundleError{Session: in.Session, Err: public(err)}
	}
	return public(err)
}

// A BundleError says why a bundle can't be read, or a session of it can't be made. Nothing of the session is visible
// then. It matches ErrBundle, and the error that it wraps.
type BundleError struct {
	Session string `json:"session,omitempty"` // or "" if the bundle as a whole is wrong
	Err     error  `json:"-"`
}

func (e *BundleError) Error() string {
	if e.Session == "" {
		return fmt.Sprintf("%v: %v", ErrBundle, e.Err)
	}
	return fmt.Sprintf("%v: session %q: %v", ErrBundle, e.Session, e.Err)
}

// Is reports whether target is ErrBundle.
func (e *BundleError) Is(target error) bool { return target == ErrBundle }

// Unwrap returns the reason.
func (e *BundleError) Unwrap() error { return e.Err }

// A Point is a commit of a session.
type Point struct {
	Revision head.Revision `json:"revision"`
	Commit   head.CommitID `json:"commit"`
}

// A DivergedError says that a session here and the one in a bundle have gone different ways. It matches ErrDiverged,
// and the session was not changed. If others of the bundle were, the error matches ErrIncomplete as well.
type DivergedError struct {
	Session string `json:"session"`
	Here    Point  `json:"here"`   // where the session stands in this store
	There   Point  `json:"there"`  // where it stands in the bundle
	Common  Point  `json:"common"` // the last commit that both have; zero if the bundle does not go back so far
}

func (e *DivergedError) Error() string {
	return fmt.Sprintf("%v: %q is at revision %d here and at %d there, and the last common one is %d", ErrDiverged, e.Session, e.Here.Revision, e.There.Revision, e.Common.Revision)
}

// Is reports whether target is ErrDiverged.
func (e *DivergedError) Is(target error) bool { return target == ErrDiverged }

// checkTurn checks what a commit could not have, whoever made it.
func checkTurn(t *history.Turn) error {
	c := checker{of: "commit"}
	c.text("turn id", t.Turn, 0, MaxTurnID)
	c.limit("usage entries", len(t.Usage), MaxModels)
	c.limit("labels", len(t.Labels), MaxLabels)
	for name, value := range t.Labels {
		c.text("label name", name, 1, MaxLabel)
		c.text("label value", value, 0, MaxCommitLabel)
	}
	for _, u := range t.Usage {
		c.text("model", u.Model, 0, MaxModel)
	}
	for _, p := range t.Parts {
		c.text("part name", p.Name, 1, MaxPartName)
		c.limit("part bytes", int(min(p.Size, MaxPart+1)), MaxPart)
	}
	c.limit("node bytes", t.Pack.Size(), MaxCommitNodeBytes)
	for i := range t.Pack.Nodes {
		n := &t.Pack.Nodes[i]
		c.at("node", i+1)
		c.text("kind", n.Kind, 1, MaxKind)
		c.text("event key", n.Key, 0, MaxEventKey)
		c.limit("payload bytes", int(min(n.Size, MaxPayload+1)), MaxPayload)
		for _, a := range n.Attachments {
			c.text("media type", a.MediaType, 0, MaxAttachmentText)
			c.text("attachment name", a.Name, 0, MaxAttachmentText)
		}
	}
	return c.err
}

// checkRecord checks what a record could not be.
func checkRecord(r *session.Record) error {
	c := checker{of: "record"}
	c.recordKey("key", r.Key, 1)
	c.limit("value bytes", len(r.Value), MaxRecord)
	return c.err
}

// A StandingQuery asks where a session stands.
type StandingQuery struct {
	ID string `json:"id"`
	// At are revisions, at most MaxStandingAt, whose commits are asked for; 0 is that before the first commit.
	At []head.Revision `json:"at,omitempty"`
}

// MaxStandingAt is how many revisions a StandingQuery asks for at most.
const MaxStandingAt = 64

// A Standing says where a session stands, so that who has the Standings of two stores knows what one of them lacks.
type Standing struct {
	ID string `json:"id"`
	// Incarnation is the session itself, as in Info. It is another one in each store that the session was brought to, and
	// Genesis is the same in all of them.
	Incarnation string        `json:"incarnation"`
	Genesis     head.CommitID `json:"genesis"`
	Point                     // where it stands: before the first commit, Commit is the genesis
	Parent      string        `json:"parent,omitempty"` // of a fork: the id of its parent, if that has not been deleted
	// Rest stands for metadata, records, tombstones and kept revisions: where they are the same, Rest is.
	Rest string          `json:"rest"`
	At   []head.CommitID `json:"at,omitempty"` // the commits at StandingQuery.At; zero beyond the head, and the genesis for 0
}

// Standings returns where sessions stand, at most MaxPage. It leaves out those that do not exist.
func (s *Store) Standings(ctx context.Context, of ...StandingQuery) ([]Standing, error) {
	if _, err := s.usable(ctx); err != nil {
		return nil, err
	}
	c := checker{of: "standings"}
	c.limit("sessions", len(of), MaxPage)
	for i := range of {
		c.limit("revisions", len(of[i].At), MaxStandingAt)
		if err := errors.Join(c.err, checkSessionID(of[i].ID)); err != nil {
			return nil, err
		}
		for _, r := range of[i].At {
			if err := checkRevision("standings", "At", r); err != nil {
				return nil, err
			}
		}
	}
	return observed(ctx, s, OpStandings, "", func(ctx context.Context) ([]Standing, error) {
		out := make([]Standing, 0, len(of))
		for i := range of {
			switch one, err := s.standing(ctx, &of[i]); {
			case errors.Is(err, ErrSessionNotFound), errors.Is(err, ErrSessionDeleted):
			case err != nil:
				return nil, fmt.Errorf("session %q: %w", of[i].ID, public(err))
			default:
				out = append(out, *one)
			}
		}
		return out, nil
	}, func(all []Standing, out *Outcome) { out.Items = len(all) })
}

func (s *Store) standing(ctx context.Context, q *StandingQuery) (*Standing, error) {
	at := slices.Clone(q.At)
	for i, r := range at {
		if r == RevisionZero {
			at[i] = 0
		}
	}
	st, err := bundle.StandingOf(ctx, s.histories, q.ID, at)
	if err != nil {
		return nil, err
	}
	out := &Standing{ID: q.ID, Incarnation: hex.EncodeToString(st.Inc[:]), Genesis: st.Genesis, Point: Point(st.Head), Rest: hex.EncodeToString(st.Rest[:]), At: st.At}
	if st.Parent != (head.Incarnation{}) {
		parent, err := s.byIncarnation(ctx, st.Parent)
		if err != nil {
			return nil, err
		}
		if parent != nil {
			out.Parent = parent.ID()
		}
	}
	return out, nil
}
