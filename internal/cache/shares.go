package cache

import "github.com/turnstonedb/turnstone/engine"

// Shares are the budgets of what stores keep in memory. They have one pool.
type Shares struct {
	Bases    *Budget // contents of checkpoint parts, against which the next version is a delta
	Recent   *Budget // small records
	Met      *Budget // in which session a payload was met first
	Segments *Budget // decoded segments of histories
	Indexes  *Budget // indexes of sessions
	Pages    *Budget // pages of indexes
	// Seal has a token while a session is sealed: stores take turns.
	Seal chan struct{}
}

// Of returns the budgets of what is opened with m.
func Of(m *engine.MemoryBudget) *Shares { return m.Kept(newShares).(*Shares) }

func newShares(maximum int) engine.Kept {
	s := &Shares{Seal: make(chan struct{}, 1)}
	var p pool
	for _, b := range []**Budget{&s.Bases, &s.Recent, &s.Met, &s.Segments, &s.Indexes, &s.Pages} {
		*b = p.add()
	}
	s.Resize(maximum)
	return s
}

// Resize sets the total number of bytes. Half are for commits and half for reads: neither loses its half to the other.
func (s *Shares) Resize(maximum int) {
	s.Recent.Resize(maximum / 32)
	s.Met.Resize(maximum / 32)
	s.Bases.Resize(maximum/2 - maximum/16)
	s.Segments.Resize(maximum / 2 * 5 / 8)
	s.Indexes.Resize(maximum / 8)
	s.Pages.Resize(maximum / 16)
}
