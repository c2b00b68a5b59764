package importer

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf16"

	"github.com/tidwall/gjson"
)

// A returning says how a transcript gets back to its agent.
type returning struct {
	// id and cwd are the paths of the fields, in each object, that name the session and the directory. Of several
	// with commas between them, all count.
	id, cwd string
	every   bool // Every line names the session, also those that come from another one.
	// project, if set, returns what the transcript calls a directory.
	project func(cwd string) string
	// bases returns the folders in which the agent keeps its files, the one for new sessions first.
	bases func(home string) []string
	// path returns where the agent looks for the transcript of a session, below its folder base.
	path func(base string, r *Resumption) (string, error)
	// there is a pattern of fs.Glob that finds the transcript that the agent has of the session, below its folder.
	there func(r *Resumption) string
	// command returns the arguments that make the agent go on with the session.
	command func(r *Resumption) []string
}

// A Resumption is a transcript that an agent can go on with.
type Resumption struct {
	ID      string    // of the session, as the agent knows it
	Cwd     string    // the directory in which the agent works; if it is empty, the one that the transcript names
	File    string    // the name of the file that was imported
	Began   time.Time // when the session was created
	Path    string    // where the agent finds the transcript
	Content []byte
	Command []string // makes the agent go on, in Cwd
}

// Errors of Resume.
var (
	// ErrNoReturn: the format of a session is not that of an agent that goes on with a file.
	ErrNoReturn = errors.New("its agent does not go on with a file that it is given")
	// ErrNoCwd: where the file belongs depends on the directory of the project, which the transcript does not say.
	ErrNoCwd = errors.New("the transcript does not say in which directory the agent worked: give --cwd")
)

// returnings has how transcripts get back to their agents, by the name of the format.
var returnings = map[string]returning{
	claude.name: {
		id: "sessionId", cwd: "cwd", every: true, bases: claudeFolders,
		path:    func(_ string, r *Resumption) (string, error) { return inProject("projects", r.Cwd, r.ID+".jsonl") },
		there:   func(r *Resumption) string { return "projects/*/" + r.ID + ".jsonl" },
		command: func(r *Resumption) []string { return []string{"claude", "--resume", r.ID} },
	},
	codex.name: {
		id: "payload.id,payload.session_id", cwd: "payload.cwd,payload.workspace_roots.0", bases: codexFolders,
		path: func(_ string, r *Resumption) (string, error) { // The agent takes the day and the time from the local clock.
			began := r.Began.Local()
			name := "rollout-" + began.Format("2006-01-02T15-04-05") + "-" + r.ID + ".jsonl"
			if strings.HasPrefix(r.File, "rollout-") && strings.HasSuffix(r.File, "-"+r.ID+".jsonl") {
				if day, err := time.Parse("2006-01-02", r.File[8:min(18, len(r.File))]); err == nil {
					name, began = r.File, day
				}
			}
			return filepath.Join("sessions", began.Format("2006/01/02"), name), nil
		},
		there:   func(r *Resumption) string { return "sessions/*/*/*/rollout-*-" + r.ID + ".jsonl" },
		command: func(r *Resumption) []string { return []string{"codex", "resume", r.ID} },
	},
	gemini.name: {
		id: "sessionId", cwd: "projectHash", every: true, project: geminiHash,
		bases: func(home string) []string { return []string{filepath.Join(home, ".gemini")} },
		path: func(base string, r *Resumption) (string, error) {
			project := geminiFolder(base, gjson.GetBytes(r.Content, "projectHash").Str) // of the object, or of the first line
			if !plainID.MatchString(project) {
				return "", ErrNoCwd
			}
			name := r.File
			if !strings.HasPrefix(name, "session-") || !strings.Contains(name, clip(r.ID, 8)) {
				name = "session-" + r.Began.UTC().Format("2006-01-02T15-04-") + clip(r.ID, 8) + ".jsonl"
				if isWhole(r.Content) {
					name = strings.TrimSuffix(name, "l")
				}
			}
			return filepath.Join("tmp", project, "chats", name), nil
		},
		there:   func(r *Resumption) string { return "tmp/*/chats/" + r.File },
		command: func(r *Resumption) []string { return []string{"gemini", "--resume", r.ID} },
	},
	qwen.name: {
		id: "sessionId", cwd: "cwd", every: true,
		bases: func(home string) []string { return []string{filepath.Join(home, ".qwen")} },
		path: func(_ string, r *Resumption) (string, error) {
			return inProject("projects", r.Cwd, filepath.Join("chats", r.ID+".jsonl"))
		},
		there:   func(r *Resumption) string { return "projects/*/chats/" + r.ID + ".jsonl" },
		command: func(r *Resumption) []string { return []string{"qwen", "--resume", r.ID} },
	},
	copilot.name: {
		id: "data.sessionId", cwd: "data.context.cwd,data.context.gitRoot",
		bases: func(home string) []string { return []string{filepath.Join(home, ".copilot")} },
		path: func(_ string, r *Resumption) (string, error) {
			return filepath.Join("session-state", r.ID, "events.jsonl"), nil
		},
		there:   func(r *Resumption) string { return "session-state/" + r.ID + "/events.jsonl" },
		command: func(r *Resumption) []string { return []string{"copilot", "--resume=" + r.ID} },
	},
	pi.name: {
		id: "id,parentId", cwd: "cwd",
		bases: func(home string) []string { return []string{filepath.Join(home, ".pi", "agent")} },
		path: func(_ string, r *Resumption) (string, error) {
			if r.Cwd == "" {
				return "", ErrNoCwd
			}
			project := "--" + strings.NewReplacer("/", "-", `\`, "-", ":", "-").Replace(strings.TrimLeft(r.Cwd, `/\`)) + "--"
			began := strings.NewReplacer(":", "-", ".", "-").Replace(r.Began.UTC().Format("2006-01-02T15:04:05.000Z"))
			return filepath.Join("sessions", project, began+"_"+r.ID+".jsonl"), nil
		},
		there:   func(r *Resumption) string { return "sessions/*/*_" + r.ID + ".jsonl" },
		command: func(r *Resumption) []string { return []string{"pi", "--session", r.Path} },
	},
}

// inProject returns the path of a file of a project, as Claude Code and Qwen Code make it: what is neither a letter
// nor a digit of ASCII is a dash, for each unit of UTF-16.
func inProject(folder, cwd, file string) (string, error) {
	if cwd == "" {
		return "", ErrNoCwd
	}
	var project strings.Builder
	for _, unit := range utf16.Encode([]rune(cwd)) {
		if unit < 128 && (unit|0x20 >= 'a' && unit|0x20 <= 'z' || unit >= '0' && unit <= '9') {
			project.WriteByte(byte(unit))
		} else {
			project.WriteByte('-')
		}
	}
	if project.Len() > maxProject {
		return "", fmt.Errorf("the path of the directory is longer than %d characters: give a shorter one with --cwd", maxProject)
	}
	return filepath.Join(folder, project.String(), file), nil
}

// maxProject is how long a name of a project can be. The agents shorten longer ones, each in its own way.
const maxProject = 200

// plainID is an id of a session that can be a name of a file.
var plainID = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]*$`)

// Resume makes of a transcript one that its agent can go on with. id is what the transcript names now, or empty if it
// names none. If r.Cwd is another directory than the transcript names, the objects that name that one, or one below it,
// name r.Cwd instead. If fork is set, the transcript gets an id of its own, so that the agent keeps the session that it
// came from, and each object says from which session it was copied. Otherwise, and if the directories are the same, the
// content stays byte for byte; and if the agent has a file of the session, that is its place. home is the user's home
// directory.
func Resume(format, home, id string, fork bool, r *Resumption) error {
	back, ok := returnings[format]
	if !ok {
		return fmt.Errorf("%s: %w", format, ErrNoReturn)
	}
	if id == "" {
		return errors.New("the transcript does not name its session")
	}
	if r.ID = id; fork {
		r.ID, r.Began, r.File = newUUID(), time.Now(), ""
	}
	if !plainID.MatchString(r.ID) {
		return fmt.Errorf("%q can't be the name of a file", r.ID)
	}
	whole := isWhole(r.Content)
	objects := [][]byte{r.Content}
	if !whole {
		objects = bytes.SplitAfter(r.Content, []byte("\n"))
	}
	moved, project := false, r.Cwd
	if back.project != nil {
		project = back.project(r.Cwd)
	}
	switch was := strings.TrimRight(firstText(objects, back.cwd), `/\`); {
	case r.Cwd == "" && filepath.IsAbs(was):
		r.Cwd = was
	case r.Cwd != "" && project != was:
		moved = true
		replaceAll(objects, back.cwd, func(dir string) string {
			if rest, below := strings.CutPrefix(dir, was); was != "" && below && (rest == "" || rest[0] == '/' || rest[0] == '\\') {
				return project + rest
			}
			return dir
		})
	}
	if fork {
		renamed := replaceAll(objects, back.id, func(was string) string {
			if was == id || back.every {
				return r.ID
			}
			return was
		})
		if !renamed {
			return fmt.Errorf("%s: no line of the fork names its session, so it can't have another id", format)
		}
		for i := range objects {
			objects[i] = copiedFrom(objects[i], whole, id)
		}
	}
	r.Content = bytes.Join(objects, nil)
	if err := back.place(home, r, fork || moved); err != nil {
		return err
	}
	r.Command = back.command(r)
	return nil
}

// place sets the path. It is that of the file that the agent has of the session, unless the transcript is another one.
func (b *returning) place(home string, r *Resumption, other bool) error {
	bases := b.bases(home)
	for _, base := range bases {
		if other {
			break
		}
		if found, err := fs.Glob(os.DirFS(base), b.there(r)); err == nil && len(found) > 0 {
			r.Path = filepath.Join(base, filepath.FromSlash(found[0]))
			return nil
		}
	}
	path, err := b.path(bases[0], r)
	r.Path = filepath.Join(bases[0], path)
	return err
}

// geminiHash returns how Gemini CLI calls the directory of a project in transcripts.
func geminiHash(cwd string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(cwd))) }

// geminiFolder returns the folder of a project in tmp, which Gemini CLI notes in projects.json. Older versions, and one
// that does not know the project yet, use its hash.
func geminiFolder(base, hash string) string {
	data, _ := os.ReadFile(filepath.Join(base, "projects.json"))
	folder := hash
	gjson.GetBytes(data, "projects").ForEach(func(path, name gjson.Result) bool {
		if geminiHash(path.Str) == hash && plainID.MatchString(name.Str) {
			folder = name.Str
		}
		return folder == hash
	})
	return folder
}

// isWhole reports whether a transcript is one object with a list of messages, not lines.
func isWhole(content []byte) bool {
	return gjson.ValidBytes(content) && gjson.GetBytes(content, "messages").IsArray()
}

// firstText returns the first text at one of the paths, with commas between them, in the objects.
func firstText(objects [][]byte, paths string) string {
	for _, o := range objects {
		for _, path := range split(paths) {
			if s := gjson.GetBytes(o, path).Str; s != "" {
				return s
			}
		}
	}
	return ""
}

// replaceAll replaces the texts at the paths, with commas between them, in each object, and reports whether one is
// another text now.
func replaceAll(objects [][]byte, paths string, with func(was string) string) (replaced bool) {
	for i, o := range objects {
		for _, path := range split(paths) {
			v := gjson.GetBytes(o, path)
			if v.Type != gjson.String || v.Index == 0 {
				continue
			}
			if is := with(v.Str); is != v.Str {
				o = slices.Concat(o[:v.Index], marshal(is), o[v.Index+len(v.Raw):])
				replaced = true
			}
		}
		objects[i] = o
	}
	return replaced
}

// copiedFrom adds to an object, or to each of its messages if it is a whole transcript, from which session it was
// copied, in the words of Claude Code. Its usage counts in that session, then, when the copy is imported.
func copiedFrom(object []byte, whole bool, session string) []byte {
	if !whole {
		body := bytes.TrimRight(object, " \t\r\n")
		if !gjson.ValidBytes(body) || !bytes.HasSuffix(body, []byte("}")) || gjson.GetBytes(body, "forkedFrom").Exists() {
			return object
		}
		origin := map[string]string{"sessionId": session}
		if id := gjson.GetBytes(body, "uuid").Str; id != "" {
			origin["messageUuid"] = id
		}
		field := slices.Concat([]byte(`"forkedFrom":`), marshal(origin), []byte("}"))
		if len(gjson.ParseBytes(body).Map()) > 0 {
			field = slices.Concat([]byte(","), field)
		}
		return slices.Concat(body[:len(body)-1], field, object[len(body):])
	}
	out, end := []byte(nil), 0
	gjson.GetBytes(object, "messages").ForEach(func(_, v gjson.Result) bool {
		out = append(append(out, object[end:v.Index]...), copiedFrom([]byte(v.Raw), false, session)...)
		end = v.Index + len(v.Raw)
		return true
	})
	return append(out, object[end:]...)
}

// newUUID returns a random UUID (RFC 9562, version 4).
func newUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
