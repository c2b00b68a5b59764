package importer_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/cmd/turnstone/importer"
)

// After several snapshots of a file were imported, together or one after the other and in
// any order, the session is that of the fullest one.
func TestTheFullestOfSeveralSnapshotsDecides(t *testing.T) {
	for name, all := range appended {
		st, clock := openClocked(t)
		id := bring(t, st, clock, name, file(all)).Session
		want := describePath(t, st, id)
		other := slices.Clone(all[:4]) // an edited one that is shorter
		other[3] = strings.NewReplacer(`"one"`, `"edited"`, `"r"`, `"edited"`, `"data":{}`, `"data":{"a":1}`).Replace(other[3])
		holed := append(slices.Clone(all[:2]), append([]string{"{broken"}, all[3:]...)...)
		snapshots := []string{file(all[:2]), file(all), file(all[:4]) + `{"torn`, file(holed), file(other)}
		for _, order := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {1, 3, 0, 2}, {2, 0, 3, 1}, {1, 4, 0}, {4, 1, 3}} {
			for _, together := range []bool{true, false} {
				if !together && slices.Contains(order, 4) { // imported alone, it is an edit
					continue
				}
				st, clock := openClocked(t)
				var convs []importer.Conversation
				for _, i := range order {
					cs, _ := parseFile(t, name, []byte(snapshots[i]))
					if convs = append(convs, cs...); !together {
						bring(t, st, clock, name, snapshots[i])
					}
				}
				if together {
					for _, r := range importer.Load(ctx, st, convs, importer.Options{Clock: clock}) {
						if r.Err != nil {
							t.Fatal(r.Err)
						}
					}
				}
				got := describePath(t, st, id)
				if g, w := withoutKeys(got), withoutKeys(want); g != w {
					t.Errorf("%s in the order %v, together %v:\n%s\nwant\n%s", name, order, together, g, w)
				}
				if got := exported(t, st, id); got != file(all) {
					t.Errorf("%s in the order %v, together %v is exported as\n%s", name, order, together, got)
				}
				if !together {
					for _, i := range order {
						if r := bring(t, st, clock, name, snapshots[i]); r.Outcome != importer.Unchanged || r.Commits != 0 {
							t.Errorf("%s, snapshot %d again: %+v", name, i, r)
						}
					}
				}
				page, err := st.List(ctx, turnstone.ListOptions{})
				if err != nil || len(page.Sessions) != 1 {
					t.Errorf("%d sessions, %v", len(page.Sessions), err)
				}
			}
		}
	}
}
