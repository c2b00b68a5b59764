// A host that saves whole histories with metadata: docs/hosts.md has its class, which this is.
import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";
import { type Client, type Info, NotFoundError } from "../src/index.ts";
import { Saver } from "../src/transcript.ts";
import { open } from "./helpers.ts";

type Message = { id: string; role: string; content: unknown };
type Metadata = {
	id: string;
	created_at: string;
	updated_at: string;
	message_count: number;
	parent_id?: string;
	fork_message_id?: string;
	detached?: boolean;
	is_checkpoint?: boolean;
	[field: string]: unknown;
};

// The class begins here.
class SessionStore {
	constructor(readonly db: Client) {}

	async list(): Promise<Metadata[]> {
		const all: Metadata[] = [];
		for (let after: string | undefined = ""; after !== undefined; ) {
			const page = await this.db.list({ after, limit: 1000 });
			all.push(...page.sessions.map(metadata));
			after = page.next || undefined;
		}
		return all;
	}

	async load(id?: string): Promise<{ metadata: Metadata; messages: Message[] } | undefined> {
		id ??= (await this.db.list({ limit: 1 })).sessions[0]?.id;
		const h = id === undefined ? undefined : await this.db.history(id);
		return h && { metadata: metadata(h.info), messages: h.messages.map((m) => JSON.parse(m.payload.toString())) };
	}

	async save(id: string, messages: Message[], changes: Partial<Metadata> = {}): Promise<void> {
		const old = await this.#info(id);
		const custom = { ...(old?.custom as object), ...changes };
		const sent = messages.map((m) => ({ kind: m.role, payload: JSON.stringify(m) }));
		await this.db.save(id, sent, { custom, touch: true, ...(old ? {} : await this.#child(changes)) });
	}

	async delete(id: string): Promise<boolean> {
		const existed = (await this.#info(id)) !== undefined;
		await this.db.delete(id);
		return existed;
	}

	async #child({ parent_id: parent, fork_message_id, detached, is_checkpoint: summary }: Partial<Metadata>) {
		const nodes = parent === undefined ? [] : ((await this.db.history(parent))?.messages ?? []);
		const at = nodes.find((m) => JSON.parse(m.payload.toString()).id === fork_message_id);
		return { ...(parent && { parent }), ...(at && { forkNode: at.id }), ...(detached && { detached }), ...(summary && { summary }) };
	}

	async #info(id: string): Promise<Info | undefined> {
		try {
			return await (await this.db.session(id)).info();
		} catch (e) {
			if (e instanceof NotFoundError) return undefined;
			throw e;
		}
	}
}

function metadata(i: Info): Metadata {
	return { ...(i.custom as object), id: i.id, created_at: i.created, updated_at: i.updated, message_count: i.messages };
}
// The class ends here.

const said = (...ids: string[]): Message[] => ids.map((id, i) => ({ id, role: i % 2 ? "assistant" : "user", content: `content of ${id}` }));

test("the class is that of the page", () => {
	const between = (text: string, begin: string, end: string) => text.slice(text.indexOf(begin) + begin.length, text.indexOf(end)).trim();
	const page = readFileSync(new URL("../../docs/hosts.md", import.meta.url), "utf8");
	const own = readFileSync(new URL(import.meta.url), "utf8");
	expect(between(page.slice(page.indexOf("```ts\nclass SessionStore")), "```ts\n", "\n```\n")).toBe(
		between(own, "// The class begins here.\n", "// The class ends here.\n"),
	);
});

test("simulacra", async () => {
	const db = await open();
	const st = new SessionStore(db);
	const ids = async () => (await st.list()).map((m) => m.id);
	expect([await st.load("x"), await st.load(), await st.delete("x")]).toEqual([undefined, undefined, false]);
	for (const id of ["a", "b", "c"]) await st.save(id, said(`${id}1`, `${id}2`, `${id}3`), { provider: "p", label: id, custom: { deep: [1, 2] } });
	await st.save("a", said("a1", "a2", "a3", "a4"), { label: "renamed" });
	expect(await ids()).toEqual(["a", "c", "b"]); // at once, and for good
	await sleep(600);
	expect(await ids()).toEqual(["a", "c", "b"]);
	const first = (await st.load())?.metadata as Metadata;
	expect(first).toMatchObject({ id: "a", label: "renamed", provider: "p", custom: { deep: [1, 2] }, message_count: 4 });
	await st.save("a", said("a1", "a2", "a3", "a4")); // Nothing has changed but the time.
	const again = (await st.load("a"))?.metadata as Metadata;
	expect([again.created_at, again.updated_at > first.updated_at]).toEqual([first.created_at, true]);
	// An edit, and back: host's ids may come again.
	await st.save("a", said("a1", "edited"));
	expect((await st.load("a"))?.messages).toEqual(said("a1", "edited"));
	expect((await st.list()).find((m) => m.id === "a")?.message_count).toBe(2);
	await st.save("a", said("a1", "a2", "a3"));
	expect((await st.load("a"))?.messages).toEqual(said("a1", "a2", "a3"));
	// Children, made by their first save.
	await st.save("kid", said("b1", "b2"), { parent_id: "b", fork_message_id: "b2" });
	expect((await st.load("kid"))?.messages).toEqual(said("b1", "b2"));
	await st.save("kid", said("b1", "b2", "k3"));
	await st.save("grandkid", said("b1", "b2", "k3", "g4"), { parent_id: "kid", fork_message_id: "k3" });
	const grandkid = await st.load("grandkid");
	expect([grandkid?.messages, grandkid?.metadata.parent_id, grandkid?.metadata.fork_message_id]).toEqual([said("b1", "b2", "k3", "g4"), "kid", "k3"]);
	expect((await (await db.session("grandkid")).info()).nodes).toBe(1); // It shares the rest.
	await st.save("alone", said("d1"), { parent_id: "b", fork_message_id: "b3", detached: true, is_checkpoint: true });
	expect((await st.load("alone"))?.metadata).toMatchObject({ parent_id: "b", detached: true, is_checkpoint: true, message_count: 1 });
	await st.save("empty", []);
	await st.save("of empty", said("e1"), { parent_id: "empty", detached: true });
	expect((await st.load("of empty"))?.messages).toEqual(said("e1"));
	expect((await st.list()).map((m) => [m.id, m.message_count]).slice(0, 5)).toEqual([
		["of empty", 1],
		["empty", 0],
		["alone", 1],
		["grandkid", 4],
		["kid", 3],
	]);
	// Forks outlive their parents, and know whose they were.
	expect([await st.delete("b"), await st.delete("b")]).toEqual([true, false]);
	expect([(await st.load("kid"))?.messages.length, (await st.load("kid"))?.metadata.parent_id]).toEqual([3, "b"]);
	// Saves that come one after the other become one.
	const saver = new Saver(db, "debounced", { delay: 20 });
	for (let i = 1; i <= 50; i++)
		saver.save(said(...Array.from({ length: i }, (_, n) => `m${n}`)).map((m) => ({ kind: m.role, payload: JSON.stringify(m) })));
	await saver.flush();
	expect((await st.load("debounced"))?.metadata.message_count).toBe(50);
	expect((await (await db.session("debounced")).info()).revision).toBeLessThan(50);
});
