// Package adapter is what the stores of several frameworks share: ids that are joined of names, lists that miss
// nothing, values that keep their types in JSON, and state that belongs to a user or an app. docs/adapters.md tells how
// to write an adapter with it. The modules turnstonedb.adapter for Python and turnstonedb/adapter for JavaScript make the
// same ids and states, so that an adapter in one language reads what one in another has written.
package adapter

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/turnstonedb/turnstone"
)

// escaper keeps names apart that have a slash.
var (
	escaper   = strings.NewReplacer("%", "%25", "/", "%2F")
	unescaper = strings.NewReplacer("%2F", "/", "%25", "%")
)

// Join returns the id of a session or a group: a root, and names of any content. The store refuses one that is longer
// than turnstone.MaxSessionID.
func Join(root string, names ...string) string {
	for _, n := range names {
		root += "/" + escaper.Replace(n)
	}
	return root
}

// hashed ends an id or a name that was shortened.
var hashed = regexp.MustCompile("~[0-9a-f]{64}$")

// Short returns text that has most bytes at most: the same, or its beginning and a hash. It is for names of any length;
// what was shortened has to be kept elsewhere if it is to be given back.
func Short(text string, most int) string {
	if len(text) <= most && !hashed.MatchString(text) {
		return text
	}
	sum := sha256.Sum256([]byte(text))
	end := min(max(0, most-1-hex.EncodedLen(len(sum))), len(text))
	for end > 0 && end < len(text) && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + "~" + hex.EncodeToString(sum[:])
}

// Names returns the names that an id was joined of, without its root.
func Names(id string) []string {
	out := strings.Split(id, "/")[1:]
	for i := range out {
		out[i] = unescaper.Replace(out[i])
	}
	return out
}

// Gone reports whether an error says that there is no such session.
func Gone(err error) bool {
	return errors.Is(err, turnstone.ErrSessionNotFound) || errors.Is(err, turnstone.ErrSessionDeleted)
}

// Refused reports whether an error says that a store can't keep something, or that its validator does not want it.
func Refused(err error) bool {
	return errors.Is(err, turnstone.ErrInvalid) || errors.Is(err, turnstone.ErrLimit) || errors.Is(err, turnstone.ErrRejected)
}

// clocksDiffer is how far apart the clocks of processes may be that share a store: Listed allows for it.
const clocksDiffer = time.Minute

// Listed returns the sessions of a group, the most recently updated first. A session that is updated meanwhile moves to the
// front of the store's list, where Listed has been already. So Listed reads again what was updated since the reading before.
// It ends with a reading of one page, and with the second one in a row that finds no new session which is older than the call.
// It misses a session only if somebody uses that between two pages of each reading.
func Listed(ctx context.Context, store turnstone.Factory, group string) ([]turnstone.Info, error) {
	seen := map[string]turnstone.Info{}
	var start, since time.Time
	for quiet := 0; ; {
		pages, missed, front := 0, false, time.Time{}
		for o := (turnstone.ListOptions{Group: group, Limit: turnstone.MaxPage}); ; {
			page, err := store.List(ctx, o)
			if err != nil {
				return nil, err
			}
			pages++
			reached := false
			for _, i := range page.Sessions {
				if front.IsZero() {
					front = i.Updated
				}
				_, known := seen[i.ID]
				missed = missed || !known && (start.IsZero() || i.Created.Before(start))
				seen[i.ID], reached = i, i.Updated.Before(since)
			}
			if o.After = page.Next; o.After == "" || reached {
				break
			}
		}
		if quiet++; missed {
			quiet = 0
		}
		if pages == 1 || quiet == 2 || front.IsZero() {
			break
		}
		if start.IsZero() {
			start = front
		}
		since = front.Add(-clocksDiffer)
	}
	return slices.SortedFunc(maps.Values(seen), func(a, b turnstone.Info) int {
		return cmp.Or(b.Updated.Compare(a.Updated), strings.Compare(b.ID, a.ID))
	}), nil
}
