import { execFileSync, spawn, spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import {
	type BaseArtifactService,
	type BaseMemoryService,
	type BaseSessionService,
	type CreateSessionRequest,
	createEvent,
	createEventActions,
	type Event,
	InMemoryArtifactService,
	InMemoryMemoryService,
	InMemorySessionService,
	type ListSessionsRequest,
	type Session,
	ToolConfirmation,
} from "@google/adk";
import { onTestFinished, vi } from "vitest";
import { TurnstoneArtifacts, TurnstoneMemory, TurnstoneSessions } from "../src/adk.ts";
import { milliseconds, moment, usageOf } from "../src/adk-events.ts";
import { Client, InvalidError, OutcomeUnknownError, Session as StoredSession, TurnConflictError } from "../src/index.ts";
import { alike, type Random } from "../src/testing.ts";
import { newStore, open, removeStore } from "./helpers.ts";

const adk = join(import.meta.dirname, "../../adapters/adk");
const golden = (name: string) => readFileSync(join(adk, "testdata", name));
const key = { appName: "a", userId: "u", sessionId: "s" };

function said(text: string, stateDelta: Record<string, unknown> = {}, more: Partial<Event> = {}): Event {
	return createEvent({
		author: "user",
		invocationId: "i",
		content: { role: "user", parts: [{ text }] },
		actions: createEventActions({ stateDelta }),
		...more,
	});
}

/** The event of testdata/js.json, in which the three languages write something differently. */
function rich(): Event {
	return createEvent({
		id: "e1",
		author: "agent",
		invocationId: "i1",
		branch: "a.b",
		timestamp: 1795899580492,
		longRunningToolIds: ["c1"],
		modelVersion: "model-1",
		customMetadata: { k: { data: "a-b_c", mimeType: "x" } },
		usageMetadata: { promptTokenCount: 10, candidatesTokenCount: 3, thoughtsTokenCount: 2, cachedContentTokenCount: 4 },
		content: {
			role: "model",
			parts: [
				{ text: "é \u2028" },
				{ inlineData: { data: "//77AA==", mimeType: "image/png" } },
				{ text: "Let me see.", thought: true, thoughtSignature: "+/+/" },
				{ functionCall: { id: "c1", name: "find", args: { n: 1, deep: [{ x: 1.5 }] } } },
			],
		},
		actions: createEventActions({ stateDelta: { n: 1, f: 2.5, "user:name": "Ann" }, artifactDelta: { report: 2 }, transferToAgent: "other" }),
	});
}

/** Returns what JSON has of a value: fields that are undefined are gone. */
function plain(value: unknown): unknown {
	return value === undefined ? undefined : JSON.parse(JSON.stringify(value));
}

async function got(service: BaseSessionService, of = key): Promise<Session> {
	return (await service.getSession(of)) as Session;
}

const texts = (s: Session | undefined) => s?.events.map((e) => e.content?.parts?.[0]?.text);
const pick = <T>(r: Random, from: T[]): T => from[r(from.length)] as T;
const hostile = ["a", "a/b", "a%2Fb", "%", "__proto__", "é".repeat(40)];

test("sessions of ADK do what those in memory do, whatever the names", { timeout: 120_000 }, async () => {
	const [ours, theirs] = [new TurnstoneSessions(await open()), new InMemorySessionService()];
	const held = new Map([ours, theirs].map((s): [BaseSessionService, Map<string, Session>] => [s, new Map()]));
	const of = (r: Random) => ({ appName: pick(r, ["trips", "a/b"]), userId: pick(r, ["ann", "bob%2F"]), sessionId: pick(r, hostile) });
	let at = 0; // The same for both, and later than what either has made before.
	const times = [0];
	const tick = async (s: BaseSessionService) => {
		if (s !== ours) return;
		await sleep(2);
		at = Date.now();
		times.push(at);
	};
	const create = async (s: BaseSessionService, r: Random) => {
		await tick(s);
		const k = of(r);
		if (await s.getSession(k)) return undefined; // The one in memory makes it again.
		const made = await s.createSession({ ...k, ...pick<Partial<CreateSessionRequest>>(r, [{}, { state: { own: r(9), x: null, "temp:t": 1 } }]) });
		held.get(s)?.set(JSON.stringify(k), made);
		await sleep(2);
		return plain({ ...made, lastUpdateTime: 0 });
	};
	const deltas = [
		{},
		{ own: 1, "temp:t": 2 },
		{ "user:u": [1, null, { $type: "x", value: -0 }] },
		{ "app:a": "x", gone: null },
		{ ["__proto__"]: { x: 1 }, "user:__proto__": 1 },
	];
	const append = async (s: BaseSessionService, r: Random) => {
		await tick(s);
		const session = held.get(s)?.get(JSON.stringify(of(r)));
		if (!session) return undefined;
		const event = said(`Say ${r(1e9)}.`, structuredClone(pick(r, deltas)), { id: `e${r(1e9)}`, timestamp: at });
		return plain([await s.appendEvent({ session, event }), session.events.at(-1)]);
	};
	const read = async (s: BaseSessionService, r: Random) => {
		const k = of(r);
		const config = pick(r, [
			undefined,
			{ numRecentEvents: r(4) },
			{ afterTimestamp: pick(r, times) },
			{ numRecentEvents: 2, afterTimestamp: pick(r, times) },
		]);
		const session = await s.getSession({ ...k, ...(config && { config }) });
		if (session && !config) held.get(s)?.set(JSON.stringify(k), session);
		return plain(session && { ...session, lastUpdateTime: session.events.length > 0 && session.lastUpdateTime });
	};
	const list = async (s: BaseSessionService, r: Random) => {
		const { userId, ...app } = of(r);
		const request: ListSessionsRequest = { appName: app.appName, ...pick(r, [{}, { userId }]) };
		const { sessions, ...all } = await s.listSessions({ ...request, ...pick(r, [{}, { offset: r(3) }]), order: pick(r, ["asc", "desc"]) });
		const paged = await s.listSessions({ ...request, limit: r(4), order: "desc", ...pick(r, [{ page: 1 + r(3) }, { offset: r(4) }, {}]) });
		const ids = (found: Session[]) => found.map((x) => [x.userId, x.id, x.events.length]);
		const none = (await s.listSessions(request)).sessions;
		return plain([ids(sessions), all, ids(paged.sessions), { ...paged, sessions: 0 }, ids(none).sort()]);
	};
	const remove = async (s: BaseSessionService, r: Random) => {
		const k = of(r);
		held.get(s)?.delete(JSON.stringify(k));
		return s.deleteSession(k);
	};
	await alike<BaseSessionService>([ours, theirs], [create, create, append, append, append, append, read, read, list, remove], { steps: 400 });
});

test("a session that is there is not made again, and a list shows states", async () => {
	const service = new TurnstoneSessions(await open());
	await service.createSession({ ...key, state: { k: 1, "user:u": 2, "app:a": 3, "temp:t": 4 } });
	await expect(service.createSession(key)).rejects.toThrow("Session with id s already exists.");
	const { id } = await service.createSession({ appName: "a", userId: "v" });
	expect((await service.listSessions({ appName: "a", order: "asc" })).sessions.map((s) => [s.id, s.state])).toEqual([
		["s", { k: 1, "user:u": 2, "app:a": 3 }],
		[id, { "app:a": 3 }],
	]);
	expect((await service.getOrCreateSession(key)).state).toEqual({ k: 1, "user:u": 2, "app:a": 3 });
});

test("an event that a rewind took away is refused if it comes again", async () => {
	const db = await open();
	const service = new TurnstoneSessions(db);
	await service.createSession(key);
	const session = await got(service);
	const events = [said("one"), said("two"), said("three", { k: 3 })];
	const before: Awaited<ReturnType<typeof got>>[] = [];
	for (const event of events) {
		before.push(await got(service));
		await service.appendEvent({ session, event });
	}
	const handle = await db.session("adk/a/u/s");
	await handle.commit({ leaf: (await handle.load()).nodes[0]?.id as string, expected: "any" });
	await service.appendEvent({ session: await got(service), event: said("else", { k: 4 }) });
	await service.appendEvent({ session: await got(service), event: structuredClone(events[0] as Event) }); // is there
	for (const [i, event] of events.entries()) {
		if (i === 0) continue;
		for (const s of [await got(service), before[i] as (typeof before)[0]])
			await expect(service.appendEvent({ session: s, event: structuredClone(event) })).rejects.toThrow(TurnConflictError);
	}
	expect((await got(service)).events.length).toBe(2);
});

test("an event and the state that it changes are stored together, and once when it is appended again", async () => {
	const db = await open();
	const service = new TurnstoneSessions(db);
	await service.createSession(key);
	const stale = await got(service);
	const event = said("one", { k: 1, "user:u": 1, "app:a": 1 });
	const commitAll = vi.spyOn(db, "commitAll");
	// Nothing of it is stored, or all, and nobody is told.
	commitAll.mockImplementationOnce(async () => Promise.reject(new OutcomeUnknownError("lost", { matches: ["unknown-outcome"] })));
	await expect(service.appendEvent({ session: stale, event })).rejects.toThrow("lost");
	expect(await got(service)).toMatchObject({ state: {}, events: [] });
	commitAll.mockImplementationOnce(async (...of) => {
		await Client.prototype.commitAll.apply(db, of);
		throw new OutcomeUnknownError("lost", { matches: ["unknown-outcome"] });
	});
	await expect(service.appendEvent({ session: stale, event })).rejects.toThrow("lost");
	expect(stale.events).toEqual([]);
	expect(await got(service)).toMatchObject({ state: { k: 1, "user:u": 1, "app:a": 1 } });
	// Others go on, and then it comes again: to the object that it was for, and to one that has it.
	const other = await got(service);
	await service.appendEvent({ session: other, event: said("two", { k: 2, j: 2, "user:u": 2 }) });
	for (const session of [other, await got(service), stale]) await service.appendEvent({ session, event: structuredClone(event) });
	expect(other).toMatchObject({ state: { k: 2, j: 2, "user:u": 2, "app:a": 1 }, events: [{ id: event.id }, {}] });
	expect(stale).toMatchObject({ state: { k: 1, "user:u": 1, "app:a": 1 }, events: [{ id: event.id }] });
	expect(await got(service)).toMatchObject({ state: { k: 2, j: 2, "user:u": 2, "app:a": 1 } });
	expect((await (await db.session("adk/a/u/s")).info()).nodes).toBe(2);
	const early = said("three", { "user:v": 1 });
	for (const e of [early, said("four", { "user:v": 2 }), early]) await service.appendEvent({ session: other, event: e });
	expect(other.state).toMatchObject({ "user:v": 2 });
	await expect(service.appendEvent({ session: other, event: { ...event, author: "another" } })).rejects.toThrow(TurnConflictError);
	const partial = said("five", {}, { partial: true });
	expect(await service.appendEvent({ session: other, event: partial })).toBe(partial);
	expect(texts(await got(service))).toEqual(["one", "two", "three", "four"]);
});

test("an event that is appended to a session object which others have appended to is stored after theirs, and the object has them", async () => {
	const store = newStore();
	const [here, there] = [new TurnstoneSessions(await open(store)), new TurnstoneSessions(await open(store))];
	const ours = await here.createSession({ ...key, state: { k: 0 } });
	const theirs = await got(there);
	await there.appendEvent({ session: theirs, event: said("theirs", { k: 1, j: 1, gone: 1, "user:u": 1 }) });
	await there.appendEvent({ session: theirs, event: said("theirs too", { gone: undefined, "user:u": undefined }) });
	ours.state["temp:t"] = "mine";
	const event = said("ours", { k: 2, "temp:x": 3 });
	expect(await here.appendEvent({ session: ours, event })).toBe(event);
	expect(texts(ours)).toEqual(["theirs", "theirs too", "ours"]);
	expect(ours.state).toEqual({ k: 2, j: 1, "temp:t": "mine" });
	expect(ours.lastUpdateTime).toBe(event.timestamp);
	expect(await got(there)).toEqual({ ...ours, state: { k: 2, j: 1 }, events: expect.anything() });
	// So is one to an object that this service has not returned, or that came without events.
	const { sessions } = await here.listSessions({ appName: "a" });
	let count = 3;
	for (const session of [sessions[0] as Session, structuredClone({ ...ours, events: [] }), sessions[0] as Session]) {
		await here.appendEvent({ session, event: said("more") });
		expect(texts(session)).toHaveLength(++count);
	}
});

test("a session that was deleted takes no event, and neither does one that was made again since it was read", async () => {
	const db = await open();
	const [a, b] = [new TurnstoneSessions(db), new TurnstoneSessions(db)];
	for (const delta of [{}, { k: 1 }]) {
		const read = await a.createSession(key);
		await b.deleteSession(key);
		await expect(a.appendEvent({ session: read, event: said("late", delta) })).rejects.toThrow("Session s not found for appendEvent");
		await b.createSession(key);
		await expect(a.appendEvent({ session: read, event: said("late", delta) })).rejects.toThrow("Session s not found for appendEvent");
		const there = await got(a);
		expect(there).toMatchObject({ events: [], state: {} });
		await a.appendEvent({ session: there, event: said("now", delta) });
		await a.deleteSession(key);
		expect(await a.getSession(key)).toBeUndefined();
	}
	await expect(a.appendEvent({ session: { ...key, id: "none", state: {}, events: [], lastUpdateTime: 0 }, event: said("late") })).rejects.toThrow(
		"not found",
	);
});

test("a fork has the events and the state of its revision, and goes on by itself", async () => {
	const db = await open();
	const service = new TurnstoneSessions(db);
	const session = await service.createSession({ ...key, state: { k: 0 } });
	for (const n of [1, 2]) await service.appendEvent({ session, event: said(`${n}`, { k: n, "user:u": n }) });
	const other = { ...key, sessionId: "other" };
	await db.create("adk/a/u/other", { parent: "adk/a/u/s", forkAt: 2, group: "adk/a/u" });
	const fork = await got(service, other);
	expect([texts(fork), fork.state]).toEqual([["1"], { k: 1, "user:u": 2 }]);
	expect((await service.getSession({ ...other, config: { afterTimestamp: 1 } }))?.events).toHaveLength(1);
	await service.appendEvent({ session: fork, event: said("3", { j: 3 }) });
	const { sessions } = await service.listSessions({ appName: "a", order: "asc" });
	expect(sessions.map((s) => [s.id, s.state])).toEqual([
		["s", { k: 2, "user:u": 2 }],
		["other", { k: 1, j: 3, "user:u": 2 }],
	]);
	expect([texts(await got(service)), texts(await got(service, other))]).toEqual([
		["1", "2"],
		["1", "3"],
	]);
});

test("two hosts that append to one session at once lose no event, and one that appends at once keeps its order", async () => {
	const store = newStore();
	const services = [new TurnstoneSessions(await open(store)), new TurnstoneSessions(await open(store))];
	const sessions = [await (services[0] as TurnstoneSessions).createSession(key), await got(services[1] as TurnstoneSessions)];
	const large = "x".repeat(150_000);
	await Promise.all(
		[0, 1].flatMap((host) =>
			Array.from({ length: 12 }, (_, n) => {
				const delta = { [`of ${host}`]: n, "user:last": `${host} ${n}`, "app:large": n % 2 ? `${n}${large}` : "small" };
				return services[host]?.appendEvent({ session: sessions[host] as Session, event: said(`${host} ${n}`, delta) });
			}),
		),
	);
	const read = await got(services[0] as TurnstoneSessions);
	for (const host of [0, 1]) {
		expect(texts(read)?.filter((t) => t?.startsWith(`${host} `))).toEqual(Array.from({ length: 12 }, (_, n) => `${host} ${n}`));
	}
	const last = texts(read)?.at(-1) ?? "";
	expect(read.state).toEqual({ "of 0": 11, "of 1": 11, "user:last": last, "app:large": `11${large}` });
	expect(sessions.map((s) => s?.events.length).sort()).toContain(24);
});

test("values of state keep their types, and what JSON can't carry is refused before anything is stored", async () => {
	const db = await open();
	const service = new TurnstoneSessions(db);
	const loop: Record<string, unknown> = {};
	loop.loop = loop;
	const bad = [
		1n,
		Number.NaN,
		Number.POSITIVE_INFINITY,
		new Date(0),
		new Map(),
		new Set(),
		() => 1,
		Symbol("x"),
		"\ud800",
		new Uint8Array(1),
		loop,
		[undefined],
	];
	const session = await service.createSession(key);
	const state = { n: -0, f: 1.5, big: 1e300, deep: [[{ $type: "int64", value: [null, true] }]], gone: { x: undefined }, "": "é\u2028" };
	for (const [i, value] of [...bad, ...bad.map((b) => ({ deep: [b] })), { "\udfff": 1 }].entries()) {
		for (const where of ["k", "user:k", "app:k"]) {
			const event = said("bad", { ok: 1, "user:ok": 1, [where]: value });
			await expect(service.appendEvent({ session, event }), `value ${i}`).rejects.toThrow(TypeError);
			await expect(service.createSession({ ...key, sessionId: "bad", state: { [where]: value } })).rejects.toThrow(TypeError);
		}
	}
	for (const more of [{ timestamp: Number.NaN }, { content: { parts: [{ inlineData: { data: "no base64" } }] } }, { customMetadata: { x: 1n } }]) {
		const event = Object.assign(said("bad", { "user:ok": 1 }), more);
		await expect(service.appendEvent({ session, event })).rejects.toThrow(/base64|time|type bigint/);
	}
	await expect(service.appendEvent({ session, event: said("bad", { "user:ok": 1, "app:k": "x".repeat(13 << 20) }) })).rejects.toThrow(InvalidError);
	await expect(service.appendEvent({ session, event: said("bad", { "user:ok": 1, [`app:${"k".repeat(507)}`]: 1 }) })).rejects.toThrow(InvalidError);
	expect(session).toMatchObject({ state: {}, events: [] });
	expect(await got(service)).toMatchObject({ state: {}, events: [] });
	expect(await service.getSession({ ...key, sessionId: "bad" })).toBeUndefined();
	expect((await db.list()).sessions.map((i) => i.id)).toEqual(["adk/a/u/s"]);
	const user = Object.fromEntries(Object.entries(state).map(([k, v]) => [`user:${k}`, v]));
	const event = said(
		"good",
		{ ...state, ...user },
		{ output: new Date(0), actions: createEventActions({ requestedToolConfirmations: { c: new ToolConfirmation({ confirmed: true }) } }) },
	);
	event.actions.stateDelta = { ...state, ...user };
	await service.appendEvent({ session, event });
	const read = await got(service);
	const whole = { ...state, ...user, gone: {}, "user:gone": {} };
	expect(read.state).toStrictEqual(whole);
	expect(read.events[0]?.actions.stateDelta).toStrictEqual(whole);
	expect(read.events[0]).toMatchObject({ output: "1970-01-01T00:00:00.000Z", actions: { requestedToolConfirmations: { c: { confirmed: true } } } });
	// What others have stored, and JavaScript has no type for, stays as it is beside what changes.
	const typed =
		'{"at":{"$type":"time.Time","value":"1970-01-01T00:00:00Z"},"big":12345678901234567890,"f":2.0,"s":"},{\\"[\\\\","x":[1.0,{"y":"]"}]}';
	const handle = await db.session("adk/a/u/s");
	await handle.commit({ expected: "any", turn: "t", checkpoint: { state: typed } });
	await service.appendEvent({ session: read, event: said("more", { k: 1 }) });
	expect((await handle.checkpoint()).get("state")?.toString()).toBe(typed.replace('"s"', '"k":1,"s"'));
	expect(read.state).toMatchObject({ at: "1970-01-01T00:00:00Z", f: 2, s: '},{"[\\', x: [1, { y: "]" }], k: 1 });
});

test("a key __proto__ is a key as any other, and no object gets what it has", async () => {
	const service = new TurnstoneSessions(await open());
	const proto = JSON.parse('{"__proto__":{"polluted":1},"user:__proto__":{"polluted":2},"app:x":{"__proto__":3},"constructor":4}');
	const of = { appName: "__proto__", userId: "__proto__", sessionId: "__proto__" };
	const session = await service.createSession({ ...of, state: proto });
	await service.appendEvent({ session, event: said("x", JSON.parse('{"__proto__":{"polluted":5}}')) });
	const read = await got(service, of);
	for (const { state } of [session, read]) {
		expect(JSON.parse(JSON.stringify(state))).toEqual({ ...proto, ["__proto__"]: { polluted: 5 } });
		expect(Object.getPrototypeOf(state)).toBe(Object.prototype);
	}
	expect(Object.hasOwn(read.events[0]?.actions.stateDelta ?? {}, "__proto__")).toBe(true);
	expect(({} as Record<string, unknown>).polluted).toBeUndefined();
});

test("a read with a number of events, or since a time, costs what it returns, and events of a later time than that of their commit are found", async () => {
	const db = await open();
	const service = new TurnstoneSessions(db);
	await service.createSession(key);
	const now = Date.now();
	const hour = 3_600_000;
	const nodes = Array.from({ length: 400 }, (_, i) => ({ kind: "user", payload: golden("js.json").toString().replace('"e1"', `"e${i}"`) }));
	await (await db.session("adk/a/u/s")).commit({ expected: "any", nodes });
	let read = 0;
	const counted = StoredSession.prototype.nodes;
	vi.spyOn(StoredSession.prototype, "nodes").mockImplementation(async function* (this: StoredSession, options) {
		for await (const n of counted.call(this, options)) {
			read++;
			yield n;
		}
	});
	const load = vi.spyOn(StoredSession.prototype, "load");
	onTestFinished(() => void vi.restoreAllMocks());
	const ids = async (config: { numRecentEvents?: number; afterTimestamp?: number }) =>
		(await service.getSession({ ...key, config }))?.events.map((e) => e.id);
	expect(await ids({ numRecentEvents: 2 })).toEqual(["e398", "e399"]);
	expect(await ids({ afterTimestamp: now + 2 * hour })).toEqual([]);
	expect(await ids({ afterTimestamp: now + 2 * hour, numRecentEvents: 3 })).toEqual([]);
	expect(read).toBeLessThan(3);
	for (const { value } of load.mock.results) expect((await value).nodes.length).toBeLessThan(4);
	const session = await got(service);
	const later = now + 100 * 24 * hour;
	for (const [i, timestamp] of [later, now, now + 1].entries())
		await service.appendEvent({ session, event: said("x", {}, { id: `late ${i}`, timestamp }) });
	expect(await ids({ afterTimestamp: later - hour })).toEqual(["late 0"]);
	expect(await ids({ afterTimestamp: now })).toEqual(["late 0", "late 1", "late 2"]);
});

test("events come back as they were, and are those of Go and Python", async () => {
	const db = await open();
	const service = new TurnstoneSessions(db);
	const session = await service.createSession(key);
	await service.appendEvent({ session, event: rich() });
	const read = await got(service);
	expect(read.events[0]).toEqual(rich());
	expect(read.lastUpdateTime).toBe(rich().timestamp);
	const handle = await db.session("adk/a/u/s");
	expect((await handle.info()).usage).toMatchObject([{ model: "model-1", input: 10, output: 5, cachedInput: 4, reasoning: 2 }]);
	const [node] = (await handle.load()).nodes;
	expect(node?.kind).toBe("model");
	// The adapters for Go and Python have tests that read this payload, and ones that write the others.
	expect(`${node?.payload}\n`).toBe(golden("js.json").toString());
	await handle.commit({ expected: "any", nodes: ["go.json", "python.json"].map((name) => ({ kind: "model", payload: golden(name) })) });
	for (const e of (await got(service)).events.slice(1)) {
		const { nodeInfo: _, ...rest } = e;
		const { actions, ...want } = rich();
		expect(rest).toEqual({ ...want, timestamp: 1795899580492.2083, actions: { ...actions, stateDelta: { ...actions.stateDelta, f: 2 } } });
	}
	// Base64 of URLs is stored as Go reads it, and what others call the route of an event is found.
	await service.appendEvent({ session, event: said("x", {}, { id: "e2", route: ["left", 2], content: { parts: [{ thoughtSignature: "-_8" }] } }) });
	const routed = (await handle.load({ last: 1 })).nodes[0]?.payload.toString() ?? "";
	expect(JSON.parse(routed)).toMatchObject({
		route: ["left", 2],
		routes: ["left", "2"],
		actions: { route: ["left", 2] },
		content: { parts: [{ thoughtSignature: "+/8=" }] },
	});
	const names = [
		{ routes: ["left"], timestamp: "2026-01-01T01:00:00.5+01:00" },
		{ actions: { route: 7 }, timestamp: "2026-01-01T00:00:00Z" },
	];
	await handle.commit({ expected: "any", nodes: names.map((e) => ({ kind: "model", payload: JSON.stringify({ id: "x", ...e }) })) });
	expect((await got(service)).events.slice(-3).map((e) => [e.route, e.timestamp % 86_400_000])).toEqual([
		[["left", 2], expect.anything()],
		["left", 500],
		[7, 0],
	]);
	expect(() => moment(8e15)).toThrow(RangeError);
	for (const t of [0, -1, 1, 999, 1795899580492.2083, 1795899580000]) expect(milliseconds(moment(t))).toBe(t);
	await handle.commit({ expected: "any", nodes: [{ kind: "x", payload: "none" }] });
	await expect(got(service)).rejects.toThrow("is no event");
});

const goIsInstalled = spawnSync("go", ["version"]).status === 0 || process.env.TURNSTONE_TEST_REQUIRE === "go";

test.skipIf(!goIsInstalled)(
	"Go reads the sessions, artifacts and memories of JavaScript, and the other way round",
	{ timeout: 300_000 },
	async () => {
		const directory = mkdtempSync(join(tmpdir(), "adk-"));
		onTestFinished(() => removeStore(directory));
		const host = join(directory, "host");
		execFileSync("go", ["build", "-C", adk, "-o", host, "./testdata/host"], { stdio: "inherit" });
		const store = newStore();
		const db = await open(store, { idle: 20 });
		const [sessions, artifacts, memory] = [new TurnstoneSessions(db), new TurnstoneArtifacts(db), new TurnstoneMemory(db)];
		execFileSync(host, ["write", store], { stdio: "inherit" });
		const of = { appName: "a/b", userId: "ann%" };
		const theirs = await got(sessions, { ...of, sessionId: "go" });
		const shared = { "user:u": "of Go", "user:n": 1.5, "app:a": [1, null] };
		expect(theirs.state).toEqual({ f: 2, i64: 5, big: 2 ** 60, at: "1970-01-01T00:00:00Z", n: 1, ...shared });
		expect(theirs.events).toMatchObject([
			{ id: "e1", timestamp: 1795899580492.2083, route: "left", actions: { stateDelta: { n: 1, "user:n": 1.5 } } },
		]);
		const parts = [{ text: "The museum of Oslo" }, { inlineData: { data: "//4=", mimeType: "image/png" } }];
		expect(theirs.events[0]?.content?.parts).toEqual(parts);
		const file = { ...of, sessionId: "go", filename: "notes.txt" };
		expect(await artifacts.listVersions(file)).toEqual([0, 1]);
		expect([await artifacts.loadArtifact({ ...file, version: 0 }), await artifacts.loadArtifact(file)]).toEqual([{ text: "é" }, parts[1]]);
		const found = async () => (await memory.searchMemory({ ...of, query: "museum" })).memories.map((m) => m.content.parts?.[0]?.text);
		expect(await found()).toEqual(["The museum of Oslo"]);

		await sessions.appendEvent({ session: theirs, event: said("more", { more: 1 }) }); // The types of Go stay.
		const session = await sessions.createSession({ ...of, sessionId: "js", state: { n: 1, f: 1.5, deep: [{ $type: "x" }], "app:js": true } });
		await sessions.appendEvent({ session, event: rich() });
		await sessions.appendEvent({ session, event: said("A museum", {}, { id: "e2" }) });
		for (const artifact of [parts[1], { text: "é" }] as { text: string }[]) await artifacts.saveArtifact({ ...file, sessionId: "js", artifact });
		await memory.addSessionToMemory(session);
		const read = JSON.parse(execFileSync(host, ["read", store]).toString());
		expect(read.state).toEqual({
		n: "int 1", f: "float64 2.5", deep: "[]interface {} [map[$type:x]]", "app:js": "bool true", "app:a": "[]interface {} [1 <nil>]",
		"user:u": "string of Go", "user:n": "float64 1.5", "user:name": "string Ann",
	}); // biome-ignore format: one line for each kind
		expect(read.events[0]).toEqual(JSON.parse(golden("go.json").toString().replace("492208242Z", "492Z").replace('"f":2.0', '"f":2.5')));
		expect(read).toMatchObject({ artifacts: ["notes.txt"], parts: [parts[1], { text: "é" }], memories: ["The museum of Oslo", "A museum"] });
		// What somebody has deleted, as the adapter for Python does, is not added again.
		const remembered = await db.session("adk-memory/a%2Fb/ann%25");
		for await (const n of remembered.nodes()) if (n.payload.includes("A museum")) await remembered.tombstone([n.id]);
		await remembered.changeRecords([{ key: "deleted/e2", action: "set", value: "" }]);
		await memory.addSessionToMemory(session);
		expect(await found()).toEqual(["The museum of Oslo"]);
		expect((await (await db.session("adk/a%2Fb/ann%25/go")).checkpoint()).get("state")?.toString()).toBe(
			'{"at":{"$type":"time.Time","value":"1970-01-01T00:00:00Z"},"big":1152921504606846977,"f":2.0,"i64":{"$type":"int64","value":5},"more":1,"n":1}',
		);
	},
);

test("artifacts of ADK do what those in memory do, whatever the names", { timeout: 60_000 }, async () => {
	const of = (r: Random) => ({
		appName: "app",
		userId: pick(r, ["u", "v/w"]),
		sessionId: pick(r, ["s", "t%2F"]),
		filename: pick(r, ["a", "a/b", "a/b/7fff", "user:c", "é%".repeat(50)]),
	});
	const save = (s: BaseArtifactService, r: Random) => {
		const blob = { mimeType: "image/png", data: Buffer.from(`bytes ${r(3)}`.repeat(999)).toString("base64") };
		const file = { fileUri: "gs://x/y", mimeType: "text/csv" };
		const artifact = pick(r, [
			{ text: `text é ${r(3)}` },
			{ inlineData: blob },
			{ text: "" },
			{ fileData: file },
			{ inlineData: blob, text: "both" },
		]);
		return s.saveArtifact({ ...of(r), artifact, ...pick(r, [{}, { customMetadata: { n: r(9) } }]) });
	};
	const load = async (s: BaseArtifactService, r: Random) => plain(await s.loadArtifact({ ...of(r), ...pick(r, [{}, { version: r(4) - 1 }]) }));
	const look = async (s: BaseArtifactService, r: Random) => {
		const k = of(r);
		const known = [...(await s.listArtifactVersions(k)), await s.getArtifactVersion(k), await s.getArtifactVersion({ ...k, version: r(3) })];
		return [await s.listVersions(k), known.map((v) => v && [v.version, v.customMetadata]), await s.listArtifactKeys(k)];
	};
	const remove = (s: BaseArtifactService, r: Random) => s.deleteArtifact(of(r));
	await alike<BaseArtifactService>(
		[new TurnstoneArtifacts(await open()), new InMemoryArtifactService()],
		[save, save, save, save, load, load, look, look, remove],
		{ steps: 250 },
	);
});

test("equal artifacts are stored once, a version is given once, and a session is deleted with its artifacts", async () => {
	const db = await open();
	const [sessions, artifacts] = [new TurnstoneSessions(db), new TurnstoneArtifacts(db)];
	await sessions.createSession(key);
	const file = { ...key, filename: "f" };
	const artifact = { inlineData: { data: Buffer.alloc(200_000, "x").toString("base64"), mimeType: "text/csv" } };
	const versions = await Promise.all(Array.from({ length: 8 }, () => artifacts.saveArtifact({ ...file, artifact })));
	expect(versions.sort()).toEqual([0, 1, 2, 3, 4, 5, 6, 7]);
	await artifacts.saveArtifact({ ...file, filename: "user:f", artifact, customMetadata: { by: "Ann" } });
	expect(await artifacts.getArtifactVersion({ ...file, filename: "user:f" })).toEqual({
		version: 0,
		canonicalUri: "turnstone:adk-artifacts/a/u/user:f/versions/0",
		customMetadata: { by: "Ann" },
		mimeType: "text/csv",
	});
	const attached = await (await db.session("adk-artifacts/a/u/s")).attachments();
	expect(new Set(attached.map((a) => a.id)).size).toBe(1);
	await expect(artifacts.saveArtifact({ ...file, artifact: { inlineData: { data: "?" } } })).rejects.toThrow(TypeError);
	await sessions.deleteSession(key);
	expect(await artifacts.listArtifactKeys(key)).toEqual(["user:f"]);
	expect(await artifacts.loadArtifact(file)).toBeUndefined();
});

test("memory of events with images is stored in several commits", { timeout: 60_000 }, async () => {
	const memory = new TurnstoneMemory(await open(), { most: 100 });
	const inlineData = { mimeType: "image/png", data: Buffer.alloc(3 << 20).toString("base64") };
	const events = Array.from({ length: 40 }, (_, i) => ({
		...createEvent({ author: "user" }),
		content: { role: "user", parts: [{ text: `picture ${i}` }, { inlineData }] },
	}));
	await memory.addSessionToMemory({ id: "s", appName: "a", userId: "u", state: {}, events, lastUpdateTime: 0 });
	expect((await memory.searchMemory({ appName: "a", userId: "u", query: "picture" })).memories).toHaveLength(40);
});

test("memory of ADK finds by whole words what that in memory finds, once, and the nearest first", async () => {
	const store = newStore();
	const [ours, theirs] = [new TurnstoneMemory(await open(store), { most: 1000 }), new InMemoryMemoryService()];
	const words = ["Kyoto", "museum", "train", "rain", "paper", "stone", "bread", "私はPythonを使う"];
	const sessions = new Map<string, Session>();
	const add = async (m: BaseMemoryService, r: Random) => {
		const [id, userId] = [pick(r, hostile), pick(r, ["u", "v/w"])];
		const session = sessions.get(userId + id) ?? { appName: "a", userId, id, state: {}, events: [], lastUpdateTime: 0 };
		sessions.set(userId + id, session);
		const text = [pick(r, words), pick(r, words)].join(" ");
		const event = pick(r, [said(text, { x: 1n }, { id: `e${r(1e9)}`, timestamp: r(1e9) }), createEvent({ id: `e${r(1e9)}` })]);
		if (m === ours) session.events.push(event);
		await m.addSessionToMemory(session);
	};
	const search = async (m: BaseMemoryService, r: Random) => {
		const { memories } = await m.searchMemory({
			appName: "a",
			userId: pick(r, ["u", "v/w", "none"]),
			query: pick(r, ["kyoto", "MUSEUM", "python", "none", ""]),
		});
		return memories.map((x) => JSON.stringify([x.author, x.timestamp, x.content.parts])).sort();
	};
	await alike<BaseMemoryService>([ours, theirs], [add, search], { steps: 200 });
	const few = new TurnstoneMemory(await open(store), { most: 2 });
	const session = { appName: "b", userId: "u", id: "s", state: {}, events: ["a b", "a, b: c!", "c", "a b c"].map((t) => said(t)), lastUpdateTime: 0 };
	await Promise.all([few.addSessionToMemory(session), few.addSessionToMemory(session)]);
	const { memories } = await few.searchMemory({ appName: "b", userId: "u", query: "C; b a?" });
	expect(memories.map((m) => m.content.parts?.[0]?.text)).toEqual(["a, b: c!", "a b c"]);
});

const agent = (store: string, times: string) => [join(import.meta.dirname, "adk-agent.mjs"), store, times];

/** Checks that a session of adk-agent.mjs has whole turns, but for those that were killed, and that state and events agree. Returns the questions and the count. */
async function consistent(store: string): Promise<{ questions: number[]; count: number }> {
	const session = await got(new TurnstoneSessions(await open(store)), { appName: "app", userId: "u", sessionId: "chat" });
	const count = session.events.filter((e) => e.content?.parts?.some((p) => p.functionResponse)).length;
	expect(session.state).toEqual(count === 0 ? {} : { n: count, "user:n": count, "app:n": count });
	const questions = texts(session)?.flatMap((t) => /^question (\d+)$/.exec(t ?? "")?.[1] ?? []);
	return { questions: (questions ?? []).map(Number), count };
}

test("a run with tools and artifacts goes on in another process", async () => {
	const store = newStore();
	execFileSync(process.execPath, agent(store, "2"));
	execFileSync(process.execPath, agent(store, "1"));
	expect(await consistent(store)).toEqual({ questions: [0, 1, 2], count: 3 });
	const db = await open(store);
	const session = await got(new TurnstoneSessions(db), { appName: "app", userId: "u", sessionId: "chat" });
	expect(texts(session)?.at(-1)).toBe("answer 3"); // The model was shown what was said in the other process.
	const notes = await new TurnstoneArtifacts(db).loadArtifact({ appName: "app", userId: "u", sessionId: "chat", filename: "notes" });
	expect(notes?.text).toBe("question 2\n".repeat(3));
	expect((await (await db.session("adk/app/u/chat")).info()).usage).toMatchObject([{ model: "script-1", input: 60, output: 12 }]);
});

test("a host that is killed goes on elsewhere with all that it was told of", { timeout: 60_000 }, async () => {
	const store = newStore();
	const told: number[] = [];
	for (let i = 0; i < 3; i++) {
		const host = spawn(process.execPath, agent(store, "forever"), { stdio: ["ignore", "pipe", "inherit"] });
		for await (const line of host.stdout) {
			told.push(...line.toString().trim().split("\n").map(Number));
			if (told.length >= 4 * (i + 1)) host.kill("SIGKILL");
		}
	}
	const { questions, count } = await consistent(store);
	expect(told.length).toBeGreaterThanOrEqual(12);
	expect(questions).toEqual(Array.from(questions, (_, i) => i));
	for (const n of told) expect(questions).toContain(n);
	expect(count).toBeGreaterThanOrEqual(told.length);
	expect(questions.length - told.length).toBeLessThanOrEqual(3); // turns that were stored when nobody was told any more
	execFileSync(process.execPath, agent(store, "1"));
	expect((await consistent(store)).questions.length).toBe(questions.length + 1);
});

test("a prune leaves state, artifacts and memory of users and apps, and a session that is deleted beside appends comes to no half", async () => {
	const db = await open();
	const [sessions, artifacts, memory] = [new TurnstoneSessions(db), new TurnstoneArtifacts(db), new TurnstoneMemory(db)];
	const session = await sessions.createSession({ ...key, state: { k: 1, "user:u": 1, "app:a": 1 } });
	await sessions.appendEvent({ session, event: said("museum", { k: 2 }) });
	await artifacts.saveArtifact({ ...key, filename: "user:f", artifact: { text: "x" } });
	await memory.addSessionToMemory(session);
	await db.prune({ revisions: 1 });
	expect(await got(sessions)).toMatchObject({ state: { k: 2, "user:u": 1, "app:a": 1 }, events: [{ id: session.events[0]?.id }] });
	await sleep(50);
	await db.prune({ inactive: 0.01 });
	expect(await sessions.getSession(key)).toBeUndefined();
	const anew = await sessions.createSession(key);
	expect(anew.state).toEqual({ "user:u": 1, "app:a": 1 });
	expect(await artifacts.listArtifactKeys(key)).toEqual(["user:f"]);
	expect((await memory.searchMemory({ ...key, query: "museum" })).memories).toHaveLength(1);

	const other = new TurnstoneSessions(db);
	let stored = 0;
	const ended = (async () => {
		for (; ; stored++) await other.appendEvent({ session: anew, event: said("x", { "user:n": stored, n: stored }) });
	})().catch((e: Error) => e.message);
	while (stored < 5) await sleep(1);
	await sessions.deleteSession(key);
	expect(await ended).toBe("Session s not found for appendEvent");
	expect(await sessions.getSession(key)).toBeUndefined();
	expect((await sessions.createSession(key)).state).toEqual({ "user:u": 1, "app:a": 1, "user:n": stored - 1 });
});

test("what tools of the model have given it counts as input", () => {
	const event = createEvent({ modelVersion: "m", usageMetadata: { promptTokenCount: 7, toolUsePromptTokenCount: 3 } });
	expect(usageOf(event)).toMatchObject([{ model: "m", input: 10 }]);
});
