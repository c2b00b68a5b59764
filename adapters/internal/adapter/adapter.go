// Package adapter is what the stores of several frameworks share: ids that are joined of names, lists that miss
// nothing, and state that belongs to a user or an app.
package adapter

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/turnstonedb/turnstone"
)

// escaper keeps names apart that have a slash.
var (
	escaper   = strings.NewReplacer("%", "%25", "/", "%2F")
	unescaper = strings.NewReplacer("%2F", "/", "%25", "%")
)

// Join returns the id of a session or a group: a root, and names of any content.
func Join(root string, names ...string) string {
	for _, n := range names {
		root += "/" + escaper.Replace(n)
	}
	return root
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

// Listed returns the sessions of a group, the most recently updated first. One that is updated meanwhile moves to the
// front of the store's list, so the list is read again until nothing is new.
func Listed(ctx context.Context, store turnstone.Factory, group string) ([]turnstone.Info, error) {
	seen := map[string]turnstone.Info{}
	for more, first := true, true; more; first = false {
		more = false
		for o := (turnstone.ListOptions{Group: group, Limit: turnstone.MaxPage}); ; {
			page, err := store.List(ctx, o)
			if err != nil {
				return nil, err
			}
			fresh := false
			for _, i := range page.Sessions {
				_, known := seen[i.ID]
				fresh = fresh || !known
				seen[i.ID] = i
			}
			more = more || fresh && page.Next != ""
			if o.After = page.Next; o.After == "" || !fresh && !first {
				break
			}
		}
	}
	return slices.SortedFunc(maps.Values(seen), func(a, b turnstone.Info) int {
		return cmp.Or(b.Updated.Compare(a.Updated), strings.Compare(b.ID, a.ID))
	}), nil
}
