package importer

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

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
	all := []*entry{opencode.entry(piece{raw: raw}, 0)}
	root, err := os.OpenRoot(filepath.Dir(filepath.Dir(filepath.Dir(p.path)))) // What a file names can't lead out of it.
	if err != nil {
		p.fail(0, "%v", err)
		return
	}
	defer root.Close()
	add := func(dir string, then func(name string, e *entry)) {
		files, err := fs.ReadDir(root.FS(), filepath.ToSlash(dir))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			p.fail(0, "%v", err)
		}
		for _, file := range files {
			name := filepath.Join(dir, file.Name())
			data, err := root.ReadFile(name)
			data = p.redact(data)
			if err != nil || !valid(data) || !gjson.ParseBytes(data).IsObject() || !p.fits(0, name+" ", data) {
				p.fail(0, "%s can't be read: %v", name, err)
				continue
			}
			e := opencode.entry(piece{raw: data}, len(all))
			e.id = filepath.ToSlash(name)
			all = append(all, e)
			then(str(gjson.GetBytes(data, "id")), e)
		}
	}
	add(filepath.Join("message", f.text("id")), func(id string, e *entry) {
		said := e.kind
		add(filepath.Join("part", id), func(_ string, e *entry) {
			if e.kind == "part" {
				e.kind = said
			}
		})
	})
	p.take(opencode.build(id, all), nil)
}
