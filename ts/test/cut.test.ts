import { randomBytes } from "node:crypto";
import { onTestFinished } from "vitest";
import { TurnstoneSession } from "../src/agents.ts";
import { TurnstoneChats } from "../src/ai.ts";
import { Client, type Options, OutcomeUnknownError, TurnstoneError, UnavailableError } from "../src/index.ts";
import { TurnstoneSaver } from "../src/langgraph.ts";
import { silence } from "../src/transport.ts";
import { type Cut, Cutter, problem } from "./cutter.ts";
import { all } from "./helpers.ts";

async function start(options: Options = {}): Promise<{ cutter: Cutter; db: Client }> {
	const cutter = await Cutter.start();
	const db = new Client(cutter.address, options);
	onTestFinished(() => db.close());
	return { cutter, db };
}

/** Returns a plan that does something with the first requests of a path, and lets the others pass. */
function first(path: string, ...cuts: Cut[]): Cutter["plan"] {
	return (q) => (q.url?.startsWith(path) ? cuts.shift() : undefined);
}

test("a write whose answer is lost is made once, wherever the cut is", async () => {
	const { cutter, db } = await start();
	const { session: s } = await db.create("s");
	for (const [i, cut] of ([{ after: 0 }, { after: 1 }, { after: 40 }, "lost", problem("busy", 503)] as Cut[]).entries()) {
		cutter.plan = first("/v1/commit", cut, cut);
		expect((await s.commit({ nodes: [{ kind: "k", payload: String(i) }], expected: i })).revision).toBe(i + 1);
	}
	cutter.plan = first("/v1/commit-all", { after: 0 });
	await db.commitAll([{ session: s, expected: 5, nodes: [{ kind: "k", payload: "5" }] }, { create: { id: "other" } }]);
	expect((await s.load()).nodes.map((n) => n.payload.toString())).toEqual(["0", "1", "2", "3", "4", "5"]);
	cutter.plan = first("/v1/create", { after: 0 });
	expect((await db.create("new")).created).toBe(true);
	let count = 0;
	cutter.plan = () => (count++ % 2 ? undefined : { after: 0 }); // every answer is lost once
	await Promise.all(Array.from({ length: 20 }, () => s.commit({ expected: "any" })));
	expect((await s.info()).revision).toBe(26);
});

test("after a restart of the server a commit is found again, of other writes the outcome is unknown, and nothing is made twice", async () => {
	const { cutter, db } = await start();
	const { session: s } = await db.create("s");
	const lost = (call: () => Promise<unknown>, path: string, cut?: Cut) => cutter.beforeRestart(path, () => call().catch((e) => e), cut);
	const commit = await lost(() => s.commit({ nodes: [{ kind: "k" }], expected: "any" }), "/v1/commit");
	expect(commit).toMatchObject({ revision: 1, replayed: true });
	expect((await s.log()).map((e) => e.turn)).toEqual([undefined]);
	expect(await lost(() => s.changeRecords([{ key: "k", action: "set", value: "v", expect: "none" }]), "/v1/change-records")).toBeInstanceOf(
		OutcomeUnknownError,
	);
	expect((await s.info()).revision).toBe(1);
	await lost(() => s.commit({ nodes: [{ kind: "k" }], expected: "any", turn: "t" }), "/v1/commit");
	expect((await s.info()).revision).toBe(2);
	const both = await lost(
		() =>
			db.commitAll([
				{ session: s, expected: "any" },
				{ create: { id: "x" }, expected: "any" },
			]),
		"/v1/commit-all",
	);
	expect(both).toMatchObject([{ replayed: true }, { replayed: true }]);
	expect([(await s.info()).revision, (await (await db.session("x")).info()).revision]).toEqual([3, 1]);
	const sdk = new TurnstoneSession("agents", db);
	expect(await lost(() => sdk.addItems([{ role: "user", content: "hello" }]), "/v1/commit-all")).toBeUndefined();
	expect(await sdk.getItems()).toHaveLength(1);
	const chats = new TurnstoneChats(db);
	expect(await lost(() => chats.save({ chatId: "c", messages: [{ id: "1", role: "user", parts: [] }] }), "/v1/commit-all")).toBeUndefined();
	expect((await (await db.session("ai/c")).info()).revision).toBe(1);
	// A checkpoint that was put without an answer is put, once.
	const saver = new TurnstoneSaver(db);
	const put = (id: string) =>
		saver.put(
			{ configurable: { thread_id: "t" } },
			{ v: 4, id, ts: "", channel_values: {}, channel_versions: {}, versions_seen: {} },
			{ source: "loop", step: 0, parents: {} },
			{},
		);
	await put("1");
	expect(await lost(() => put("2"), "/v1/commit")).toHaveProperty("configurable.checkpoint_id", "2");
	expect((await saver.getTuple({ configurable: { thread_id: "t" } }))?.checkpoint.id).toBe("2");
	expect(await lost(() => put("3"), "/v1/commit", "lost")).toHaveProperty("configurable.checkpoint_id", "3");
	expect(await all(saver.list({ configurable: { thread_id: "t" } }))).toHaveLength(3);
}, 60_000);

test("a write that nobody could have made is refused as such", async () => {
	const { cutter, db } = await start({ patience: 0.2 });
	const { session: s } = await db.create("s");
	cutter.plan = first("/v1/commit", ...Array(1000).fill("lost"));
	await expect(s.commit({})).rejects.toThrow(OutcomeUnknownError); // It was sent, and the proxy may have passed it on.
	cutter.plan = first("/v1/commit", ...Array(1000).fill(problem("busy", 503)));
	await expect(s.commit({})).rejects.toMatchObject({ kind: "unavailable", outcomeUnknown: false });
	cutter.plan = first("/v1/commit", ...Array(1000).fill(problem("restarted", 409)));
	const before = cutter.asked.length;
	await expect(s.commit({})).rejects.toMatchObject({ kind: "unavailable", outcomeUnknown: false });
	expect(cutter.asked.length - before).toBeLessThan(20); // with pauses between
	cutter.plan = first("/v1/commit", problem("unknown-outcome", 500));
	await expect(s.commit({})).rejects.toThrow(OutcomeUnknownError);
	cutter.plan = first(
		"/v1/commit",
		(a) => a.end("<html>"),
		(a) => a.writeHead(502).end("<html>"),
	);
	expect((await s.commit({})).revision).toBe(1);
});

test("a write without an answer has an unknown outcome, also if no server can be started or the client is closed", async () => {
	const { cutter } = await start();
	let fails = 0;
	const restart = async () => {
		fails++;
		throw new UnavailableError("there is no server");
	};
	const db = new Client(cutter.address, { restart });
	const { session: s } = await db.create("s");
	let broken = false;
	cutter.plan = (q) => (q.url === "/v1/commit" && !broken ? { after: 0 } : undefined);
	const other = new Client("unix:/none", { restart, patience: 1 });
	await expect(other.list()).rejects.toThrow("there is no server");
	expect(fails).toBe(1);
	const written = s.commit({ nodes: [{ kind: "k" }] });
	await new Promise((done) => setTimeout(done, 50));
	db.close();
	broken = true;
	await expect(written).rejects.toMatchObject({ outcomeUnknown: true });
	const after = new Client(cutter.address);
	expect((await (await after.session("s")).info()).revision).toBe(1);
	after.close();
	await expect(s.info()).rejects.toThrow("the client is closed");
	await expect(s.info()).rejects.not.toThrow(OutcomeUnknownError);
});

test("attachments, nodes and watches go on where they were cut off", async () => {
	const { cutter, db } = await start({ patience: 5 });
	const { session: s } = await db.create("s");
	const content = randomBytes(9_000_000);
	let count = 0;
	cutter.plan = (q) =>
		q.url?.startsWith("/v1/attachment") || q.url?.startsWith("/v1/upload")
			? ([{ after: 0 }, undefined, "lost", undefined] as Cut[])[count++ % 4]
			: undefined;
	const a = await s.putAttachment(content);
	expect(count).toBeGreaterThan(3);
	await s.commit({
		nodes: Array.from({ length: 50 }, (_, i) => ({
			kind: "k",
			payload: randomBytes(5000),
			key: String(i),
			...(i === 0 ? { attachments: [a] } : {}),
		})),
	});
	cutter.plan = first("/v1/attachment", { sent: 1_000_000 }, { sent: 2_000_000 }, undefined, { sent: 500_000 });
	expect((await s.putAttachment(content)).id).toBe(a.id);
	cutter.plan = first("/v1/attachment", { after: 1_000_000 }, { after: 1 }, "lost", { after: 5_000_000 });
	expect(Buffer.concat(await all(s.readAttachment(a.id))).equals(content)).toBe(true);
	const nodes = (await s.load()).nodes;
	for (const options of [{}, { reverse: true }, { last: 40 }]) {
		cutter.plan = first("/v1/nodes", { after: 60_000 }, "lost", { after: 6_000 }, { after: 100 });
		const want = "reverse" in options ? [...nodes].reverse() : nodes.slice(-(options.last ?? 50));
		expect((await all(s.nodes(options))).map((n) => n.id)).toEqual(want.map((n) => n.id));
	}
	for (let i = 1; i < 10; i++) await s.commit({ expected: i });
	cutter.plan = first("/v1/watch", { after: 300 }, "lost", { after: 900 }, (r) => r.end("<html>"));
	const seen: number[] = [];
	for await (const e of s.watch()) {
		seen.push(e.revision);
		if (e.revision === 10) break;
	}
	expect(seen).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
});

test("a collection that takes longer than the patience goes on when it is cut off", async () => {
	const { cutter, db } = await start({ patience: 0.3 });
	cutter.plan = first("/v1/gc", (r) => {
		r.writeHead(200).write("\n");
		setTimeout(() => r.destroy(), 600);
	});
	expect(await db.gc()).toHaveProperty("sessions");
	expect(cutter.asked.filter((p) => p === "/v1/gc")).toHaveLength(2);
});

test("a watch goes on however long nothing has come before it was cut off", async () => {
	const { cutter, db } = await start({ patience: 2 });
	const { session: s } = await db.create("s");
	const next = s.watch().next();
	await new Promise((done) => setTimeout(done, 3000));
	await cutter.restart();
	await s.commit({ expected: "any", turn: "t" });
	expect((await next).value?.revision).toBe(1);
	cutter.plan = (q) => (q.url?.startsWith("/v1/watch") ? (r) => r.end("<html>") : undefined);
	await expect(s.watch(1).next()).rejects.toThrow(UnavailableError);
});

test("an upload that fails is given up, and so is its source", async () => {
	const { cutter, db } = await start();
	const { session: s } = await db.create("s");
	let ended = 0;
	async function* source(fail: boolean) {
		try {
			yield randomBytes(5_000_000);
			if (fail) throw new Error("the source has failed");
			yield randomBytes(5_000_000);
		} finally {
			ended++;
		}
	}
	for (let i = 0; i < 4; i++) await expect(s.putAttachment(source(true))).rejects.toThrow("the source has failed");
	cutter.plan = first("/v1/attachment", undefined, problem("size", 422));
	await expect(s.putAttachment(source(false))).rejects.toThrow(TurnstoneError);
	expect(ended).toBe(5);
	expect(cutter.asked.filter((p) => p.startsWith("/v1/upload")).length).toBeGreaterThan(0);
	const shared = Buffer.alloc(3_000_000);
	async function* again() {
		for (const n of [1, 2, 3]) yield shared.fill(n); // one buffer for all
	}
	const a = await s.putAttachment(again());
	await s.commit({ nodes: [{ kind: "k", attachments: [a] }] });
	const read = Buffer.concat(await all(s.readAttachment(a.id)));
	expect([read.length, read[0], read[3_000_000], read[8_999_999]]).toEqual([9_000_000, 1, 2, 3]);
});

test("a server that is silent is taken for gone", async () => {
	silence.milliseconds = 200;
	onTestFinished(() => {
		silence.milliseconds = 90_000;
	});
	const { cutter, db } = await start();
	const { session: s } = await db.create("s");
	cutter.plan = first("/v1/commit", () => {}); // It never answers.
	expect((await s.commit({})).revision).toBe(1);
});
