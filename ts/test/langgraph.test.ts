import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import type { RunnableConfig } from "@langchain/core/runnables";
import { Annotation, Command, END, interrupt, START, StateGraph } from "@langchain/langgraph";
import {
	BaseCheckpointSaver,
	type ChannelVersions,
	type Checkpoint,
	type CheckpointMetadata,
	emptyCheckpoint,
} from "@langchain/langgraph-checkpoint";
import { Session } from "../src/client.ts";
import { NotFoundError } from "../src/errors.ts";
import { TurnstoneSaver } from "../src/langgraph.ts";
import { children } from "../src/server.ts";
import { all, newStore, open } from "./helpers.ts";

const State = Annotation.Root({ messages: Annotation<string[]>({ reducer: (a, b) => a.concat(b), default: () => [] }) });

function graph(checkpointer: TurnstoneSaver) {
	return new StateGraph(State)
		.addNode("ask", () => ({ messages: ["question"] }))
		.addNode("answer", () => ({ messages: [interrupt("your answer?") as string] }))
		.addEdge(START, "ask")
		.addEdge("ask", "answer")
		.addEdge("answer", END)
		.compile({ checkpointer });
}

test("a graph goes on after the server was killed", async () => {
	const store = newStore();
	const config = { configurable: { thread_id: "t/1" } };
	const first = await open(store);
	await graph(new TurnstoneSaver(first)).invoke({ messages: ["hello"] }, config);
	process.kill(children.at(-1) as number, "SIGKILL");
	first.close();
	const g = graph(new TurnstoneSaver(await open(store)));
	const state = await g.getState(config);
	expect([state.next, state.tasks[0]?.interrupts[0]?.value]).toEqual([["answer"], "your answer?"]);
	expect((await g.invoke(new Command({ resume: "yes" }), config)).messages).toEqual(["hello", "question", "yes"]);
	const history = await all(g.getStateHistory(config));
	expect(history.map((s) => s.values.messages?.length ?? 0)).toEqual([3, 2, 1, 0]);
	// From an earlier state another history goes on, and the first one stays as it is.
	const fork = await g.updateState(history[1]?.config as RunnableConfig, { messages: ["other"] }, "answer");
	expect((await g.getState(fork)).values.messages).toEqual(["hello", "question", "other"]);
	expect((await g.getState(history[0]?.config as RunnableConfig)).values.messages).toEqual(["hello", "question", "yes"]);
	// A copy of any state has its values.
	for (const s of history) {
		const copy = await g.updateState(s.config, null, "__copy__");
		expect((await g.getState(copy)).values).toEqual(s.values);
	}
});

let counter = 0;

async function put(
	saver: TurnstoneSaver,
	config: RunnableConfig,
	values: Record<string, unknown>,
	versions: ChannelVersions,
	changed: ChannelVersions,
) {
	const c: Checkpoint = { ...emptyCheckpoint(), id: String(counter++).padStart(9, "0"), channel_values: values, channel_versions: versions };
	return saver.put(config, c, { source: "loop", step: 0, parents: {} }, changed);
}

test("branches of equal versions have their own values", async () => {
	const db = await open();
	const saver = new TurnstoneSaver(db);
	const root = await put(saver, { configurable: { thread_id: "t" } }, { x: 0, y: 0 }, { x: 1, y: 1 }, { x: 1, y: 1 });
	const a = await put(saver, root, { x: "a", y: 0 }, { x: 2, y: 1 }, { x: 2 });
	const b = await put(saver, root, { x: "b", y: 0 }, { x: 2, y: 1 }, { x: 2 });
	const a2 = await put(saver, a, { x: "a", y: 1 }, { x: 2, y: 2 }, { y: 2 });
	const onlyNew = await put(new TurnstoneSaver(db), b, { y: 5 }, { x: 2, y: 2 }, { y: 2 }); // what is not new need not be said
	for (const [config, want] of [
		[root, { x: 0, y: 0 }],
		[a, { x: "a", y: 0 }],
		[b, { x: "b", y: 0 }],
		[a2, { x: "a", y: 1 }],
		[onlyNew, { x: "b", y: 5 }],
	] as const) {
		const tuple = await saver.getTuple(config);
		expect(tuple?.checkpoint.channel_values).toEqual(want);
		expect(await new TurnstoneSaver(db).getTuple(config)).toEqual(tuple);
	}
});

test("a copy has the values of its versions and no others", async () => {
	const db = await open();
	for (const fresh of [false, true]) {
		const saver = new TurnstoneSaver(db);
		const one = await put(saver, { configurable: { thread_id: String(fresh) } }, { x: "old", y: "kept" }, { x: 1, y: 1 }, { x: 1, y: 1 });
		const two = await put(saver, one, {}, { x: 2, y: 1 }, { x: 2 }); // x was consumed: version 2 has no value
		const other = fresh ? new TurnstoneSaver(db) : saver;
		const copy = await put(other, one, {}, { x: 2, y: 1 }, {});
		const first = await put(other, one, {}, { x: 1, y: 1 }, {});
		const values = await Promise.all([one, two, copy, first].map(async (c) => (await other.getTuple(c))?.checkpoint.channel_values));
		expect(values).toEqual([{ x: "old", y: "kept" }, { y: "kept" }, { y: "kept" }, { x: "old", y: "kept" }]);
	}
});

test("long names, large writes, and savers beside each other", async () => {
	const db = await open();
	const one = new TurnstoneSaver(db);
	const other = new TurnstoneSaver(db);
	const thread = "t".repeat(900);
	let config: RunnableConfig = { configurable: { thread_id: thread, checkpoint_ns: "n/%".repeat(200) } };
	const place = config;
	const channel = "c".repeat(500);
	const large = "x".repeat(200_000);
	for (let i = 0; i < 6; i++)
		config = await put(
			i % 2 ? one : other,
			config,
			{ [channel]: i, constructor: i },
			{ [channel]: i, constructor: i },
			{ [channel]: i, constructor: i },
		);
	const writes = Array.from({ length: 300 }, (_, i): [string, unknown] => (i % 2 ? ["constructor", undefined] : [channel, large]));
	for (let i = 0; i < 2; i++) await one.putWrites(config, writes, "task/".repeat(100), "path".repeat(500));
	const tuple = await other.getTuple(config);
	expect(tuple?.checkpoint.channel_values).toEqual({ [channel]: 5, constructor: 5 });
	expect(tuple?.pendingWrites?.map((w) => w[2])).toEqual(writes.map((w) => w[1]));
	expect(await all(one.list({ configurable: { thread_id: thread } }))).toHaveLength(6);
	await Promise.all(Array.from({ length: 8 }, (_, i) => put(i % 2 ? one : other, config, { x: i }, { x: i }, { x: i })));
	expect(await all(one.list(place))).toHaveLength(14);
	await one.deleteThread(thread);
	expect(await other.getTuple(config)).toBeUndefined();
	expect(await all(one.list({ configurable: {} }))).toEqual([]);
	await put(other, place, { x: 9 }, { x: 9 }, { x: 9 });
	expect((await one.getTuple(place))?.checkpoint.channel_values).toEqual({ x: 9 });
});

test("a head that is not that of the thread any more is not built upon", async () => {
	const db = await open();
	const [a, b] = [new TurnstoneSaver(db), new TurnstoneSaver(db)];
	const root = { configurable: { thread_id: "t" } };
	const two = async (saver: TurnstoneSaver, y: string) => {
		counter = 100;
		const first = await put(saver, root, { x: 1, y }, { x: 1, y: 1 }, { x: 1, y: 1 });
		return put(saver, first, { x: 2, y }, { x: 2, y: 1 }, { x: 2 });
	};
	const last = await two(a, "A");
	await b.deleteThread("t");
	await two(b, "B");
	expect(await a.getTuple(last)).toBeDefined(); // It is that of b now, and no part of the head that a has put is built upon.
	const next = await put(a, last, { x: 3, y: "A" }, { x: 3, y: 1 }, { x: 3 });
	expect((await b.getTuple(next))?.checkpoint.channel_values).toEqual({ x: 3, y: "A" });
});

test("a put reads nothing on top of the last one, and an older one once", async () => {
	const db = await open();
	const read = vi.spyOn(Session.prototype, "refs");
	const saver = new TurnstoneSaver(db);
	await graph(saver).invoke({ messages: ["hello"] }, { configurable: { thread_id: "t" } });
	expect(read).toHaveBeenCalledTimes(1); // It asks for the latest one once.
	read.mockClear();
	const root = { configurable: { thread_id: "u" } };
	const names = ["a", "b", "c"];
	const each = <T>(value: T) => Object.fromEntries(names.map((n) => [n, value]));
	const first = await put(saver, root, each("x"), each(1), each(1));
	await put(saver, first, each("y"), each(2), each(2));
	expect(read).not.toHaveBeenCalled();
	const fork = await put(saver, first, {}, each(1), {});
	expect(read).toHaveBeenCalledTimes(1);
	expect((await saver.getTuple(fork))?.checkpoint.channel_values).toEqual(each("x"));
	vi.restoreAllMocks();
});

test("a checkpoint is one request, and is not sent again", async () => {
	const db = await open();
	const read = vi.spyOn(Session.prototype, "refs");
	const saver = new TurnstoneSaver(db);
	const root = { configurable: { thread_id: "t", checkpoint_ns: "" } };
	const first = await put(saver, root, { a: "large", b: 1 }, { a: 1, b: 1 }, { a: 1, b: 1 });
	const second = await put(saver, first, { a: "large", b: 2 }, { a: 1, b: 2 }, { b: 2 });
	await saver.putWrites(second, [["w", "v"]], "task");
	/** Reads a checkpoint, and tells whether it was sent. */
	const got = async (by: TurnstoneSaver, config: RunnableConfig) => {
		read.mockClear();
		const tuple = await by.getTuple(config);
		expect(read).toHaveBeenCalledTimes(1);
		const answer: ReturnType<Session["refs"]> = read.mock.results[0]?.value ?? Promise.resolve([]);
		const [ref] = await answer.catch(() => []); // The thread may be deleted.
		return { tuple, values: tuple?.checkpoint.channel_values, sent: ref?.parts !== undefined };
	};
	for (const config of [root, second]) {
		const { tuple, values, sent } = await got(saver, config);
		expect([values, sent, tuple?.pendingWrites]).toEqual([{ a: "large", b: 2 }, false, [["task", "w", "v"]]]);
		if (values) values.b = "changed by the caller";
	}
	// Another one has to read it, once; and what another one puts, or a thread that is made again, is seen.
	const other = new TurnstoneSaver(db);
	expect([(await got(other, root)).sent, (await got(other, root)).sent]).toEqual([true, false]);
	const third = await put(other, second, { a: "new", b: 2 }, { a: 2, b: 2 }, { a: 2 });
	expect((await got(saver, root)).values).toEqual({ a: "new", b: 2 });
	expect((await got(saver, first)).values).toEqual({ a: "large", b: 1 });
	await saver.deleteThread("t");
	expect((await got(saver, third)).tuple).toBeUndefined();
	let config: RunnableConfig = root;
	for (const a of [1, 2, 3]) config = await put(other, config, { a }, { a }, { a });
	expect((await got(saver, root)).values).toEqual({ a: 3 });
	vi.restoreAllMocks();
});

test("metadata that JSON has no way to say are stored", async () => {
	const saver = new TurnstoneSaver(await open());
	const m: { [name: string]: unknown } = { source: "loop", step: 0, parents: {} };
	m.self = m; // The default serializer says "[Circular]".
	await saver.put({ configurable: { thread_id: "t" } }, { ...emptyCheckpoint(), id: "1" }, m as unknown as CheckpointMetadata, {});
	expect(await all(saver.list({ configurable: { thread_id: "t" } }, { filter: { step: 0 } }))).toHaveLength(1);
});

test("a list is one request a page", async () => {
	const db = await open();
	const saver = new TurnstoneSaver(db);
	let config: RunnableConfig = { configurable: { thread_id: "t", checkpoint_ns: "" } };
	for (let step = 0; step < 60; step++) {
		const checkpoint = {
			...emptyCheckpoint(),
			id: `1f0-${String(step).padStart(3, "0")}`,
			channel_values: { a: step },
			channel_versions: { a: step },
		};
		const long = step % 10 === 0 ? { long: "x".repeat(3000) } : {}; // It is not in the record.
		config = await saver.put(config, checkpoint, { source: "loop", step, parents: {}, ...long }, { a: step });
	}
	const read = vi.spyOn(Session.prototype, "refs");
	const listed = async (options: object) => {
		read.mockClear();
		const found = await all(saver.list({ configurable: { thread_id: "t", checkpoint_ns: "" } }, options));
		return [found.map((t) => t.checkpoint.channel_values.a), read.mock.calls.length];
	};
	expect(await listed({})).toEqual([Array.from({ length: 60 }, (_, i) => 59 - i), 2]);
	expect(await listed({ limit: 3 })).toEqual([[59, 58, 57], 1]);
	expect(await listed({ filter: { step: 41 } })).toEqual([[41], 1]);
	expect(await listed({ filter: { step: 40 } })).toEqual([[40], 1]);
	vi.restoreAllMocks();
});

test("what others have put into the group is left alone, and values are not shared", async () => {
	const db = await open();
	const saver = new TurnstoneSaver(db);
	const config = await put(saver, { configurable: { thread_id: "t" } }, { x: new Uint8Array([1, 2]) }, { x: 1 }, { x: 1 });
	for (const name of [undefined, "no JSON", '{"thread":"t","ns":"x"}'])
		await db.create(`other ${name}`, { group: "langgraph.js/t", ...(name ? { name } : {}) });
	const [tuple] = await all(saver.list({ configurable: { thread_id: "t" } }));
	const x = tuple?.checkpoint.channel_values.x as Uint8Array;
	expect([x.constructor, x.buffer.byteLength, [...x]]).toEqual([Uint8Array, 2, [1, 2]]);
	await saver.deleteThread("t");
	expect(await saver.getTuple(config)).toBeUndefined();
	expect((await db.list()).sessions).toHaveLength(3);
});

test("equal writes at once are stored once, and ids are as long as they like", async () => {
	const saver = new TurnstoneSaver(await open());
	const checkpoint = { ...emptyCheckpoint(), id: "%".repeat(5000) };
	const config = await saver.put({ configurable: { thread_id: "t", checkpoint_ns: "" } }, checkpoint, { source: "loop", step: 0, parents: {} }, {});
	const writes: [string, unknown][] = ["a", "b"].map((channel) => [channel, "x".repeat(100_000)]);
	await Promise.all(Array.from({ length: 8 }, () => saver.putWrites(config, writes, "task".repeat(1000))));
	expect((await saver.getTuple(config))?.pendingWrites?.map((w) => w[1])).toEqual(["a", "b"]);
});

test("a write that was made stays as it was, and an interrupt is replaced", async () => {
	const saver = new TurnstoneSaver(await open());
	const config = await put(saver, { configurable: { thread_id: "t", checkpoint_ns: "" } }, {}, {}, {});
	await saver.putWrites(
		config,
		[
			["a", 1],
			["__interrupt__", "x"],
		],
		"task",
	);
	await saver.putWrites(
		config,
		[
			["a", 2],
			["__interrupt__", "y"],
		],
		"task",
	);
	expect((await saver.getTuple(config))?.pendingWrites).toEqual([
		["task", "__interrupt__", "y"],
		["task", "a", 1],
	]);
	await expect(saver.put({ configurable: { thread_id: "\ud83d" } }, emptyCheckpoint(), { source: "loop", step: 0, parents: {} }, {})).rejects.toThrow(
		TypeError,
	);
});

test("the latest checkpoint outlives every prune of the store, and others are not listed any more", async () => {
	const store = newStore();
	const db = await open(store);
	const saver = new TurnstoneSaver(db);
	let config: RunnableConfig = { configurable: { thread_id: "t", checkpoint_ns: "" } };
	for (let i = 0; i < 4; i++) config = await put(saver, config, { x: i }, { x: i }, { x: i });
	const [latest, second] = await all(saver.list(config.configurable?.checkpoint_id ? { configurable: { thread_id: "t" } } : config));
	// The head goes on with a checkpoint that is not the latest one.
	await saver.put(second?.config as RunnableConfig, { ...emptyCheckpoint(), id: "0" }, { source: "loop", step: 0, parents: {} }, {});
	execFileSync(process.env.TURNSTONE_COMMAND as string, ["prune", "--store", store, "--last", "1"]);
	expect((await saver.getTuple({ configurable: { thread_id: "t" } }))?.checkpoint).toEqual(latest?.checkpoint);
	expect((await all(saver.list({ configurable: { thread_id: "t" } }))).map((t) => t.checkpoint.id)).toEqual([latest?.checkpoint.id, "0"]);
	expect(await saver.getTuple(second?.config as RunnableConfig)).toBeUndefined();
});

test("a saver says how many checkpoints a prune leaves", async () => {
	const db = await open();
	for (const [thread, saver] of [["few", new TurnstoneSaver(db, undefined, { keepLast: 2 })] as const, ["all", new TurnstoneSaver(db)] as const]) {
		let config: RunnableConfig = { configurable: { thread_id: thread, checkpoint_ns: "" } };
		for (let i = 0; i < 4; i++) config = await put(saver, config, { x: i }, { x: i }, { x: i });
	}
	await db.prune();
	const left = async (thread: string) => (await all(new TurnstoneSaver(db).list({ configurable: { thread_id: thread } }))).length;
	expect([await left("few"), await left("all")]).toEqual([2, 4]);
	expect(() => new TurnstoneSaver(db, undefined, { keepLast: -1 })).toThrow(RangeError);
});

test("threads that nobody uses are deleted whole", async () => {
	const saver = new TurnstoneSaver(await open());
	const some = (thread: string, ns: string) => put(saver, { configurable: { thread_id: thread, checkpoint_ns: ns } }, { x: 1 }, { x: 1 }, { x: 1 });
	const configs = new Map<string, RunnableConfig>();
	for (const thread of ["old/é", "half", "written"]) for (const ns of ["", "sub|1"]) configs.set(thread + ns, await some(thread, ns));
	await new Promise((done) => setTimeout(done, 2100));
	expect(await saver.deleteIdle(86400)).toEqual([]);
	await some("half", "sub|1");
	await saver.putWrites(configs.get("writtensub|1") as RunnableConfig, [["a", 1]], "task");
	await some("new", "");
	expect(await saver.deleteIdle(2)).toEqual(["old/é"]);
	const left = (await all(saver.list({ configurable: {} }))).map((t) => t.config.configurable?.thread_id);
	expect(left.sort()).toEqual(["half", "half", "half", "new", "written", "written"]);
	await expect(saver.deleteIdle(0)).rejects.toThrow(RangeError);
});

test("a list that grows costs what was added", async () => {
	const store = newStore();
	const saver = new TurnstoneSaver(await open(store));
	let config: RunnableConfig = { configurable: { thread_id: "t" } };
	const messages: string[] = [];
	for (let i = 1; i <= 50; i++) {
		messages.push(randomBytes(500).toString("base64"));
		config = await put(saver, config, { messages }, { messages: i }, { messages: i });
	}
	expect((await saver.getTuple(config))?.checkpoint.channel_values.messages).toEqual(messages);
	const stats = JSON.parse(execFileSync(process.env.TURNSTONE_COMMAND as string, ["stats", "--store", store, "--json"]).toString());
	const added = Buffer.byteLength(JSON.stringify(messages));
	expect(stats.stored).toBeLessThan(3 * added); // and not the 25 times of all lists
});

test("what goes on from a thread that was deleted is refused", async () => {
	const db = await open();
	const empty = (id: string) => ({ v: 4, id, ts: "", channel_values: {}, channel_versions: {}, versions_seen: {} });
	const metadata = { source: "loop", step: 0, parents: {} } as const;
	const at = (thread: string, id?: string) => ({ configurable: { thread_id: thread, checkpoint_ns: "", ...(id ? { checkpoint_id: id } : {}) } });
	for (const again of [false, true]) {
		for (const own of [false, true]) {
			const thread = `t ${again} ${own}`;
			const [saver, other, read] = [new TurnstoneSaver(db), new TurnstoneSaver(db), new TurnstoneSaver(db)];
			const ids = async () => (await all(new TurnstoneSaver(db).list(at(thread)))).map((t) => t.checkpoint.id);
			await saver.put(at(thread), empty("1"), metadata, {});
			const last = await saver.put(at(thread, "1"), empty("2"), metadata, {});
			await saver.putWrites(last, [["a", 1]], "task");
			expect((await read.getTuple(at(thread)))?.config).toEqual(last);
			await (own ? saver : other).deleteThread(thread);
			if (again) {
				await other.put(at(thread), empty("1"), metadata, {});
				await other.put(at(thread, "1"), empty("9"), metadata, {});
			}
			for (const late of [saver, read, saver]) {
				await expect(late.put(last, empty("3"), metadata, {})).rejects.toThrow("was deleted after");
				await expect(late.putWrites(last, [["a", 1]], "task")).rejects.toThrow(NotFoundError);
				await expect(late.putWrites(last, [["large", "x".repeat(200_000)]], "task")).rejects.toThrow("was deleted after");
			}
			expect(await ids()).toEqual(again ? ["9", "1"] : []);
			expect(await read.getTuple(last)).toBeUndefined();
			await saver.put(at(thread), empty("4"), metadata, {});
			expect(await ids()).toEqual(again ? ["9", "4", "1"] : ["4"]);
		}
	}
});

test("many writes that do not compress are stored", async () => {
	const saver = new TurnstoneSaver(await open());
	const at = { configurable: { thread_id: "t", checkpoint_ns: "" } };
	const empty = { v: 4, id: "1", ts: "", channel_values: {}, channel_versions: {}, versions_seen: {} };
	const config = await saver.put(at, empty, { source: "loop", step: 0, parents: {} }, {});
	const writes = Array.from({ length: 100 }, (): [string, unknown] => ["a", randomBytes(35_000).toString("base64")]);
	await saver.putWrites(config, writes, "task");
	expect((await saver.getTuple(config))?.pendingWrites?.map((w) => w[2])).toEqual(writes.map((w) => w[1]));
});

test("channels whose history was pruned are not taken for shorter ones", async () => {
	const db = await open();
	const saver = new TurnstoneSaver(db);
	let config: RunnableConfig = { configurable: { thread_id: "t", checkpoint_ns: "" } };
	for (let i = 0; i < 4; i++) {
		config = await put(saver, config, {}, { texts: i + 1 }, { texts: i + 1 });
		await saver.putWrites(config, [["texts", [`text ${i}`]]], `task ${i}`);
	}
	const history = () => new TurnstoneSaver(db).getDeltaChannelHistory({ config, channels: ["texts", "other"] });
	const { texts, other } = await history();
	expect([texts?.writes.map(([, , value]) => value), other]).toEqual([[["text 0"], ["text 1"], ["text 2"]], { writes: [] }]);
	expect(await BaseCheckpointSaver.prototype.getDeltaChannelHistory.call(saver, { config, channels: ["texts"] })).toEqual({ texts });
	await db.prune({ revisions: 1 });
	await expect(history()).rejects.toMatchObject({ kind: "revision-pruned" });
	const never = { configurable: { ...config.configurable, checkpoint_id: "never" } };
	await expect(saver.getDeltaChannelHistory({ config: never, channels: ["texts"] })).rejects.toMatchObject({ kind: "revision-pruned" });
	const none = { configurable: { thread_id: "none", checkpoint_ns: "" } };
	expect(await saver.getDeltaChannelHistory({ config: none, channels: ["texts"] })).toEqual({ texts: { writes: [] } });
});
