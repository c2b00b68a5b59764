import { randomUUID } from "node:crypto";
import {
	deleteSession,
	forkSession,
	getSessionInfo,
	getSessionMessages,
	getSubagentMessages,
	InMemorySessionStore,
	listSessions,
	listSubagents,
	renameSession,
	type SessionKey,
	type SessionStore,
	type SessionStoreEntry,
	tagSession,
} from "@anthropic-ai/claude-agent-sdk";
import { TurnstoneSessionStore } from "../src/claude-agent.ts";
import { Session } from "../src/client.ts";
import { UnavailableError } from "../src/errors.ts";
import { alike, type Random } from "../src/testing.ts";
import { newStore, open } from "./helpers.ts";

const said = (uuid: string, parentUuid: string | null, content: string, more: object = {}): SessionStoreEntry => ({
	type: "user",
	uuid,
	parentUuid,
	timestamp: "2026-11-01T10:00:00.000Z",
	message: { role: "user", content },
	...more,
});

/** What a store has, but for its times. */
async function all(store: SessionStore, keys: SessionKey[]): Promise<unknown> {
	const projects = [...new Set(keys.map((k) => k.projectKey))];
	const ids = async (p: string) => ((await store.listSessions?.(p)) ?? []).map((s) => s.sessionId).sort();
	return {
		entries: await Promise.all(keys.map((k) => store.load(k))),
		sessions: await Promise.all(projects.map(ids)),
		subkeys: await Promise.all(keys.filter((k) => !k.subpath).map(async (k) => ((await store.listSubkeys?.(k)) ?? []).sort())),
		summaries: await Promise.all(
			projects.map(async (p) =>
				((await store.listSessionSummaries?.(p)) ?? [])
					.map(({ sessionId, data }) => ({ sessionId, data }))
					.sort((a, b) => (a.sessionId < b.sessionId ? -1 : 1)),
			),
		),
	};
}

test("it does what the SDK's own store does", { timeout: 60_000 }, async () => {
	const db = await open();
	const sessions = [randomUUID(), "a", "%2F", "é".repeat(300)]; // The SDK's store confuses those with a slash.
	const keys: SessionKey[] = ["p", "-home-ann"].flatMap((projectKey) =>
		sessions.flatMap((sessionId) => [
			{ projectKey, sessionId },
			...["subagents/agent-1", "subagents/workflows/x/agent-1", "odd", "subagents/agent-odd"].map((subpath) => ({ projectKey, sessionId, subpath })),
		]),
	);
	let n = 0;
	const entry = (r: Random): SessionStoreEntry => {
		const id = `${n++}-${r(1e9)}`;
		return [
			() => said(`u${id}`, null, `Say ${r(9)}.`),
			() => ({ type: "custom-title", customTitle: `Title ${r(9)}`, sessionId: "x" }),
			() => ({ type: "mode", mode: "plan" }),
			() => ({
				type: "assistant",
				uuid: `a${id}`,
				message: { id: `m${r(9)}`, role: "assistant", model: "m", content: [{ type: "text", text: "\ud800 é" }] },
			}),
		][r(4)]?.() as SessionStoreEntry;
	};
	let entries: SessionStoreEntry[] = [];
	const append = async (s: SessionStore, r: Random) => {
		const key = keys[r(keys.length)] as SessionKey;
		if (s !== theirs) entries = Array.from({ length: 1 + r(3) }, () => entry(r)); // Those that the other gets as well.
		await s.append(key, entries);
	};
	const remove = async (s: SessionStore, r: Random) => s.delete?.(keys[r(keys.length)] as SessionKey);
	const look = (s: SessionStore) => all(s, keys);
	const theirs = new InMemorySessionStore();
	const ours = new TurnstoneSessionStore(db);
	await alike<SessionStore>([ours, theirs], [append, append, append, append, append, append, remove, look], { steps: 150 });
	expect(await all(new TurnstoneSessionStore(db), keys)).toEqual(await all(theirs, keys));
});

test("the SDK lists, reads, renames, tags, forks and deletes its sessions", async () => {
	const db = await open();
	const dir = "/home/ann/trip";
	const projectKey = "-home-ann-trip";
	const id = randomUUID();
	const uuids = Array.from({ length: 4 }, () => randomUUID());
	const chain = uuids.map((u, i) => said(u, uuids[i - 1] ?? null, `Say ${i}.`, { sessionId: id, cwd: dir, isSidechain: false }));
	const results = await Promise.all(
		[new TurnstoneSessionStore(db), new InMemorySessionStore()].map(async (sessionStore) => {
			await sessionStore.append({ projectKey, sessionId: id }, chain);
			await sessionStore.append({ projectKey, sessionId: id, subpath: "subagents/agent-7" }, [
				{ ...(chain[0] as SessionStoreEntry), agentId: "7", isSidechain: true },
			]);
			await renameSession(id, "A trip", { sessionStore, dir });
			await tagSession(id, "kept", { sessionStore, dir });
			const fork = await forkSession(id, { sessionStore, dir, title: "The fork", upToMessageId: uuids[1] as string });
			const found = await listSessions({ sessionStore, dir });
			const out = {
				titles: found.map((s) => [s.sessionId === id, s.summary, s.customTitle, s.tag]).sort(),
				info: { ...(await getSessionInfo(id, { sessionStore, dir })), lastModified: 0 },
				messages: (await getSessionMessages(id, { sessionStore, dir })).map((m) => m.uuid),
				forked: (await getSessionMessages(fork.sessionId, { sessionStore, dir })).length,
				agents: await listSubagents(id, { sessionStore, dir }),
				agent: (await getSubagentMessages(id, "7", { sessionStore, dir })).length,
			};
			await deleteSession(id, { sessionStore, dir });
			return {
				...out,
				left: (await listSessions({ sessionStore, dir })).map((s) => s.customTitle),
				gone: await sessionStore.load({ projectKey, sessionId: id }),
			};
		}),
	);
	expect(results[0]).toEqual(results[1]);
	expect(results[0]?.messages).toEqual(uuids);
	expect(results[0]?.forked).toBe(2);
});

test("long after an import a line that is equal to one of it is new", async () => {
	const db = await open();
	const key = { projectKey: "p", sessionId: randomUUID() };
	const mode = { type: "mode", mode: "plan" };
	const some = () => [mode, { type: "user", uuid: randomUUID(), message: { role: "user", content: "Hello" } }];
	const all = some();
	await new TurnstoneSessionStore(db).append(key, all);
	await (await db.session(key.sessionId)).changeRecords([{ key: ".import.stamp", action: "set", value: Buffer.from("x") }]);
	const soon = some();
	await new TurnstoneSessionStore(db).append(key, soon);
	const now = vi.spyOn(Date, "now").mockReturnValue(Date.now() + 120_000);
	const later = some();
	await new TurnstoneSessionStore(db).append(key, later);
	now.mockRestore();
	expect(await new TurnstoneSessionStore(db).load(key)).toEqual([...all, ...soon.slice(1), ...later]);
});

test("a session that goes on from another one is listed, as an import makes it", async () => {
	const db = await open();
	const store = new TurnstoneSessionStore(db);
	const [first, second] = [randomUUID(), randomUUID()];
	await store.append({ projectKey: "p", sessionId: first }, [said("u1", null, "one")]);
	await store.append({ projectKey: "p", sessionId: first, subpath: "subagents/agent-1" }, [said("u1", null, "one")]);
	const labels = { "import.identity": `claude-code:${second}`, "claude.project": "p" };
	const { session } = await db.create(second, { parent: first, labels });
	await session.commit({ nodes: [{ kind: "user", payload: "{}" }] });
	const begun = await db.create(`${second}~new`, { labels: { "claude.project": "p" } }); // An import that replaces a session makes it.
	await begun.session.commit({ nodes: [{ kind: "user", payload: "{}" }] });
	expect((await store.listSessions("p")).map((s) => s.sessionId).sort()).toEqual([first, second].sort());
});

test("an entry is stored once, by two hosts at once and when a batch comes again", async () => {
	const db = await open();
	const [a, b] = [new TurnstoneSessionStore(db), new TurnstoneSessionStore(db)];
	const key = { projectKey: "p", sessionId: randomUUID() };
	const entries = Array.from({ length: 40 }, (_, i) => said(`u${i}`, i ? `u${i - 1}` : null, `message ${i}`));
	await a.append(key, entries.slice(0, 10));
	await Promise.all([10, 15, 20, 25, 30, 35].flatMap((i) => [a, b].map((s) => s.append(key, entries.slice(i, i + 5)))));
	await b.append(key, entries);
	const loaded = await a.load(key);
	expect(loaded?.map((e) => e.uuid).sort()).toEqual(entries.map((e) => e.uuid).sort());
});

test("lines that are stored are no failure if the title is not", async () => {
	const { saveMetadata } = Session.prototype;
	const db = await open();
	const [store, k] = [new TurnstoneSessionStore(db), { projectKey: "p", sessionId: randomUUID() }];
	const entries = [said("u1", null, "hello"), { type: "custom-title", customTitle: "A title" }, { type: "note" }];
	try {
		Session.prototype.saveMetadata = () => Promise.reject(new UnavailableError("no answer"));
		await store.append(k, entries);
	} finally {
		Session.prototype.saveMetadata = saveMetadata;
	}
	expect(await store.load(k)).toEqual(entries);
	await store.append(k, [{ type: "note", n: 1 }]);
	expect((await db.list()).sessions.map((s) => s.name)).toEqual(["A title"]);
});

test("lines are stored also if their summary is too long", async () => {
	const [store, k] = [new TurnstoneSessionStore(await open()), { projectKey: "p", sessionId: randomUUID() }];
	const entries = [said("u1", null, "hello"), { type: "last-prompt", lastPrompt: "x".repeat(70_000) }, said("u2", "u1", "more")];
	await store.append(k, entries);
	expect(await store.listSessionSummaries("p")).toEqual([]);
	await store.append(k, [{ type: "last-prompt", lastPrompt: "short" }]);
	expect((await store.listSessionSummaries("p")).map((s) => s.sessionId)).toEqual([k.sessionId]);
	expect(await store.load(k)).toEqual([...entries, { type: "last-prompt", lastPrompt: "short" }]);
});

test("sessions have a title, a model, usage and branches", async () => {
	const db = await open(newStore());
	const store = new TurnstoneSessionStore(db, { group: "team" });
	const key = { projectKey: "p", sessionId: randomUUID() };
	const usage = { input_tokens: 10, cache_read_input_tokens: 100, cache_creation_input_tokens: 5, output_tokens: 3 };
	const message = { id: "m1", model: "model-1", role: "assistant", content: [] };
	await store.append(key, [said("u1", null, "Where to?")]);
	await store.append(key, [{ type: "assistant", uuid: "a1", parentUuid: "u1", message: { ...message, usage: { ...usage, output_tokens: 1 } } }]);
	await new TurnstoneSessionStore(db).append(key, [{ type: "assistant", uuid: "a2", parentUuid: "a1", message: { ...message, usage } }]);
	await store.append(key, [said("u2", "a2", "And then?"), said("u3", "a2", "Or rather?")]); // The user went back.
	const session = await db.session(key.sessionId);
	const info = await session.info();
	expect([info.name, info.model, info.group]).toEqual(["Where to?", "model-1", "team"]);
	expect(info.usage).toMatchObject([{ model: "model-1", input: 115, output: 3, cachedInput: 100, cacheWrite: 5 }]);
	expect((await session.load()).nodes.map((n) => n.key)).toEqual(["u1", "a1", "a2", "u3"]);
	await session.saveMetadata({ name: "Ours" });
	await store.append(key, [{ type: "custom-title", customTitle: "Theirs" }]);
	expect((await session.info()).name).toBe("Ours");
});
