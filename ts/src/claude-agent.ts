/**
 * A session store for the Claude Agent SDK: transcripts are mirrored to a store, and resumed from it on any host.
 *
 *     import { query } from "@anthropic-ai/claude-agent-sdk";
 *     import { Client } from "turnstonedb";
 *     import { TurnstoneSessionStore } from "turnstonedb/claude-agent";
 *
 *     const sessionStore = new TurnstoneSessionStore(await Client.open("./data"));
 *     for await (const message of query({ prompt: "Hello", options: { sessionStore } })) console.log(message);
 *
 * A transcript is a session of the store, and each of its lines is a node. `turnstone import` and `turnstone follow` take it for the one that they would make of
 * the file on disk: what is there, they don't store again. A transcript of a sub-agent is a child of the session. turnstonedb.claude_agent is the same for Python.
 *
 * @module
 */

import { createHash } from "node:crypto";
import {
	foldSessionSummary,
	type SessionKey,
	type SessionStore,
	type SessionStoreEntry,
	type SessionSummaryEntry,
} from "@anthropic-ai/claude-agent-sdk";
import { gone, inCommits, join, listed, maxPage, newId, outcomeUnknown, short } from "./adapter.ts";
import type { Client, Session } from "./client.ts";
import { ConflictError, TurnConflictError, TurnstoneError } from "./errors.ts";
import type { Create, Info, NewNode, RecordChange, Usage } from "./types.ts";

// Labels. Those with a dot are for people; by the others sessions are found.
const projectLabel = "claude.project";
const identityLabel = "import.identity";
const formatLabel = ".import.format";
const mirrorLabels = { [formatLabel]: "claude-code", ".import.mirror": "claude-agent-sdk" };
const maxSummary = 64 << 10; // bytes of a record
const summaryKey = "claude.summary-js/"; // and the project: the key of a record of the session
const beside = 60_000; // milliseconds since the last event that an import has read, if the agent goes on while it reads
const stampKey = ".import.stamp"; // a record of a session that an import has read from its file

const atOnce = 500; // lines of a commit
const maxModel = 128; // bytes of the name of a model
const maxKnown = 256; // transcripts that are remembered
const uuidForm = /^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$/;

/**
 * Mirrors transcripts to a store. Processes may share the store. Each call of `append` is stored whole or not at all if it has at most 500 entries and 4 MiB. An
 * entry with a `uuid` that is there is not stored again. Nothing is deleted unless somebody does it: `Client.prune` deletes what was not used for long.
 */
export class TurnstoneSessionStore implements SessionStore {
	readonly #client: Client;
	readonly #group: string;
	readonly #known = new Map<string, Transcript>();

	/** group is the group of the store's sessions, by which they are listed. */
	constructor(client: Client, { group = "" }: { group?: string } = {}) {
		this.#client = client;
		this.#group = group;
	}

	/** Stores entries, after those that are there. */
	async append(key: SessionKey, entries: SessionStoreEntry[]): Promise<void> {
		if (entries.length === 0) return;
		const lines = entries.map((e) => new Line(e as Entry));
		const t = this.#transcript(key);
		await t.alone(async () => {
			const digest = createHash("sha256")
				.update(lines.map((l) => l.payload).join("\n"))
				.digest("hex");
			let { stored, turn } = t.failed?.digest === digest ? t.failed : { stored: 0, turn: "" };
			t.failed = undefined;
			for (const some of inCommits(lines, (l) => Buffer.byteLength(l.payload), atOnce).slice(stored)) {
				turn ||= newId();
				try {
					await this.#append(t, some, turn);
				} catch (e) {
					const unknown = outcomeUnknown(e);
					if (stored > 0 || unknown) t.failed = { digest, stored, turn: unknown ? turn : "" }; // If it is appended again, it is stored once.
					throw e;
				}
				stored++;
				turn = "";
			}
		});
	}

	async #append(t: Transcript, lines: Line[], turn: string): Promise<void> {
		for (;;) {
			try {
				const stands = t.stands ?? (await this.#begin(t));
				return await this.#commit(t, stands, lines, turn);
			} catch (e) {
				t.stands = undefined;
				if (e instanceof TurnConflictError) return; // It is stored, with entries that are now found there.
				if ((e instanceof ConflictError && !e.outcomeUnknown) || gone(e)) continue; // Somebody else has appended, or deleted the session: it is read again.
				throw e;
			}
		}
	}

	/** Finds or makes the session, and reads what it has. */
	async #begin(t: Transcript): Promise<Standing> {
		const { session, info } = (await this.#found(t)) ?? (await this.#made(t));
		const stands = new Standing(t, session, info);
		if (info.revision > 0) {
			const state = await session.load({ full: true });
			stands.revision = state.revision;
			for (const n of state.nodes) if (n.key) stands.nodes.set(n.key.split("~")[0] as string, n.id);
			const stamp = await session.record(stampKey);
			if (stamp) {
				stands.beside = Date.now() - Date.parse(stamp.time) < beside;
				stands.imported = new Map();
				for (const n of state.nodes) if (!n.key) stands.imported.set(n.payload.toString(), (stands.imported.get(n.payload.toString()) ?? 0) + 1);
			}
			const lines = state.nodes.map((n) => Line.of(n.payload)).filter((l) => l !== undefined);
			for (const line of lines) stands.count(line);
			stands.fold(lines);
			stands.titleBefore = stands.title();
		}
		t.stands = stands;
		return stands;
	}

	async #commit(t: Transcript, s: Standing, lines: Line[], turn: string): Promise<void> {
		const fresh = s.fresh(lines);
		if (fresh.length === 0) return;
		const own = new Map<string, number>();
		const nodes = fresh.map((line, i): NewNode => {
			const node: NewNode = { kind: line.kind, payload: line.payload, ...(line.uuid ? { key: line.uuid } : {}) };
			const back = line.turn && line.parent !== "" && (i === 0 || fresh[i - 1]?.uuid !== line.parent); // The user went back.
			const parent = back ? (own.get(line.parent) ?? s.nodes.get(line.parent)) : undefined;
			if (line.uuid) own.set(line.uuid, i);
			return parent === undefined ? node : { ...node, parent };
		});
		s.fold(fresh);
		const usage = fresh.flatMap((line) => s.count(line));
		const summary = JSON.stringify({ revision: s.revision + 1, data: s.summary });
		const key = summaryKey + clip(t.project);
		// Without a summary, for example of a prompt that is too long for a record, the SDK reads the lines.
		const fits = Buffer.byteLength(summary) <= maxSummary;
		const records: RecordChange[] = t.subpath ? [] : [fits ? { key, action: "set", value: summary } : { key, action: "delete" }];
		const result = await s.session.commit({ nodes, expected: s.revision, turn, usage, records });
		if (result.revision !== s.revision + 1) {
			t.stands = undefined; // It was stored before, and others have gone on.
			return;
		}
		s.revision = result.revision;
		fresh.forEach((line, i) => {
			if (line.uuid) s.nodes.set(line.uuid, result.nodes?.[i] as string);
		});
		// The lines are stored, and who is told otherwise stores them again. The next append describes the session.
		await s.describe().catch((e) => {
			if (!(e instanceof TurnstoneError)) throw e;
		});
	}

	#transcript(key: SessionKey): Transcript {
		const k = JSON.stringify([key.projectKey, key.sessionId, key.subpath ?? ""]);
		const t = this.#known.get(k) ?? new Transcript(key.projectKey, key.sessionId, key.subpath ?? "");
		this.#known.delete(k);
		this.#known.set(k, t);
		for (const [other, { busy, failed }] of this.#known) {
			if (this.#known.size <= maxKnown) break;
			if (other !== k && busy === 0 && !failed) this.#known.delete(other);
		}
		return t;
	}

	async #found(t: Transcript): Promise<{ session: Session; info: Info } | undefined> {
		for (const id of t.ids()) {
			try {
				const session = await this.#client.session(id);
				const info = await session.info();
				if (t.has(info)) return { session, info };
			} catch (e) {
				if (!gone(e)) throw e;
			}
		}
		for (const info of await listed(this.#client, { labels: { [identityLabel]: t.identity() } })) {
			if (t.has(info)) return { session: await this.#client.session(info.id), info }; // It was renamed.
		}
		return undefined;
	}

	async #made(t: Transcript): Promise<{ session: Session; info: Info }> {
		let options: Create = { group: this.#group, labels: { ...mirrorLabels, [identityLabel]: t.identity() } };
		if (t.subpath) {
			const main = this.#transcript({ projectKey: t.project, sessionId: t.session });
			const { session: parent } = (await this.#found(main)) ?? (await this.#made(main));
			options = { ...options, parent: parent.id, detached: true, custom: { project: t.project, session: t.session, subpath: t.subpath } };
		} else {
			options = { ...options, labels: { ...options.labels, [projectLabel]: clip(t.project) }, custom: { session: t.session } };
		}
		for (const id of t.ids()) {
			const { session, info } = await this.#client.create(id, options);
			if (t.has(info)) return { session, info };
		}
		throw new Error(`the ids of session ${JSON.stringify(t.session)} are taken by other sessions`);
	}

	/** Returns the entries of a transcript in their order, or null if there are none. */
	async load(key: SessionKey): Promise<SessionStoreEntry[] | null> {
		for (;;) {
			const found = await this.#found(new Transcript(key.projectKey, key.sessionId, key.subpath ?? ""));
			if (!found) return null;
			try {
				const { nodes } = await found.session.load({ full: true });
				const layout = nodes.length > 0 ? (await found.session.checkpoint()).get("import-layout") : undefined;
				const entries = order(nodes.length, layout).flatMap((i) => Line.of((nodes[i] as { payload: Buffer }).payload)?.entry ?? []);
				return entries.length > 0 ? (entries as SessionStoreEntry[]) : null;
			} catch (e) {
				if (!gone(e)) throw e; // else it was deleted, and may be there again
			}
		}
	}

	/** Returns the sessions of a project. */
	async listSessions(projectKey: string): Promise<{ sessionId: string; mtime: number }[]> {
		return (await this.#sessions(projectKey)).map((i) => ({ sessionId: sessionOf(i), mtime: Date.parse(i.updated) }));
	}

	// One that an import makes has no identity until it is whole.
	async #sessions(projectKey: string): Promise<Info[]> {
		return (await listed(this.#client, { labels: { [projectLabel]: clip(projectKey) } })).filter((i) => i.nodes && sessionOf(i));
	}

	/** Returns the summaries of the sessions of a project. */
	async listSessionSummaries(projectKey: string): Promise<SessionSummaryEntry[]> {
		const sessions = new Map((await this.#sessions(projectKey)).map((i) => [i.id, i]));
		const key = summaryKey + clip(projectKey);
		const out: SessionSummaryEntry[] = [];
		for (let after = ""; ; ) {
			const page = await this.#client.records(key, { limit: maxPage, ...(after ? { after } : {}) });
			for (const r of page.records) {
				const info = r.key === key ? sessions.get(r.session) : undefined;
				if (!info) continue;
				let revision: unknown;
				let data: unknown;
				try {
					({ revision, data } = JSON.parse(r.value.toString()));
				} catch {} // Somebody else has written it.
				if (typeof data !== "object" || !data) continue;
				// Otherwise an import has read more of the file, or another language has appended.
				out.push({
					sessionId: sessionOf(info),
					mtime: Date.parse(revision === info.revision ? info.updated : r.time),
					data: data as SessionSummaryEntry["data"],
				});
			}
			if (!page.next) return out;
			after = page.next;
		}
	}

	/** Deletes a transcript. With that of a session, those of its sub-agents go; forks that others made of it keep what they show. */
	async delete(key: SessionKey): Promise<void> {
		const t = this.#transcript(key);
		await t.alone(async () => {
			t.stands = undefined;
			const found = await this.#found(t);
			if (!found) return;
			if (!t.subpath) {
				for (const [info] of await this.#children(found.session.id)) await this.#client.delete(info.id);
				for (const other of this.#known.values()) if (other.project === t.project && other.session === t.session) other.stands = undefined;
			}
			await this.#client.delete(found.session.id);
		});
	}

	/** Returns the subpaths of the transcripts of sub-agents. */
	async listSubkeys(key: { projectKey: string; sessionId: string }): Promise<string[]> {
		const found = await this.#found(new Transcript(key.projectKey, key.sessionId, ""));
		return found ? (await this.#children(found.session.id)).flatMap(([info, subpath]) => (info.nodes ? [subpath] : [])) : [];
	}

	async #children(id: string): Promise<[Info, string][]> {
		try {
			return (await listed(this.#client, { parent: id })).flatMap((i): [Info, string][] => {
				const identity = i.labels?.[identityLabel] ?? "";
				if (!i.detached || i.labels?.[formatLabel] !== "claude-code") return [];
				return [[i, customOf(i).subpath ?? `subagents/agent-${identity.slice(identity.lastIndexOf("/") + 1)}`]];
			});
		} catch (e) {
			if (gone(e)) return [];
			throw e;
		}
	}
}

interface Entry {
	[name: string]: unknown;
}

/** A transcript. */
class Transcript {
	readonly project: string;
	readonly session: string;
	readonly subpath: string;
	/** What is known of its session. */
	stands: Standing | undefined;
	/** The hash of a batch, how many parts of it are stored, and the turn of the next if that may be. */
	failed: { digest: string; stored: number; turn: string } | undefined;
	/** How many calls wait for it or work on it. */
	busy = 0;
	#last: Promise<unknown> = Promise.resolve();

	constructor(project: string, session: string, subpath: string) {
		this.project = project;
		this.session = session;
		this.subpath = subpath;
	}

	/** Calls f when what was called before has ended. */
	async alone(f: () => Promise<void>): Promise<void> {
		this.busy++;
		const before = this.#last;
		const call = before.then(f);
		this.#last = call.catch(() => {});
		try {
			await call;
		} finally {
			this.busy--;
		}
	}

	get agent(): string {
		return /^subagents\/agent-([^/]+)$/.exec(this.subpath)?.[1] ?? "";
	}

	/** Returns what stands for the subpath in ids: an agent, or anything else. */
	#names(): string[] {
		return this.agent ? [this.agent] : ["", this.subpath];
	}

	/** Returns the ids that the session may have. */
	ids(): string[] {
		const apart = short(join("claude-agent", this.project, this.session));
		const mains = uuidForm.test(this.session) ? [this.session, apart] : [apart];
		return this.subpath ? mains.map((m) => short(join(m, ...this.#names()))) : mains;
	}

	/** Returns the identity that an import of the transcript's file has. */
	identity(): string {
		const of = uuidForm.test(this.session) ? this.session : join("sdk", this.project, this.session);
		return clip(`claude-code:${of}${this.subpath ? `/${this.#names().join("/")}` : ""}`);
	}

	/** Reports whether a session is the one of this transcript. */
	has(info: Info): boolean {
		const project = this.subpath ? customOf(info).project : info.labels?.[projectLabel];
		return info.labels?.[identityLabel] === this.identity() && (!project || project === (this.subpath ? this.project : clip(this.project)));
	}
}

/** What is known of the session of a transcript. */
class Standing {
	readonly session: Session;
	readonly #of: Transcript;
	revision: number;
	/** By the uuids of their entries. */
	readonly nodes = new Map<string, string>();
	/** How often there are lines without a uuid, if an import has read the file. */
	imported: Map<string, number> | undefined;
	/** The import has read what was written a moment ago. */
	beside = false;
	summary: Record<string, unknown> = {};
	/** The title that the session may have as its name. */
	titleBefore = "";
	#model: string;
	#lastModel = "";
	readonly #counted = new Map<string, Tokens>();

	constructor(of: Transcript, session: Session, info: Info) {
		this.#of = of;
		this.session = session;
		this.revision = info.revision;
		this.#model = info.model ?? "";
	}

	/** Returns the lines that are not there. */
	fresh(lines: Line[]): Line[] {
		const seen = new Set<string>();
		// An import has read the beginning of these lines, or none. If the first one with a uuid says that it is none, then
		// what is before that one is new as well, unless the import has stopped there just now.
		if (!this.beside && !this.nodes.has(lines.find((l) => l.uuid)?.uuid ?? "")) this.imported = undefined;
		return lines.filter((line) => {
			const n = line.uuid ? 0 : (this.imported?.get(line.payload) ?? 0);
			if (n > 0) this.imported?.set(line.payload, n - 1);
			if (n > 0 || (line.uuid && (this.nodes.has(line.uuid) || seen.has(line.uuid)))) return false;
			if (line.uuid) seen.add(line.uuid);
			this.imported = undefined; // What follows the first line that the import has not read, it has not read either.
			return true;
		});
	}

	/** Adds lines to the summary. */
	fold(lines: Line[]): void {
		if (this.#of.subpath) return;
		const key = { projectKey: this.#of.project, sessionId: this.#of.session };
		const before = Object.keys(this.summary).length > 0 ? { sessionId: key.sessionId, mtime: 0, data: this.summary } : undefined;
		this.summary = foldSessionSummary(
			before,
			key,
			lines.map((l) => l.entry as SessionStoreEntry),
		).data;
	}

	title(): string {
		for (const name of ["customTitle", "aiTitle", "firstPrompt"]) {
			const text = this.summary[name];
			const tidy = typeof text === "string" ? text.split(/\s+/).filter(Boolean).join(" ") : "";
			if (tidy) return cut(tidy, 80);
		}
		return "";
	}

	/** Gives the session the title and the model that the transcript has, unless people have given it others. */
	async describe(): Promise<void> {
		const [title, model] = [this.title(), this.#lastModel];
		if ((!title || title === this.titleBefore) && (!model || model === this.#model)) return;
		const now = await this.session.info();
		const named = title && (!now.name || now.name === this.titleBefore);
		await this.session.saveMetadata({ ...(model ? { model } : {}), ...(named ? { name: title } : {}) });
		this.titleBefore = title;
		this.#model = model;
	}

	/** Returns the tokens that a line adds: several lines of a response have those of the whole response. */
	count(line: Line): Usage[] {
		const message = line.entry.message as { id?: unknown; model?: unknown; usage?: Record<string, unknown> } | undefined;
		if (line.entry.type !== "assistant" || typeof message?.usage !== "object" || !message.usage) return [];
		const given = message.usage;
		const n = (name: string) => (Number.isSafeInteger(given[name]) && (given[name] as number) > 0 ? (given[name] as number) : 0);
		const model = typeof message.model === "string" && message.model !== "<synthetic>" ? cut(message.model, maxModel) : "";
		this.#lastModel = model || this.#lastModel;
		const [read, written] = [n("cache_read_input_tokens"), n("cache_creation_input_tokens")];
		const all: Tokens = [n("input_tokens") + read + written, n("output_tokens"), read, written];
		const response = String(message.id ?? "");
		const had = (response && this.#counted.get(response)) || ([0, 0, 0, 0] as Tokens);
		if (response) this.#counted.set(response, all.map((v, i) => Math.max(v, had[i] as number)) as Tokens);
		const [input, output, cachedInput, cacheWrite] = all.map((v, i) => Math.max(0, v - (had[i] as number))) as Tokens;
		if (input + output + cachedInput + cacheWrite === 0) return [];
		return [{ model: this.#lastModel, input, output, cachedInput, cacheWrite }];
	}
}

type Tokens = [number, number, number, number];

/** An entry of a transcript. */
class Line {
	readonly entry: Entry;
	readonly payload: string;
	readonly uuid: string;
	readonly parent: string;
	readonly kind: string;
	readonly turn: boolean;

	constructor(entry: Entry) {
		this.entry = entry;
		this.payload = JSON.stringify(entry);
		const { uuid, parentUuid, type, isMeta } = entry;
		this.uuid = typeof uuid === "string" && !uuid.includes("~") && Buffer.byteLength(uuid) <= 400 ? uuid : "";
		this.parent = typeof parentUuid === "string" ? parentUuid : "";
		this.kind = type === "user" && isMeta === true ? "meta" : cut(String(type || "event"), 64);
		const content = (entry.message as { content?: unknown } | undefined)?.content;
		this.turn = this.kind === "user" && !(Array.isArray(content) && content.some((b) => b?.type === "tool_result"));
	}

	/** Returns the line of a node, or undefined of one that is no JSON object, as a torn line of a file. */
	static of(payload: Buffer): Line | undefined {
		try {
			const entry = JSON.parse(payload.toString());
			return entry && typeof entry === "object" && !Array.isArray(entry) ? new Line(entry) : undefined;
		} catch {
			return undefined;
		}
	}
}

/** Returns the positions of nodes in the order of the file that an import has read, and those that have come since. */
function order(n: number, layout: Buffer | undefined): number[] {
	const file: { nodes?: number; order?: number[]; more?: number[] } = layout ? JSON.parse(layout.toString()) : {};
	const all = Array.from({ length: n }, (_, i) => i);
	if (!file.order) return all;
	const [placed, more] = [new Set(file.order), new Set(file.more)];
	return [...file.order.filter((i) => i < n), ...all.filter((i) => !placed.has(i) && (more.has(i) || i >= (file.nodes ?? 0)))];
}

/** Returns the characters of a text that have so many bytes at most. */
function cut(text: string, most: number): string {
	let end = 0;
	let n = 0;
	for (const c of text.toWellFormed()) {
		n += Buffer.byteLength(c);
		if (n > most) break;
		end += c.length;
	}
	return text.toWellFormed().slice(0, end);
}

function customOf(info: Info): { project?: string; session?: string; subpath?: string } {
	return info.custom && typeof info.custom === "object" ? (info.custom as { project?: string; session?: string; subpath?: string }) : {};
}

/** Returns the session id of a transcript. */
function sessionOf(info: Info): string {
	return customOf(info).session ?? (info.labels?.[identityLabel] ?? "").replace(/^claude-code:/, "");
}

/** Returns a text that fits into a label. */
function clip(text: string): string {
	return Buffer.byteLength(text) <= 256 ? text : `sha256:${createHash("sha256").update(text).digest("hex")}`;
}
