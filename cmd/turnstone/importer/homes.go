package importer

import (
	"cmp"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
)

// A Home is a folder in which an agent keeps its sessions.
type Home struct {
	Agent  string // as in Formats
	Folder string // or the path of a database
}

// Homes returns the folders in which the known agents keep the sessions of a user, whose home directory is given,
// as far as they exist. The agents' own variables count: CLAUDE_CONFIG_DIR, CODEX_HOME, XDG_DATA_HOME, and so on.
func Homes(home string) []Home {
	under := func(names ...string) string { return filepath.Join(append([]string{home}, names...)...) }
	editors := under(".config")
	switch runtime.GOOS {
	case "darwin":
		editors = under("Library", "Application Support")
	case "windows":
		editors = under("AppData", "Roaming")
	}
	data := filepath.Join(cmp.Or(os.Getenv("XDG_DATA_HOME"), under(".local", "share")), "opencode")
	var all []Home
	for _, folder := range claudeFolders(home) {
		all = append(all, Home{claude.name, filepath.Join(folder, "projects")})
	}
	all = append(all, []Home{
		{codex.name, filepath.Join(codexFolders(home)[0], "sessions")},
		{codex.name, filepath.Join(codexFolders(home)[0], "archived_sessions")},
		{gemini.name, under(".gemini", "tmp")},
		{qwen.name, under(".qwen", "projects")},
		{qwen.name, under(".qwen", "tmp")},
		{copilot.name, under(".copilot", "session-state")},
		{cursor.name, under(".cursor", "projects")},
		{opencode.name, filepath.Join(data, "storage")},
		{kimi.name, under(".kimi", "sessions")},
		{kimi.name, under(".kimi-code", "sessions")},
		{droid.name, under(".factory", "sessions")},
		{pi.name, under(".pi", "agent", "sessions")},
		{pi.name, under(".openclaw", "agents")},
		{cline.name, under(".cline", "data")},
	}...)
	for _, editor := range []string{"Code", "Cursor", "VSCodium"} {
		for _, extension := range []string{"saoudrizwan.claude-dev", "rooveterinaryinc.roo-cline"} {
			all = append(all, Home{cline.name, filepath.Join(editors, editor, "User", "globalStorage", extension, "tasks")})
		}
	}
	databases, _ := fs.Glob(os.DirFS(data), "opencode*.db") // The pattern is right.
	for _, name := range databases {
		all = append(all, Home{opencode.name, filepath.Join(data, name)})
	}
	var there []Home
	for _, h := range all {
		if info, err := os.Stat(h.Folder); err == nil && (info.IsDir() || IsDatabase(h.Folder)) {
			there = append(there, h)
		}
	}
	return there
}

// claudeFolders returns the folders of Claude Code: the one that it uses now, and the one that it may have used.
func claudeFolders(home string) []string {
	now, other := cmp.Or(os.Getenv("CLAUDE_CONFIG_DIR"), filepath.Join(home, ".claude")), filepath.Join(home, ".config", "claude")
	if filepath.Clean(now) == other {
		return []string{now}
	}
	return []string{now, other}
}

// codexFolders returns the folder of Codex CLI.
func codexFolders(home string) []string {
	return []string{cmp.Or(os.Getenv("CODEX_HOME"), filepath.Join(home, ".codex"))}
}
