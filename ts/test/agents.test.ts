import { spawn } from "node:child_process";
import { join } from "node:path";
import { Agent, type AgentInputItem, run, setTracingDisabled, tool, user } from "@openai/agents";
import { assistantMessage, functionCall, ScriptedModel } from "@openai/agents/testing";
import { z } from "zod";
import { TurnstoneSession } from "../src/agents.ts";
import { children } from "../src/server.ts";
import { all, newStore, open } from "./helpers.ts";

setTracingDisabled(true);

const call = (callId: string, args = "{}"): AgentInputItem => ({ type: "function_call", name: "f", callId, arguments: args, status: "completed" });
const texts = (items: AgentInputItem[]) =>
	items.map((i) => {
		const content = "content" in i ? i.content : i.type;
		return Array.isArray(content) ? (content[0] as { text: string }).text : content;
	});

test("items are added, popped and cleared", async () => {
	const db = await open();
	const [s, other] = [new TurnstoneSession("a/b", db, { group: "g" }), new TurnstoneSession("a/b", db)];
	expect([await s.getSessionId(), await s.getItems(), await s.popItem()]).toEqual(["a/b", [], undefined]);
	await s.clearSession();
	expect((await db.list()).sessions).toEqual([]); // Reading makes no session.
	await s.addItems([]);
	await s.addItems(["0", "1", "2", "3", "4"].map((t) => user(t)));
	expect((await db.list({ group: "g" })).sessions.map((i) => i.id)).toEqual(["a/b"]);
	expect(await other.getItems(2)).toEqual([user("3"), user("4")]);
	expect(await other.getItems(0)).toEqual([]);
	const handle = await db.session("a/b");
	const before = (await handle.load()).nodes;
	const popped = await Promise.all([s, other, s].map((x) => x.popItem()));
	const gone = await Promise.allSettled(before.map((n) => handle.node({ id: n.id })));
	expect(gone.map((r) => (r.status === "rejected" ? r.reason.kind : ""))).toEqual(["", "", ...Array(3).fill("node-not-found")]);
	expect(texts(popped as AgentInputItem[]).sort()).toEqual(["2", "3", "4"]);
	await s.addItems([call("1")]);
	expect(await other.getItems()).toEqual([user("0"), user("1"), call("1")]);
	await s.clearSession();
	expect(await other.getItems()).toEqual([]);
	await other.addItems([user("new")]);
	expect(await s.getItems()).toEqual([user("new")]);
	await s.clearSession();
	await other.addItems([user("again")]); // to a session that another handle has deleted
	expect(await s.getItems()).toEqual([user("again")]);
	await s.clearSession();
	await other.addItems([user("1"), user("2")]);
	expect((await Promise.all([s.getItems(), s.getItems()])).map((i) => i.length)).toEqual([2, 2]); // both find that it is another session
});

test("items keep all that they have, and what JSON would lose is refused", async () => {
	const s = new TurnstoneSession("s", await open());
	const bytes = new Uint8Array([0, 255, 1]);
	const item = {
		type: "function_call_result",
		name: "f",
		callId: "1",
		status: "completed",
		output: { type: "file", file: { data: bytes, mediaType: "a/b" } },
		half: "\ud83d",
	};
	await s.addItems([item as unknown as AgentInputItem]);
	expect(await s.getItems()).toEqual([item]);
	for (const bad of [
		() => 1,
		Number.NaN,
		new Map(),
		[undefined],
		{ $bytes: "" },
		new Date(),
		/x/,
		new Error("x"),
		new Float32Array(1),
		new URL("http://h"),
	]) {
		await expect(s.addItems([{ ...user("x"), providerData: { bad } } as AgentInputItem]), String(bad)).rejects.toThrow(TypeError);
	}
	expect(await s.getItems()).toHaveLength(1);
});

test("a transaction is applied once, whole or not at all", async () => {
	const db = await open();
	const [s, other] = [new TurnstoneSession("s", db), new TurnstoneSession("s", db)];
	const append = { operationId: "1", transaction: { type: "append_items" as const, items: ["a", "b", "c"].map((t) => user(t)) } };
	await Promise.all([s, other, s].map((x) => x.applyHistoryTransaction(append)));
	expect(texts(await s.getItems())).toEqual(["a", "b", "c"]);
	const inAnotherOrder = append.transaction.items.map((i) => Object.fromEntries(Object.entries(i).reverse()) as AgentInputItem);
	await s.applyHistoryTransaction({ operationId: "1", transaction: { items: inAnotherOrder, type: "append_items" } });
	await expect(s.applyHistoryTransaction({ operationId: "1", transaction: { type: "append_items", items: [] } })).rejects.toThrow("another change");
	const replace = {
		operationId: "2",
		transaction: { type: "replace_suffix" as const, expectedSuffix: [user("b"), user("c")], replacement: [user("d")] },
	};
	for (let i = 0; i < 2; i++) await s.applyHistoryTransaction(replace);
	expect(texts(await other.getItems())).toEqual(["a", "d"]);
	await expect(s.applyHistoryTransaction({ ...replace, operationId: "3" })).rejects.toThrow("does not end with");
	await s.applyHistoryTransaction({ operationId: "4", transaction: { type: "replace_suffix", expectedSuffix: [user("d")], replacement: [] } });
	await s.applyHistoryTransaction({ operationId: "5", transaction: { type: "replace_suffix", expectedSuffix: [user("a")], replacement: [] } });
	expect(await s.getItems()).toEqual([]);
	await s.applyHistoryTransaction({ operationId: "6", transaction: { type: "replace_suffix", expectedSuffix: [], replacement: [user("e")] } });
	expect(texts(await s.getItems())).toEqual(["e"]);
	await expect(s.applyHistoryTransaction({ operationId: " ", transaction: append.transaction })).rejects.toThrow(TypeError);
	await expect(s.applyHistoryTransaction({ operationId: "7", transaction: { type: "?" } as never })).rejects.toThrow(TypeError);
	// What was replaced can't be read any more.
	const left = await all((await db.session("s")).nodes({ full: true }));
	expect(texts(left.map((n) => JSON.parse(n.payload.toString())))).toEqual(["e"]);
});

test("calls are replaced in the middle, and a history by its compaction", async () => {
	const db = await open();
	const s = new TurnstoneSession("s", db);
	await s.addItems([user("a"), call("1"), user("b"), call("1"), call("2")]);
	const replacement = call("1", '{"x":1}') as Extract<AgentInputItem, { type: "function_call" }>;
	for (let i = 0; i < 2; i++) await s.applyHistoryMutations({ mutations: [{ type: "replace_function_call", callId: "1", replacement }] });
	await s.applyHistoryMutations({ mutations: [] });
	expect(await s.getItems()).toEqual([user("a"), replacement, user("b"), call("2")]);
	const session = await db.session("s");
	expect((await session.info()).revision).toBe(2);
	const compaction = { type: "compaction", encrypted_content: "…" } as unknown as AgentInputItem;
	await s.replaceHistoryWithCompaction([compaction, call("2")]);
	await s.addItems([user("c")]);
	expect(await s.getItems()).toEqual([compaction, call("2"), user("c")]);
	expect((await session.load({ at: 2 })).nodes).toHaveLength(4);
});

test("the runner goes on in another process of the store, after the server was killed", async () => {
	const store = newStore();
	const weather = tool({
		name: "weather",
		description: "",
		parameters: z.object({ city: z.string() }),
		execute: async ({ city }) => `sunny in ${city}`,
	});
	const turn = async (model: ScriptedModel, text: string) => {
		const db = await open(store, { idle: 5 });
		const { finalOutput } = await run(new Agent({ name: "a", model, tools: [weather] }), text, { session: new TurnstoneSession("user-1", db) });
		db.close();
		return finalOutput;
	};
	const first = new ScriptedModel([[functionCall("weather", { city: "Oslo" }, { callId: "c1" })], [assistantMessage("It is sunny.")]]);
	expect(await turn(first, "Weather?")).toBe("It is sunny.");
	process.kill(children.at(-1) as number, "SIGKILL");
	const second = new ScriptedModel([[assistantMessage("You asked for the weather.")]]);
	expect(await turn(second, "What did I ask?")).toBe("You asked for the weather.");
	const input = second.calls[0]?.request.input as AgentInputItem[];
	expect(input.map((i) => ("role" in i ? i.role : i.type))).toEqual(["user", "function_call", "function_call_result", "assistant", "user"]);
});

test("an agent that is killed has all turns that it was told of, and goes on", async () => {
	const store = newStore();
	const told: number[] = [];
	for (let i = 0; i < 3; i++) {
		const agent = spawn(process.execPath, [join(import.meta.dirname, "agent.mjs"), store], { stdio: ["ignore", "pipe", "inherit"] });
		for await (const line of agent.stdout) {
			told.push(...line.toString().trim().split("\n").map(Number));
			if (told.length >= 4 * (i + 1)) agent.kill("SIGKILL");
		}
	}
	const s = new TurnstoneSession("chat", await open(store));
	const items = texts(await s.getItems());
	const questions = items.flatMap((t) => /^question (\d+)$/.exec(String(t))?.[1] ?? []).map(Number);
	expect(questions.slice(0, told.length)).toEqual(told);
	expect(questions.length - told.length).toBeLessThanOrEqual(3); // turns that were stored when nobody was told any more
	const model = new ScriptedModel([[assistantMessage("the end")]]);
	await run(new Agent({ name: "a", model }), "end", { session: s });
	expect(await s.getItems()).toHaveLength(items.length + 2);
}, 60_000);
