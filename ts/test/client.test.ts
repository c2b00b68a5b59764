import { execFileSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { onTestFinished, vi } from "vitest";
import {
	Client,
	ConflictError,
	InvalidError,
	NotFoundError,
	type Options,
	RecordConflictError,
	Session,
	type SessionCommit,
	SessionDeletedError,
	TurnConflictError,
	UnauthorizedError,
	UnavailableError,
} from "../src/index.ts";
import { limits } from "../src/requests.ts";
import { children } from "../src/server.ts";
import { all, newStore, open } from "./helpers.ts";
import { serve } from "./servers.ts";

test("what is committed is read", async () => {
	const db = await open();
	const { session: s, created } = await db.create("chat/1", { name: "n", labels: { content: "x", __proto__x: "y" }, group: "a/b" });
	expect(created).toBe(true);
	expect((await db.create("chat/1")).created).toBe(false);
	const binary = randomBytes(5000);
	const turn = {
		nodes: [
			{ kind: "user", payload: "héllo\ud7ff" },
			{ kind: "image", payload: binary, key: "k" },
		],
		turn: "t",
		checkpoint: { a: "", b: binary },
		labels: { value: "1" },
		usage: [{ model: "m", input: 3 }],
	};
	const r = await s.commit({
		...turn,
		expected: (await s.load()).revision,
		keep: "first",
		records: [{ key: "r", action: "set", value: Buffer.of(0), expect: "none" }],
	});
	expect([r.revision, r.replayed]).toEqual([1, undefined]);
	const st = await s.load({ parts: ["a", "b"], records: ["r", "none"] });
	expect(st.nodes.map((n) => n.payload)).toEqual([Buffer.from("héllo\ud7ff"), binary]);
	expect(st.nodes[1]?.parent).toBe(st.nodes[0]?.id);
	const parts = new Map([
		["a", Buffer.alloc(0)],
		["b", binary],
	]);
	expect(st.contents).toEqual(parts);
	expect(await s.checkpoint()).toEqual(parts);
	expect(st.records.get("r")?.value).toEqual(Buffer.of(0));
	expect(st.records.get("none")?.version).toBe("none");
	expect(await all(s.nodes({ reverse: true }))).toEqual([...st.nodes].reverse());
	expect((await s.node({ key: "k" })).payload).toEqual(binary);
	expect((await s.node({ id: st.nodes[0]?.id as string })).kind).toBe("user");
	expect([...(await s.nodesByKey(["k", "other"])).keys()]).toEqual(["k"]);
	expect((await s.leaves()).map((n) => n.id)).toEqual([st.leaf]);
	expect((await s.log()).map((e) => [e.revision, e.turn, e.labels])).toEqual([[1, "t", { value: "1" }]]);
	expect(await s.kept()).toEqual(new Map([["first", 1]]));
	const record = await s.record("r");
	expect(await s.record("other")).toBeUndefined();
	expect((await s.records()).records).toEqual([record]);
	expect((await db.records("r")).records.map((x) => x.session)).toEqual(["chat/1"]);
	const i = await s.info();
	expect([i.name, i.labels, i.group, i.nodes, i.usage]).toEqual(["n", { content: "x", __proto__x: "y" }, "a/b", 2, [{ model: "m", input: 3 }]]);
	expect((await db.list({ group: "a" })).sessions).toEqual([i]);
	expect((await db.list({ group: "none" })).sessions).toEqual([]);
	expect((await s.commit(turn)).replayed).toBe(true);
	await s.saveMetadata({ name: "new" }, ["labels"]);
	expect(await s.info()).toMatchObject({ name: "new" });
	expect((await s.info()).labels).toBeUndefined();
	await s.tombstone([st.nodes[1]?.id as string]);
	expect((await s.load()).nodes).toHaveLength(1);
	await s.keep("second", 1);
	await s.release("first");
	expect(await s.kept()).toEqual(new Map([["second", 1]]));
	expect(await s.changeRecords([{ key: "r", action: "delete", expect: record?.version as string }])).toEqual(["none"]);
	expect(await db.gc()).toHaveProperty("sessions");
	expect(await s.gc({ dryRun: true })).toHaveProperty("sessions");
	expect(await s.vacuum()).toHaveProperty("removed");
	expect(await db.vacuum()).toHaveProperty("removed");
	expect([await s.prune(1), await s.prune(1)]).toEqual([true, false]);
	await s.seal();
	await db.seal();
	expect(await db.stats()).toMatchObject({ sessions: 1 });
	expect(await db.verify()).not.toHaveProperty("problems");
	const { format } = await db.stats();
	expect(await db.upgrade()).toEqual({ from: format, to: format });
	expect(await db.prune({ inactive: 3600, dryRun: true })).not.toHaveProperty("deleted");
	expect(await db.prune({ inactive: 0.000001, dryRun: true })).toHaveProperty("deleted");
	expect(await db.prune({ group: "other", inactive: 0.000001, dryRun: true })).not.toHaveProperty("deleted");
	await expect(db.prune({ age: -1 })).rejects.toThrow(InvalidError);
	expect(await s.erase((await s.load({ full: true })).nodes[0]?.id as string)).toMatchObject({ gone: 0 });
	await db.create("erased");
	expect(await db.erase("erased", "refuse")).toHaveProperty("vacuum");
	await expect(s.delete("keep", { expected: 99 })).rejects.toThrow(ConflictError);
	await s.delete("keep", { expected: (await s.info()).revision });
	await db.delete("chat/1");
	await expect(s.info()).rejects.toThrow(SessionDeletedError);
	await expect(db.session("chat/1")).rejects.toThrow(NotFoundError);
});

test("errors have what a caller acts on", async () => {
	const db = await open();
	const { session: s } = await db.create("s");
	await s.commit({});
	const conflict: ConflictError = await s.commit({}).catch((e) => e);
	expect(conflict).toBeInstanceOf(ConflictError);
	expect([conflict.name, conflict.revision, conflict.expected, conflict.session, conflict.outcomeUnknown]).toEqual([
		"ConflictError",
		1,
		0,
		"s",
		false,
	]);
	await s.commit({ expected: 1, turn: "t" });
	const turn: TurnConflictError = await s.commit({ nodes: [{ kind: "k" }], turn: "t" }).catch((e) => e);
	expect([turn instanceof TurnConflictError, turn.turn, turn.revision]).toEqual([true, "t", 2]);
	const [version] = await s.changeRecords([{ key: "other", action: "set", value: "" }]);
	const record: RecordConflictError = await s.changeRecords([{ key: "k", action: "check", expect: version as string }]).catch((e) => e);
	expect([record instanceof RecordConflictError, record.key, record.version]).toEqual([true, "k", "none"]);
	await expect(s.commit({ nodes: [{ kind: "" }], expected: "any" })).rejects.toThrow(InvalidError);
	await expect(s.load({ at: 9 })).rejects.toMatchObject({ kind: "revision-not-found" });
	await expect(s.node({ key: "none" })).rejects.toThrow(NotFoundError);
});

test("what a request can not have is refused, wherever it is", async () => {
	const db = await open();
	const { session: s } = await db.create("s");
	const half = "\ud83d";
	await expect(db.create(half)).rejects.toThrow(InvalidError);
	await expect(s.commit({ nodes: [{ kind: "k", payload: half }] })).rejects.toThrow("nodes[0].payload has a surrogate without its other half");
	await expect(s.commit({ labels: { [half]: "" } })).rejects.toThrow(InvalidError);
	await expect(s.load({ last: Number.NaN })).rejects.toThrow("last is NaN");
	await expect(s.commit({ checkpoint: { a: undefined as unknown as string } })).rejects.toThrow("has no content");
	expect((await s.info()).revision).toBe(0);
});

test("several sessions change together", async () => {
	const db = await open();
	const { session: a } = await db.create("a");
	const b = { id: "b", parent: "a", group: "g" };
	const results = await db.commitAll([
		{ session: a, nodes: [{ kind: "k", payload: "x" }] },
		{ create: b, nodes: [{ kind: "k" }] },
	]);
	expect(results.map((r) => [r.revision, r.created])).toEqual([
		[1, undefined],
		[1, true],
	]);
	await expect(db.commitAll([{ session: a }, { session: await db.session("b"), expected: "any" }])).rejects.toThrow(ConflictError);
	expect((await (await db.session("b")).info()).revision).toBe(1);
	await db.commitAll([{ session: a, recordsOnly: true, records: [{ key: "k", action: "set", value: "v" }] }]);
	expect((await a.info()).revision).toBe(1);
	expect((await a.record("k"))?.value.toString()).toBe("v");
	const [made] = await db.commitAll([{ create: { id: "made" }, recordsOnly: true, records: [{ key: "k", action: "set", value: "v" }] }]);
	expect([made?.created, made?.revision, (await (await db.session("made")).record("k"))?.value.toString()]).toEqual([true, 0, "v"]);
	// What contradicts itself is refused, and not stored in part.
	const both = { session: a, recordsOnly: true, nodes: [{ kind: "k" }], records: [] } as unknown as SessionCommit;
	await expect(db.commitAll([both])).rejects.toThrow(InvalidError);
	await db.commitAll([{ session: a, recordsOnly: undefined, expected: "any", nodes: [{ kind: "k" }] }]);
	expect((await a.info()).nodes).toBe(2);
	const other = await open();
	await other.create("a");
	await expect(other.commitAll([{ session: a }])).rejects.toThrow("of another client");
});

test("attachments of many pieces", async () => {
	const db = await open();
	const { session: s } = await db.create("s");
	const content = randomBytes(9_000_001);
	const a = await s.putAttachment(content, { mediaType: "application/x", name: "n" });
	expect(a).toMatchObject({ size: content.length, mediaType: "application/x", name: "n" });
	async function* stream() {
		for (let i = 0; i < 8_388_608; i += 65_536) yield content.subarray(i, i + 65_536); // pieces that end where the stream does
	}
	expect((await s.putAttachment(stream())).size).toBe(8_388_608);
	expect((await s.putAttachment(Buffer.alloc(0))).size).toBe(0);
	expect((await s.attachment(a.id)).expires).toBeTruthy();
	const { session: other } = await db.create("other");
	expect(await other.linkAttachment(s.id, a.id)).toEqual(a);
	await other.commit({ nodes: [{ kind: "k", payload: "", attachments: [a] }], stored: { part: a.id } });
	const listed = await other.attachments();
	expect(listed).toEqual([await other.attachment(a.id)]);
	expect(listed[0]).toMatchObject({ ...a, revision: 1 });
	expect((await other.checkpoint()).get("part")?.equals(content)).toBe(true);
	await s.commit({ nodes: [{ kind: "image", attachments: [a] }], expected: "any" });
	expect(Buffer.concat(await all(s.readAttachment(a.id))).equals(content)).toBe(true);
	await expect(s.readAttachment("0".repeat(64)).next()).rejects.toThrow(NotFoundError);
});

test("large answers arrive whole", async () => {
	const db = await open();
	const { session: s } = await db.create("s");
	const payloads = [randomBytes(3_000_000), Buffer.alloc(0), randomBytes(1_000_000), Buffer.from("x".repeat(2000))];
	await s.commit({ nodes: payloads.map((payload) => ({ kind: "k", payload })) });
	expect((await s.load()).nodes.map((n) => n.payload.equals(payloads.shift() as Buffer))).toEqual([true, true, true, true]);
	expect((await all(s.nodes())).map((n) => n.payload.length)).toEqual([3_000_000, 0, 1_000_000, 2000]);
});

test("watches go on when the server is killed", async () => {
	const db = await open(newStore(), { idle: 5 });
	await db.startFeed(3600, { records: true });
	const begin = (await db.feed()).end;
	const { session: s } = await db.create("s");
	const seen: number[] = [];
	const watching = (async () => {
		for await (const e of s.watch()) {
			seen.push(e.revision);
			if (e.revision === 30) return;
		}
	})();
	for (let i = 0; i < 30; i++) {
		if (i % 10 === 5) process.kill(children.at(-1) as number, "SIGKILL");
		await s.commit({ expected: i, turn: String(i), labels: { a: "x\x85y\u2028z" } });
	}
	await watching;
	const revisions = Array.from({ length: 30 }, (_, i) => i + 1);
	expect(seen).toEqual(revisions);
	const told: unknown[] = [];
	for await (const c of db.changes(begin)) {
		told.push([c.kind, c.revision]);
		if (c.revision === 30) break;
	}
	expect(told).toEqual([["created", undefined], ...revisions.map((i) => ["committed", i])]);
});

test("what takes long tells of its progress", async () => {
	const server = createServer((q, r) => {
		q.resume().on("end", async () => {
			const call = q.headers["turnstone-call"] as string;
			r.writeHead(200, { "Turnstone-Call": call, "Turnstone-Server": "s", "Turnstone-Request": q.headers["turnstone-request"] ?? "" });
			if (q.url === "/v1/list") return r.end("{}");
			for (const piece of ['{"progress":{"phase":"sessions",', '"done":0}}\n\n', '{"progress":{"phase":"sessions","done":10}}\n']) {
				r.write(piece);
				await sleep(2);
			}
			r.end('{"report":{"deleted":1}}\n{"end":true}\n');
		});
	}).listen(0, "127.0.0.1");
	await once(server, "listening");
	const slow = new Client(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
	const told: unknown[] = [];
	const progress = (phase: string, done: number) => told.push([phase, done]);
	const s = new Session(slow, "s");
	const all = [
		() => slow.gc({ progress }),
		() => slow.vacuum({ progress }),
		() => slow.verify({ progress }),
		() => slow.erase("s", "keep", { progress }),
	];
	for (const f of [...all, () => s.gc({ progress }), () => s.vacuum({ progress })]) {
		expect(await f()).toEqual({ deleted: 1 });
		expect(told.splice(0)).toEqual([
			["sessions", 0],
			["sessions", 10],
		]);
	}
	slow.close();
	server.close();
	const db = await open();
	await expect(db.erase("", "keep", { progress })).rejects.toThrow(InvalidError);
	expect((await db.verify({ progress })).problems).toBeUndefined();
});

test("a watch of records tells what stands and what changes", async () => {
	const db = await open(newStore(), { idle: 5 });
	const { session: a } = await db.create("a");
	const { session: b } = await db.create("b");
	await a.changeRecords([
		{ key: "p/1", action: "set", value: Buffer.from([0, 1]) },
		{ key: "q", action: "set", value: "other" },
	]);
	const seen = new Map<string, string>();
	let partial = true;
	const stop = new AbortController();
	const watching = (async () => {
		for await (const u of db.watchRecords("p/", { signal: stop.signal })) {
			if (u.anew) seen.clear();
			for (const r of u.records) {
				if (r.version === "none") seen.delete(`${r.session} ${r.key}`);
				else seen.set(`${r.session} ${r.key}`, r.value.toString("hex"));
			}
			partial = u.more;
		}
	})().catch((e: unknown) => e);
	const becomes = (want: Record<string, string>) => vi.waitFor(() => expect([partial, Object.fromEntries(seen)]).toEqual([false, want]), 60_000);
	await becomes({ "a p/1": "0001" });
	await b.changeRecords([{ key: "p/1", action: "set", value: "" }]);
	await becomes({ "a p/1": "0001", "b p/1": "" });
	process.kill(children.at(-1) as number, "SIGKILL");
	await b.commit({ turn: "t", records: [{ key: "p/2", action: "set", value: "2" }] });
	await a.changeRecords([{ key: "p/1", action: "delete" }]);
	await becomes({ "b p/1": "", "b p/2": "32" });
	stop.abort();
	expect(await watching).toMatchObject({ name: "AbortError" });
	const first = (await b.watchRecords("p/2").next()).value;
	expect(first).toMatchObject({ anew: true, more: false, records: [{ key: "p/2", session: "b" }] });
	db.close();
});

test("a watch ends when its signal says so", async () => {
	const db = await open();
	const { session: s } = await db.create("s");
	const stop = new AbortController();
	const next = s.watch(0, { signal: stop.signal }).next();
	setTimeout(() => stop.abort(), 100);
	await expect(next).rejects.toThrow(expect.objectContaining({ name: "AbortError" }));
	await expect(s.watch(0, { signal: stop.signal }).next()).rejects.toThrow(expect.objectContaining({ name: "AbortError" }));
	await db.delete("s");
	await expect(s.watch().next()).rejects.toThrow(SessionDeletedError);
});

test("calls at once share a client", async () => {
	const db = await open();
	const { session: s } = await db.create("s");
	await Promise.all(Array.from({ length: 50 }, (_, i) => s.commit({ nodes: [{ kind: "k", payload: String(i) }], expected: "any" })));
	expect((await s.load()).nodes.map((n) => Number(n.payload)).sort((a, b) => a - b)).toEqual(Array.from({ length: 50 }, (_, i) => i));
});

test("clients that open a store share its server, and a killed one is replaced once", async () => {
	const store = newStore();
	const before = children.length;
	const [a, b] = await Promise.all([open(store, { idle: 5 }), open(store, { idle: 5 })]);
	expect(children.length - before).toBe(1);
	const { session: s } = await a.create("s");
	process.kill(children.at(-1) as number, "SIGKILL");
	await Promise.all(Array.from({ length: 20 }, (_, i) => s.commit({ expected: "any", turn: String(i) })));
	expect((await (await b.session("s")).info()).revision).toBe(20);
	expect(children.length - before).toBe(2);
});

test("a write after a pause goes to a new server", async () => {
	const db = await open(newStore(), { idle: 0.3 });
	const { session: s } = await db.create("s");
	await sleep(1500); // The server has ended, and with it the connection that was kept.
	expect((await s.commit({ expected: 0 })).revision).toBe(1);
	Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1500); // This time nothing has told this process.
	expect((await s.commit({ expected: 1 })).revision).toBe(2);
});

test("a server that is away is unavailable", async () => {
	const db = new Client(`unix:${tmpdir()}/turnstone-none`, { patience: 0.05 });
	await expect(db.list()).rejects.toThrow(UnavailableError);
});

test("a server on a port asks for a token, and proves with TLS who it is", async () => {
	const directory = dirname(newStore());
	execFileSync(
		"go",
		["run", join(execFileSync("go", ["env", "GOROOT"]).toString().trim(), "src/crypto/tls/generate_cert.go"), "--host", "localhost"],
		{
			cwd: directory,
			stdio: "ignore",
		},
	);
	const path = (name: string) => join(directory, name);
	const made = execFileSync(process.env.TURNSTONE_COMMAND as string, ["token", "read", "write", "--namespace", "tenant é", "--name", "w"]);
	const [token, line] = made.toString().split("\n") as [string, string];
	writeFileSync(path("tokens"), `${line}\n`);
	const tls = ["--tls-cert", path("cert.pem"), "--tls-key", path("key.pem")];
	const { listens, stop } = await serve("--store", "mem:", "--listen", "127.0.0.1:0", "--tokens", path("tokens"), ...tls);
	onTestFinished(stop);
	const address = `https://localhost:${/:(\d+)\s/.exec(listens)?.[1]}`;
	const ca = readFileSync(path("cert.pem"));
	const db = new Client(address, { token, namespace: "tenant é", ca });
	onTestFinished(() => db.close());
	const { session: s } = await db.create("s");
	const a = await s.putAttachment(randomBytes(5_000_000));
	await s.commit({ nodes: [{ kind: "k", attachments: [a] }] });
	expect((await all(s.readAttachment(a.id))).reduce((n, b) => n + b.length, 0)).toBe(a.size);
	for await (const e of s.watch()) {
		expect(e.revision).toBe(1);
		break;
	}
	const tried = (options: Options) => new Client(address, { patience: 0.1, ...options }).list();
	await expect(tried({ ca })).rejects.toMatchObject({ kind: "token" });
	await expect(tried({ ca, token: `${token}x` })).rejects.toThrow(UnauthorizedError);
	await expect(tried({ ca, token })).rejects.toMatchObject({ kind: "scope" }); // of another namespace
	await expect(tried({ token, namespace: "tenant é" })).rejects.toThrow(UnavailableError); // nobody vouches for the certificate
});

test("what can not be done is said", async () => {
	for (const bad of ["", "unix:", "host:80", "ftp://host", "http://", "http://h?q", "http://u@h"])
		expect(() => new Client(bad), bad).toThrow(TypeError);
	expect(() => new Client("http://203.0.113.1", { token: "t" })).toThrow("https");
	expect(() => new Client("http://h", { patience: 31 })).toThrow(RangeError);
	expect(() => new Client("https://h", { token: "a\nb" })).toThrow("token");
	for (const idle of [0, -1, Number.NaN, Number.POSITIVE_INFINITY]) await expect(Client.open(newStore(), { idle })).rejects.toThrow(RangeError);
	await expect(Client.open("postgres://host/db")).rejects.toThrow("no directory");
	const db = await open();
	const { session: s } = await db.create("s");
	vi.spyOn(limits, "request", "get").mockReturnValue(100);
	onTestFinished(() => void vi.restoreAllMocks());
	await expect(s.commit({ nodes: [{ kind: "k", payload: "x".repeat(300) }] })).rejects.toThrow("bytes: a server reads 100");
	vi.restoreAllMocks();
	db.close();
	await expect(db.list()).rejects.toThrow("the client is closed");
	vi.stubEnv("TURNSTONE_COMMAND", "/none");
	onTestFinished(() => void vi.unstubAllEnvs());
	await expect(Client.open(newStore())).rejects.toThrow("TURNSTONE_COMMAND");
	vi.stubEnv("TURNSTONE_COMMAND", "/bin/false");
	await expect(Client.open(newStore())).rejects.toThrow(UnavailableError);
});

test("a store stays where it is when the process moves", async () => {
	const store = newStore();
	const cwd = vi.spyOn(process, "cwd").mockReturnValue(dirname(store));
	onTestFinished(() => cwd.mockRestore());
	const db = await open("s", { idle: 0.3 });
	await db.create("x");
	cwd.mockReturnValue("/");
	await sleep(1500);
	expect((await db.list()).sessions.map((i) => i.id)).toEqual(["x"]);
	expect(readdirSync(dirname(store))).toEqual(["s"]);
});

test.skipIf(process.platform !== "linux")("a store is in a directory of any name", async () => {
	const db = await open(join(newStore(), "x".repeat(200), "x".repeat(200)));
	const { session: s } = await db.create("s");
	await s.commit({});
	await Promise.all(Array.from({ length: 20 }, () => s.info()));
	process.kill(children.at(-1) as number, "SIGKILL");
	expect((await s.info()).revision).toBe(1);
});
