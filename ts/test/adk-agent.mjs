// A host with an agent of ADK, whose model is a script, on a store: `node adk-agent.mjs STORE TIMES` asks it so many questions, or "forever", and says which are
// answered. It runs the package as it is built.

import { BaseLlm, FunctionTool, LlmAgent, Runner } from "@google/adk";
import { z } from "zod";
import { TurnstoneArtifacts, TurnstoneSessions } from "../dist/adk.js";
import { Client } from "../dist/index.js";

/** Calls the tool for a question, and says how many questions it was shown when it has the tool's answer. */
class Script extends BaseLlm {
	constructor() {
		super({ model: "script" });
	}

	async *generateContentAsync({ contents }) {
		const asked = contents.flatMap((c) => c.parts ?? []).filter((p) => p.text?.startsWith("question"));
		const answered = contents.at(-1)?.parts?.some((p) => p.functionResponse);
		const part = answered ? { text: `answer ${asked.length}` } : { functionCall: { name: "count", args: { of: asked.at(-1).text } } };
		yield { content: { role: "model", parts: [part] }, usageMetadata: { promptTokenCount: 10, candidatesTokenCount: 2 }, modelVersion: "script-1" };
	}

	async connect() {
		throw new Error("it is not live");
	}
}

const count = new FunctionTool({
	name: "count",
	description: "Counts the questions.",
	parameters: z.object({ of: z.string() }),
	execute: async ({ of }, context) => {
		const n = (context.state.get("n") ?? 0) + 1;
		for (const key of ["n", "user:n", "app:n", "temp:n"]) context.state.set(key, n);
		await context.saveArtifact("notes", { text: `${of}\n`.repeat(n) });
		return { n };
	},
});

const db = await Client.open(process.argv[2], { idle: 5 });
const sessionService = new TurnstoneSessions(db);
const agent = new LlmAgent({ name: "helper", model: new Script(), instruction: "Count.", tools: [count] });
const runner = new Runner({ appName: "app", agent, sessionService, artifactService: new TurnstoneArtifacts(db) });
const key = { userId: "u", sessionId: "chat" };
const { events } = await sessionService.getOrCreateSession({ appName: "app", ...key });
const first = events.filter((e) => e.author === "user").length;
for (let n = first; process.argv[3] === "forever" || n < first + Number(process.argv[3]); n++) {
	for await (const _ of runner.runAsync({ ...key, newMessage: { role: "user", parts: [{ text: `question ${n}` }] } }));
	console.log(n);
}
process.exit(0);
