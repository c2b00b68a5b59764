package engine

import "iter"

// Paged is the loop of every driver's Scan. It calls page for r, yields the pairs that page
// returns, and goes on after the last key while page reports that there is more. Page returns
// at most r.Limit pairs if that is set, and at least one pair if it reports more.
func Paged(r Range, page func(Range) (pairs []Pair, more bool, err error)) iter.Seq2[Pair, error] {
	return func(yield func(Pair, error) bool) {
		r := r
		for {
			pairs, more, err := page(r)
			if err != nil {
				yield(Pair{}, err)
				return
			}
			for _, p := range pairs {
				if !yield(p, nil) {
					return
				}
			}
			if !more {
				return
			}
			if r.Limit > 0 {
				if r.Limit -= len(pairs); r.Limit == 0 {
					return
				}
			}
			r.Start = Successor(pairs[len(pairs)-1].Key)
		}
	}
}
