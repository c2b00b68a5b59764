// Prints what pi's own reader reads of the session files that are given: a line of JSON for each. It fails if pi does
// not list a file among the sessions of its directory.
import { SessionManager } from "@mariozechner/pi-coding-agent";

for (const path of process.argv.slice(2)) {
	const session = SessionManager.open(path);
	const listed = await SessionManager.list(session.getCwd());
	if (!listed.some((s) => s.path === path)) {
		throw new Error(`${path} is not listed`);
	}
	const messages = session.buildSessionContext().messages;
	console.log(JSON.stringify({ cwd: session.getCwd(), texts: messages.map((m) => `${m.role}: ${text(m.content)}`) }));
}

function text(content) {
	return typeof content === "string" ? content : content.map((c) => c.text).join("");
}
