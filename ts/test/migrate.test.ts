import { spawn } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { AIMessage, type BaseMessage, HumanMessage } from "@langchain/core/messages";
import type { RunnableConfig } from "@langchain/core/runnables";
import { Annotation, Command, END, interrupt, MemorySaver, Send, START, StateGraph } from "@langchain/langgraph";
import { type BaseCheckpointSaver, type CheckpointMetadata, emptyCheckpoint } from "@langchain/langgraph-checkpoint";
import { PostgresSaver } from "@langchain/langgraph-checkpoint-postgres";
import { SqliteSaver } from "@langchain/langgraph-checkpoint-sqlite";
import type { Client } from "../src/index.ts";
import { TurnstoneSaver } from "../src/langgraph.ts";
import { langgraph, MigratingSaver } from "../src/migrate.ts";
import { all, newStore, open } from "./helpers.ts";
import { postgresIsInstalled, startPostgres } from "./servers.ts";

vi.setConfig({ testTimeout: 120_000 });

const State = Annotation.Root({
	messages: Annotation<BaseMessage[]>({ reducer: (a, b) => a.concat(b), default: () => [] }),
	done: Annotation<string[]>({ reducer: (a, b) => a.concat(b), default: () => [] }),
	odd: Annotation<unknown>(),
});

/** A graph that asks twice in one node, sends tasks, and has a subgraph with checkpoints of its own. */
function graph(checkpointer: BaseCheckpointSaver) {
	const sub = new StateGraph(State)
		.addNode("inner", () => ({ done: ["inner"] }))
		.addNode("confirm", () => ({ done: [`confirmed ${interrupt("sure?")}`] }))
		.addEdge(START, "inner")
		.addEdge("inner", "confirm")
		.compile({ checkpointer: true });
	return new StateGraph(State)
		.addNode("ask", () => ({ messages: [new AIMessage(`${interrupt("first?")} and ${interrupt({ question: "second?" })}`)] }))
		.addNode("work", (task: { n: number }) => ({ done: [`task ${task.n}`] }))
		.addNode("sub", sub)
		.addEdge(START, "ask")
		.addConditionalEdges("ask", () => [1, 2, 3].map((n) => new Send("work", { n })))
		.addEdge("work", "sub")
		.addEdge("sub", END)
		.compile({ checkpointer });
}

/** Returns numbers that are the same in each run. */
function random(seed: number): (below: number) => number {
	let n = 0;
	return (below) => createHash("sha256").update(`${seed} ${n++}`).digest().readUInt32BE() % below;
}

const at = (thread: string | number, ns?: string) => ({
	configurable: { thread_id: String(thread), ...(ns === undefined ? {} : { checkpoint_ns: ns }) },
});

const odd = [undefined, null, new Map([["k", new Set([1])]]), /x/g, new Uint8Array([255, 0, 7]), { lc: 2, type: "constructor" }, "\u0000é😀", [[]]];

/** Makes threads that were interrupted, went on, or were forked. */
async function fill(saver: BaseCheckpointSaver, threads: number[], seed = 0): Promise<void> {
	for (const i of threads) {
		const r = random(seed * 1000 + i);
		const config = at(`t/${i} é`);
		const g = graph(saver);
		const input = { messages: [new HumanMessage({ content: `hello ${i}`, id: `m${i}` })], odd: odd[r(odd.length)] };
		await g.invoke(input, config);
		for (let n = r(7); n > 0; n--) {
			const history = await all(g.getStateHistory(config));
			const what = r(5);
			if (what === 0) await g.updateState(history[r(history.length)]?.config as RunnableConfig, { done: [`edited ${n}`] }, "work");
			else if (what === 1) await g.invoke(input, config);
			else await g.invoke(new Command({ resume: `answer ${r(100)}` }), config);
		}
	}
}

/** Puts what a database may have: a namespace, a parent that is gone, checkpoints of older versions, and writes of all kinds. */
async function fillOdd(saver: BaseCheckpointSaver): Promise<void> {
	const bytes = saver instanceof MemorySaver ? "none" : new Uint8Array([65, 66]); // It fails to read them.
	const values = { bytes: new Uint8Array([255, 0]), set: new Set([1, 2]), none: null, big: "x".repeat(100_000), constructor: 1 };
	const versions = { ...Object.fromEntries(Object.keys(values).map((k) => [k, 1])), empty: 2 };
	for (const [id, parent, v] of [
		["1f0-1", undefined, 4],
		["1f0-2", "1f0-0", 4],
		["1f0-3", "1f0-1", 3],
		["1f0-4", "1f0-3", 3],
	] as const) {
		const changed = { ...values, ...(v === 3 ? { big: `y ${id}` } : {}) };
		const c = { ...emptyCheckpoint(), v, id, channel_values: changed, channel_versions: { ...versions, big: v }, pending_sends: [] };
		const onto = { configurable: { thread_id: "odd", checkpoint_ns: "sub:1|x", ...(parent ? { checkpoint_id: parent } : {}) } };
		const metadata = { source: "loop", step: 1, parents: { "": "1f" }, own: { text: "é", n: 1.5 } } as CheckpointMetadata;
		const config = await saver.put(onto, c, metadata, c.channel_versions);
		const writes = (task: string, ...some: [string, unknown][]) => saver.putWrites(config, some, task);
		await writes("task-1", ["a", bytes], ["b", { k: [1, undefined] }], ["a", "again"]);
		await writes("task-2", ["c", null], ["__error__", "failed"]);
		await writes("task-0", ["__pregel_tasks", { node: "n", args: 1 }], ["__pregel_tasks", { node: "m", args: id }]);
		await writes("task-0", ["__interrupt__", [{ value: "?" }]]);
		await writes("task-0", ["__resume__", [1, 2]]);
	}
}

/** Returns all that a saver has, by its own calls. */
async function held(saver: BaseCheckpointSaver): Promise<unknown[]> {
	const text = async (value: unknown) => {
		const [kind, bytes] = await saver.serde.dumpsTyped(value);
		return `${kind} ${Buffer.from(bytes).toString("latin1")}`;
	};
	const out: [string, ...unknown[]][] = [];
	for (const { config, checkpoint: c, metadata, parentConfig, pendingWrites = [] } of await all(saver.list({ configurable: {} }))) {
		const { thread_id, checkpoint_ns } = config.configurable ?? {};
		const values: [string, string][] = [];
		for (const [k, v] of Object.entries(c.channel_values)) if (Object.hasOwn(c.channel_versions, k)) values.push([k, await text(v)]);
		const writes: string[] = [];
		for (const [task, channel, value] of pendingWrites) writes.push(`${task} ${channel} ${await text(value)}`);
		const { v, ts, channel_versions, versions_seen } = c;
		const parent = parentConfig?.configurable?.checkpoint_id;
		out.push([`${thread_id} ${checkpoint_ns} ${c.id}`, v, ts, values.sort(), channel_versions, versions_seen, metadata, parent, writes.sort()]);
	}
	return out.sort(([a], [b]) => (a < b ? -1 : 1));
}

/** Returns a saver of LangGraph's for a file. */
function sqlite(): { saver: SqliteSaver; path: string } {
	const path = `${newStore()}.db`;
	const saver = SqliteSaver.fromConnString(path);
	onTestFinished(() => void (saver as unknown as { db: { close(): void } }).db.close());
	return { saver, path };
}

/** Runs the command, until an optional promise is kept. */
async function migrate(args: string[], until?: Promise<unknown>): Promise<{ code: number | null; out: string; errors: string }> {
	const child = spawn(process.execPath, [join(import.meta.dirname, "../dist/migrate-cli.js"), "langgraph", ...args]);
	let [out, errors] = ["", ""];
	child.stdout.on("data", (d) => {
		out += d;
	});
	child.stderr.on("data", (d) => {
		errors += d;
	});
	void until?.then(() => child.kill("SIGKILL"));
	const code = await new Promise<number | null>((done) => child.on("close", done));
	return { code, out, errors };
}

/** Makes a migration of random threads again and again while the source grows, and goes on in both. */
async function migrates(source: BaseCheckpointSaver, client: Client): Promise<void> {
	const threads = Array.from({ length: 8 }, (_, i) => i);
	await fill(source, threads);
	await fillOdd(source);
	const target = new TurnstoneSaver(client);
	const planned = await langgraph(source, client, { dryRun: true });
	expect(await held(target)).toEqual([]);
	let told = 0;
	const report = await langgraph(source, client, { progress: ({ found }) => (told = found) });
	expect(report).toEqual({ ...planned, unchanged: 0, different: [] });
	const before = await held(source);
	expect([report.brought, told]).toEqual([before.length, report.found]);
	expect(await held(target)).toEqual(before);
	expect(before.filter((h) => / é sub/.test(String(h))).length).toBeGreaterThan(4);
	expect(await langgraph(source, client)).toMatchObject({ found: report.found, unchanged: report.found, brought: 0 });
	await graph(source).invoke(new Command({ resume: "later" }), at("t/3 é"));
	await fill(source, [8, 9]);
	const more = await langgraph(source, client);
	expect(more.different).toEqual([]);
	expect(more.unchanged).toBeGreaterThanOrEqual(report.found - 2);
	expect(await held(target)).toEqual(await held(source));
	for (const i of [...threads, 8, 9]) {
		// Hosts go on alike.
		const results = [];
		for (const saver of [source, target]) {
			const { __interrupt__: asked, ...values } = (await graph(saver).invoke(new Command({ resume: "the same" }), at(`t/${i} é`))) as {
				__interrupt__?: { value: unknown }[];
			};
			results.push(JSON.stringify([asked?.map((a) => a.value), values]));
		}
		expect(results[0]).toBe(results[1]);
	}
}

test("a migration has what a SqliteSaver has, and hosts go on alike", async () => migrates(sqlite().saver, await open()));

test("a migration has what a MemorySaver has, and hosts go on alike", async () => migrates(new MemorySaver(), await open()));

describe.runIf(postgresIsInstalled)("PostgreSQL", () => {
	let server: ReturnType<typeof startPostgres>;
	beforeAll(() => {
		server = startPostgres();
	});
	afterAll(() => server?.stop());

	test("a migration has what a PostgresSaver has, and hosts go on alike", async () => {
		const source = PostgresSaver.fromConnString(server.url, { schema: "Own" });
		onTestFinished(() => source.end());
		await source.setup();
		const client = await open();
		await source.put(at("", ""), emptyCheckpoint(), { source: "input", step: -1, parents: {} }, {});
		await fill(source, [0]);
		const { different, brought } = await langgraph(source, client);
		expect(different).toEqual([expect.stringMatching(/thread "", namespace "": .* has an empty name/)]);
		expect(brought).toBe((await held(source)).length - 1);
		await source.deleteThread("");
		await new TurnstoneSaver(client).deleteThread("t/0 é");
		await migrates(source, client);
	});

	test("the command brings the threads of a database", async () => {
		const source = PostgresSaver.fromConnString(server.url);
		onTestFinished(() => source.end());
		await source.setup();
		await fill(source, [0, 1]);
		const store = newStore();
		const db = await open(store);
		expect(await migrate([server.url, "--store", store])).toMatchObject({ code: 0, errors: "" });
		expect(await held(new TurnstoneSaver(db))).toEqual(await held(source));
		expect((await migrate([server.url, "--store", store])).out).toMatch(/(\d+) found, \1 unchanged, 0 checkpoints brought/);
	});
});

test("a migration that is killed goes on, and the source is only read", async () => {
	const { saver: source, path } = sqlite();
	await fill(source, [0, 1]);
	await fillOdd(source);
	for (let i = 0; i < 40; i++) {
		let config: RunnableConfig = at(`many ${i}`, "");
		for (let step = 0; step < 10; step++) {
			const c = { ...emptyCheckpoint(), id: `${step}`, channel_values: { a: step }, channel_versions: { a: step } };
			config = await source.put(config, c, { source: "loop", step, parents: {} });
			await source.putWrites(config, [["a", step + 1]], "task");
		}
	}
	const bytes = () => readFileSync(path);
	(source as unknown as { db: { pragma(text: string): void } }).db.pragma("wal_checkpoint(TRUNCATE)");
	const before = bytes();
	const store = newStore();
	const db = await open(store);
	const size = async () => (await db.list({ limit: 1000 })).sessions.length;
	const r = random(7);
	let killed = 0;
	for (let n = 0; n < 6; n++) {
		const enough = (await size()) + 1 + r(3); // of 40
		const stop = new AbortController();
		const until = new Promise<void>((done) => {
			const look = async () => ((await size()) >= enough ? done() : stop.signal.aborted || setTimeout(look, 5));
			void look();
		});
		if ((await migrate([`sqlite:${path}`, "--store", store], until)).code === null) killed++;
		stop.abort();
	}
	expect(killed).toBeGreaterThan(3);
	expect((await size()) < 40).toBe(true);
	expect(await migrate([`sqlite:${path}`, "--store", store])).toMatchObject({ code: 0, errors: "" });
	expect(await held(new TurnstoneSaver(db))).toEqual(await held(source));
	expect(bytes().equals(before)).toBe(true);
});

test.each([() => sqlite().saver, () => new MemorySaver()])("writes that are added and replaced are brought", async (made) => {
	const source: BaseCheckpointSaver = made();
	const client = await open();
	const config = await source.put(at("t", ""), emptyCheckpoint(), { source: "input", step: -1, parents: {} }, {});
	const some: [string, unknown][] = [
		["a", 1],
		["__interrupt__", "first"],
		["__interrupt__", "other"],
		["__resume__", 2],
		["__error__", "x"],
	];
	for (const write of some) {
		await source.putWrites(config, [write], "task");
		expect(await langgraph(source, client)).toEqual({ found: 1, unchanged: 0, brought: write[0] === "a" ? 1 : 0, different: [] });
		expect(await held(new TurnstoneSaver(client))).toEqual(await held(source));
	}
	expect((await langgraph(source, client)).unchanged).toBe(1);
});

test("what is there already and differs is named and left alone", async () => {
	const { saver: source, path } = sqlite();
	await fill(source, [1]);
	await fillOdd(source);
	const store = newStore();
	const client = await open(store);
	await new TurnstoneSaver(client).put(at("odd", "sub:1|x"), { ...emptyCheckpoint(), id: "1f0-3" }, { source: "fork", step: 0, parents: {} }, {});
	const [before] = await held(new TurnstoneSaver(client));
	const { code, out, errors } = await migrate([`sqlite:///${path}`, "--store", store]);
	expect([code, errors]).toEqual([1, 'thread "odd", namespace "sub:1|x": checkpoint 1f0-3 is another one\n']);
	expect(out).toMatch(/found, 0 unchanged/);
	expect((await held(new TurnstoneSaver(client))).filter((h) => String(h).startsWith("odd"))).toEqual([before]);
	expect((await migrate([`sqlite:${path}`, "--store", store, "--dry-run"])).out).toMatch(/1 unchanged|2 unchanged/);
	await expect(new MigratingSaver(client, source).getTuple(at("odd", "sub:1|x"))).rejects.toThrow("is another one");
	// A write that only the store has.
	const [latest] = await all(source.list(at("t/1 é", "")));
	await new TurnstoneSaver(client).putWrites(latest?.config as RunnableConfig, [["done", ["ours"]]], "other task");
	expect((await langgraph(source, client)).different).toHaveLength(1); // of before
	await graph(source).invoke(new Command({ resume: "since" }), at("t/1 é"));
	const { different } = await langgraph(source, client);
	expect(different).toEqual(expect.arrayContaining([`thread "t/1 é", namespace "": checkpoint ${latest?.checkpoint.id} is another one`]));
});

test("the command says how it is used, and makes no database", async () => {
	const missing = `${newStore()}.db`;
	for (const args of [[], ["x", "y"], ["sqlite:x", "--else"]]) expect((await migrate(args)).code).toBe(2);
	const { code, errors } = await migrate([`sqlite:${missing}`, "--store", newStore()]);
	expect([code, existsSync(missing)]).toEqual([2, false]);
	expect(errors).toContain("unable to open database");
	const none = newStore();
	const source = sqlite();
	await fill(source.saver, [0]);
	const dry = await migrate([`sqlite:${source.path}`, "--store", none, "--dry-run"]);
	expect([dry.code, existsSync(none)]).toEqual([0, false]);
	mkdirSync(none);
	await migrate([`sqlite:${source.path}`, "--store", none, "--dry-run"]);
	expect(readdirSync(none)).toEqual([]);
	expect(dry.out).toMatch(/^\d found, 0 unchanged, \d+ checkpoints to bring\n$/);
});

const threadsOf = async (saver: BaseCheckpointSaver) => {
	const found = await all(saver.list({ configurable: {} }));
	return [...new Set(found.map((t) => t.config.configurable?.thread_id))].sort();
};

test("a host goes over without a pause", async () => {
	const { saver: old } = sqlite();
	const client = await open();
	await fill(old, [0, 1, 2, 3, 4, 5]);
	const before = await held(old);
	const names = await threadsOf(old);
	const saver = new MigratingSaver(client, old);
	const config = at("t/1 é");
	const length = async (s: BaseCheckpointSaver) => (await all(s.list(config))).length;
	for (let i = 0; i < 3; i++) await graph(saver).invoke(new Command({ resume: "new" }), config);
	expect(await length(saver)).toBeGreaterThan(await length(old));
	expect(await threadsOf(new TurnstoneSaver(client))).toEqual(["t/1 é"]);
	const other = new MigratingSaver(client, old); // another process
	expect(await other.getTuple(config)).toEqual(await saver.getTuple(config));
	const writes = await all(old.list(at("t/4 é", ""), { limit: 1 }));
	await new MigratingSaver(client, old).putWrites(writes[0]?.config as RunnableConfig, [["done", ["by hand"]]], "own task");
	expect((await all(new TurnstoneSaver(client).list(at("t/4 é", "")))).length).toBe((await all(old.list(at("t/4 é", "")))).length);
	await saver.deleteThread("t/2 é");
	await saver.getTuple(at("t/3 é"));
	await other.deleteThread("t/3 é");
	for (const s of [saver, other, new MigratingSaver(client, old)])
		for (const t of ["t/2 é", "t/3 é"]) expect(await s.getTuple(at(t))).toBeUndefined();
	await graph(other).invoke({ done: ["made again"] }, at("t/3 é"));
	const again = (await all(saver.list(at("t/3 é")))).length;
	await langgraph(old, client);
	expect((await all(saver.list(at("t/3 é")))).length).toBe(again);
	expect(await threadsOf(new TurnstoneSaver(client))).toEqual(names.filter((n) => n !== "t/2 é"));
	expect((await langgraph(old, client)).different).toEqual([]);
	expect(await threadsOf(new MigratingSaver(client, old))).toEqual(names.filter((n) => n !== "t/2 é"));
	expect(await length(new TurnstoneSaver(client))).toBe(await length(saver));
	expect(await held(old)).toEqual(before); // Nobody writes to the old one.
});

test("a list of all threads brings them", async () => {
	const { saver: old } = sqlite();
	await fill(old, [0, 1, 2]);
	expect(await held(new MigratingSaver(await open(), old))).toEqual(await held(old));
});

test("a host that goes over has what came since the migration", async () => {
	const { saver: old } = sqlite();
	const client = await open();
	await fill(old, [0, 1]);
	await langgraph(old, client);
	await graph(old).invoke(new Command({ resume: "since" }), at("t/1 é"));
	expect((await new MigratingSaver(client, old).getTuple(at("t/1 é")))?.checkpoint.id).toBe((await old.getTuple(at("t/1 é")))?.checkpoint.id);
	await langgraph(old, client);
	expect(await held(new TurnstoneSaver(client))).toEqual(await held(old));
});

test("threads with names of any content and length are deleted one by one, also those that nobody uses", async () => {
	const { saver: old } = sqlite();
	const client = await open();
	const names = [..."ab"].map((end) => `it's (!*) ${"é".repeat(100)}${end}`);
	const put = (thread: string) => old.put(at(thread, ""), emptyCheckpoint(), { source: "input", step: -1, parents: {} });
	for (const name of [...names, "idle"]) await put(name);
	const saver = new MigratingSaver(client, old);
	await saver.deleteThread(names[0] as string);
	const left = async () => Promise.all([...names, "idle"].map(async (n) => Boolean(await new MigratingSaver(client, old).getTuple(at(n)))));
	expect(await left()).toEqual([false, true, true]);
	const key = (await client.records("gone/")).records.map((r) => [r.session, r.key.slice(0, 30)]);
	expect(key).toEqual([["langgraph.js-migration", "gone/it%27s%20%28%21%2A%29%20%C3%"]].map(([s, k]) => [s, k?.slice(0, 30)]));
	await new Promise((done) => setTimeout(done, 2100));
	await saver.getTuple(at(names[1] as string));
	await new TurnstoneSaver(client).putWrites({ configurable: { ...at(names[1] as string, "").configurable, checkpoint_id: "x" } }, [["a", 1]], "t");
	expect(await saver.deleteIdle(2)).toEqual(["idle"]);
	expect(await left()).toEqual([false, true, false]);
});

test("a thread that is used in the old store, or of which a part is used here, is not idle", async () => {
	const { saver: old } = sqlite();
	const client = await open();
	await fill(old, [0, 1, 2]);
	await langgraph(old, client);
	const saver = new MigratingSaver(client, old);
	await saver.put(at("t/2 é", "sub"), emptyCheckpoint(), { source: "input", step: -1, parents: {} }, {});
	await new Promise((done) => setTimeout(done, 3100));
	await graph(old).invoke(new Command({ resume: "just now" }), at("t/0 é")); // by a host that has not come over yet
	const { prune } = client;
	client.prune = async (o) => {
		if (o?.group?.includes("t%2F2")) await saver.put(at("t/2 é", "sub"), emptyCheckpoint(), { source: "input", step: -1, parents: {} }, {});
		return prune.call(client, o);
	};
	expect(await saver.deleteIdle(2)).toEqual(["t/1 é"]);
	client.prune = prune;
	const next = new MigratingSaver(client, old);
	expect((await next.getTuple(at("t/0 é")))?.checkpoint.id).toBe((await old.getTuple(at("t/0 é")))?.checkpoint.id);
	expect(await next.getTuple(at("t/1 é"))).toBeUndefined();
	expect((await client.records("gone/")).records.map((r) => r.key)).toEqual(["gone/t%2F1%20%C3%A9"]);
	await next.deleteThread("t/2 é");
	expect(await all(new MigratingSaver(client, old).list(at("t/2 é")))).toEqual([]);
	// Of a thread that can't be brought nobody knows whether it is idle, also if its migration was cut off before it was noted.
	const [note] = (await client.records("migrated")).records.filter((r) => r.session.endsWith("t%2F0%20%C3%A9/"));
	await (await client.session(note?.session ?? "")).changeRecords([{ key: "migrated", action: "delete" }]);
	const last = await old.getTuple(at("t/0 é", ""));
	if (last) await old.put(at("t/0 é", ""), last.checkpoint, { source: "update", step: 99, parents: {} });
	await new Promise((done) => setTimeout(done, 2100));
	expect(await new MigratingSaver(client, old).deleteIdle(1)).toEqual([]);
	expect(await new TurnstoneSaver(client).getTuple(at("t/0 é"))).toBeDefined();
});

test("a thread that is used while idle ones are deleted is all there, and none is half brought", async () => {
	const { saver: old } = sqlite();
	const client = await open();
	await fill(old, [0, 1]);
	await langgraph(old, client);
	const host = new MigratingSaver(client, old);
	await host.getTuple(at("t/0 é"));
	await new Promise((done) => setTimeout(done, 2100));
	const { prune, session } = client;
	client.prune = async (o) => {
		if (o?.group?.includes("t%2F0")) {
			await host.put(at("t/0 é", "new"), emptyCheckpoint(), { source: "input", step: -1, parents: {} }, {});
			expect((await client.records("gone/t%2F0")).records).toEqual([]);
		}
		return prune.call(client, o);
	};
	expect(await new MigratingSaver(client, old).deleteIdle(2)).toEqual(["t/1 é"]);
	client.prune = prune;
	// What was pruned while somebody brought it is brought again.
	let pruned = false;
	client.session = async (id) => {
		if (!pruned) await client.delete(id, "keep");
		pruned = true;
		return session.call(client, id);
	};
	await langgraph(old, client);
	client.session = session;
	expect(pruned).toBe(true);
	for (const ns of ["", "sub"]) {
		const want = await old.getTuple(at("t/0 é", ns));
		expect((await new MigratingSaver(client, old).getTuple(at("t/0 é", ns)))?.checkpoint.id).toBe(want?.checkpoint.id);
	}
	expect(await new MigratingSaver(client, old).getTuple(at("t/0 é", "new"))).toBeDefined();
	expect(await new MigratingSaver(client, old).getTuple(at("t/1 é"))).toBeUndefined();
});

test("a migration ends when a thread is deleted meanwhile of which a checkpoint sorts before its parent", async () => {
	const old = new MemorySaver();
	const put = (id: string, parent?: string) =>
		old.put(
			{ configurable: { ...at("t", "").configurable, checkpoint_id: parent } },
			{ ...emptyCheckpoint(), id },
			{ source: "loop", step: 1, parents: {} },
		);
	await put("5");
	await put("3", "5"); // by a host whose clock is behind
	const client = await open();
	const { put: really } = TurnstoneSaver.prototype;
	let puts = 0;
	const spy = vi.spyOn(TurnstoneSaver.prototype, "put").mockImplementation(async function (this: TurnstoneSaver, ...args) {
		if (++puts > 10) throw new Error("the migration does not end");
		const config = await really.apply(this, args);
		if (puts === 2) await client.delete("langgraph.js/t/", "keep");
		return config;
	});
	expect(await langgraph(old, client)).toMatchObject({ found: 1, brought: 2, different: [] });
	spy.mockRestore();
	expect((await all(new TurnstoneSaver(client).list(at("t", "")))).map((t) => t.checkpoint.id)).toEqual(["5", "3"]);
});

test("a thread that a host makes anew during a migration stays, however many checkpoints it has", async () => {
	const { saver: old } = sqlite();
	const client = await open();
	const put = (s: BaseCheckpointSaver) => s.put(at("t", ""), emptyCheckpoint(), { source: "input", step: -1, parents: {} }, {});
	await put(old);
	const { session } = client;
	const host = new MigratingSaver(client, old);
	client.session = async (id) => {
		client.session = session; // The migration has brought all, and looks what is there.
		await host.deleteThread("t");
		await put(host);
		return session.call(client, id);
	};
	expect((await langgraph(old, client)).different).toEqual([]);
	expect(client.session).toBe(session);
	expect(await all(host.list(at("t", "")))).toHaveLength(1);
});

test("a saver that has made no tables yet has nothing to bring", async () => {
	const saver = new MigratingSaver(await open(), SqliteSaver.fromConnString(":memory:"));
	expect(await saver.getTuple(at("t"))).toBeUndefined();
	expect(await all(saver.list({}))).toEqual([]);
});

test("a host that brings a thread while a migration does so goes on", async () => {
	const { saver: old } = sqlite();
	const client = await open();
	await fill(old, [0]);
	let meanwhile: (() => Promise<unknown>) | undefined;
	/** The source, as a migration reads it: somebody does something in between. */
	class Slow extends SqliteSaver {
		override async *list(...args: Parameters<SqliteSaver["list"]>) {
			yield* super.list(...args);
			const f = meanwhile;
			meanwhile = undefined;
			await f?.();
		}
	}
	const slow = new Slow((old as unknown as { db: ConstructorParameters<typeof SqliteSaver>[0] }).db);
	const config = at("t/0 é");
	meanwhile = async () => graph(new MigratingSaver(client, old)).invoke(new Command({ resume: "by the host" }), config);
	expect((await langgraph(slow, client)).different).toEqual([]);
	expect(meanwhile).toBeUndefined();
	const next = new MigratingSaver(client, old); // which must not bring it again
	await graph(next).invoke(new Command({ resume: "more" }), config);
	expect((await client.records("migrated")).records.map((r) => r.value.toString())).toContain("brought");

	await fill(old, [5]);
	meanwhile = () => new MigratingSaver(client, old).getTuple(at("t/5 é"));
	await langgraph(slow, client);
	for (const { session, value } of (await client.records("migrated")).records) expect([session, value.toString()]).toEqual([session, "brought"]);
	await fill(old, [1]);
	meanwhile = async () => {
		const host = new MigratingSaver(client, old);
		await host.getTuple(at("t/1 é"));
		await host.deleteThread("t/1 é");
	};
	await langgraph(slow, client);
	expect(await threadsOf(new TurnstoneSaver(client))).toEqual(["t/0 é", "t/5 é"]);
	// The source deletes a thread while it is read.
	await fill(old, [3]);
	meanwhile = () => old.deleteThread("t/4 é");
	await fill(old, [4]);
	expect((await langgraph(slow, client)).different).toEqual([]);
	// A call that fails is made again, and all savers bring at once.
	await fill(old, [2]);
	meanwhile = () => Promise.reject(new Error("the database is away"));
	const tries = new MigratingSaver(client, slow);
	await expect(tries.getTuple(at("t/2 é"))).rejects.toThrow("is away");
	expect((await tries.getTuple(at("t/2 é")))?.checkpoint).toEqual((await old.getTuple(at("t/2 é")))?.checkpoint);
	await new TurnstoneSaver(client).deleteThread("t/2 é");
	await Promise.all(Array.from({ length: 6 }, () => new MigratingSaver(client, old).getTuple(at("t/2 é"))));
	expect((await all(new TurnstoneSaver(client).list(at("t/2 é")))).length).toBe((await all(old.list(at("t/2 é")))).length);
});
