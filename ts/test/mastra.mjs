// A host of Mastra, `node mastra.mjs WORK STORE`. It runs the package as it is built.

import { Mastra } from "@mastra/core";
import { createStep, createWorkflow } from "@mastra/core/workflows";
import { z } from "zod";
import { Client } from "../dist/index.js";
import { TurnstoneStore } from "../dist/mastra.js";

/** A workflow that asks whether to ship, and goes on with the answer. */
export function shipping() {
	const text = z.object({ text: z.string() });
	const pack = createStep({
		id: "pack",
		inputSchema: text,
		outputSchema: text,
		execute: async ({ inputData }) => ({ text: `${inputData.text}, packed` }),
	});
	const ask = createStep({
		id: "ask",
		inputSchema: text,
		outputSchema: text,
		resumeSchema: z.object({ by: z.string() }),
		execute: async ({ inputData, resumeData, suspend }) => (resumeData ? { text: `${inputData.text}, shipped by ${resumeData.by}` } : suspend({})),
	});
	return createWorkflow({ id: "shipping", inputSchema: text, outputSchema: text }).then(pack).then(ask).commit();
}

const works = {
	/** Saves messages until it is killed, and says which are saved. */
	async save(memory) {
		const { total } = await memory.listMessages({ threadId: "t", perPage: 1 });
		for (let n = total / 2; ; n++) {
			const message = (role, i) => ({
				id: `${n}${role}`,
				threadId: "t",
				resourceId: "r",
				role,
				createdAt: new Date(2 * n + i),
				content: { format: 2, parts: [] },
			});
			await memory.saveMessages({ messages: [message("user", 0), message("assistant", 1)] });
			console.log(n);
		}
	},
	/** Begins a run, which is suspended, and says its id. */
	async start(_, storage) {
		const mastra = new Mastra({ storage, workflows: { shipping: shipping() }, logger: false });
		const run = await mastra.getWorkflow("shipping").createRun();
		const { status } = await run.start({ inputData: { text: "a box" } });
		console.log(`${run.runId} ${status}`);
		await new Promise(() => setInterval(() => {}, 1000));
	},
};

const [work, store] = process.argv.slice(2);
if (work in works) {
	const storage = new TurnstoneStore({ client: await Client.open(store, { idle: 5 }) });
	await works[work](storage.stores.memory, storage);
}
