package page

import (
	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
)

// Parted returns how many nodes of each of two paths come up to the last node that they have in common. Paths that have
// parted never meet again, because a node has one parent. But either session may have tombstoned nodes that the other
// one shows.
func Parted(a, b []turnstone.Node) (first, second int) {
	at := map[graph.ID]int{}
	for i := range a {
		at[a[i].ID] = i
	}
	for i := range b {
		if j, ok := at[b[i].ID]; ok {
			first, second = j+1, i+1
		}
	}
	return first, second
}
