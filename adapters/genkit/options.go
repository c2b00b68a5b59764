package genkit

import (
	"context"
	"fmt"
	"unicode/utf8"

	"github.com/firebase/genkit/go/ai/exp"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/adapters/adapter"
)

// The sessions of calls without a prefix are in the group plain, and those of a prefix in a group below prefixed. The id of
// a session is its group, "/" and Genkit's id, and so is the key of a snapshot's record.
const (
	plain    = "genkit"
	prefixed = "genkit-of"
)

// Options of a Store, as Genkit's store of files has them. The zero value has no prefix, and keeps all snapshots.
type Options struct {
	// Prefix, if set, returns a prefix for the context of a call, for example the id of a user. A call finds the snapshots of
	// its own prefix only. A prefix that is empty or not UTF-8 is refused. With a prefix, the longest id of a snapshot
	// or session is shorter by 4 bytes and those of the prefix, of which "/" and "%" count three times.
	Prefix func(context.Context) string
	// MaxChain is how many snapshots a chain of parents keeps: saving a new snapshot deletes those further back. 0 keeps all.
	// turnstone.Store.Prune removes the revisions that the deleted snapshots leave in the store.
	MaxChain int
}

// root returns the group of the sessions that a call is about.
func (s *Store[State]) root(ctx context.Context) (string, error) {
	if s.o.Prefix == nil {
		return plain, nil
	}
	p := s.o.Prefix(ctx)
	if p == "" || !utf8.ValidString(p) {
		return "", &turnstone.InvalidError{Where: "prefix", Reason: fmt.Sprintf("%q is empty or not UTF-8", p)}
	}
	return adapter.Join(prefixed, p), nil
}

// past returns the changes that delete the snapshots which are too many when a new one is saved.
func (s *Store[State]) past(ctx context.Context, old *stored[State], next *exp.SessionSnapshot[State]) (out []turnstone.RecordChange, err error) {
	if s.o.MaxChain <= 0 || next.ParentID == "" || old.session != nil {
		return nil, nil
	}
	root := old.root
	h, err := s.store.Session(ctx, root+"/"+next.SessionID)
	if err != nil {
		return nil, unless(adapter.Gone, err)
	}
	all, _, err := adapter.Records(ctx, h, root+"/")
	if err != nil {
		return nil, unless(adapter.Gone, err)
	}
	there := map[string]turnstone.Record{}
	for _, r := range all {
		there[r.Key] = r
	}
	for n, key := 1, root+"/"+next.ParentID; len(out) < turnstone.MaxRecords/2; n++ {
		r, found := there[key]
		if !found {
			break
		}
		delete(there, key)
		var of row[State]
		if err := of.read(r); err != nil {
			return nil, err
		}
		if n >= s.o.MaxChain {
			out = append(out,
				turnstone.RecordChange{Key: key, Action: turnstone.DeleteRecord, Expect: r.Version},
				turnstone.RecordChange{Key: createdKey(&of.Snapshot), Action: turnstone.DeleteRecord})
		}
		key = root + "/" + of.Snapshot.ParentID
	}
	return out, nil
}
