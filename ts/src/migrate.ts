/**
 * Brings the threads of another saver of LangGraph.js to a store.
 *
 *     import { SqliteSaver } from "@langchain/langgraph-checkpoint-sqlite";
 *     import { Client } from "turnstonedb";
 *     import { langgraph, MigratingSaver } from "turnstonedb/migrate";
 *
 *     const db = await Client.open("./data");
 *     const report = await langgraph(SqliteSaver.fromConnString("checkpoints.db"), db);
 *
 * The migration only reads the source. It reads what it has brought again, and compares it with the source. A migration
 * that was cut off goes on where it was, and a later one brings what has come since. The command `turnstonedb-migrate`
 * does the same. A host need not wait for it: a `MigratingSaver` brings a thread when the host first uses the thread.
 *
 * @module
 */

import { createHash } from "node:crypto";
import type { RunnableConfig } from "@langchain/core/runnables";
import { type BaseCheckpointSaver, type CheckpointTuple, copyCheckpoint, WRITES_IDX_MAP } from "@langchain/langgraph-checkpoint";
import { gone, short } from "./adapter.ts";
import { type Client, Session } from "./client.ts";
import { ConflictError, InvalidError, RecordConflictError, TurnstoneError } from "./errors.ts";
import { type Place, sessionOf, TurnstoneSaver } from "./langgraph.ts";
import type { StoredRecord } from "./types.ts";

/** The key of the record of a session that says how the place stood in the source when it was brought. */
const noteKey = "migrated";
/** The value of that record after a MigratingSaver brought the session. What a host then changed or deleted stays so. */
const byHost = "brought";
/** The session with a record for each thread that was deleted, and is not to be brought again. */
const goneSession = "langgraph.js-migration";
/** Bytes of a thread's name within the key of such a record. A longer name is hashed. */
const maxGone = 400;
/** Threads that a MigratingSaver remembers. */
const maxKnown = 10_000;
/** How many places are brought at once. */
const parallel = 8;

/** What a migration did. Each namespace of a thread counts. */
export interface Report {
	found: number;
	/** How many of them need nothing: they stand as they were brought, or a host has brought or deleted them. */
	unchanged: number;
	/** How many checkpoints were brought. A dry run counts all checkpoints of what is not unchanged. */
	brought: number;
	/** Names what was there already and is not what the source has, or what the store refuses. It is left alone. */
	different: string[];
}

/** How a place stands in the source. It begins with the number of checkpoints, and changes whenever the place does. */
type Standing = Place & { stands: string };

/** What LangGraph's savers for SQLite and PostgreSQL have. */
interface Tables {
	db?: { prepare?(sql: string): { all(...args: string[]): Row[] } };
	pool?: { query(sql: string, args: string[]): Promise<{ rows: Row[] }> };
	options?: { schema?: string };
}

type Row = { [column: string]: string | number } & { value: Uint8Array | null };

/** Yields the places of a saver, or those of one thread. */
async function* standing(source: BaseCheckpointSaver, thread?: string): AsyncGenerator<Standing> {
	const { db, pool, options } = source as unknown as Tables;
	const inSQLite = typeof db?.prepare === "function";
	const made = "SELECT name FROM sqlite_master WHERE name IN ('checkpoints', 'writes')";
	if (inSQLite && (db?.prepare?.(made).all() ?? []).length < 2) return; // It makes its tables when it is first used.
	if (!inSQLite && !(pool && options?.schema)) {
		const places = new Set<string>();
		for await (const { config } of source.list({ configurable: thread === undefined ? {} : { thread_id: thread } }))
			places.add(JSON.stringify({ thread: config.configurable?.thread_id, ns: config.configurable?.checkpoint_ns ?? "" }));
		for (const place of places) {
			const found = [...(await contents(source, JSON.parse(place))).values()];
			yield { ...JSON.parse(place), stands: `${found.length} ${digest(...found.flatMap((c) => [c.whole, c.writes]))}` };
		}
		return;
	}
	const table = (name: string) => (inSQLite ? name : `"${options?.schema}".${name}`);
	const [checkpoints, writes, value] = [table("checkpoints"), table(inSQLite ? "writes" : "checkpoint_writes"), inSQLite ? "value" : "blob"];
	const where = thread === undefined ? "true" : `thread_id = ${inSQLite ? "?" : "$1"}`;
	const rows = async (sql: string): Promise<Row[]> => {
		const args = thread === undefined ? [] : [thread];
		return db?.prepare?.(sql).all(...args) ?? (await pool?.query(sql, args))?.rows ?? [];
	};
	const keyOf = (r: Row) => JSON.stringify([r.thread_id, r.checkpoint_ns]);
	const special = new Map<string, string>(); // What stands for the writes that may be replaced, by place.
	for (const r of await rows(
		`SELECT thread_id, checkpoint_ns, checkpoint_id, task_id, idx, ${value} AS value FROM ${writes} WHERE idx < 0 AND ${where} ORDER BY 1, 2, 3, 4, 5`,
	)) {
		const write = JSON.stringify([r.checkpoint_id, r.task_id, r.idx]);
		special.set(keyOf(r), digest(special.get(keyOf(r)) ?? "", write, r.value ?? ""));
	}
	const count = `SELECT count(*) FROM ${writes} w WHERE w.thread_id = c.thread_id AND w.checkpoint_ns = c.checkpoint_ns`;
	for (const r of await rows(
		`SELECT thread_id, checkpoint_ns, count(*) AS n, max(checkpoint_id) AS last, (${count}) AS writes
		FROM ${checkpoints} c WHERE ${where} GROUP BY thread_id, checkpoint_ns`,
	))
		yield {
			thread: String(r.thread_id),
			ns: String(r.checkpoint_ns),
			stands: `${r.n} ${r.last} ${r.writes} ${special.get(keyOf(r)) ?? ""}`,
		};
}

function digest(...pieces: (string | Uint8Array)[]): string {
	const hash = createHash("sha256");
	for (const p of pieces) hash.update(`${p.length} `).update(p);
	return hash.digest("hex").slice(0, 32);
}

/** Brings all threads of a saver, several at once. It calls progress after each. */
export async function langgraph(
	source: BaseCheckpointSaver,
	client: Client,
	{ dryRun = false, progress }: { dryRun?: boolean; progress?: (report: Report) => void } = {},
): Promise<Report> {
	const report: Report = { found: 0, unchanged: 0, brought: 0, different: [] };
	const saver = () => new TurnstoneSaver(client, source.serde);
	const places = standing(source);
	const work = async () => {
		for await (const place of places) {
			const { settled } = await noted(client, place);
			if (settled) report.unchanged++;
			else if (dryRun) report.brought += Number.parseInt(place.stands, 10);
			else {
				const { brought, different } = await bring(source, saver, client, place);
				report.brought += brought;
				if (different) report.different.push(different);
			}
			report.found++;
			progress?.(report);
		}
	};
	// When one fails, the generator ends for the others as well.
	await Promise.all(Array.from({ length: parallel }, work));
	return report;
}

/** Returns whether there is nothing to bring of a place, and the version of the record that says how it stood. */
async function noted(client: Client, { thread, ns, stands }: Standing): Promise<{ settled: boolean; version: string }> {
	const note = await read(client, sessionOf({ thread, ns }), noteKey);
	const settled = note && [stands, byHost].includes(note.value.toString());
	return { settled: settled || Boolean(await read(client, goneSession, goneKey(thread))), version: note?.version ?? "none" };
}

async function read(client: Client, session: string, key: string): Promise<StoredRecord | undefined> {
	return new Session(client, session).record(key).catch((e) => {
		if (!gone(e)) throw e;
		return undefined;
	});
}

function goneKey(thread: string): string {
	const escaped = encodeURIComponent(thread).replace(/[!'()*]/g, (c) => `%${c.charCodeAt(0).toString(16).toUpperCase()}`);
	return `gone/${short(escaped, maxGone)}`;
}

/** Brings what a place lacks, verifies all of it, and notes how it stood. Returns how many checkpoints it brought. */
async function bring(
	source: BaseCheckpointSaver,
	saver: () => TurnstoneSaver,
	client: Client,
	place: Standing,
): Promise<{ brought: number; different?: string }> {
	const named = `thread ${JSON.stringify(place.thread)}, namespace ${JSON.stringify(place.ns)}`;
	const ids = new Set<string>();
	for (;;) {
		const { settled, version } = await noted(client, place);
		if (settled) return { brought: ids.size };
		// One that remembers a thread that was deleted meanwhile would refuse what goes on from that.
		const target = saver();
		try {
			const [wanted, there] = [await contents(source, place), await contents(target, place)];
			if (wanted.size === 0) return { brought: ids.size }; // The source has deleted it.
			let another = [...wanted].find(([id, { whole }]) => there.has(id) && there.get(id)?.whole !== whole);
			if (!another) {
				for (const [id, content] of wanted) {
					if (!there.has(id)) ids.add(await put(target, content, wanted));
					if (there.get(id)?.writes !== content.writes) await putWrites(target, content.tuple);
				}
				const made = await client.session(sessionOf(place));
				const { revision } = await made.info();
				const found = await contents(saver(), place); // It remembers nothing.
				if (await read(client, goneSession, goneKey(place.thread))) {
					// A host has deleted the thread meanwhile, and may have made it again.
					if ([...found.keys()].every((id) => wanted.has(id))) await made.delete("keep", { expected: revision });
					return { brought: 0 };
				}
				another = [...wanted].find(([id, { whole, writes }]) => found.get(id)?.whole !== whole || found.get(id)?.writes !== writes);
			}
			if (!another) {
				const note = { key: noteKey, action: "set", value: place.stands, expect: version } as const;
				await new Session(client, sessionOf(place)).changeRecords([note]);
				return { brought: ids.size };
			}
			const different = `${named}: checkpoint ${another[0]} is another one`;
			if ((await noted(client, place)).version === version) return { brought: ids.size, different };
		} catch (e) {
			if (e instanceof InvalidError) return { brought: ids.size, different: `${named}: ${e.message}` }; // The store has limits.
			if (!(e instanceof RecordConflictError) && !(e instanceof ConflictError) && !gone(e)) throw e;
		}
		// Another process has brought the place meanwhile, or deleted it: then it is brought again, unless a host has deleted the thread.
	}
}

/** A checkpoint, and what stands for its parts: values are compared as the serializer has them, whatever they are. */
interface Content {
	tuple: CheckpointTuple;
	/** The version and the value of each channel. */
	channels: Map<string, string>;
	/** All but the writes. */
	whole: string;
	writes: string;
}

/** Returns the checkpoints of a place by their ids, the oldest first. */
async function contents(saver: BaseCheckpointSaver, { thread, ns }: Place): Promise<Map<string, Content>> {
	const out: [string, Content][] = [];
	for await (const tuple of saver.list({ configurable: { thread_id: thread, checkpoint_ns: ns } })) {
		if (String(tuple.config.configurable?.thread_id) !== thread) continue; // A saver may take the name "" for no name.
		const { channel_values: values, ...rest } = copyCheckpoint(tuple.checkpoint);
		const pack = (value: unknown) => saver.serde.dumpsTyped(value);
		const channels = new Map<string, string>();
		// A value without a version is what the graph gives a channel before the first write. Not every saver keeps it.
		for (const [channel, version] of Object.entries(rest.channel_versions))
			channels.set(channel, digest(JSON.stringify(version), ...(Object.hasOwn(values, channel) ? await pack(values[channel]) : [])));
		const whole = digest(JSON.stringify([rest, parentOf(tuple), [...channels]]), ...(await pack(tuple.metadata)));
		const writes = (tuple.pendingWrites ?? []).map(async ([task, channel, value]) => digest(task, channel, ...(await pack(value))));
		out.push([tuple.checkpoint.id, { tuple, channels, whole, writes: (await Promise.all(writes)).sort().join(" ") }]);
	}
	return new Map(out.sort(([a], [b]) => (a < b ? -1 : 1)));
}

function parentOf(tuple: CheckpointTuple): string | undefined {
	return tuple.parentConfig?.configurable?.checkpoint_id;
}

async function put(target: TurnstoneSaver, { tuple, channels }: Content, all: Map<string, Content>): Promise<string> {
	const { config, checkpoint, metadata = { source: "loop", step: 0, parents: {} } } = tuple;
	const before = all.get(parentOf(tuple) ?? "")?.channels;
	const changed = Object.entries(checkpoint.channel_versions).filter(([channel]) => before?.get(channel) !== channels.get(channel));
	const onto = { configurable: { ...config.configurable, checkpoint_id: parentOf(tuple) } };
	await target.put(onto, checkpoint, metadata, Object.fromEntries(changed));
	return checkpoint.id;
}

/** Puts the writes of a checkpoint. Special channels have indexes of their own: the other writes are counted without them. */
async function putWrites(target: TurnstoneSaver, { config, pendingWrites = [] }: CheckpointTuple): Promise<void> {
	for (const task of new Set(pendingWrites.map(([task]) => task))) {
		const own = pendingWrites.filter(([of]) => of === task).map(([, channel, value]): [string, unknown] => [channel, value]);
		const isSpecial = ([channel]: [string, unknown]) => Number(Object.hasOwn(WRITES_IDX_MAP, channel));
		own.sort((a, b) => isSpecial(a) - isSpecial(b));
		await target.putWrites(config, own, task);
	}
}

/** What a host had here already is not what the old saver has, or the store refuses what that has. */
class DifferentError extends TurnstoneError {}

/**
 * A TurnstoneSaver that brings a thread from another saver when the host first uses the thread: a host goes over without
 * a pause. Nobody may write to the other saver any more. A thread that was deleted is not brought again. The function
 * langgraph brings the threads that no host uses.
 */
export class MigratingSaver extends TurnstoneSaver {
	readonly #client: Client;
	readonly #old: BaseCheckpointSaver;
	readonly #plain: () => TurnstoneSaver;
	readonly #brought = new Map<string, Promise<void>>(); // by thread
	readonly #spared = new Set<string>(); // threads that can't be brought, of which nobody knows whether they are idle

	constructor(client: Client, old: BaseCheckpointSaver, options: { keepLast?: number } = {}) {
		super(client, old.serde, options);
		this.#client = client;
		this.#old = old;
		this.#plain = () => new TurnstoneSaver(client, old.serde, options);
	}

	async #bring({ configurable: { thread_id } = {} }: RunnableConfig): Promise<void> {
		if (thread_id === undefined) return;
		const thread = String(thread_id);
		const bringing = this.#brought.get(thread) ?? this.#namespaces(thread);
		if (this.#brought.size >= maxKnown) this.#brought.clear(); // The store knows it as well.
		this.#brought.set(thread, bringing);
		await bringing.catch((e) => {
			this.#brought.delete(thread); // The next call tries it again.
			throw e;
		});
	}

	async #namespaces(thread: string): Promise<void> {
		for await (const { ns } of standing(this.#old, thread)) {
			const { different } = await bring(this.#old, this.#plain, this.#client, { thread, ns, stands: byHost });
			if (different) throw new DifferentError(different);
		}
	}

	/** Notes that a thread is not to be brought any more. */
	async #forget(thread: string): Promise<void> {
		const { session } = await this.#client.create(goneSession, { retention: "all" });
		await session.changeRecords([{ key: goneKey(thread), action: "set", value: "deleted" }]);
		await this.#brought.get(thread)?.catch(() => {});
	}

	override async getTuple(...args: Parameters<TurnstoneSaver["getTuple"]>): ReturnType<TurnstoneSaver["getTuple"]> {
		await this.#bring(args[0]);
		return super.getTuple(...args);
	}

	override async *list(...args: Parameters<TurnstoneSaver["list"]>): ReturnType<TurnstoneSaver["list"]> {
		if (args[0].configurable?.thread_id !== undefined) await this.#bring(args[0]);
		else for await (const { thread } of standing(this.#old)) await this.#bring({ configurable: { thread_id: thread } });
		yield* super.list(...args);
	}

	override async put(...args: Parameters<TurnstoneSaver["put"]>): ReturnType<TurnstoneSaver["put"]> {
		await this.#bring(args[0]);
		return super.put(...args);
	}

	override async putWrites(...args: Parameters<TurnstoneSaver["putWrites"]>): Promise<void> {
		await this.#bring(args[0]);
		return super.putWrites(...args);
	}

	override async deleteThread(threadId: string): Promise<void> {
		await this.#forget(String(threadId));
		return super.deleteThread(threadId);
	}

	override async deleteIdle(seconds: number): Promise<string[]> {
		this.#spared.clear();
		for await (const place of standing(this.#old)) {
			const note = (await read(this.#client, sessionOf(place), noteKey))?.value.toString();
			if (note === place.stands || note === byHost || (note === undefined && !(await this.#isHere(place)))) continue;
			try {
				await this.#bring({ configurable: { thread_id: place.thread } }); // Hosts have used it in the old store since a migration, or one was cut off.
			} catch (e) {
				if (!(e instanceof DifferentError)) throw e;
				this.#spared.add(place.thread);
			}
		}
		return super.deleteIdle(seconds);
	}

	async #isHere(place: Place): Promise<boolean> {
		try {
			await this.#client.session(sessionOf(place));
			return true;
		} catch (e) {
			if (!gone(e)) throw e;
			return false;
		}
	}

	protected override async deleteIfIdle(thread: string, seconds: number): Promise<boolean> {
		const isGone = !this.#spared.has(thread) && (await super.deleteIfIdle(thread, seconds));
		if (isGone) await this.#forget(thread); // Not before: who is bringing it now would delete it, though another one uses it.
		return isGone;
	}
}
