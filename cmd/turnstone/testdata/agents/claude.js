// Prints what Claude Code's own reader reads of the sessions with the ids that are given: a line of JSON for each.
import { getSessionInfo, getSessionMessages } from "@anthropic-ai/claude-agent-sdk";

for (const id of process.argv.slice(2)) {
	const info = await getSessionInfo(id);
	const messages = await getSessionMessages(id);
	console.log(JSON.stringify({ cwd: info?.cwd, texts: messages.map((m) => `${m.type}: ${text(m.message.content)}`) }));
}

function text(content) {
	return typeof content === "string" ? content : content.map((c) => c.text).join("");
}
