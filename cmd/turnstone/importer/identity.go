package importer

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/turnstonedb/turnstone"
)

// The identity of a conversation decides to which session it belongs. The session has the
// identity as a label. The session's id is for people, who may change it, and two files
// may have the same name.
//
//   - A conversation that has a globally unique id is identified by this id, wherever
//     the file is. This is so for Claude Code, pi, tau2, and chats whose id is a UUID.
//   - Any other conversation is identified by the path of its file and its place in
//     the file. If a file at the same path has no message in common with the session,
//     it is another conversation: some programs overwrite their log.
//   - Standard input has no path. A conversation from there belongs to a session if
//     one of them continues the other, message by message.

// kin says what else must be true for a session with the identity of a conversation to
// hold the conversation.
type kin int

const (
	kinID    kin = iota // nothing else
	kinPath             // they have a message in common
	kinStdin            // one continues the other
)

// IdentityLabel is the label of a session that has the identity of its conversation. It is the
// only one of an import that is indexed: an import finds sessions by it.
const IdentityLabel = "import.identity"

var uuid = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// fullPath returns the path that identifies a file. A file that was compressed since has the same.
func fullPath(file string) string {
	if file == "-" {
		return ""
	}
	return strings.TrimSuffix(realPath(file), ".gz")
}

// hashPath returns a hash of a path, because names of directories are private. That of "" is "".
func hashPath(path string) string {
	if path == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(path))
	return hex.EncodeToString(sum[:16])
}

// realPath returns the absolute path of a file without symbolic links.
func realPath(file string) string {
	path, err := filepath.Abs(file)
	if err != nil {
		path = file
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	} else if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil { // the file was moved
		path = filepath.Join(dir, filepath.Base(path))
	}
	return path
}

// identify sets the identity of a conversation, unless the format has given one.
func (p *parser) identify(c *Conversation) {
	switch {
	case c.Identity != "": // set by the reader of the format
	case uuid.MatchString(c.ID):
		c.Identity = own(c.Format, c.ID)
	case p.path == "":
		c.kin, c.Identity = kinStdin, "stdin"+c.place(p.stem)
	default:
		c.kin, c.Identity = kinPath, "file:"+hashPath(p.path)+c.place(p.stem)
	}
	c.Identity = short(c.Identity)
	c.Parent = short(c.Parent)
}

// place returns the place of a conversation in a file with several, or "".
func (c *Conversation) place(stem string) string {
	if c.ID == stem {
		return ""
	}
	return "#" + strings.TrimPrefix(c.ID, stem+"/")
}

// own returns the identity of a conversation that has a globally unique id.
func own(format, id string) string { return format + ":" + id }

// short returns the identity, or a hash of it if it does not fit into a label.
func short(identity string) string {
	if len(identity) <= turnstone.MaxLabel && utf8.ValidString(identity) {
		return identity
	}
	sum := sha256.Sum256([]byte(identity))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// suffixed returns the id for a session if another one has the id c.ID: with a suffix that tells what it is of.
func (c *Conversation) suffixed(of string) string {
	sum := sha256.Sum256([]byte(of))
	return fmt.Sprintf("%s~%x", c.ID, sum[:4])
}

// maxID is the longest ID of a conversation. It leaves room in a session id for the
// suffix that the importer adds.
const maxID = turnstone.MaxSessionID - len("~00000000")
