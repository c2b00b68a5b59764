package engine

import "iter"

// Paged is the loop of every driver's Scan. It calls page for r, yields what it
// returns, and goes on behind the last key while page reports that there is
// more. Page returns at most r.Limit pairs when that is set, and at least one
// pair with more.
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
