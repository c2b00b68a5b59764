package importer

// Claude Code writes each block of a response as a line of its own. If calls run at the
// same time, their results are siblings: each result is a child of the line of its own
// call. Taken literally, the path to the end of the conversation passes one of the
// results and misses the others, and a host that goes on from there has calls without
// results. So the lines of a response and the results of its calls are chained in the
// order of the file:
//
//	in the file             in the session
//	call 1 ── call 2 ── result 2 ── next      call 1 ── call 2 ── result 1 ── result 2 ── next
//	     └── result 1
//
// The place of a line in the chain depends on earlier lines alone, so a file that has
// grown leads to the same chain. A later line goes on from the end of the chain only if
// it would miss a result otherwise. So branches that a user made stay branches.

// A response is one answer of the model, with the results of its calls.
type response struct {
	tail    int            // the last event of the chain
	whole   int            // the last event whose way is known to have all of the results that there were then
	seen    int            // how many results there were
	results map[string]int // events with results, by the id of the call
}

// chains has the chains of one conversation. Events are known by their indexes.
type chains struct {
	before    map[int]int          // the event before each one of a chain
	within    map[int]*response    // the response that an event belongs to or follows
	responses map[string]*response // by the id that entries give
	calls     map[string]*response // by id of the call
	called    map[int][]string     // ids of the calls of an event
}

func newChains() *chains {
	return &chains{
		before: map[int]int{}, within: map[int]*response{}, responses: map[string]*response{},
		calls: map[string]*response{}, called: map[int][]string{},
	}
}

// end returns before, or the tail of the response that before is in, if the chain to
// before does not pass the tail.
func (c *chains) end(before int) int {
	r := c.within[before]
	if r == nil {
		return before
	}
	for at := before; c.within[at] == r; at = c.before[at] {
		if at == r.tail {
			return before
		}
	}
	return r.tail
}

// behind returns the end of the chain of the event before if a call on the way to it has a
// result that is not on the way. Otherwise it returns before.
func (c *chains) behind(before int) int {
	r := c.within[before]
	if r == nil || before == r.whole && len(r.results) == r.seen {
		return before
	}
	passed, calls := map[int]bool{}, []string(nil)
	for at := before; c.within[at] == r; at = c.before[at] {
		passed[at] = true
		calls = append(calls, c.called[at]...)
	}
	for _, call := range calls {
		if result, ok := r.results[call]; ok && !passed[result] {
			return c.end(before)
		}
	}
	r.whole, r.seen = before, len(r.results)
	return before
}

// add adds the event at of an entry, which follows the event before in the file, and
// returns the event that it follows in the session.
func (c *chains) add(e *entry, before, at int) int {
	if e.id == "" || before == noEvent && e.response == "" {
		return before
	}
	switch {
	case e.response != "":
		before = c.addAnswer(e, before, at)
	case len(e.results) > 0:
		before = c.addResults(e, before, at)
	default:
		r := c.within[before]
		if r != nil && !e.turn {
			c.within[at] = r
		}
		if before = c.behind(before); r != nil && before == r.whole && !e.turn {
			r.whole = at // The event has no calls, so its way has what that of the one before has.
		}
	}
	if c.within[at] != nil {
		c.before[at] = before
	}
	return before
}

// addAnswer adds an event of a response of the model.
func (c *chains) addAnswer(e *entry, before, at int) int {
	of := c.responses[e.response]
	if of == nil || of != c.within[before] { // a new response, or a copy of one on another branch
		before = c.behind(before)
		of = &response{results: map[string]int{}, whole: noEvent}
		c.responses[e.response] = of
	} else {
		before = c.end(before)
	}
	of.tail = at
	c.within[at], c.called[at] = of, e.calls
	for _, id := range e.calls {
		c.calls[id] = of
	}
	return before
}

// addResults adds an event with results of calls. It joins the chain if it has the first
// result of every call. Another result of a call begins a branch.
func (c *chains) addResults(e *entry, before, at int) int {
	around := c.within[before]
	if around == nil {
		return before
	}
	for _, id := range e.results {
		if _, answered := around.results[id]; answered || c.calls[id] != around {
			return before
		}
	}
	before = c.end(before)
	around.tail = at
	c.within[at] = around
	for _, id := range e.results {
		around.results[id] = at
	}
	return before
}
