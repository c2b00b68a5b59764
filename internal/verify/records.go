package verify

import (
	"bytes"
	"context"
	"maps"
	"slices"

	"github.com/turnstonedb/turnstone/damage"
	"github.com/turnstonedb/turnstone/engine"
	"github.com/turnstonedb/turnstone/internal/keys"
	"github.com/turnstonedb/turnstone/internal/session"
)

// This file checks records: each one that is to be listed is in the list of all sessions' records,
// and each entry of that list has its record.

// gatherRecord notes that a record has to be listed.
func (v *verifier) gatherRecord(p engine.Pair, fields []byte) {
	inc, name := keys.RecordFields(fields)
	if _, err := session.DecodeRecord(p.Key, name, p.Value); !v.noted(p.Key) {
		v.problem(err, "session record %q of %s", name, v.name(inc))
	}
	if session.RecordListed(name) {
		v.matchListing(v.store.Space.Listing(name, inc))
	}
}

// gatherListing notes that an entry of the list has to have a record.
func (v *verifier) gatherListing(p engine.Pair) {
	if !v.noted(p.Key) {
		v.problem(session.DecodeListing(p.Key, p.Value), "entry in the list of records at key %x", p.Key)
	}
	v.matchListing(p.Key)
}

// noted reports whether the scan has noted the record that it has read last as damaged.
func (v *verifier) noted(key []byte) bool {
	n := len(v.damaged)
	return n > 0 && bytes.Equal(v.damaged[n-1].key, key)
}

// matchListing notes one of the two that belong together, or forgets them if the other one was noted.
func (v *verifier) matchListing(key []byte) {
	if v.listings[string(key)] {
		delete(v.listings, string(key))
	} else {
		v.listings[string(key)] = true
	}
}

// unlisted reports the records without their entry in the list, and the entries without a record. Most
// of them were set or deleted while the scan went on.
func (v *verifier) unlisted(ctx context.Context) error {
	for _, key := range slices.Sorted(maps.Keys(v.listings)) {
		_, fields, _ := v.store.Space.Fields([]byte(key))
		name, inc := keys.ListingFields(fields)
		vs, err := v.store.Engine.Get(ctx, []byte(key), v.store.Space.Record(inc, name))
		if err != nil {
			return err
		}
		switch {
		case vs[0] == nil && vs[1] != nil:
			v.problem(damage.ErrMissing, "entry in the list of records of session record %q of %s", name, v.name(inc))
		case vs[0] != nil && vs[1] == nil:
			v.problem(damage.ErrMissing, "session record %q of %s", name, v.name(inc))
		}
	}
	return nil
}
