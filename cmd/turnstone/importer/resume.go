package importer

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/tidwall/gjson"
)

// A returning says how a transcript gets back to its agent.
type returning struct {
	// id and cwd are the paths of the fields, in each object, that name the session and its directory. Of several
	// with commas between them, all count.
	id, cwd string
	// path returns where the agent looks for the transcript of a session, below the home directory of the user.
	path func(home string, r *Resumption) string
	// command returns the arguments that make the agent go on with the session.
	command func(r *Resumption) []string
}

// A Resumption is a transcript that an agent can go on with.
type Resumption struct {
	ID      string    // of the session, as the agent knows it
	Cwd     string    // the directory in which the agent works
	Began   time.Time // when the session was created
	Path    string    // where the agent finds the transcript
	Content []byte
	Command []string // makes the agent go on, in Cwd
	whole   bool     // the transcript is one JSON object
}

// ErrNoReturn: the format of a session is not that of an agent that goes on with a file.
var ErrNoReturn = errors.New("its agent does not go on with a file that it is given")

// returnings has how transcripts get back to their agents, by the name of the format.
var returnings = map[string]returning{
	claude.name: {
		id: "sessionId", cwd: "cwd",
		path: func(home string, r *Resumption) string {
			base := cmp.Or(os.Getenv("CLAUDE_CONFIG_DIR"), filepath.Join(home, ".claude"))
			return filepath.Join(base, "projects", unusual.ReplaceAllString(r.Cwd, "-"), r.ID+".jsonl")
		},
		command: func(r *Resumption) []string { return []string{"claude", "--resume", r.ID} },
	},
	codex.name: {
		id: "payload.id,payload.session_id", cwd: "payload.cwd",
		path: func(home string, r *Resumption) string {
			base := cmp.Or(os.Getenv("CODEX_HOME"), filepath.Join(home, ".codex"))
			return filepath.Join(base, "sessions", r.Began.Format("2006/01/02"), "rollout-"+r.Began.Format("2006-01-02T15-04-05")+"-"+r.ID+".jsonl")
		},
		command: func(r *Resumption) []string { return []string{"codex", "resume", r.ID} },
	},
	gemini.name: {
		id: "sessionId",
		path: func(home string, r *Resumption) string {
			project := fmt.Sprintf("%x", sha256.Sum256([]byte(r.Cwd)))
			ending := ".jsonl"
			if r.whole {
				ending = ".json"
			}
			return filepath.Join(home, ".gemini", "tmp", project, "chats", "session-"+r.Began.Format("2006-01-02T15-04-")+clip(r.ID, 8)+ending)
		},
		command: func(r *Resumption) []string { return []string{"gemini", "--resume", r.ID} },
	},
	qwen.name: {
		id: "sessionId", cwd: "cwd",
		path: func(home string, r *Resumption) string {
			return filepath.Join(home, ".qwen", "projects", unusual.ReplaceAllString(r.Cwd, "-"), "chats", r.ID+".jsonl")
		},
		command: func(r *Resumption) []string { return []string{"qwen", "--resume", r.ID} },
	},
	copilot.name: {
		id: "data.sessionId", cwd: "data.context.cwd",
		path: func(home string, r *Resumption) string {
			return filepath.Join(home, ".copilot", "session-state", r.ID, "events.jsonl")
		},
		command: func(r *Resumption) []string { return []string{"copilot", "--resume=" + r.ID} },
	},
	pi.name: {
		id: "id", cwd: "cwd",
		path: func(home string, r *Resumption) string {
			project := "--" + strings.NewReplacer("/", "-", `\`, "-", ":", "-").Replace(strings.TrimLeft(r.Cwd, `/\`)) + "--"
			began := strings.NewReplacer(":", "-", ".", "-").Replace(r.Began.Format("2006-01-02T15:04:05.000Z"))
			return filepath.Join(home, ".pi", "agent", "sessions", project, began+"_"+r.ID+".jsonl")
		},
		command: func(r *Resumption) []string { return []string{"pi", "--session", r.Path} },
	},
}

// unusual is what Claude Code replaces in the path of a project to make a name of it.
var unusual = regexp.MustCompile(`[^a-zA-Z0-9]`)

// plainID is an id of a session that can be a name of a file.
var plainID = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]*$`)

// Resume makes of a transcript one that its agent can go on with. id and cwd are what the transcript names now.
// The agent is to work in r.Cwd; if that differs from cwd, the objects that name cwd name r.Cwd instead. If fork is
// set, the transcript gets an id of its own, so that the agent keeps the session that it came from. Otherwise, and
// if the directories are the same, the content stays byte for byte. home is the user's home directory.
func Resume(format, home, id, cwd string, fork bool, r *Resumption) error {
	back, ok := returnings[format]
	if !ok {
		return fmt.Errorf("%s: %w", format, ErrNoReturn)
	}
	if r.ID = id; fork {
		r.ID = newUUID()
	}
	if !plainID.MatchString(r.ID) {
		return fmt.Errorf("%q can't be the name of a file", r.ID)
	}
	r.whole = valid(r.Content) && !bytes.Contains(bytes.TrimSpace(r.Content), []byte("\n{"))
	before := r.Content
	for _, path := range split(back.id) {
		r.Content = replaceValues(r.Content, r.whole, path, id, r.ID)
	}
	if fork && bytes.Equal(r.Content, before) {
		return fmt.Errorf("%s: no line of the fork names its session, so it can't have another id", format)
	}
	for _, path := range split(back.cwd) {
		r.Content = replaceValues(r.Content, r.whole, path, cwd, r.Cwd)
	}
	r.Path = back.path(home, r)
	r.Command = back.command(r)
	return nil
}

// replaceValues replaces the text at a path in each object of content, where it is old. Nothing else changes.
func replaceValues(content []byte, whole bool, path, old, text string) []byte {
	if old == text || old == "" {
		return content
	}
	objects := [][]byte{content}
	if !whole {
		objects = bytes.SplitAfter(content, []byte("\n"))
	}
	var out []byte
	for _, o := range objects {
		v := gjson.GetBytes(o, path)
		if v.Type != gjson.String || v.Str != old || v.Index == 0 {
			out = append(out, o...)
			continue
		}
		out = append(out, o[:v.Index]...)
		out = append(out, marshal(text)...)
		out = append(out, o[v.Index+len(v.Raw):]...)
	}
	return out
}

// newUUID returns a random UUID (RFC 9562, version 4).
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
