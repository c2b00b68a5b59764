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

// The units that `turnstone follow --print` prints. The first argument is the command, the second is the store.
const (
	systemdUnit = `# Save this as ~/.config/systemd/user/turnstone-follow.service, then:
#   systemctl --user enable --now turnstone-follow
[Unit]
Description=Keep the sessions of coding agents

[Service]
ExecStart=%s follow --quiet --store %s
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
    <string>%s</string><string>follow</string><string>--quiet</string><string>--store</string><string>%s</string>
  </array>
  <key>RunAtLoad</key><true/>
  <key>KeepAlive</key><true/>
  <key>ProcessType</key><string>Background</string>
</dict></plist>
`
	cronLine = "*/5 * * * * %s follow --once --quiet --store %s\n"
	// Claude Code runs the hook when it has answered. See https://docs.claude.com/en/docs/claude-code/hooks.
	claudeHook = `{
  "hooks": {
    "Stop": [{"hooks": [{"type": "command", "command": %s}]}],
    "SessionEnd": [{"hooks": [{"type": "command", "command": %[1]s}]}]
  }
}
`
)

// printUnit prints a unit that runs the command on the store of this command line.
func (a *app) printUnit(cmd *cobra.Command, what string) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	store := a.url
	if dir, ok := directory(store); ok { // a unit runs in another directory
		path, err := filepath.Abs(dir)
		if err != nil {
			return err
		}
		store = strings.TrimSuffix(store, dir) + path
	}
	p := printer{w: cmd.OutOrStdout()}
	switch what {
	case "systemd":
		p.printf(systemdUnit, systemdQuote(program), systemdQuote(store))
	case "launchd":
		p.printf(launchdUnit, xmlText(program), xmlText(store))
	case "cron":
		p.printf(cronLine, strings.ReplaceAll(shellQuote(program), "%", `\%`), strings.ReplaceAll(shellQuote(store), "%", `\%`))
	case "claude-code":
		hook, err := json.Marshal(fmt.Sprintf("%s follow --once --quiet --store %s", shellQuote(program), shellQuote(store)))
		if err != nil {
			return err
		}
		p.printf(claudeHook, hook)
	default:
		return usageError{fmt.Errorf("--print must be systemd, launchd, cron or claude-code, not %q", what)}
	}
	return p.err
}

// shellQuote quotes a word for a POSIX shell.
func shellQuote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

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
