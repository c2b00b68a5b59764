package lease

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/turnstonedb/turnstone"
)

// owner is the value of the record under the key of a lease.
type owner struct {
	Holder string   `json:"holder"`
	Token  uint64   `json:"token"`
	Nonce  string   `json:"nonce,omitempty"` // of the call that acquired it; none if it is free
	Under  *under   `json:"under,omitempty"` // nil if it has a TTL of its own
	Also   []string `json:"also,omitempty"`
}

// under says with which lease another one ends.
type under struct {
	Key   string `json:"key"`
	Nonce string `json:"nonce"`          // of its holder
	With  bool   `json:"with,omitempty"` // it is one of the other's Also
}

// valid reports whether o can be the owner of the lease of a key.
func (o *owner) valid(key string) bool {
	keys := o.Also
	if o.Under != nil {
		keys = append(keys[:len(keys):len(keys)], o.Under.Key)
	}
	for i, k := range keys {
		if k == "" || k == key || len(k) >= turnstone.MaxRecordKey || !utf8.ValidString(k) || strings.ContainsRune(k, 0) || slices.Contains(keys[:i], k) {
			return false
		}
	}
	return len(o.Also) <= MaxAlso
}

func foreign(key string) error { return fmt.Errorf("%w: %q", ErrForeign, key) }

// until is the value of the record under untilKey.
type until struct {
	Expires time.Time `json:"expires"`
}

// untilKey returns the key of the record that says until when the lease of a key is held.
func untilKey(key string) string { return "." + key }

// A standing is what stands under a key.
type standing struct {
	State
	owner   owner
	version turnstone.RecordVersion // of the record that has the owner
	end     turnstone.RecordVersion // of that under untilKey
	under   []string                // the nonces of the leases that it is under, as they are held now
	// renewed is the check that the lease was not renewed since, if another record than its own says so.
	renewed []turnstone.RecordChange
}

// levels is how many leases a lease can be under: that of Also, and the one of Under.
const levels = 2

// look reads the records of a lease, and of those that it is under. level counts the leases that are under it.
func look(ctx context.Context, s turnstone.Persistence, key string, level int) (st standing, err error) {
	var e until
	if st.version, err = read(ctx, s, key, &st.owner); err == nil || errors.Is(err, ErrForeign) {
		var eerr error
		if st.end, eerr = read(ctx, s, untilKey(key), &e); err == nil {
			err = eerr
		}
	}
	if err == nil && !st.owner.valid(key) {
		err = foreign(key)
	}
	if errors.Is(err, ErrForeign) {
		st.owner = owner{}
	}
	st.Key, st.Token = key, st.owner.Token
	if err != nil || st.owner.Nonce == "" {
		return st, err
	}
	st.Held, st.Holder, st.Also, st.Expires = true, st.owner.Holder, st.owner.Also, e.Expires
	if st.owner.Under == nil {
		return st, nil
	}
	st.Expires, st.Held = time.Time{}, !st.owner.Under.With
	if level == levels {
		return st, nil
	}
	of, err := look(ctx, s, st.owner.Under.Key, level+1)
	if errors.Is(err, ErrForeign) {
		return st, nil
	}
	member := slices.Contains(of.Also, key)
	if err == nil && of.owner.Nonce == st.owner.Under.Nonce && member == st.owner.Under.With {
		if member {
			st.With, st.Held = of.Key, true
		}
		st.Expires, st.renewed, st.under = of.Expires, of.renewed, append([]string{of.owner.Nonce}, of.under...)
		if of.owner.Under == nil {
			st.renewed = []turnstone.RecordChange{{Key: untilKey(of.Key), Action: turnstone.CheckRecord, Expect: of.end}}
		}
	}
	return st, err
}

func (st *standing) heldError() error {
	return &HeldError{Key: st.Key, Holder: st.Holder, Token: st.Token, Expires: st.Expires, With: st.With}
}

// isUnder reports whether a lease is one that was acquired with another one that stands.
func (st *standing) isUnder(first *standing) bool {
	of := st.owner.Under
	return of != nil && of.Key == first.Key && of.Nonce == first.owner.Nonce && of.Nonce != ""
}

// read reads a record, and returns its version.
func read(ctx context.Context, s turnstone.Persistence, key string, value any) (turnstone.RecordVersion, error) {
	r, err := s.Record(ctx, key)
	if errors.Is(err, turnstone.ErrRecordNotFound) {
		return turnstone.NoRecord, nil
	}
	if err == nil {
		if err = json.Unmarshal(r.Value, value); err != nil {
			err = foreign(key)
		}
	}
	return r.Version, err
}

func change(key string, value any, expect turnstone.RecordVersion) turnstone.RecordChange {
	text, err := json.Marshal(value)
	if err != nil {
		panic(err) // The types are ours.
	}
	return turnstone.RecordChange{Key: key, Value: text, Expect: expect}
}
