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
	tail    string            // uuid of the last line of the chain
	results map[string]string // uuids of results, by the id of the call
}

// chains has the chains of one conversation. Lines are known by their uuids.
type chains struct {
	parents   map[string]string    // the parent of a line in the session
	within    map[string]*response // the response that a line belongs to or follows
	responses map[string]*response // by message id
	calls     map[string]*response // by id of the call
	called    map[string][]string  // ids of the calls on a line
}

func newChains() *chains {
	return &chains{
		parents: map[string]string{}, within: map[string]*response{}, responses: map[string]*response{},
		calls: map[string]*response{}, called: map[string][]string{},
	}
}

// end returns parent, or the tail of the response that parent is in, if the chain to
// parent does not pass the tail.
func (c *chains) end(parent string) string {
	r := c.within[parent]
	if r == nil {
		return parent
	}
	for at := parent; c.within[at] == r; at = c.parents[at] {
		if at == r.tail {
			return parent
		}
	}
	return r.tail
}

// behind returns the end of parent's chain if a call on the way to parent has a result
// that is not on the way. Otherwise it returns parent.
func (c *chains) behind(parent string) string {
	r := c.within[parent]
	if r == nil {
		return parent
	}
	passed, calls := map[string]bool{}, []string(nil)
	for at := parent; c.within[at] == r; at = c.parents[at] {
		passed[at] = true
		calls = append(calls, c.called[at]...)
	}
	for _, call := range calls {
		if result := r.results[call]; result != "" && !passed[result] {
			return c.end(parent)
		}
	}
	return parent
}

// add adds the next line, whose parent in the file is given, and returns the parent
// that it has in the session.
func (c *chains) add(r *record, parent string, turn bool) string {
	calls, results := r.tools()
	switch {
	case r.Type == "assistant" && r.Message.ID != "":
		parent = c.addAnswer(r, parent, calls)
	case len(results) > 0:
		parent = c.addResults(r, parent, results)
	default:
		if !turn {
			c.within[r.UUID] = c.within[parent]
		}
		parent = c.behind(parent)
	}
	c.parents[r.UUID] = parent
	return parent
}

// addAnswer adds a line of a response of the model.
func (c *chains) addAnswer(r *record, parent string, calls []string) string {
	of := c.responses[r.Message.ID]
	if of == nil || of != c.within[parent] { // a new response, or a copy of one on another branch
		parent = c.behind(parent)
		of = &response{results: map[string]string{}}
		c.responses[r.Message.ID] = of
	} else {
		parent = c.end(parent)
	}
	of.tail = r.UUID
	c.within[r.UUID], c.called[r.UUID] = of, calls
	for _, id := range calls {
		c.calls[id] = of
	}
	return parent
}

// addResults adds a line with results of calls. It joins the chain if it has the first
// result of every call. Another result of a call begins a branch.
func (c *chains) addResults(r *record, parent string, results []string) string {
	around := c.within[parent]
	if around == nil {
		return parent
	}
	for _, id := range results {
		if c.calls[id] != around || around.results[id] != "" {
			return parent
		}
	}
	parent = c.end(parent)
	around.tail = r.UUID
	c.within[r.UUID] = around
	for _, id := range results {
		around.results[id] = r.UUID
	}
	return parent
}
