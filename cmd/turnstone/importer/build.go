package importer

import (
	"bytes"
	"cmp"
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"time"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

// maxKey is the longest key that an event may have. It leaves room in a node's key for
// the suffix of a version.
const maxKey = turnstone.MaxEventKey - len("~0000000000000000")

// A builder makes conversations of the entries of a file. Whatever parents the entries name, each becomes an
// event once, and the events of a conversation are a forest. Where an entry comes depends on earlier entries,
// and on later ones only if they are its ancestors. So a file that has grown leads to the same events, unless it
// has a child before its parent.
//
// An entry whose parent is the entry itself, one of a ring, in another conversation, or not there at all goes on
// from the entry before it, as in the agents' own order.
type builder struct {
	format *format
	talks  []*talk // in the order of their first entries
	home   map[string]*talk
}

// A talk is a conversation that is being made.
type talk struct {
	Conversation
	key     [2]string       // the names of the session and of the agent in its lines
	unique  bool            // its id is globally unique
	rooted  bool            // an entry that names its parent, or says that it has none, has an event
	entries []*entry        // an entry that was imported earlier is nil; see tail
	first   map[string]int  // index of the first entry with an id
	sums    []uint64        // hashes of the entries that are nil
	wanted  map[string]bool // ids that earlier entries name and that no entry has yet
	state   []state
	events  map[string]int // index of the last event with an id
	last    int            // the last event on the path
	rank    int            // of the name
	model   string         // of the last entry that names one
	host    *talk          // the conversation that an attached one goes on from
	above   *talk          // host, or one that host comes from; see root
	chains  *chains
	counted map[string]head.Usage // usage so far, by entry.total
	keys    map[string]bool       // of events
	copied  time.Time             // Until then the agent copied lines of another session, whose usage counts there.
}

// A state is that of an entry.
type state int8

const (
	untouched state = iota
	waiting         // for its parent
	added           // has an event
)

// build makes the conversations. id is the id of one whose entries name none.
func (t *format) build(id string, entries []*entry) *builder {
	b := &builder{format: t, home: map[string]*talk{}}
	b.group(id, entries)
	for _, k := range b.talks {
		b.attach(k)
		for i := range k.entries {
			b.add(k, i)
		}
	}
	for _, k := range b.talks {
		if k.Attached {
			k.forkBehind()
		}
	}
	return b
}

// group divides the entries by the session and agent that they name. Those that name none belong to the first
// conversation. If only a header names the session, all do.
func (b *builder) group(id string, entries []*entry) {
	talks := map[[2]string]*talk{}
	var loose []*entry
	for _, e := range entries {
		switch k := [2]string{e.session, e.agent}; {
		case b.loose(e):
			loose = append(loose, e)
		case talks[k] == nil:
			talks[k] = b.begin(e.session, e.agent)
			fallthrough
		default:
			talks[k].entries = append(talks[k].entries, e)
		}
	}
	if len(b.talks) == 0 {
		b.talks = []*talk{b.start(id)}
	}
	main := b.talks[0]
	main.entries = append(main.entries, loose...)
	slices.SortStableFunc(main.entries, func(a, c *entry) int { return cmp.Compare(a.at, c.at) })
	for _, k := range b.talks {
		k.index(0)
		for id := range k.first {
			if b.home[id] == nil {
				b.home[id] = k
			}
		}
	}
}

// loose reports whether an entry does not say what conversation it is of.
func (b *builder) loose(e *entry) bool { return e.session == "" || b.format.field.session == "" }

// begin begins the conversation of a session, or of an agent of the session.
func (b *builder) begin(session, agent string) *talk {
	k := b.start(session)
	if agent != "" {
		k.ID, k.Agent, k.Parent = session+"/"+agent, agent, own(b.format.name, session)
	}
	k.Identity, k.key = own(b.format.name, k.ID), [2]string{session, agent}
	return k
}

func (b *builder) start(id string) *talk {
	k := &talk{
		Conversation: Conversation{ID: id, Format: b.format.name, Mended: map[Mend]int{}},
		unique:       b.format.unique,
		first:        map[string]int{}, events: map[string]int{},
		last: noEvent, chains: newChains(), counted: map[string]head.Usage{}, keys: map[string]bool{},
	}
	b.talks = append(b.talks, k)
	return k
}

// index enters the ids of the entries in k.first, and takes from the entries what concerns the whole conversation. from
// is the first entry that index has not seen before.
func (k *talk) index(from int) {
	k.state = append(k.state, make([]state, len(k.entries)-from)...)
	for i := from; i < len(k.entries); i++ {
		e := k.entries[i]
		first, dup := k.first[e.id]
		switch {
		case e.id == "":
		case !dup:
			k.first[e.id] = i
		case k.repeats(e, first):
			k.Mended[MendRepeated]++
			e.id, e.usage = "", nil
			e.bookkeeping(e.kind)
		case e.names:
			k.Mended[MendSameID]++
		}
	}
	for _, e := range k.entries[from:] {
		k.describe(e)
	}
}

// repeats reports whether an entry has the bytes of entry i.
func (k *talk) repeats(e *entry, i int) bool {
	if k.entries[i] == nil {
		return k.sums[i] == maphash.Bytes(seed, e.raw)
	}
	return bytes.Equal(k.entries[i].raw, e.raw)
}

// describe takes from an entry what it says of the whole conversation.
func (k *talk) describe(e *entry) {
	k.Cwd = cmp.Or(k.Cwd, e.cwd)
	k.Model = cmp.Or(e.model, k.Model)
	if _, here := k.first[e.titleOf]; tidy(e.title) != "" && e.rank >= k.rank && (here || e.titleOf == "") {
		k.Name, k.rank = tidy(e.title), e.rank
	}
	for _, label := range [][2]string{e.label, {BranchLabel, e.branch}} {
		if label[1] != "" {
			if k.Labels == nil {
				k.Labels = map[string]string{}
			}
			k.Labels[label[0]] = clip(strings.ToValidUTF8(label[1], "�"), turnstone.MaxLabel)
		}
	}
	if e.session == "" || k.Agent != "" {
		return
	}
	if k.Identity == "" && k.unique {
		k.ID, k.Identity = e.session, own(k.Format, e.session)
	}
	if k.Parent == "" {
		k.from(e.from)
	}
	if own(k.Format, e.session) != k.Identity { // the header of a session whose lines were copied
		if k.Parent == "" {
			k.from(e.session)
		}
		if len(k.entries) > 1 && e == k.entries[1] {
			k.copied = k.entries[0].time.Add(copying)
		}
	}
}

// copying is how long an agent takes to copy the lines of a session that it forks. It gives them the time of the copy,
// and a model takes longer to answer.
const copying = time.Second / 2

// from makes the conversation one that another one was the origin of.
func (k *talk) from(session string) {
	if parent := own(k.Format, session); session != "" && parent != k.Identity {
		k.Parent = parent
	}
}

// tidy makes one line of a title.
func tidy(title string) string { return clip(strings.Join(strings.Fields(title), " "), 80) }

// attach makes a conversation a fork if the first parent that one of its entries names is in another one.
func (b *builder) attach(k *talk) {
	i := slices.IndexFunc(k.entries, func(e *entry) bool { return e.id != "" && e.parent != "" })
	if i < 0 || k.Parent != "" {
		return
	}
	key := k.entries[i].parent
	host := b.home[key]
	if host == nil || host.root() == k { // The other one is a fork of this one.
		return
	}
	k.Parent, k.ForkKey, k.Attached, k.host, k.above = host.Identity, key, true, host, host
}

// root returns the conversation that k comes from in the end, which is no fork. It shortens the way there.
func (k *talk) root() *talk {
	top := k
	for top.above != nil {
		top = top.above
	}
	for k.above != nil {
		k.above, k = top, k.above
	}
	return top
}

// forkBehind moves the place where an attached conversation begins. If it is one of several parallel calls, the
// fork goes on behind the results of all of them.
func (k *talk) forkBehind() {
	if at, ok := k.host.events[k.ForkKey]; ok {
		k.ForkKey = k.host.Events[k.host.chains.behind(at)].Key
	}
}

// add adds the event of entry i, and before it those of its ancestors that come later in the file. Of a ring,
// the entry that is the first in the file comes first.
func (b *builder) add(k *talk, i int) {
	var line []int // children before their parents
	for k.state[i] == untouched {
		k.state[i] = waiting
		line = append(line, i)
		parent, ok := k.first[k.entries[i].parent]
		if e := k.entries[i]; !ok || e.id == "" || !e.names {
			break
		}
		i = parent
	}
	if at := slices.Index(line, i); at >= 0 && k.state[i] == waiting {
		ring := line[at:]
		first := slices.Index(ring, slices.Min(ring)) + 1
		copy(ring, slices.Concat(ring[first:], ring[:first]))
	}
	for _, i := range slices.Backward(line) {
		b.event(k, i)
		k.state[i] = added
	}
}

// event adds an event.
func (b *builder) event(k *talk, i int) {
	e := k.entries[i]
	if e.kind == "" {
		k.Mended[MendUnknownKind]++
		e.bookkeeping("event")
	}
	if k.model = cmp.Or(e.model, k.model); k.Name == "" && e.turn && !e.command {
		k.Name = tidy(Text(e.raw))
	}
	at := len(k.Events)
	before := k.chains.add(e, b.before(k, e), at)
	key := clip(e.id, maxKey)
	for n := 2; key != "" && k.keys[key]; n++ {
		key = clip(e.id, maxKey-len(version)-10) + fmt.Sprintf("%sx%x", version, n)
	}
	k.keys[key] = true
	ev := Event{Key: key, Kind: e.kind, Payload: e.raw, Line: e.at, Before: before, missing: e.missing, Turn: e.turn, Side: e.beside, Time: e.time, Usage: k.use(e)}
	k.Events = append(k.Events, ev)
	k.rooted = k.rooted || e.names && !e.beside
	if !e.beside {
		k.last = at
	}
	if back, ok := k.events[e.rewind]; ok {
		k.last = k.Events[back].Before
	}
	if e.id != "" {
		k.events[e.id] = at
	}
}

// end returns the event that an entry goes on from if it names no other: the last one on the path, or for an
// entry beside the path the last one at all.
func (k *talk) end(beside bool) int {
	if beside {
		return len(k.Events) - 1
	}
	return k.last
}

// before returns the index of the event that the event of an entry follows. It mends the parent.
func (b *builder) before(k *talk, e *entry) int {
	if older, ok := k.events[e.id]; ok && !e.names && e.id != "" { // a message that is written again
		if older == k.last {
			return k.Events[older].Before
		}
		e.bookkeeping(e.kind)
	}
	if e.id == "" || !e.names || e.parent == "" && !k.rooted {
		if at := k.end(e.beside); at >= 0 || !k.Attached || e.beside {
			return at
		}
		return forkNode
	}
	at, known := k.events[e.parent]
	first, here := k.first[e.parent]
	fault := MendNoParent
	switch home := b.home[e.parent]; {
	case e.parent == "":
		return noEvent
	case e.parent == e.id:
		fault = MendOwnParent
	case known:
		return at
	case here && k.state[first] == waiting:
		fault = MendRing
	case home != nil && home != k && e.parent == k.ForkKey && k.Attached:
		return forkNode
	case home != nil && home != k && k.Agent != "" && len(k.Events) == 0:
		return noEvent // a sub-agent begins where its call is
	case home != nil && home != k:
		fault = MendElsewhere
	}
	k.Mended[fault]++
	if fault == MendNoParent {
		e.missing = e.parent
	}
	return k.last
}

// ofSession is the entry.total of usage of the whole conversation so far.
const ofSession = "session"

// use returns what an entry adds to the usage. If it has the usage of a response or of the conversation so far,
// the sum is right whichever entry is the last.
func (k *talk) use(e *entry) []head.Usage {
	for i := range e.usage {
		e.usage[i].Model = cmp.Or(e.usage[i].Model, k.model)
	}
	copied := e.copied || !e.time.IsZero() && e.time.Before(k.copied)
	if e.total == "" && !copied {
		return e.usage
	}
	var out []head.Usage
	for _, u := range e.usage {
		if e.total == ofSession && u.Input < k.counted[ofSession].Input { // the agent began to count anew
			delete(k.counted, ofSession)
		}
		u, k.counted[e.total] = beyond(k.counted[e.total], u)
		if u != (head.Usage{Model: u.Model}) && !copied {
			out = append(out, u)
		}
	}
	return out
}

// beyond returns the part of u that exceeds counted, and the maximum of both.
func beyond(counted, u head.Usage) (more, sum head.Usage) {
	more, sum = u, u
	for _, f := range [][3]*uint64{
		{&counted.Input, &more.Input, &sum.Input},
		{&counted.Output, &more.Output, &sum.Output},
		{&counted.CachedInput, &more.CachedInput, &sum.CachedInput},
		{&counted.CacheWrite, &more.CacheWrite, &sum.CacheWrite},
		{&counted.Reasoning, &more.Reasoning, &sum.Reasoning},
		{&counted.Cost, &more.Cost, &sum.Cost},
	} {
		*f[1] -= min(*f[0], *f[1])
		*f[2] = max(*f[0], *f[2])
	}
	return more, sum
}
