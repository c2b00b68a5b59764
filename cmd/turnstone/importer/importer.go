// Package importer reads the transcripts of agents in several formats and commits them
// to a store.
//
// Parse turns a file into conversations. It reports what it can't read with file, line
// and reason. Load commits the conversations, with one commit for each turn or step. A
// new conversation becomes visible as a whole or not at all.
//
// If a session already holds a conversation, Load compares them event by event, like
// package transcript compares a history. It writes the events that are new, adds edited
// events as a branch, and removes nothing from the session. So a transcript can be
// imported again and again while the agent writes it. The session is the same as if the
// whole file had been imported once.
package importer

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/head"
)

// A Conversation is the content for one session.
type Conversation struct {
	// ID is the id that the session gets if no other session has it.
	ID string
	// Identity distinguishes the conversation from all others. See identity.go.
	Identity string
	Format   string
	File     string
	Name     string // the title that the file gives, or the beginning of the first user message
	Model    string // the last model that the file names
	Cwd      string
	// Parent is the Identity of the parent conversation, which may be in another file.
	// ForkKey is the key of the parent's event where this conversation begins. An
	// attached conversation goes on from that event. Any other conversation begins
	// empty.
	Parent   string
	ForkKey  string
	Attached bool
	Agent    string // for a sub-agent: its name in the events of the parent
	// Labels are short fields of the file outside the messages. They become labels of
	// the session.
	Labels map[string]string
	Events []Event // parents before children
	// Outside is a JSON object with the fields of this conversation outside its
	// messages. Shared is a JSON object with the fields that all conversations of the
	// file share. They are nil if there are no such fields.
	Outside, Shared []byte
	// Totals is the usage of the whole conversation, if the file reports it. The part
	// of it that the events don't report is committed with the last event.
	Totals []head.Usage
	// folder is the directory of the file, and origin a hash of its path; empty for standard input.
	folder, origin string
	// Mended counts the faults of the file that were mended, in the first conversation of the file.
	Mended map[Mend]int
	// Redacted counts the secrets of the file that were replaced, by the rules that found them, in its first
	// conversation.
	Redacted map[string]int

	tail   *tail       // the state from which an import of the next version of the file can go on; may be nil
	since  int         // index of the first event that the tail did not have before; earlier events have no payloads
	asked  bool        // an event is a message of the user
	kin    kin         // how a session is recognized as this conversation
	began  time.Time   // when the conversation began; zero if the file does not say
	torn   int         // number of events that are bytes that can't be read
	gaps   gaps        // the bytes between the events in the file; nil if they are not known
	stamp  stamp       // identifies the content
	events hash.Cloner // the hash of all events; see digest
}

// An Event is the content for one node.
type Event struct {
	Key     string // unique in the conversation; may be empty
	Kind    string
	Payload []byte
	Line    int // position in the file, for its order; 0-based
	// missing is the id of the event's parent if the file does not have that.
	missing string
	// Before is the index of the event that this one follows, which is an earlier one. It is -1 for the
	// beginning of a tree, and -2 for an event that goes on from the ForkKey of an attached conversation.
	Before int

	Turn bool      // begins a turn
	Step bool      // begins a step: a burst of the assistant with the results of its tools
	Time time.Time // zero if the file does not say
	// Side says that the event is not part of the conversation itself, for example a
	// progress report. It is never the leaf of the session.
	Side       bool
	Usage      []head.Usage
	Checkpoint map[string][]byte
}

// A BadInput is a place in a file that can't be read.
type BadInput struct {
	File   string // the name that the user gave
	Line   int    // 1-based; 0 for the file as a whole
	Reason string
	Again  bool // It may be read when it is tried again, because another process is at it now.
}

func (e *BadInput) Error() string {
	if e.Line == 0 {
		return fmt.Sprintf("%s: %s", e.File, e.Reason)
	}
	return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Reason)
}

// maxFile is the largest size of a file after expansion, in bytes.
const maxFile = 2 << 30

var (
	errTooLarge = fmt.Errorf("is larger than %d bytes", int64(maxFile))
	errBinary   = errors.New("is binary data, not a transcript")
)

// Read returns the content of r. It expands gzip. It refuses binary data after it has
// read the beginning. The end of ctx ends it, even if r blocks; r may be read after that.
func Read(ctx context.Context, r io.Reader) ([]byte, error) {
	type result struct {
		data []byte
		err  error
	}
	done := make(chan result, 1)
	go func() {
		data, err := read(r)
		done <- result{data, err}
	}()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case r := <-done:
		return r.data, r.err
	}
}

func read(r io.Reader) ([]byte, error) {
	if f, ok := r.(*os.File); ok {
		if i, err := f.Stat(); err == nil && i.Mode().IsRegular() && i.Size() > maxFile {
			return nil, errTooLarge
		}
	}
	in := bufio.NewReaderSize(r, sniffed)
	if begin, _ := in.Peek(2); bytes.Equal(begin, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(in)
		if err != nil {
			return nil, err
		}
		in = bufio.NewReaderSize(z, sniffed)
	}
	if begin, _ := in.Peek(sniffed); binary(begin) { // ReadAll returns the error of Peek again
		return nil, errBinary
	}
	data, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = errTooLarge
	}
	return data, err
}

// sniffed is the number of bytes by which binary decides.
const sniffed = 4 << 10

// binary reports whether a file with the given beginning is binary: a tenth of it is zero bytes, control
// characters and bytes that are not UTF-8, and no object begins in it. A crash can leave zero bytes in a transcript.
func binary(begin []byte) bool {
	begin = bytes.TrimLeft(begin[:min(len(begin), sniffed)], "\x00")
	strange := 0
	for i := 0; i < len(begin); {
		r, n := utf8.DecodeRune(begin[i:])
		if r == utf8.RuneError && n == 1 || r < ' ' && r != '\t' && r != '\n' && r != '\r' && r != 0x1b {
			strange++
		}
		i += n
	}
	return strange > 3 && strange*10 > len(begin) && !bytes.Contains(begin, []byte(`{"`))
}

// finish sets the fields that all formats derive in the same way, and clips fields to
// the limits of a session.
func (c *Conversation) finish() {
	for _, text := range []*string{&c.ID, &c.Name, &c.Model, &c.Cwd} {
		*text = strings.ToValidUTF8(*text, "�")
	}
	c.ID = clip(c.ID, maxID)
	c.Model, c.Cwd = clip(c.Model, turnstone.MaxModel), clip(c.Cwd, turnstone.MaxText)
	c.setSteps()
	c.setTimes()
	for i := range c.Events[c.since:] {
		e := &c.Events[c.since+i]
		if e.Kind == Unreadable {
			c.torn++
		}
		clipModels(e.Usage)
	}
	clipModels(c.Totals)
}

// setSteps sets the kinds, turns and steps of the events, and the name of the
// conversation. Events before the first user message belong to its turn.
func (c *Conversation) setSteps() {
	afterTool := c.since > 0 && c.Events[c.since-1].Kind == "tool"
	for i := range c.Events[c.since:] {
		e := &c.Events[c.since+i]
		e.Kind = cmp.Or(clip(strings.ToValidUTF8(e.Kind, "�"), turnstone.MaxKind), "event")
		if e.Turn && c.Name == "" {
			c.Name = clip(strings.Join(strings.Fields(Text(e.Payload)), " "), 80)
		}
		fromUser := e.Turn
		e.Turn = fromUser && c.asked
		c.asked = c.asked || fromUser
		e.Step = e.Turn || e.Kind == "assistant" && afterTool
		afterTool = e.Kind == "tool"
	}
}

// setTimes gives events without a time that of the event before.
func (c *Conversation) setTimes() {
	at := c.began
	if c.since > 0 {
		at = c.Events[c.since-1].Time
	}
	for i := range c.Events[c.since:] {
		e := &c.Events[c.since+i]
		if e.Time.IsZero() {
			e.Time = at
		}
		at = e.Time
		if c.began.IsZero() {
			c.began = at
		}
	}
}

func clipModels(all []head.Usage) {
	for i := range all {
		all[i].Model = clip(strings.ToValidUTF8(all[i].Model, "�"), turnstone.MaxModel)
	}
}

var errObject = errors.New("is not a JSON object")

// decode decodes one JSON object into v. Its errors are for people.
func decode(raw []byte, v any) error {
	if t := bytes.TrimSpace(raw); (len(t) == 0 || t[0] != '{') && json.Valid(t) {
		return errObject
	}
	err := json.Unmarshal(raw, v)
	var te *json.UnmarshalTypeError
	if errors.As(err, &te) {
		return fmt.Errorf("field %q has the wrong type: JSON %s", te.Field, te.Value)
	}
	return err
}

// compact returns raw without insignificant white space.
func compact(raw json.RawMessage) []byte {
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return raw // can't happen: raw was parsed before
	}
	return b.Bytes()
}
