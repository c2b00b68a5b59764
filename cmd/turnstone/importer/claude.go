package importer

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"

	"github.com/turnstonedb/turnstone"
	"github.com/turnstonedb/turnstone/graph"
)

// claude is Claude Code: a tree by uuid and parentUuid. A file may have the lines of several sessions, and those
// of sub-agents.
var claude = &format{
	name: "claude-code", about: "session JSONL, with rewinds, forks, sub-agents and compaction", unique: true,
	line: func(f *fields) bool {
		return f.has("uuid", "type") || f.has("sessionId", "type") && !f.has("messageId") || f.text("type") == "summary" && f.has("leafUuid") ||
			f.text("type") == "file-history-snapshot" && f.has("messageId")
	},
	field: places{
		session: "sessionId", agent: "agentId", id: "uuid", parent: "parentUuid", time: "timestamp",
		model: "message.model", cwd: "cwd", branch: "gitBranch", usage: "message.usage", cost: "costUSD", title: "customTitle,aiTitle",
	},
	read: readClaude,
}

func readClaude(f *fields, e *entry) {
	e.kind = f.text("type")
	e.response = f.text("message.id")
	e.total = e.response
	if e.model == "<synthetic>" {
		e.model = ""
	}
	switch e.kind {
	case "user":
		e.turn = true
		if f.get("isMeta").Bool() {
			e.kind, e.turn = "meta", false
		}
		e.blocks(f, "message.content")
		e.command = e.turn && isCommand(f)
	case "assistant":
		e.blocks(f, "message.content")
	case "summary":
		e.title = f.text("summary")
		e.titleOf = f.text("leafUuid") // A file also has the summaries of other sessions.
	}
	if e.kind != "assistant" {
		e.response = ""
	}
	if e.kind == "custom-title" {
		e.rank = 2
	} else if e.kind == "ai-title" {
		e.rank = 1
	}
	if e.parent == "" {
		e.parent = f.text("logicalParentUuid") // A compaction goes on from here.
	}
	e.names = true // A line without a parent begins a tree.
	// Lines without a uuid are bookkeeping. The lines of a sub-agent that is not named stand beside the session.
	e.beside = e.id == "" || e.kind == "progress" || e.agent == "" && f.get("isSidechain").Bool()
}

// isCommand reports whether a message of the user is what a command of the agent wrote, not what a person would
// call the session after.
func isCommand(f *fields) bool {
	text := strings.TrimSpace(f.text("message.content", "message.content.0.text"))
	return strings.HasPrefix(text, "<command-") || strings.HasPrefix(text, "<local-command-") || strings.HasPrefix(text, "Caveat: ")
}

// subagentOf returns the session that a sub-agent's file belongs to by its path, or "":
// Claude Code keeps it at SESSION/subagents/agent-ID.jsonl.
func subagentOf(path string) string {
	if dir := filepath.Dir(path); filepath.Base(dir) == "subagents" && strings.HasPrefix(filepath.Base(path), "agent-") {
		return filepath.Base(filepath.Dir(dir))
	}
	return ""
}

// spawned returns the node among those of a parent that called a sub-agent. The result
// of the call names the agent.
func spawned(nodes []turnstone.Node, agent string) graph.ID {
	call := ""
	for i := range nodes {
		if c := callOf(nodes[i].Payload, agent); c != "" {
			call = c
		}
	}
	var found graph.ID
	for i := range nodes {
		if payload := nodes[i].Payload; call != "" && bytes.Contains(payload, []byte(call)) && valid(payload) {
			var e entry
			if e.blocks(parseFields(payload), "message.content"); slices.Contains(e.calls, call) {
				found = nodes[i].ID
			}
		}
	}
	return found
}

// callOf returns the id of the call that started an agent. It returns "" if the payload is not the result
// of that call.
func callOf(payload []byte, agent string) string {
	if !bytes.Contains(payload, []byte(agent)) || !valid(payload) {
		return ""
	}
	var e entry
	f := parseFields(payload)
	e.blocks(f, "message.content")
	if f.text("toolUseResult.agentId") != agent || len(e.results) == 0 {
		return ""
	}
	return e.results[len(e.results)-1]
}
