package importer

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/turnstonedb/turnstone"
)

// MayBeTranscript reports whether a file may be a transcript by its name.
func MayBeTranscript(path string) bool {
	name := strings.TrimSuffix(filepath.Base(path), ".gz")
	if strings.HasSuffix(name, ".meta.json") { // what Claude Code notes of a sub-agent
		return false
	}
	return slices.Contains([]string{".jsonl", ".json", ".traj"}, filepath.Ext(name))
}

// PartOfASession reports whether a folder has only files that are read with a file in another folder: the messages
// of OpenCode and their parts.
func PartOfASession(folder string) bool {
	name := filepath.Base(folder)
	return filepath.Base(filepath.Dir(folder)) == "storage" && (name == "message" || name == "part" || name == "session_diff")
}

// WaitsForParent reports whether one of the conversations comes from a session that is neither in the store nor
// among them.
func WaitsForParent(ctx context.Context, st *turnstone.Store, convs []Conversation) (bool, error) {
	l := &loader{st: st}
	for i := range convs {
		parent := convs[i].Parent
		if parent == "" || slices.ContainsFunc(convs, func(c Conversation) bool { return c.Identity == parent }) {
			continue
		}
		if all, err := l.holders(ctx, parent); err != nil || len(all) == 0 {
			return err == nil, err
		}
	}
	return false, nil
}
