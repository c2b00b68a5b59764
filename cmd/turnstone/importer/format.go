package importer

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/tidwall/gjson"

	"github.com/turnstonedb/turnstone/head"
)

// A format says how the transcripts of one agent are read. docs/formats.md says how to add one.
//
// A transcript is a list of objects: the lines of a file, the elements of an array, or those of a list in an
// object that has the whole conversation. Each object becomes an event.
type format struct {
	name  string // of the sessions' label .import.format
	about string // what the files are, for the help of the command
	// line reports whether an object is one of a list in this format. The first object of a file that any
	// format knows decides the format of the file. A format without line has no such lists.
	line func(*fields) bool
	// whole reports whether an object is a conversation of this format, and items names the list in it: an
	// array, or an object whose values are the elements.
	whole func(*fields) bool
	items string
	// field says where the objects have what all formats have.
	field places
	// of says where an object that is a whole conversation has what concerns all of it.
	of places
	// read sets in e what else an object says: its kind, above all. An event without a kind is of an
	// unknown one.
	read func(f *fields, e *entry)
	// own reads a conversation in a way of its own, instead of items: an object, or an array of such objects as
	// line knows. id is for a conversation that names none, and line is where it stands in its file.
	own func(p *parser, raw []byte, id string, line int)
	// inLines says that conversations that are objects are lines of a file, even if it has only one.
	inLines bool
	// unique says that the ids of sessions are globally unique, so that they identify a conversation wherever
	// its file is.
	unique bool
}

// places are the paths of fields, as fields.get takes them. Of several with commas between them, the first that
// is there counts.
type places struct {
	session, agent, id, parent string
	time, model, title, cwd    string
	branch                     string // of git
	usage, cost                string // cost is in US dollars, if it is not a field of the usage
}

// formats are all formats, the more particular ones first.
var formats = []*format{
	gemini, geminiContents, qwen, codex, codexOld, copilot, droid, pi, kimi, kimiContext,
	adk, langchain, responses, chatgpt, claudeAI, shareGPT,
	tau2, swe, tau, openhands, openhandsEvents, opencode, claude, cline, cursor, chat, messages,
}

// Formats returns a line for each format: its name and what its files are.
func Formats() [][2]string {
	var out [][2]string
	for _, f := range formats {
		if f.about != "" {
			out = append(out, [2]string{f.name, f.about})
		}
	}
	return out
}

// formatOf returns the first format that knows an object, or nil.
func formatOf(f *fields) *format {
	for _, t := range formats {
		if t.is(t.line, f) || t.is(t.whole, f) {
			return t
		}
	}
	return nil
}

// formatNamed returns the format of objects with a name, or nil.
func formatNamed(name string) *format {
	i := slices.IndexFunc(formats, func(t *format) bool { return t.name == name && t.read != nil })
	if i < 0 {
		return nil
	}
	return formats[i]
}

// is reports whether a format knows an object, in one of the two ways.
func (t *format) is(known func(*fields) bool, f *fields) bool { return known != nil && known(f) }

// An entry is what an object of a transcript says.
type entry struct {
	piece
	at int // index of the piece in its file

	// session and agent distinguish the conversations of a file: agent names a sub-agent of a session.
	session, agent string
	// id is the object's own name, by which later ones name their parent. Without an id, the object goes on
	// from the one before it.
	id, parent string
	names      bool   // the object names a parent, or says that it has none
	missing    string // the parent, if the file does not have it

	// kind is "user", "assistant", "tool" or "system", or something else for what is beside the conversation.
	kind    string
	turn    bool // begins a turn: the user asks
	beside  bool // is not on the path: bookkeeping, progress, copies
	time    time.Time
	model   string
	cwd     string
	branch  string // of git
	title   string
	rank    int       // of the title: of those of the highest rank the last one counts
	titleOf string    // the title counts only if the conversation has an entry of this id
	command bool      // the user's message is no title, because a command of the agent wrote it
	from    string    // id of the session that this one was forked from or spawned by
	copied  bool      // from another session, where its usage counts
	label   [2]string // a label of the session, if it has a value
	// rewind is the id of an entry from which on the conversation was taken back. Later entries go on from the
	// one before it.
	rewind string
	usage  []head.Usage
	// total names what the usage is the sum of so far: a response that is written in several lines, or the
	// conversation. The usage is that of the object alone if total is empty.
	total string

	// In some transcripts the answers to calls that ran at the same time are siblings. They are chained if
	// the object names the response that it is a part of. See chain.go.
	response       string
	calls, results []string
}

// Unreadable is the kind of events that are bytes that can't be read.
const Unreadable = "unreadable"

// entry reads an object.
func (t *format) entry(p piece, at int) *entry {
	e := &entry{piece: p, at: at}
	if p.broken != "" {
		e.kind, e.beside = Unreadable, true
		return e
	}
	f := parseFields(p.raw)
	w := &t.field
	e.session, e.agent, e.id = f.at(w.session), f.at(w.agent), f.at(w.id)
	e.names = f.has(w.parent)
	e.parent, e.model, e.title, e.cwd = f.at(w.parent), f.at(w.model), f.at(w.title), f.at(w.cwd)
	e.branch = f.at(w.branch)
	e.time = f.time(split(w.time)...).Time
	e.usage = f.usage(e.model, split(w.usage)...)
	if cost := nanoDollars(f.get(split(w.cost)...).Num); cost > 0 {
		if e.usage == nil {
			e.usage = []head.Usage{{Model: e.model}}
		}
		e.usage[0].Cost = cost
	}
	t.read(f, e)
	if origin := f.text("forkedFrom.sessionId"); origin != "" {
		e.from, e.copied = cmp.Or(e.from, origin), true
	}
	e.own()
	return e
}

// own makes strings of e independent of the object that they were read from.
func (e *entry) own() {
	for _, s := range []*string{&e.session, &e.agent, &e.id, &e.parent, &e.model, &e.title, &e.cwd, &e.branch, &e.kind, &e.from, &e.total, &e.response, &e.titleOf, &e.rewind, &e.label[1]} {
		*s = strings.ToValidUTF8(strings.Clone(*s), "�")
	}
	for i := range e.usage {
		e.usage[i].Model = strings.Clone(e.usage[i].Model)
	}
	for _, list := range [][]string{e.calls, e.results} {
		for i := range list {
			list[i] = strings.Clone(list[i])
		}
	}
}

// at returns the text at places with commas between them.
func (f *fields) at(places string) string { return f.text(split(places)...) }

func split(places string) []string {
	if places == "" {
		return nil
	}
	return strings.Split(places, ",")
}

// say sets the kind of a message by the role of who wrote it.
func (e *entry) say(role string) {
	switch role {
	case "user", "human":
		e.kind, e.turn = "user", true
	case "assistant", "model", "ai", "gpt", "gemini":
		e.kind = "assistant"
	case "tool", "function", "toolResult", "tool_result":
		e.kind = "tool"
	case "system", "developer":
		e.kind = "system"
	default:
		e.kind = role
	}
}

// blocks notes the calls and the results in content of Anthropic's form. A message of the user that has results
// is one of tools.
func (e *entry) blocks(f *fields, path string) {
	f.blocks(func(b gjson.Result) {
		switch b.Get("type").Str {
		case "tool_use":
			e.calls = append(e.calls, b.Get("id").Str)
		case "tool_result":
			e.results = append(e.results, b.Get("tool_use_id").Str)
		}
	}, path)
	if len(e.results) > 0 {
		e.kind, e.turn = "tool", false
	}
}

// bookkeeping makes an event of the given kind that is beside the conversation.
func (e *entry) bookkeeping(kind string) {
	e.kind, e.beside, e.turn = cmp.Or(kind, "event"), true, false
}
