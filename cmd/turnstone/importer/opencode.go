package importer

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/tidwall/gjson"
)

// opencode is OpenCode: the folder in which it keeps a session, its messages and their parts as files, and the
// object that its command export writes.
var opencode = &format{
	name: "opencode", about: "its database (opencode.db), its storage folder (import storage/session/…/ses_….json), and its exports", unique: true,
	whole: func(f *fields) bool {
		return f.has("id", "projectID", "directory", "time") || f.get("messages.0.info.role").Exists() && f.has("info")
	},
	items: "messages",
	field: places{
		time: "info.time.created,time.created,time.start", usage: "info.tokens,tokens", cost: "info.cost,cost",
		model: "info.modelID,modelID,info.model.modelID,model.modelID", cwd: "directory", title: "title",
	},
	of:   places{session: "info.id", time: "info.time.created", title: "info.title"},
	read: readOpencode,
}

func init() { opencode.own = opencodeSession } // it refers to opencode

func readOpencode(f *fields, e *entry) {
	switch kind := f.text("type"); {
	case f.has("projectID"):
		e.bookkeeping("session")
		e.session, e.from = f.text("id"), f.text("parentID")
	case f.text("info.role", "role") != "":
		e.say(f.text("info.role", "role"))
	case kind == "tool":
		e.kind = "tool"
	case kind == "step-finish":
		e.bookkeeping(kind)
		return // Only this part has usage that is not written again.
	case kind == "text", kind == "reasoning", kind == "file":
		e.kind = "part"
	default:
		e.bookkeeping(kind)
	}
	if !f.has("info") {
		e.usage = nil
	}
}

// opencodeSession reads an export, or the file of a session with those of its messages and their parts, in the
// order of their names, which is that of their ids.
func opencodeSession(p *parser, raw []byte, id string, line int) {
	f := parseFields(raw)
	if f.has("messages") {
		p.list(opencode, raw, id, line)
		return
	}
	root, err := os.OpenRoot(filepath.Dir(filepath.Dir(filepath.Dir(p.path)))) // What a file names can't lead out of it.
	if err != nil {
		p.fail(0, "%v", err)
		return
	}
	defer root.Close()
	o := opencodeEntries{parser: p}
	o.add("", raw)
	each := func(dir string, then func(data []byte)) {
		files, err := fs.ReadDir(root.FS(), filepath.ToSlash(dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			p.fail(0, "%v", err)
		}
		for _, file := range files {
			name := filepath.Join(dir, file.Name())
			if data, err := root.ReadFile(name); err != nil {
				p.fail(0, "%s can't be read: %v", name, err)
			} else if o.add(filepath.ToSlash(name), data) {
				then(data)
			}
		}
	}
	each(filepath.Join("message", f.text("id")), func(message []byte) {
		each(filepath.Join("part", str(gjson.GetBytes(message, "id"))), func([]byte) {})
	})
	p.take(opencode.build(id, o.all).talks, nil)
}

// opencodeEntries collects the entries of a session of OpenCode: of the session itself, and then of each message
// before those of its parts.
type opencodeEntries struct {
	*parser
	all  []*entry
	said string // the kind of the last message, which is that of what its parts say
}

// add adds an object. key is the path of the file in which OpenCode has or had it, below its storage folder, and empty
// for the session. It returns false if the object can't be read.
func (o *opencodeEntries) add(key string, raw []byte) bool {
	raw = o.redact(raw)
	switch {
	case !valid(raw) || !gjson.ParseBytes(raw).IsObject():
		o.fail(0, "%s can't be read: it %v", key, errObject)
		return false
	case len(o.all) == maxObjects:
		o.fail(0, "%s can't be read: the session %v", key, errObjects)
		return false
	case !o.fits(0, key+" ", raw):
		return false
	}
	e := opencode.entry(piece{raw: raw}, len(o.all))
	switch e.id = key; {
	case strings.HasPrefix(key, "message/"):
		o.said = e.kind
	case e.kind == "part":
		e.kind = o.said
	}
	o.all = append(o.all, e)
	return true
}
