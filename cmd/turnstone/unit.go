package main

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

// The units that `turnstone follow --print` prints. The argument is the command line.
const (
	systemdUnit = `# Save this as ~/.config/systemd/user/turnstone-follow.service, then:
#   systemctl --user enable --now turnstone-follow
[Unit]
Description=Keep the sessions of coding agents

[Service]
ExecStart=%s
Restart=on-failure
Nice=10

[Install]
WantedBy=default.target
`
	launchdUnit = `<?xml version="1.0" encoding="UTF-8"?>
<!-- Save this as ~/Library/LaunchAgents/turnstone-follow.plist, then:
     launchctl load ~/Library/LaunchAgents/turnstone-follow.plist -->
<plist version="1.0"><dict>
  <key>Label</key><string>turnstone-follow</string>
  <key>ProgramArguments</key><array>
    %s
  </array>
  <key>RunAtLoad</key><true/>
  <key>KeepAlive</key><true/>
  <key>ProcessType</key><string>Background</string>
</dict></plist>
`
	cronLine = "*/5 * * * * %s\n"
	// Claude Code runs the hook when it has answered. See https://docs.claude.com/en/docs/claude-code/hooks.
	claudeHook = `{
  "hooks": {
    "Stop": [{"hooks": [{"type": "command", "command": %s}]}],
    "SessionEnd": [{"hooks": [{"type": "command", "command": %[1]s}]}]
  }
}
`
)

// printUnit prints a unit that runs the command as this command line says.
func (a *app) printUnit(cmd *cobra.Command, f *followFlags, folders []string) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	store := a.url
	if dir, ok := directory(store); ok { // A unit runs in another directory.
		path, err := filepath.Abs(dir)
		if err != nil {
			return err
		}
		store = strings.TrimSuffix(store, dir) + path
	}
	words := []string{program, "follow", "--quiet", "--store", store}
	if f.print == "cron" || f.print == "claude-code" {
		words = append(words, "--once")
	} else {
		words = append(words, "--poll", f.poll.String())
	}
	if f.redact {
		words = append(words, "--redact")
	}
	if f.group != "" {
		words = append(words, "--group", f.group)
	}
	for _, folder := range folders {
		path, err := filepath.Abs(folder)
		if err != nil {
			return err
		}
		words = append(words, path)
	}
	quoted := func(quote func(string) string) string {
		out := make([]string, len(words))
		for i, w := range words {
			out[i] = quote(w)
		}
		return strings.Join(out, " ")
	}
	p := printer{w: cmd.OutOrStdout()}
	switch f.print {
	case "systemd":
		p.printf(systemdUnit, quoted(systemdQuote))
	case "launchd":
		p.printf(launchdUnit, quoted(func(s string) string { return "<string>" + xmlText(s) + "</string>" }))
	case "cron":
		p.printf(cronLine, strings.ReplaceAll(quoted(shellQuote), "%", `\%`))
	case "claude-code":
		hook, err := json.Marshal(quoted(shellQuote))
		if err != nil {
			return err
		}
		p.printf(claudeHook, hook)
	default:
		return usageError{fmt.Errorf("--print must be systemd, launchd, cron or claude-code, not %q", f.print)}
	}
	return p.err
}

// shellQuote quotes a word for a POSIX shell, if it needs that.
func shellQuote(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./=:,+@", r)
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// systemdQuote quotes a word for systemd, as systemd.service(5) describes it.
func systemdQuote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "%", "%%", "$", "$$").Replace(s) + `"`
}

// xmlText escapes text for XML.
func xmlText(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a strings.Builder never fails
	return b.String()
}
