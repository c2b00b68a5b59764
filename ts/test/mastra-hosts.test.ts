import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { isDeepStrictEqual } from "node:util";
import { Mastra } from "@mastra/core";
import { Agent } from "@mastra/core/agent";
import type { StorageThreadType } from "@mastra/core/memory";
import { InMemoryStore, MastraCompositeStore, type MemoryStorage } from "@mastra/core/storage";
import { Memory } from "@mastra/memory";
import { MockLanguageModelV3, simulateReadableStream } from "ai-6/test";
import { onTestFinished } from "vitest";
import { type Client, Session } from "../src/client.ts";
import { TurnstoneStore } from "../src/mastra.ts";
import { children } from "../src/server.ts";
import type { StoredRecord } from "../src/types.ts";
import { all, newStore, open } from "./helpers.ts";
// @ts-expect-error: the module has no types.
import { shipping } from "./mastra.mjs";
import { message, snapshot, storeOf, text, thread } from "./mastra-made.ts";

test("messages of one time keep the order of their first save, and what is equal is stored once", async () => {
	const db = await open();
	const { memory } = await storeOf(db);
	const at = new Date(0);
	const saved = ["c", "a", "b"].map((id) => message(id, "t", { createdAt: at }));
	await memory.saveMessages({ messages: saved });
	await memory.saveMessages({ messages: [message("d", "t", { createdAt: at }), message("c", "t", { createdAt: at, content: text("replaced") })] });
	const order = async (direction: "ASC" | "DESC") =>
		(await memory.listMessages({ threadId: "t", orderBy: { field: "createdAt", direction } })).messages.map((m) => m.id);
	expect(await order("ASC")).toEqual(["c", "a", "b", "d"]);
	expect(await order("DESC")).toEqual(["c", "a", "b", "d"]);
	const session = await db.session("mastra/t");
	expect((await session.info()).nodes).toBe(5);
	await memory.saveMessages({ messages: saved.slice(1) });
	expect((await session.info()).nodes).toBe(5);
	// A commit takes so many bytes: larger saves are several.
	await memory.saveMessages({ messages: [1, 2, 3].map((i) => message(`big ${i}`, "big", { content: text("x".repeat(5 << 20)) })) });
	expect((await (await db.session("mastra/big")).info()).revision).toBe(3);
	// Nobody can read what was replaced or deleted.
	await memory.deleteMessages(["a"]);
	const left = (await all(session.nodes({ full: true }))).map((n) => JSON.parse(n.payload.toString()).content.content);
	expect(left).toEqual(["b", "d", "replaced"]);
});

test("threads are listed by their last change, and have metadata of any size and a group that follows their resource", async () => {
	const db = await open();
	const { memory } = await storeOf(db);
	for (const id of ["a", "b", "c"]) await memory.saveThread({ thread: thread(id) });
	const big = "é".repeat(100_000);
	await memory.saveMessages({ messages: [message("m", "b")] });
	await memory.updateThread({ id: "a", metadata: { big } });
	const { threads } = await memory.listThreads({ orderBy: { field: "updatedAt", direction: "DESC" } });
	expect(threads.map((t) => t.id)).toEqual(["a", "b", "c"]);
	expect(threads[0]?.metadata).toEqual({ a: 1, big });
	expect(threads[0]?.updatedAt).toBeInstanceOf(Date);
	await memory.updateThreadResourceId({ threadId: "b", resourceId: "x/y" });
	expect((await db.list({ group: "mastra/x%2Fy" })).sessions.map((i) => i.id)).toEqual(["mastra/b"]);
	const { thread: copy } = await memory.copyThread({ sourceThreadId: "b" });
	expect((await memory.getThreadById({ threadId: copy.id }))?.metadata?.clone).toEqual({
		sourceThreadId: "b",
		clonedAt: copy.createdAt,
		lastMessageId: "m",
	});
});

test("long threads are saved, copied and moved in several commits, and a copy is listed when it is whole", { timeout: 60_000 }, async () => {
	const db = await open();
	const { memory } = await storeOf(db);
	await memory.saveThread({ thread: thread("t") });
	const saved = Array.from({ length: 1203 }, (_, i) => message(`m${i}`, "t", { createdAt: new Date(i) }));
	await memory.saveMessages({ messages: saved });
	expect((await (await db.session("mastra/t")).info()).revision).toBe(8);
	expect((await memory.listMessages({ threadId: "t", perPage: false })).messages.map((m) => m.id)).toEqual(saved.map((m) => m.id));
	const listings = new Set<number>();
	let done = false;
	const watch = (async () => {
		while (!done) {
			const { threads } = await memory.listThreads({ filter: { metadata: { copied: true } } });
			if (threads.length > 0) listings.add((await memory.listMessages({ threadId: "copy", perPage: 1 })).total);
		}
	})();
	const { messageIdMap } = await memory.copyThread({ sourceThreadId: "t", newThreadId: "copy", metadata: { copied: true } });
	done = true;
	await watch;
	expect(new Set(Object.values(messageIdMap ?? {})).size).toBe(1203);
	expect([...listings].filter((n) => n !== 1203)).toEqual([]);
	await memory.updateThreadResourceId({ threadId: "copy", resourceId: "other" });
	expect((await memory.listMessagesByResourceId({ resourceId: "other", perPage: 10 })).total).toBe(1203);
	expect((await memory.listMessagesByResourceId({ resourceId: "r", perPage: 10 })).total).toBe(1203);
});

test("a copy of a thread that was cut off is made whole by another call, with no message twice", { timeout: 60_000 }, async () => {
	const db = await open();
	const { memory } = await storeOf(db);
	await memory.saveThread({ thread: thread("t") });
	await memory.saveMessages({ messages: Array.from({ length: 250 }, (_, i) => message(`m${i}`, "t", { createdAt: new Date(i) })) });
	const copy = () => memory.copyThread({ sourceThreadId: "t", newThreadId: "copy", resourceId: "bob" });
	const { commitAll } = db;
	let calls = 0;
	db.commitAll = (commits) => (++calls === 2 ? Promise.reject(new Error("cut off")) : commitAll.call(db, commits));
	await expect(copy()).rejects.toThrow("cut off");
	expect(await memory.getThreadById({ threadId: "copy" })).toBeNull();
	const { messageIdMap = {} } = await copy();
	const { messages } = await memory.listMessages({ threadId: "copy", perPage: false });
	expect(messages.map((m) => m.id)).toEqual(Array.from({ length: 250 }, (_, i) => messageIdMap[`m${i}`]));
	expect((await memory.listMessagesByResourceId({ resourceId: "bob", perPage: 1 })).total).toBe(250);
	expect((await (await db.session("mastra/copy")).load()).nodes).toHaveLength(250);
	// A copy that somebody has moved elsewhere is not taken from there.
	await memory.updateMessages({ messages: [{ id: messageIdMap.m0 as string, threadId: "u" }] });
	await memory.deleteThread({ threadId: "copy" });
	const again = await copy();
	expect(Object.keys(messageIdMap).filter((m) => again.messageIdMap?.[m] !== messageIdMap[m])).toEqual(["m0"]);
	expect((await memory.listMessages({ threadId: "u" })).messages.map((m) => m.id)).toEqual([messageIdMap.m0]);
	const ids = (await memory.listMessages({ threadId: "copy", perPage: false })).messages.map((m) => m.id);
	expect(ids).toEqual(Array.from({ length: 250 }, (_, i) => again.messageIdMap?.[`m${i}`]));
});

test("a copy of a thread that is made again has nothing that its source has no more", { timeout: 60_000 }, async () => {
	const db = await open();
	const { memory } = await storeOf(db);
	await memory.saveThread({ thread: thread("t") });
	await memory.saveMessages({ messages: Array.from({ length: 250 }, (_, i) => message(`m${i}`, "t", { createdAt: new Date(i) })) });
	const { commitAll } = db;
	let calls = 0;
	db.commitAll = (commits) => (++calls === 2 ? Promise.reject(new Error("cut off")) : commitAll.call(db, commits));
	const copy = () => memory.copyThread({ sourceThreadId: "t", newThreadId: "copy" });
	await expect(copy()).rejects.toThrow("cut off");
	await memory.deleteMessages(["m3"]);
	await copy();
	expect((await memory.listMessages({ threadId: "copy" })).total).toBe(249);
	await expect(copy()).rejects.toThrow("already exists");
	expect((await memory.listMessages({ threadId: "copy" })).total).toBe(249);
});

test("the group of a thread that several hosts move is that of its resource, also after one was cut off", async () => {
	const store = newStore();
	const db = await open(store);
	const { memory } = await storeOf(db);
	const { memory: other } = await storeOf(await open(store));
	await memory.saveThread({ thread: thread("t", "ann") });
	const group = async () => (await (await db.session("mastra/t")).info()).group;
	const { saveMetadata } = Session.prototype;
	const cut = async (f: () => Promise<unknown>) => {
		Session.prototype.saveMetadata = async function (...args) {
			Session.prototype.saveMetadata = saveMetadata;
			await f();
			return saveMetadata.apply(this, args);
		};
		return memory.updateThreadResourceId({ threadId: "t", resourceId: "bob" });
	};
	await cut(() => other.updateThreadResourceId({ threadId: "t", resourceId: "eve" }));
	expect(await group()).toBe("mastra/eve");
	await expect(cut(() => Promise.reject(new Error("cut off")))).rejects.toThrow("cut off");
	expect(await group()).toBe("mastra/eve");
	await memory.updateThreadResourceId({ threadId: "t", resourceId: "bob" });
	expect(await group()).toBe("mastra/bob");
});

test("Mastra's retention takes nothing beside what is old", async () => {
	const { memory } = await storeOf();
	const old = new Date(0);
	await memory.saveThread({ thread: thread("t", "r", { createdAt: old, updatedAt: old }) });
	await memory.saveMessages({ messages: [message("m", "t", { createdAt: old })] });
	await memory.saveThread({ thread: thread("t", "r", { createdAt: old, updatedAt: old }) });
	await memory.saveResource({ resource: { id: "r", createdAt: old, updatedAt: old } });
	await memory.initializeObservationalMemory({ threadId: null, resourceId: "r", scope: "resource", config: {} });
	const pruned = await memory.prune({ messages: { maxAge: "1d" }, resources: { maxAge: "1d" }, threads: { maxAge: "1d" } });
	expect(pruned.map((p) => [p.table, p.deleted])).toEqual([
		["mastra_messages", 1],
		["mastra_resources", 1],
		["mastra_threads", 1], // The deletion of its message has not made it newer.
	]);
	expect(await memory.getResourceById({ resourceId: "r" })).toBeNull();
	expect(await memory.getObservationalMemory(null, "r")).toMatchObject({ resourceId: "r" });
	expect((await memory.prune({ resources: { maxAge: "1d" } }))[0]).toMatchObject({ deleted: 0 });
});

test("a message that is saved while its thread gets another resource goes with it", async () => {
	const store = newStore();
	const db = await open(store);
	const { memory } = await storeOf(db);
	const { memory: other } = await storeOf(await open(store));
	await memory.saveThread({ thread: thread("t", "ann") });
	await memory.saveMessages({ messages: [message("m", "t", { resourceId: "ann" })] });
	meanwhile(db, () => other.saveMessages({ messages: [message("n", "t", { resourceId: "ann" })] }));
	expect(await memory.updateThreadResourceId({ threadId: "t", resourceId: "bob" })).toMatchObject({ id: "t", resourceId: "bob" });
	expect((await memory.listMessagesByResourceId({ resourceId: "bob" })).messages.map((m) => m.id).sort()).toEqual(["m", "n"]);
	expect((await memory.listMessagesByResourceId({ resourceId: "ann" })).total).toBe(0);
});

test("messages of many resources are saved in a thread, and many threads give their messages to one", { timeout: 60_000 }, async () => {
	const { memory } = await storeOf();
	const many = Array.from({ length: 150 }, (_, i) => message(`m${i}`, "t", { resourceId: `r${i}`, createdAt: new Date(i) }));
	await memory.saveMessages({ messages: many });
	expect((await memory.listMessages({ threadId: "t", perPage: false })).messages.map((m) => m.id)).toEqual(many.map((m) => m.id));
	expect((await memory.listMessagesByResourceId({ resourceId: "r149" })).total).toBe(1);
	const apart = Array.from({ length: 70 }, (_, i) => message(`x${i}`, `t${i}`, { createdAt: new Date(i) }));
	await memory.saveMessages({ messages: apart });
	await memory.saveMessages({ messages: apart.map((m) => ({ ...m, threadId: "one" })) });
	expect((await memory.listMessages({ threadId: "one", perPage: false })).messages.map((m) => m.id)).toEqual(apart.map((m) => m.id));
	expect((await memory.listMessages({ threadId: "t69" })).total).toBe(0);
});

test("two hosts on one thread at once lose nothing, and neither do two on one run", { timeout: 60_000 }, async () => {
	const store = newStore();
	const hosts = [await storeOf(await open(store)), await storeOf(await open(store))];
	const [first, second] = hosts as [TurnstoneStore["stores"], TurnstoneStore["stores"]];
	await first.memory.saveThread({ thread: thread("t", "r", { metadata: { n: 0 } }) });
	await first.workflows.persistWorkflowSnapshot({ workflowName: "w", runId: "x", snapshot: snapshot("x", "running") });
	const work = hosts.flatMap(({ memory, workflows, threadState }, host) =>
		Array.from({ length: 10 }, async (_, i) => {
			const at = new Date(2 * i + host);
			await memory.saveMessages({ messages: [message("same", "t", { createdAt: new Date(1e6) }), message(`${host}/${i}`, "t", { createdAt: at })] });
			const update = (t: StorageThreadType) => ({ n: Number(t.metadata?.n) + 1 });
			await memory.updateThreadMetadata({ id: "t", update });
			await memory.updateResource({ resourceId: "r", metadata: { [`${host}/${i}`]: i } });
			await threadState.setState({ threadId: "t", type: `${host}/${i}`, value: i });
			const result = { status: "success" as const, output: i, payload: {}, startedAt: 1, endedAt: 2 };
			await workflows.updateWorkflowResults({ workflowName: "w", runId: "x", stepId: `${host}/${i}`, result, requestContext: {} });
		}),
	);
	await Promise.all(work);
	const { messages, total } = await second.memory.listMessages({ threadId: "t", perPage: false });
	expect(total).toBe(21);
	expect(messages.filter((m) => m.id === "same")).toHaveLength(1);
	expect((await second.memory.getThreadById({ threadId: "t" }))?.metadata).toEqual({ n: 20 });
	expect(Object.keys((await first.memory.getResourceById({ resourceId: "r" }))?.metadata ?? {})).toHaveLength(20);
	expect(Object.keys((await second.workflows.loadWorkflowSnapshot({ workflowName: "w", runId: "x" }))?.context ?? {})).toHaveLength(20);
	await Promise.all(Array.from({ length: 20 }, (_, i) => hosts[i % 2]?.threadState.setState({ threadId: "t", type: `at once ${i}`, value: i })));
	for (let i = 0; i < 20; i++) expect(await first.threadState.getState({ threadId: "t", type: `at once ${i}` })).toBe(i);
	for (let i = 0; i < 20; i++) expect(await first.threadState.getState({ threadId: "t", type: `${i % 2}/${i >> 1}` })).toBe(i >> 1);
	// Of those who expect a status, one gets it.
	const claims = [...hosts, ...hosts].map(({ workflows }, i) =>
		workflows.updateWorkflowState({ workflowName: "w", runId: "x", opts: { status: "success", expectedStatus: "running", result: { i } as never } }),
	);
	expect((await Promise.all(claims)).filter(Boolean)).toHaveLength(1);
	// A message that moves between threads is in one of them, whoever looks.
	await Promise.all([...Array(8)].map((_, i) => hosts[i % 2]?.memory.updateMessages({ messages: [{ id: "same", threadId: `t${i}` }] })));
	const { messages: moved } = await first.memory.listMessagesById({ messageIds: ["same"] });
	expect(moved).toHaveLength(1);
	const threads = ["t", ...Array.from({ length: 8 }, (_, i) => `t${i}`)];
	expect((await first.memory.listMessages({ threadId: threads, perPage: false })).messages.filter((m) => m.id === "same")).toEqual(moved);
});

test("observational memory of a thread or a resource is changed by several hosts, and none of its parts is lost", async () => {
	const store = newStore();
	const db = await open(store);
	const hosts = [(await storeOf(db)).memory, (await storeOf(await open(store))).memory] as MemoryStorage[];
	const [first, second] = hosts as [MemoryStorage, MemoryStorage];
	for (const threadId of ["t/1", null]) {
		const config = {};
		const { id } = await first.initializeObservationalMemory({ threadId, resourceId: "r", scope: threadId ? "thread" : "resource", config });
		const chunk = (i: number) => ({
			cycleId: `${i}`,
			observations: `seen ${i}`,
			tokenCount: 1,
			messageIds: [`m${i}`],
			messageTokens: 1,
			lastObservedAt: new Date(i),
		});
		await Promise.all([...Array(8)].map((_, i) => hosts[i % 2]?.updateBufferedObservations({ id, chunk: chunk(i) })));
		const record = await second.getObservationalMemory(threadId, "r");
		expect(record?.bufferedObservationChunks?.map((c) => c.cycleId).sort()).toEqual([..."01234567"]);
		expect([record?.createdAt, record?.bufferedObservationChunks?.[0]?.lastObservedAt]).toEqual([expect.any(Date), expect.any(Date)]);
		await second.createReflectionGeneration({ currentRecord: record as never, reflection: "all of it", tokenCount: 1 });
		expect((await first.getObservationalMemoryHistory(threadId, "r")).map((x) => x.generationCount)).toEqual([1, 0]);
		await second.clearObservationalMemory(threadId, "r");
		expect(await first.getObservationalMemory(threadId, "r")).toBeNull();
		await expect(first.setObservingFlag(id, true)).rejects.toThrow("not found");
		expect((await db.records("mastra/observations/")).records).toEqual([]);
	}
});

/** Calls f when the client has got a page of records next, before it sees the page, or before it deletes a session next. */
function meanwhile({ requests }: Client, f: () => Promise<unknown>, request: "records" | "delete" = "records"): void {
	const one = requests.one;
	requests.one = async (...args) => {
		if (args[0] !== request) return one.apply(requests, args);
		requests.one = one;
		if (request === "delete") await f();
		const answer = await one.apply(requests, args);
		if (request === "records") await f();
		return answer;
	};
}

test("a call that reads what others change meanwhile reads it again, and misses nothing", { timeout: 60_000 }, async () => {
	const store = newStore();
	const db = await open(store);
	const { memory } = await storeOf(db);
	const { memory: other } = await storeOf(await open(store));
	await memory.saveMessages({ messages: [message("m", "t"), message("n", "t")] });
	meanwhile(db, () => other.saveMessages({ messages: [message("m", "t", { content: text("replaced") })] }));
	const { messages } = await memory.listMessages({ threadId: "t" });
	expect(messages.map((m) => m.content.content)).toEqual(["replaced", "n"]);
	meanwhile(db, () => other.updateMessages({ messages: [{ id: "m", threadId: "u" }] }));
	expect(await memory.updateMessages({ messages: [{ id: "m", role: "assistant" }] })).toMatchObject([{ threadId: "u", role: "assistant" }]);
	expect((await memory.listMessages({ threadId: ["t", "u"] })).messages.map((m) => m.id).sort()).toEqual(["m", "n"]);
	// Threads that move between the pages of a list, in both directions.
	const ids = Array.from({ length: 1001 }, (_, i) => String(i).padStart(4, "0"));
	for (let i = 0; i < ids.length; i += 50) await Promise.all(ids.slice(i, i + 50).map((id) => memory.saveThread({ thread: thread(id, "m") })));
	meanwhile(db, async () => {
		await other.updateThreadResourceId({ threadId: "0000", resourceId: "z" });
		await other.updateThreadResourceId({ threadId: "1000", resourceId: "a" });
	});
	const { threads } = await memory.listThreads({ perPage: false });
	expect(threads.map((t) => t.id).sort()).toEqual(ids);
	expect(threads.filter((t) => t.resourceId !== "m").map((t) => [t.id, t.resourceId])).toEqual([
		["0000", "z"],
		["1000", "a"],
	]);
});

/** Lets f happen right before the next request of a name. */
function before({ requests }: Client, name: string, f: () => Promise<unknown>): void {
	const one = requests.one;
	requests.one = async (...args) => {
		if (args[0] === name) {
			requests.one = one;
			await f();
		}
		return one.apply(requests, args);
	};
}

test("a change never lands in another's thread, run, scores or resource that was made anew under the same id", { timeout: 60_000 }, async () => {
	const store = newStore();
	const db = await open(store);
	const rival = await open(store);
	const [ann, bob] = [await storeOf(db), await storeOf(rival)];
	/** Ann makes something and changes it, and meanwhile Bob deletes it and makes it anew, at the same revision. */
	const meet = async (session: string, make: (s: TurnstoneStore["stores"], of: string) => Promise<unknown>, change: () => Promise<unknown>) => {
		await make(ann, "ann");
		before(db, "commit-all", async () => {
			await (await rival.session(session)).delete();
			await make(bob, "bob");
		});
		await change().catch(() => {});
	};
	const saveThread = (s: TurnstoneStore["stores"], of: string) => s.memory.saveThread({ thread: thread("t", of, { metadata: { [of]: 1 } }) });
	await meet("mastra/t", saveThread, () => ann.memory.updateThread({ id: "t", title: "new" }));
	expect(await bob.memory.getThreadById({ threadId: "t" })).toMatchObject({ resourceId: "bob", metadata: { bob: 1 } });
	expect((await bob.memory.getThreadById({ threadId: "t" }))?.metadata).toEqual({ bob: 1 });
	expect((await bob.memory.listThreads({ filter: { resourceId: "ann" } })).total).toBe(0);

	const persist = (s: TurnstoneStore["stores"], of: string) =>
		s.workflows.persistWorkflowSnapshot({
			workflowName: "w",
			runId: "x",
			resourceId: of,
			snapshot: { ...snapshot("x", "running"), value: { [of]: "1" } },
		});
	await meet("mastra-workflows/w/x", persist, () =>
		ann.workflows.updateWorkflowState({ workflowName: "w", runId: "x", opts: { status: "success" } as never }),
	);
	expect(await bob.workflows.loadWorkflowSnapshot({ workflowName: "w", runId: "x" })).toMatchObject({ value: { bob: "1" } });
	expect(await bob.workflows.getWorkflowRunById({ runId: "x" })).toMatchObject({ resourceId: "bob" });

	const setState = (s: TurnstoneStore["stores"], of: string) => s.threadState.setState({ threadId: "u", type: of, value: 1 });
	await meet("mastra/u", setState, () => ann.threadState.setState({ threadId: "u", type: "more", value: 2 }));
	expect(await bob.threadState.getState({ threadId: "u", type: "ann" })).toBeUndefined();
	expect(await bob.threadState.getState({ threadId: "u", type: "bob" })).toBe(1);
	expect(await bob.threadState.getState({ threadId: "u", type: "more" })).toBe(2);

	const update = (s: TurnstoneStore["stores"], of: string) => s.memory.updateResource({ resourceId: "r", metadata: { [of]: 1 } });
	await meet("mastra-resources/r", update, () => ann.memory.updateResource({ resourceId: "r", metadata: { more: 1 } }));
	expect((await bob.memory.getResourceById({ resourceId: "r" }))?.metadata).toEqual({ bob: 1, more: 1 });

	const observe = (s: TurnstoneStore["stores"], of: string) =>
		s.memory.initializeObservationalMemory({ threadId: "v", resourceId: of, scope: "thread", config: {} });
	await meet("mastra/v", observe, async () => {
		const { id = "" } = (await ann.memory.getObservationalMemory("v", "ann")) ?? {};
		await ann.memory.setPendingMessageTokens(id, 7);
	});
	expect(await bob.memory.getObservationalMemory("v", "bob")).toMatchObject({ resourceId: "bob", pendingMessageTokens: 0 });

	const fields = { scorerId: "s", entityId: "e", runId: "y", score: 1, output: 1, scorer: {}, entity: {}, source: "LIVE" as const };
	const saveScore = (s: TurnstoneStore["stores"], of: string) =>
		s.scores.saveScore({ ...fields, id: "s", reason: of, createdAt: new Date(0) } as never);
	await meet("mastra-scores/y", saveScore, () => ann.scores.prune({ scorers: { maxAge: "1d" } }));
	expect((await (await rival.session("mastra-scores/y")).info()).revision).toBe(2);
	expect((await (await rival.session("mastra-scores/y")).load()).nodes).toEqual([]);
});

test("a thread that moves while threads are listed is listed where it was last, also within one second", async () => {
	const db = await open();
	const { memory } = await storeOf(db);
	const records: StoredRecord[] = [];
	for (const [of, time] of [
		["bob", "2026-01-01T00:00:00.5Z"],
		["ann", "2026-01-01T00:00:00Z"],
	] as const) {
		await memory.saveThread({ thread: thread("t", of) });
		for (const r of (await db.records("mastra/thread/")).records) records.push({ ...r, time });
	}
	const page = await db.records();
	db.records = async () => ({ ...page, records });
	expect((await memory.listThreads({})).threads.map((t) => t.resourceId)).toEqual(["bob"]);
});

test("a session that was renamed is no thread, run or score any more, and its names are free", async () => {
	const db = await open();
	const { memory, workflows, scores } = await storeOf(db);
	const fields = { scorerId: "s", entityId: "e", runId: "x", score: 1, output: 1, scorer: {}, entity: {}, source: "LIVE" as const };
	for (let i = 0; i < 2; i++) {
		await memory.saveThread({ thread: thread("t") });
		await memory.saveMessages({ messages: [message("m", "t")] });
		await workflows.persistWorkflowSnapshot({ workflowName: "w", runId: "x", snapshot: snapshot("x", "running") });
		await scores.saveScore({ ...fields, id: "s" } as never);
		expect((await memory.listThreads({})).total).toBe(1);
		expect((await memory.listMessagesByResourceId({ resourceId: "r" })).total).toBe(1);
		expect((await memory.listMessagesById({ messageIds: ["m"] })).messages).toHaveLength(1);
		expect((await workflows.listWorkflowRuns()).total).toBe(1);
		expect((await workflows.getWorkflowRunById({ runId: "x" }))?.runId).toBe("x");
		expect((await scores.listScoresByScorerId({ scorerId: "s", pagination: { page: 0, perPage: 9 } })).pagination.total).toBe(1);
		for (const id of ["mastra/t", "mastra-workflows/w/x", "mastra-scores/x"]) await (await db.session(id)).rename(`${id} ${i}`);
	}
	expect(await memory.getThreadById({ threadId: "t" })).toBeNull();
	expect((await memory.listMessagesById({ messageIds: ["m"] })).messages).toEqual([]);
	expect(await scores.getScoreById({ id: "s" })).toBeNull();
});

test("a host that is killed has saved all messages that it was told of, and each save whole", { timeout: 60_000 }, async () => {
	const store = newStore();
	const told: number[] = [];
	for (let i = 0; i < 3; i++) {
		const host = spawn(process.execPath, [join(import.meta.dirname, "mastra.mjs"), "save", store], { stdio: ["ignore", "pipe", "inherit"] });
		for await (const line of host.stdout) {
			told.push(...line.toString().trim().split("\n").map(Number));
			if (told.length >= 10 * (i + 1)) host.kill("SIGKILL");
		}
	}
	const { memory } = await storeOf(await open(store));
	const { messages } = await memory.listMessages({ threadId: "t", perPage: false });
	expect(messages.length).toBeGreaterThanOrEqual(2 * told.length);
	expect(messages.map((m) => m.id)).toEqual(messages.map((_, i) => `${Math.floor(i / 2)}${i % 2 ? "assistant" : "user"}`));
	const found = await memory.listMessagesById({ messageIds: messages.map((m) => m.id) });
	expect(found.messages).toHaveLength(messages.length);
});

test("a workflow that was suspended goes on in another process, after its host and its server were killed", { timeout: 60_000 }, async () => {
	const store = newStore();
	const db = await open(store, { idle: 5 });
	const host = spawn(process.execPath, [join(import.meta.dirname, "mastra.mjs"), "start", store], { stdio: ["ignore", "pipe", "inherit"] });
	onTestFinished(() => void host.kill("SIGKILL"));
	const [line] = await once(host.stdout, "data");
	const [runId, status] = String(line).trim().split(" ") as [string, string];
	expect(status).toBe("suspended");
	host.kill("SIGKILL");
	process.kill(children.at(-1) as number, "SIGKILL");
	const mastra = new Mastra({ storage: new TurnstoneStore({ client: db }), workflows: { shipping: shipping() }, logger: false });
	const run = await mastra.getWorkflow("shipping").createRun({ runId });
	const ended = await run.resume({ step: "ask", resumeData: { by: "Ann" } });
	expect(ended).toMatchObject({ status: "success", result: { text: "a box, packed, shipped by Ann" } });
	const { workflows } = await storeOf(db);
	expect((await workflows.listWorkflowRuns({ workflowName: "shipping", status: "success" })).runs.map((r) => r.runId)).toEqual([runId]);
});

test("an agent remembers in another process of the store, after the server was killed", { timeout: 60_000 }, async () => {
	const store = newStore();
	const prompts: unknown[] = [];
	const turn = async (question: string, answer: string) => {
		const client = await open(store, { idle: 5 });
		const usage = { inputTokens: { total: 1, noCache: 1, cacheRead: 0, cacheWrite: 0 }, outputTokens: { total: 1, text: 1, reasoning: 0 } };
		const parts = [
			{ type: "stream-start" as const, warnings: [] },
			{ type: "text-start" as const, id: "1" },
			{ type: "text-delta" as const, id: "1", delta: answer },
			{ type: "text-end" as const, id: "1" },
			{ type: "finish" as const, usage, finishReason: { unified: "stop" as const, raw: undefined } },
		];
		const model = new MockLanguageModelV3({
			doStream: async ({ prompt }) => {
				prompts.push(prompt);
				return { stream: simulateReadableStream({ chunks: parts }) };
			},
		});
		const memory = new Memory({ options: { lastMessages: 10 } });
		const agent = new Agent({ id: "a", name: "a", instructions: "Answer.", model, memory });
		const mastra = new Mastra({ storage: new TurnstoneStore({ client }), agents: { agent }, logger: false });
		const output = await mastra.getAgent("agent").stream(question, { memory: { thread: "chat/1", resource: "user/1" } });
		expect(await output.text).toBe(answer);
		client.close();
	};
	await turn("My name is Ann.", "Hello, Ann.");
	process.kill(children.at(-1) as number, "SIGKILL");
	await turn("What is my name?", "Ann.");
	const said = JSON.stringify(prompts.at(-1));
	for (const t of ["My name is Ann.", "Hello, Ann.", "What is my name?"]) expect(said).toContain(t);
	const { memory } = await storeOf(await open(store));
	const { messages } = await memory.listMessages({ threadId: "chat/1", resourceId: "user/1" });
	expect(messages.map((m) => m.role)).toEqual(["user", "assistant", "user", "assistant"]);
	expect((await memory.listThreads({ filter: { resourceId: "user/1" } })).threads.map((t) => t.id)).toEqual(["chat/1"]);
});

test("a prune of the store and deletions leave the rest whole, and resources outlive what nobody uses", { timeout: 60_000 }, async () => {
	const db = await open();
	const { memory, workflows } = await storeOf(db);
	for (const id of ["kept", "deleted"]) await memory.saveThread({ thread: thread(id) });
	await memory.saveResource({ resource: { id: "r", workingMemory: "likes tea", createdAt: new Date(), updatedAt: new Date() } });
	const work = (async () => {
		for (let i = 0; i < 20; i++) {
			await memory.saveMessages({
				messages: [message(`k${i}`, "kept", { createdAt: new Date(i) }), message(`d${i}`, "deleted", { createdAt: new Date(i) })],
			});
			const context = { step: { status: "success" as const, output: i, payload: {}, startedAt: 1, endedAt: 2 } };
			await workflows.persistWorkflowSnapshot({ workflowName: "w", runId: "x", snapshot: snapshot("x", "running", context) });
		}
	})();
	for (let i = 0; i < 5; i++) {
		await db.prune({ revisions: 1 });
		await memory.deleteThread({ threadId: "deleted" });
	}
	await work;
	await memory.deleteThread({ threadId: "deleted" });
	await db.prune({ revisions: 1 });
	await db.vacuum();
	expect((await memory.listMessages({ threadId: "kept", perPage: false })).messages.map((m) => m.id)).toEqual(
		Array.from({ length: 20 }, (_, i) => `k${i}`),
	);
	expect((await memory.listMessagesById({ messageIds: ["d1", "d19", "k1"] })).messages.map((m) => m.id)).toEqual(["k1"]);
	expect((await workflows.loadWorkflowSnapshot({ workflowName: "w", runId: "x" }))?.context.step).toMatchObject({ output: 19 });
	expect((await memory.getThreadById({ threadId: "kept" }))?.title).toBe("of kept");
	await new Promise((done) => setTimeout(done, 50));
	await db.prune({ inactive: 0.02 });
	expect((await memory.listThreads({})).threads).toEqual([]);
	expect((await workflows.listWorkflowRuns()).total).toBe(0);
	expect((await memory.getResourceById({ resourceId: "r" }))?.workingMemory).toBe("likes tea");
});

test("Mastra's retention deletes what is older, of each domain, and no more than it is told to", { timeout: 60_000 }, async () => {
	const client = await open();
	const retention = {
		memory: { messages: { maxAge: "1d" }, threads: { maxAge: "1d" }, resources: { maxAge: "1d" } },
		workflows: { workflowSnapshot: { maxAge: "1d" } },
		scores: { scorers: { maxAge: "1d" } },
		threadState: { threadState: { maxAge: 0 } },
	} as const;
	const storage = new TurnstoneStore({ client, retention });
	const { memory, workflows, scores, threadState } = storage.stores;
	const now = new Date();
	for (const [id, createdAt] of [
		["a", new Date(0)],
		["b", now],
	] as const) {
		await memory.saveThread({ thread: thread(id, "r", { createdAt, updatedAt: createdAt }) });
		await memory.saveThread({ thread: thread(`of ${id}`, "r", { createdAt: new Date(0), updatedAt: new Date(0) }) });
		await memory.saveMessages({ messages: [message(id, `of ${id}`, { createdAt })] });
		await memory.saveResource({ resource: { id, createdAt, updatedAt: createdAt } });
		await workflows.persistWorkflowSnapshot({ workflowName: "w", runId: id, snapshot: snapshot(id, "running"), updatedAt: createdAt });
		const fields = { scorerId: "s", entityId: "e", runId: "x", score: 1, output: 1, scorer: {}, entity: {}, source: "LIVE" as const };
		await scores.saveScore({ ...fields, id, createdAt } as never);
	}
	await threadState.setState({ threadId: "of b", type: "task", value: 1 });
	await new Promise((done) => setTimeout(done, 5));
	const [first] = await storage.prune({ maxRows: 0 });
	expect(first).toEqual({ domain: "memory", table: "mastra_messages", deleted: 0, done: false });
	const pruned = await storage.prune();
	expect(pruned.map((p) => [p.table, p.deleted, p.done])).toEqual([
		["mastra_messages", 1, true],
		["mastra_resources", 1, true],
		["mastra_threads", 1, true],
		["mastra_workflow_snapshot", 1, true],
		["mastra_scorers", 1, true],
		["mastra_thread_state", 1, true],
	]);
	expect((await memory.listThreads({ orderBy: { direction: "ASC" } })).threads.map((t) => t.id).sort()).toEqual(["b", "of a", "of b"]);
	expect((await memory.listMessagesByResourceId({ resourceId: "r" })).messages.map((m) => m.id)).toEqual(["b"]);
	expect([await memory.getResourceById({ resourceId: "a" }), (await memory.getResourceById({ resourceId: "b" }))?.id]).toEqual([null, "b"]);
	expect((await workflows.listWorkflowRuns()).runs.map((r) => r.runId)).toEqual(["b"]);
	expect((await scores.listScoresByRunId({ runId: "x", pagination: { page: 0, perPage: 9 } })).scores.map((s) => s.id)).toEqual(["b"]);
	expect((await (await client.session("mastra-scores/x")).load()).nodes).toHaveLength(1);
	expect(await threadState.getState({ threadId: "of b", type: "task" })).toBeUndefined();
});

test("Mastra's retention looks at each thing again before it deletes it, and leaves what was used or made anew meanwhile", async () => {
	const store = newStore();
	const db = await open(store);
	const { memory, workflows, scores, threadState } = await storeOf(db);
	const other = await storeOf(await open(store));
	const old = new Date(0);
	const maxAge = "1d" as const;
	for (const id of ["a", "b", "c"]) {
		await memory.saveThread({ thread: thread(id, "r", { createdAt: old, updatedAt: old }) });
		await memory.saveResource({ resource: { id, createdAt: old, updatedAt: old } });
		await workflows.persistWorkflowSnapshot({ workflowName: "w", runId: id, snapshot: snapshot(id, "suspended"), updatedAt: old });
	}
	/** Calls f after the list was made, before the first deletion or change. */
	const prune = async (f: () => Promise<unknown>, call: () => Promise<{ deleted: number; done: boolean }[]>) => {
		meanwhile(db, f);
		const [found] = await call();
		return [found?.deleted, found?.done];
	};
	const anew = async () => {
		await other.memory.saveMessages({ messages: [message("mb", "b", { createdAt: new Date() })] });
		await other.memory.deleteThread({ threadId: "c" });
		await other.memory.saveThread({ thread: thread("c", "bob", { updatedAt: new Date() }) });
	};
	expect(await prune(anew, () => memory.prune({ threads: { maxAge } }, { maxBatches: 9 }))).toEqual([1, true]);
	expect((await memory.listThreads({})).threads.map((t) => [t.id, t.resourceId]).sort()).toEqual([
		["b", "r"],
		["c", "bob"],
	]);
	expect((await memory.listMessages({ threadId: "b" })).total).toBe(1);

	await memory.saveThread({ thread: thread("d", "r", { createdAt: old, updatedAt: old }) });
	meanwhile(db, () => other.memory.saveMessages({ messages: [message("md", "d", { createdAt: new Date() })] }), "delete");
	expect((await memory.prune({ threads: { maxAge } }))[0]).toMatchObject({ deleted: 0, done: true });
	expect((await memory.listMessages({ threadId: "d" })).total).toBe(1);
	await memory.deleteThread({ threadId: "d" });

	const resume = () => other.workflows.updateWorkflowState({ workflowName: "w", runId: "b", opts: { status: "running" } });
	expect(await prune(resume, () => workflows.prune({ workflowSnapshot: { maxAge, batchSize: 1 } }))).toEqual([2, true]);
	expect((await workflows.listWorkflowRuns()).runs.map((r) => r.runId)).toEqual(["b"]);

	await memory.saveMessages({ messages: ["mx", "my"].map((id) => message(id, "b", { createdAt: old })) });
	const resave = () => other.memory.saveMessages({ messages: [message("my", "b", { createdAt: new Date() })] });
	expect(await prune(resave, () => memory.prune({ messages: { maxAge } }))).toEqual([1, true]);
	expect((await memory.listMessages({ threadId: "b" })).messages.map((m) => m.id)).toContain("my");

	const fields = { scorerId: "s", entityId: "e", runId: "y", score: 1, output: 1, scorer: {}, entity: {}, source: "LIVE" as const };
	for (const id of ["s", "t"]) await scores.saveScore({ ...fields, id, createdAt: old } as never);
	const rescore = async () => {
		await other.scores.dangerouslyClearAll();
		await other.scores.saveScore({ ...fields, id: "s", createdAt: new Date() } as never);
	};
	expect(await prune(rescore, () => scores.prune({ scorers: { maxAge } }))).toEqual([0, true]);
	expect((await scores.getScoreById({ id: "s" }))?.id).toBe("s");

	await threadState.setState({ threadId: "b", type: "task", value: 1 });
	await new Promise((done) => setTimeout(done, 60));
	before(db, "commit-all", () => other.threadState.setState({ threadId: "b", type: "task", value: 2 }));
	expect((await threadState.prune({ threadState: { maxAge: 50 } }))[0]).toMatchObject({ deleted: 0, done: true });
	expect(await threadState.getState({ threadId: "b", type: "task" })).toBe(2);
});

test("a store is one of several domains of another storage, and clearing one domain leaves the others, but for thread state, which memory takes along", async () => {
	const client = await open();
	const ours = new TurnstoneStore({ client });
	const storage = new MastraCompositeStore({ id: "all", default: new InMemoryStore(), domains: ours.stores });
	await storage.init();
	expect(await storage.getStore("memory")).toBe(ours.stores.memory);
	expect(await storage.getStore("observability")).toBeDefined();
	expect(await ours.getStore("observability")).toBeUndefined();
	await ours.stores.memory.saveThread({ thread: thread("a") });
	await ours.stores.workflows.persistWorkflowSnapshot({ workflowName: "w", runId: "x", snapshot: snapshot("x", "running") });
	const state = { threadId: "a", type: "task" };
	for (const threadId of ["a", "b"]) await ours.stores.threadState.setState({ ...state, threadId, value: 1 });
	await ours.stores.threadState.dangerouslyClearAll();
	expect(await ours.stores.threadState.getState(state)).toBeUndefined();
	expect((await ours.stores.memory.listThreads({})).total).toBe(1);
	await ours.stores.threadState.setState({ ...state, value: 1 });
	await ours.stores.memory.dangerouslyClearAll();
	expect(await ours.stores.threadState.getState(state)).toBeUndefined();
	expect((await ours.stores.memory.listThreads({})).total).toBe(0);
	expect((await ours.stores.workflows.listWorkflowRuns()).total).toBe(1);
	await ours.close();
	expect((await client.list()).sessions.map((i) => i.id)).toEqual(["mastra-workflows/w/x"]);
	expect(isDeepStrictEqual(await storage.prune(), [])).toBe(true);
});
