// Compares the stores for LangGraph.js and Mastra with the frameworks' own: sessions to which one event after the other is
// appended.
//
// npm run build && npm install --no-save @mastra/libsql && node bench/side_by_side.mjs [--only NAME] [--events N --bytes N] [--rounds N]
//
// It prints a table. Each round has a session on either side, and rounds alternate which side goes first: machines are noisy. A
// ratio is that of a round. Turnstone runs as a server of its own, and syncs each commit. The other side is durable as the framework
// sets it up, which the table says. Contents are random words: all stores that compress find as little in them as in prose.

import { execFileSync, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, readdirSync, statSync } from "node:fs";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as wait } from "node:timers/promises";
import { parseArgs } from "node:util";
import { emptyCheckpoint } from "@langchain/langgraph-checkpoint";
import { SqliteSaver } from "@langchain/langgraph-checkpoint-sqlite";
import { Client } from "turnstonedb";
import { TurnstoneSaver } from "turnstonedb/langgraph";
import { TurnstoneStore } from "turnstonedb/mastra";

const command = process.env.TURNSTONE_COMMAND ?? "turnstone";
const last = 10; // events of a read of the last ones
const reads = 5; // of a session in a round, of which the median counts

/** A saver, for which an event is a checkpoint whose list has one message more. What is read is the last one, by a saver that remembers none. */
class LangGraph {
	constructor(saver, reader) {
		this.saver = saver;
		this.reader = reader;
	}

	async begin(id) {
		this.place = { configurable: { thread_id: id, checkpoint_ns: "" } };
		this.config = this.place;
		this.messages = [];
	}

	async append(n, text) {
		this.messages.push({ role: role(n), content: text });
		const versions = { messages: n + 1 };
		const checkpoint = { ...emptyCheckpoint(), channel_values: { messages: [...this.messages] }, channel_versions: versions };
		this.config = await this.saver.put(this.config, checkpoint, { source: "loop", step: n, parents: {} }, versions);
	}

	async read() {
		return (await this.reader().getTuple(this.place)).checkpoint.channel_values.messages;
	}
}

/** A store of Mastra, whose messages are saved one at a time. */
class Mastra {
	constructor(store) {
		this.store = store;
	}

	async begin(id) {
		await this.store.init();
		this.memory = await this.store.getStore("memory");
		this.id = id;
		const now = new Date();
		await this.memory.saveThread({ thread: { id, resourceId: "user", title: id, metadata: {}, createdAt: now, updatedAt: now } });
	}

	async append(n, text) {
		const content = { format: 2, parts: [{ type: "text", text }], content: text };
		const message = { id: `${this.id}-${n}`, threadId: this.id, resourceId: "user", role: role(n), createdAt: new Date(n), content };
		await this.memory.saveMessages({ messages: [message] });
	}

	async read() {
		return (await this.memory.listMessages({ threadId: this.id, perPage: false })).messages;
	}

	async last() {
		const orderBy = { field: "createdAt", direction: "DESC" };
		return (await this.memory.listMessages({ threadId: this.id, perPage: last, page: 0, orderBy })).messages.reverse();
	}
}

/** Each opens their side in a directory, and ours on a client. against says how their side is durable by default. */
const frameworks = {
	"langgraph.js": {
		title: "LangGraph.js, a list that grows",
		against: "`SqliteSaver`, not synced (write-ahead log)",
		long: 1000,
		async sides(directory, db) {
			const theirs = SqliteSaver.fromConnString(join(directory, "db"));
			return {
				sides: [new LangGraph(theirs, () => theirs), new LangGraph(new TurnstoneSaver(db), () => new TurnstoneSaver(db))],
				close: () => theirs.db.close(),
			};
		},
	},
	mastra: {
		title: "Mastra",
		against: "`LibSQLStore`, not synced (write-ahead log)",
		long: 3000,
		async sides(directory, db) {
			const { LibSQLStore } = await import("@mastra/libsql");
			const theirs = new LibSQLStore({ id: "theirs", url: `file:${join(directory, "db")}` });
			return { sides: [new Mastra(theirs), new Mastra(new TurnstoneStore({ client: db }))], close: () => theirs.close?.() };
		},
	},
};

const role = (n) => (n % 2 ? "assistant" : "user");

/** Returns texts of random words, the same ones for a seed. */
function contents(events, size, seed) {
	let state = seed; // of mulberry32
	const random = (n) => {
		state = (state + 0x6d2b79f5) | 0;
		let t = Math.imul(state ^ (state >>> 15), state | 1);
		t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
		return ((t ^ (t >>> 14)) >>> 0) % n;
	};
	const words = Array.from({ length: 2000 }, () => Array.from({ length: 2 + random(9) }, () => "etaoinshrdlucmfwypvbgkjqxz"[random(26)]).join(""));
	return Array.from({ length: events }, () => {
		let text = "";
		while (text.length < size) text += `${words[random(2000)]} `;
		return text.slice(0, size);
	});
}

const median = (numbers) => numbers.toSorted((a, b) => a - b)[numbers.length >> 1];
const short = (x) => (x >= 10 ? Math.round(x).toLocaleString("en") : String(Number(x.toPrecision(2))));

/** Appends texts to a session, and reads it. */
async function measured(side, id, texts) {
	await side.begin(id);
	const begun = performance.now();
	for (const [n, text] of texts.entries()) await side.append(n, text);
	const out = { appends: (texts.length / (performance.now() - begun)) * 1000 };
	for (const [name, want] of [
		["read", texts],
		["last", texts.slice(-last)],
	]) {
		if (!side[name]) continue;
		const took = [];
		for (let i = 0; i < reads; i++) {
			const at = performance.now();
			const found = await side[name]();
			took.push(performance.now() - at);
			if (found.length !== want.length || found.some((m, n) => !JSON.stringify(m).includes(want[n])))
				throw new Error(`${id}: it has read something else`);
		}
		out[name] = median(took);
	}
	return out;
}

/** Returns how many bytes of the disk a directory takes. */
function size(directory) {
	return readdirSync(directory, { recursive: true })
		.map((name) => statSync(join(directory, name)))
		.reduce((sum, s) => sum + (s.isDirectory() ? 0 : s.blocks * 512), 0);
}

/** Returns a row of the table. */
async function compared(framework, events, bytes, rounds) {
	const [theirs, ours] = await Promise.all(["a", "b"].map((n) => mkdtemp(join(tmpdir(), `side-${n}-`))));
	const [store, socket] = [join(ours, "s"), join(ours, "socket")];
	const server = spawn(command, ["serve", "--store", store, "--listen", `unix:${socket}`], { stdio: "ignore" });
	while (!existsSync(socket)) await wait(50);
	const db = new Client(`unix:${socket}`);
	const { sides, close } = await framework.sides(theirs, db);
	for (const side of sides) await measured(side, "first", ["x"]); // Connections and tables are made.
	const figures = [[], []];
	for (let i = 0; i < rounds; i++) {
		const texts = contents(events, bytes, i);
		for (const k of i % 2 ? [1, 0] : [0, 1]) figures[k].push(await measured(sides[k], `s${i}`, texts));
		const [a, b] = figures.map((f) => f.at(-1).appends);
		console.error(`${framework.title}, ${events} of ${bytes} bytes: ${short(a)} appends a second, Turnstone ${short(b)}`);
	}
	db.close();
	await close();
	server.kill();
	await once(server, "exit");
	execFileSync(command, ["vacuum", "--store", store], { stdio: "ignore" });
	const kib = [theirs, store].map((d) => short(size(d) / rounds / 1024));
	await Promise.all([theirs, ours].map((d) => rm(d, { recursive: true })));
	const ratios = figures[0].map((f, i) => figures[1][i].appends / f.appends);
	const ms = (of) => `${short(median(figures[1].map((f) => f[of])))} ms, not ${short(median(figures[0].map((f) => f[of])))}`;
	const more = figures[0][0].last === undefined ? "" : `; of the last ${last} ${ms("last")}`;
	const writes = `${short(median(ratios))} (${short(Math.min(...ratios))} to ${short(Math.max(...ratios))})`;
	return `| ${framework.title}: ${events.toLocaleString("en")} of ${bytes.toLocaleString("en")} bytes | ${framework.against} | ${writes} | ${kib[1]} KiB, not ${kib[0]} | ${ms("read")}${more} |`;
}

const { values: o } = parseArgs({
	options: { only: { type: "string" }, events: { type: "string" }, bytes: { type: "string" }, rounds: { type: "string", default: "3" } },
});
console.log("| | against | writes a second | bytes on disk | a read of all |\n|---|---|---|---|---|");
for (const [name, framework] of Object.entries(frameworks)) {
	if (o.only && name !== o.only) continue;
	const cases =
		o.events || o.bytes
			? [[Number(o.events ?? 30), Number(o.bytes ?? 360)]]
			: [
					[30, 360],
					[framework.long, 360],
					[300, 36_000],
				];
	for (const [events, bytes] of cases) console.log(await compared(framework, events, bytes, Number(o.rounds)));
}
