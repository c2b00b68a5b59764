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

// Which session a conversation belongs to is decided by its identity, which the
// session carries as a label, and not by the session's id: that one is for people,
// who may change it, and two files can be called the same.
//
//   - A format whose conversations have an id of their own, unique in the world, is
//     identified by it, wherever the file is: Claude Code, pi, tau2, and chats whose
//     id is a UUID.
//   - Any other conversation is identified by its file's path and its place in the
//     file. A file at the same path that has no message in common with the session
//     is another conversation, as a program writes that begins its log anew.
//   - Standard input has no path. There a conversation belongs to a session that it
//     continues, or that continues it, message by message.

// kin says how a session with the identity of a conversation is known to hold it.
type kin int

const (
	kinID    kin = iota // the identity says it all
	kinPath             // they have a message in common
	kinStdin            // one continues the other
)

const identityLabel = "import.identity"

var uuid = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)

// fullPath returns the path by which a file is known wherever it is named from. A
// file that was compressed since is the same one.
func fullPath(file string) string {
	if file == "-" {
		return ""
	}
	path, err := filepath.Abs(file)
	if err != nil {
		path = file
	}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	} else if dir, err := filepath.EvalSymlinks(filepath.Dir(path)); err == nil { // the file was moved
		path = filepath.Join(dir, filepath.Base(path))
	}
	return strings.TrimSuffix(path, ".gz")
}

// identify sets the identity of a conversation, unless the format has given one.
func (p *parser) identify(c *Conversation) {
	switch {
	case c.Identity != "": // the format has given it
	case uuid.MatchString(c.ID):
		c.Identity = own(c.Format, c.ID)
	case p.path == "":
		c.kin, c.Identity = kinStdin, "stdin"+c.place(p.stem)
	default:
		// A hash of the path: the store is no place for the names of people's folders.
		path := sha256.Sum256([]byte(p.path))
		c.kin, c.Identity = kinPath, fmt.Sprintf("file:%x", path[:16])+c.place(p.stem)
	}
	c.Identity = short(c.Identity)
	c.Parent = short(c.Parent)
}

// place returns where in its file a conversation is, for a file of several.
func (c *Conversation) place(stem string) string {
	if c.ID == stem {
		return ""
	}
	return "#" + strings.TrimPrefix(c.ID, stem+"/")
}

// own is the identity of a conversation that has an id of its own.
func own(format, id string) string { return format + ":" + id }

// short returns an identity that fits into a label.
func short(identity string) string {
	if len(identity) <= turnstone.MaxLabel && utf8.ValidString(identity) {
		return identity
	}
	sum := sha256.Sum256([]byte(identity))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// suffixed returns the session id of a conversation where ID stands for another one.
func (c *Conversation) suffixed() string {
	sum := sha256.Sum256([]byte(c.Identity + "\x00" + c.stamp.all))
	return fmt.Sprintf("%s~%x", c.ID, sum[:4])
}

// maxID leaves room for what is put before and after the id of a session.
const maxID = turnstone.MaxSessionID - len(staging) - len("~00000000")
