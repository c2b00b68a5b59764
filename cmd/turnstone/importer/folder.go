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
	if IsDatabase(path) {
		return true
	}
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

// Origins returns the identities of the conversations, and of those that they come from and that are neither in the
// store nor among them.
func Origins(ctx context.Context, st *turnstone.Store, convs []Conversation) (has, wants []string, err error) {
	known := map[string]bool{"": true}
	for i := range convs {
		has = append(has, convs[i].Identity)
		known[convs[i].Identity] = true
	}
	l := &loader{st: st}
	for i := range convs {
		parent := convs[i].Parent
		if known[parent] || convs[i].since > 0 { // It has its session.
			continue
		}
		known[parent] = true
		all, err := l.holders(ctx, parent)
		if err != nil {
			return nil, nil, err
		}
		if len(all) == 0 {
			wants = append(wants, parent)
		}
	}
	return has, wants, nil
}
