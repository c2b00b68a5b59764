// An agent that asks and answers until it is killed, and says which questions are answered. It runs the package as it is built.

import { Agent, run, setTracingDisabled } from "@openai/agents";
import { assistantMessage, modelResponder, ScriptedModel } from "@openai/agents/testing";
import { TurnstoneSession } from "../dist/agents.js";
import { Client } from "../dist/index.js";

setTracingDisabled(true);
const session = new TurnstoneSession("chat", await Client.open(process.argv[2], { idle: 2 }));
for (;;) {
	const items = await session.getItems();
	const next = items.filter((i) => i.role === "user").length;
	const model = new ScriptedModel([modelResponder(() => [assistantMessage(`answer ${next}`)])]);
	await run(new Agent({ name: "a", model }), `question ${next}`, { session });
	console.log(next);
}
