package importer

// Claude Code writes the blocks of one response as lines of their own, and gives
// calls that run at the same time results that are siblings: each result hangs from
// the line of its own call. Taken literally, the path to the end of the conversation
// passes one of the results and misses the others, and a host that goes on from it
// has calls without results. So the lines of a response and the results of its calls
// are chained in the order of the file:
//
//	in the file             in the session
//	call 1 ── call 2 ── result 2 ── next      call 1 ── call 2 ── result 1 ── result 2 ── next
//	     └── result 1
//
// What the chain does to a line depends on earlier lines alone, so that a file that
// has grown leads to the same chain. What comes after goes on from the end of the
// chain only if it would miss a result otherwise, so branches that a user made stay.

// A response is one answer of the model, with the results of its calls.
type response struct {
	tail    string            // uuid of the last line of the chain
	results map[string]string // uuids of results, by id of the call
}

type chains struct {
	parents   map[string]string    // as chained, by uuid
	within    map[string]*response // by uuid: the response that a line belongs to or follows
	responses map[string]*response // by message id
	calls     map[string]*response // by id of the call
	called    map[string][]string  // by uuid: ids of the calls on the line
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

// behind returns parent, or the end of its chain if a call on the way to parent has a
// result that is not.
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

// add takes in the next line, whose parent in the file is given, and returns the
// parent that it has in the session.
func (c *chains) add(r *record, parent string, turn bool) string {
	around := c.within[parent]
	var calls, results []string
	for _, b := range r.blocks() {
		switch b.Type {
		case "tool_use":
			calls = append(calls, b.ID)
		case "tool_result":
			results = append(results, b.Use)
		}
	}
	switch {
	case r.Type == "assistant" && r.Message.ID != "":
		of := c.responses[r.Message.ID]
		if of == nil || of != around { // a new response, or one that is told again elsewhere
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
	case len(results) > 0:
		first := around != nil
		for _, id := range results {
			first = first && c.calls[id] == around && around.results[id] == ""
		}
		if !first { // another result of a call begins a branch
			break
		}
		parent = c.end(parent)
		around.tail = r.UUID
		c.within[r.UUID] = around
		for _, id := range results {
			around.results[id] = r.UUID
		}
	case turn:
		parent = c.behind(parent)
	default:
		parent = c.behind(parent)
		c.within[r.UUID] = around
	}
	c.parents[r.UUID] = parent
	return parent
}
