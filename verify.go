package turnstone

import (
	"context"

	"github.com/turnstonedb/turnstone/internal/verify"
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
// names what is wrong: usually a *CorruptError, which says what kind of record is
// missing or damaged, and of which session or blob. It reads everything and changes
// nothing, in time and memory in proportion to the store: a history that forks share
// is read once. It may run beside commits; a session that changes meanwhile is
// checked as it was when Verify came to it. The returned error says that Verify
// itself could not go on, for example a *FormatError that it met a record of another
// version of the format, which it can't judge.
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
	r, err := verify.Run(ctx, s.histories, s.collector(), progress)
	return (*Verification)(r), err
}
