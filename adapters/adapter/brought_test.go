package adapter

import (
	"slices"
	"testing"
)

// Events are in commits in their order, as many and as large as one may be, and a larger one is alone.
func TestKT5_EventsAreInCommits(t *testing.T) {
	const whole = 4 << 20
	for _, c := range []struct {
		sizes []int
		want  []int // how many events each commit has
	}{
		{nil, nil},
		{[]int{1}, []int{1}},
		{slices.Repeat([]int{1}, 401), []int{200, 200, 1}},
		{[]int{whole, whole + 1, 1, whole - 1, 1}, []int{1, 1, 2, 1}},
	} {
		var got, all []int
		for _, some := range InCommits(c.sizes, func(n int) int { return n }) {
			got, all = append(got, len(some)), append(all, some...)
		}
		if !slices.Equal(got, c.want) || !slices.Equal(all, c.sizes) {
			t.Errorf("%d, want %d", got, c.want)
		}
	}
}
