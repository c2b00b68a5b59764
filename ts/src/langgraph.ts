/**
 * A checkpointer for LangGraph.
 *
 *     import { Client } from "turnstonedb";
 *     import { TurnstoneSaver } from "turnstonedb/langgraph";
 *
 *     const db = await Client.open("./data");
 *     const graph = builder.compile({ checkpointer: new TurnstoneSaver(db) });
 *
 * Each namespace of a thread is a session. A checkpoint is one commit: the values of channels that it changes are parts of the session's checkpoint, which
 * the store keeps as differences from their last versions, so a list that grows costs what was added. Pending writes are records.
 *
 * @module
 */

import { createHash } from "node:crypto";
import { isDeepStrictEqual } from "node:util";
import type { RunnableConfig } from "@langchain/core/runnables";
import {
	BaseCheckpointSaver,
	type ChannelVersions,
	type Checkpoint,
	type CheckpointListOptions,
	type CheckpointMetadata,
	type CheckpointPendingWrite,
	type CheckpointTuple,
	copyCheckpoint,
	type DeltaChannelHistory,
	getCheckpointId,
	maxChannelVersion,
	type PendingWrite,
	type SerializerProtocol,
	WRITES_IDX_MAP,
} from "@langchain/langgraph-checkpoint";
import { listed, newId } from "./adapter.ts";
import { type Client, Session } from "./client.ts";
import { ConflictError, InvalidError, NotFoundError, RecordConflictError, SessionDeletedError, TurnstoneError } from "./errors.ts";
import type { Commit, Create, Info, NewNode, Node, RecordChange, Ref, StoredRecord } from "./types.ts";

const group = "langgraph.js";
/** The name of the part that is no channel: the checkpoint without its values, and its metadata. */
const bodyPart = ".checkpoint";
/** The keys of records, or their beginnings. */
const checkpointKey = "c/";
const writeKey = "w/";
const latestKey = "latest";
/** The name that keeps the revision of the latest checkpoint, whatever is pruned. */
const keptName = "latest";
/** The channel of what tasks send each other, which checkpoints before version 4 had among their parent's writes. */
const tasks = "__pregel_tasks";
/** Bytes of a thread or a namespace within a session's id; a longer one is hashed. */
const maxName = 180;
/** Bytes of a channel's name as the name of a part. */
const maxPart = 60;
/** Bytes of the id of a checkpoint, or of a task, within a record's key; a longer one is hashed. */
const maxId = 200;
/** Bytes of a write within a record; a larger one is a node. */
const maxRecord = 60 << 10;
/** How many records are changed at once. */
const maxRecords = 200;
/** How often a change is made that may be made more than once. */
const repeats = 3;
/** Sessions and checkpoints of which a saver remembers a few words. */
const maxKnown = 10_000;
/** Bytes of the values of records that are changed at once. */
const maxBytes = 1 << 20;
/** Checkpoints that are read at once. */
const maxPage = 50;
/** Characters of metadata, as JSON, in the record of a checkpoint. */
const maxMetadata = 2000;
/** Sessions whose last checkpoint is remembered, and bytes of each. */
const maxSeen = 64;
const maxSeenBytes = 1 << 20;

/** Where a checkpoint is: what its record says. */
interface Entry {
	id: string;
	parent?: string;
	revision: number;
	/** If it is short: a list need not read checkpoints that its filter excludes. */
	metadata?: CheckpointMetadata;
	/** With what the keys of the records of its writes begin. */
	beside: string;
	/** What its session got with the first checkpoint: one that is deleted and made again gets another. */
	born: string;
}

/** A checkpoint without its values, and its metadata. */
type Body = [Omit<Checkpoint, "channel_values">, CheckpointMetadata];

/**
 * A thread's namespace.
 *
 * @internal
 */
export interface Place {
	thread: string;
	ns: string;
}

/** What a record says of a pending write, in its first line. */
interface Write {
	task: string;
	path: string;
	index: number;
	channel: string;
	kind: string;
	/** The key of the node that has the value, if the record has not. */
	node?: string;
}

/** The last checkpoint that was put into a session: what a put compares with. */
interface Head {
	revision: number;
	id: string | undefined;
	parts: Set<string>;
	/** Of all its channels. */
	versions: ChannelVersions;
	/** The latest checkpoint, and the version of the record that says so. */
	latest: { id: string; version: string };
	born: string;
	/** The version of the checkpoint's record, if this saver has put it. */
	record?: string;
}

/** A checkpointer on a client. Any number of them, in any number of processes, may share a store. */
export class TurnstoneSaver extends BaseCheckpointSaver {
	readonly #client: Client;
	readonly #heads = new Recent<string, Head>(maxKnown);
	/** By session and checkpoint that the caller was given. What goes on from one of before its session was deleted is refused. */
	readonly #births = new Recent<string, string>(maxKnown);
	/** By session: the version of the record of the latest checkpoint. */
	readonly #latest = new Recent<string, { born: string; version: string }>(maxKnown);
	/** Of sessions: the parts of the last checkpoint that was put or read, by the records that lead to it and their versions. */
	readonly #seen = new Recent<string, { versions: Map<string, string>; parts: Map<string, Buffer> }>(maxSeen);

	readonly #keepLast: number;

	/**
	 * keepLast is how many commits `turnstone prune` leaves of a thread that this saver makes, in each namespace: a checkpoint is one, and so are large writes. With
	 * 0 it leaves as many as it is told to.
	 */
	constructor(client: Client, serde?: SerializerProtocol, { keepLast = 0 }: { keepLast?: number } = {}) {
		super(serde);
		if (!Number.isSafeInteger(keepLast) || keepLast < 0) throw new RangeError(`keepLast is ${keepLast}`);
		this.#client = client;
		this.#keepLast = keepLast;
	}

	/** Returns a checkpoint, or the latest one. */
	async getTuple(config: RunnableConfig): Promise<CheckpointTuple | undefined> {
		const { thread_id: thread, checkpoint_ns: ns = "" } = config.configurable ?? {};
		if (thread === undefined) return undefined;
		const id = getCheckpointId(config);
		const place = { thread: String(thread), ns: String(ns) };
		const [found] = await this.#tuples(place, [id ? checkpointKey + keyOf(id) : latestKey]);
		if (id && !found) this.#births.delete(birthOf(this.#at(place), id)); // The caller knows now that it is gone.
		return found;
	}

	/**
	 * Returns the writes of channels since their last value before a checkpoint, and that value. Fails if a checkpoint that is needed was pruned or deleted:
	 * without it the channels would have less than they had.
	 */
	override async getDeltaChannelHistory({
		config,
		channels,
	}: {
		config: RunnableConfig;
		channels: string[];
	}): Promise<Record<string, DeltaChannelHistory>> {
		const found = new Map<string, DeltaChannelHistory>(channels.map((channel) => [channel, { writes: [] }]));
		const rest = new Map(found);
		const passed = new Set<string>(); // A checkpoint that was put again may have one of its own descendants as its parent.
		const needed = async (at: RunnableConfig) => {
			const tuple = await this.getTuple(at);
			if (tuple || !getCheckpointId(at)) return tuple;
			const [names, id] = [[...rest.keys()], getCheckpointId(at)].map((v) => JSON.stringify(v));
			throw new NotFoundError(`the channels ${names} need checkpoint ${id}, which was pruned or deleted`, { type: "#revision-pruned" });
		};
		for (let at = channels.length > 0 ? (await needed(config))?.parentConfig : undefined; at && rest.size > 0; ) {
			const id = getCheckpointId(at);
			if (passed.has(id)) break;
			passed.add(id);
			const tuple = (await needed(at)) as CheckpointTuple;
			for (const write of [...(tuple.pendingWrites ?? [])].reverse()) rest.get(write[1])?.writes.push(write);
			for (const [channel, history] of rest) {
				if (!Object.hasOwn(tuple.checkpoint.channel_values, channel)) continue;
				history.seed = tuple.checkpoint.channel_values[channel];
				rest.delete(channel);
			}
			at = tuple.parentConfig;
		}
		for (const { writes } of found.values()) writes.reverse();
		return Object.fromEntries(found);
	}

	/** Yields checkpoints, the newest first. */
	async *list(config: RunnableConfig, options: CheckpointListOptions = {}): AsyncGenerator<CheckpointTuple> {
		const { thread_id: thread, checkpoint_ns: ns } = config.configurable ?? {};
		const only = getCheckpointId(config);
		const before = options.before && getCheckpointId(options.before);
		const found: { place: Place; entry: Entry }[] = [];
		for (const place of thread !== undefined && typeof ns === "string" ? [{ thread: String(thread), ns }] : await this.#places(thread)) {
			if (typeof ns === "string" && place.ns !== ns) continue;
			for (const entry of await this.#entries(this.#at(place))) {
				if ((!only || entry.id === only) && (!before || entry.id < before)) found.push({ place, entry });
			}
		}
		found.sort((a, b) => compare(b.entry.id, a.entry.id));
		const filter = Object.entries(options.filter ?? {}).filter(([, value]) => value !== undefined);
		const matches = (m?: CheckpointMetadata) => !m || filter.every(([name, value]) => isSame((m as { [name: string]: unknown })[name], value));
		let rest = found.filter(({ entry }) => matches(entry.metadata));
		for (let left = options.limit ?? Number.POSITIVE_INFINITY; left > 0 && rest.length > 0; ) {
			const n = Math.min(left, maxPage);
			for (const tuple of await this.#page(rest.slice(0, n))) {
				if (!matches(tuple.metadata)) continue;
				left--;
				yield tuple;
			}
			rest = rest.slice(n);
		}
	}

	/** Stores a checkpoint, whole or not at all. */
	async put(config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, newVersions: ChannelVersions): Promise<RunnableConfig> {
		const place = placeOf(config);
		const parent = getCheckpointId(config) || undefined;
		const { channel_values: values, ...body } = copyCheckpoint(checkpoint);
		// What a first checkpoint does not name as new is not of it, unless it is a copy of another one.
		const whole = parent !== undefined || metadata.source === "fork";
		const given = Object.entries(values).filter(([channel]) => whole || Object.hasOwn(newVersions, channel));
		const packed = await this.#pack([body, metadata]);
		await this.#commit(place, { id: checkpoint.id, parent, metadata }, packed, checkpoint.channel_versions, new Map(given), newVersions);
		return configOf(place, checkpoint.id);
	}

	/** Stores pending writes of a checkpoint. */
	async putWrites(config: RunnableConfig, writes: PendingWrite[], taskId: string, taskPath = ""): Promise<void> {
		const place = placeOf(config);
		const id = getCheckpointId(config);
		if (!id) throw new TypeError("checkpoint_id is missing in the configurable property of the config");
		const changes = new Map<string, RecordChange>();
		const nodes: NewNode[] = [];
		for (const [i, [channel, value]] of writes.entries()) {
			const index = Object.hasOwn(WRITES_IDX_MAP, channel) ? (WRITES_IDX_MAP[channel] as number) : i;
			const [kind, bytes] = await this.serde.dumpsTyped(value);
			let content: Uint8Array = bytes;
			const key = `${writeKey}${keyOf(id)}/${short(quoted(taskId), maxId)}/${index}`;
			const write: Write = { task: taskId, path: taskPath, index, channel, kind };
			if (Buffer.byteLength(JSON.stringify(write)) + content.length > maxRecord) {
				write.node = `${short(key, 400)} ${createHash("sha256").update(content).digest("hex").slice(0, 32)}`;
				nodes.push({ kind: "write", key: write.node, payload: content });
				content = Buffer.alloc(0);
			}
			const record = Buffer.concat([Buffer.from(`${JSON.stringify(write)}\n`), content]);
			// A write of a task that has an index stays as it was first; one of a special channel is replaced.
			changes.set(key, { key, action: "set", value: record, ...(index >= 0 ? { expect: "none" } : {}) });
		}
		await this.#change(place, nodes, [...changes.values()], this.#births.get(birthOf(this.#at(place), id)));
	}

	/** Deletes a thread, with all its namespaces. */
	async deleteThread(threadId: string): Promise<void> {
		for (const place of await this.#places(threadId)) {
			const { id } = this.#at(place);
			this.#heads.delete(id);
			this.#seen.delete(id);
			this.#latest.delete(id);
			await this.#unlessGone(this.#client.delete(id));
		}
	}

	/**
	 * Deletes the threads that nobody has used for so many seconds, in any of their namespaces, and returns them. A namespace that is used meanwhile stays, and
	 * its thread is not among the result.
	 */
	async deleteIdle(seconds: number): Promise<string[]> {
		if (!(seconds > 0)) throw new RangeError(`deleteIdle of ${seconds} seconds`);
		const { deleted } = await this.#client.prune({ group, inactive: seconds, dryRun: true }); // The store knows of uses that Info does not tell.
		const idle = new Set(deleted as string[] | undefined);
		const threads = new Map<string, boolean>(); // whether all of a thread is idle
		for (const place of await this.#places()) threads.set(place.thread, threads.get(place.thread) !== false && idle.has(this.#at(place).id));
		const gone: string[] = [];
		for (const [thread, unused] of threads) {
			if (unused && (await this.deleteIfIdle(thread, seconds))) gone.push(thread);
		}
		return gone;
	}

	/** Deletes the namespaces of a thread that nobody has used for so many seconds, and returns whether all of it is gone. */
	protected async deleteIfIdle(thread: string, seconds: number): Promise<boolean> {
		await this.#client.prune({ group: groupOf(thread), inactive: seconds });
		return (await this.#places(thread)).length === 0;
	}

	// Sessions

	#at(place: Place): Session {
		return new Session(this.#client, sessionOf(place));
	}

	/** Returns the request that makes the session of a namespace. */
	#made(place: Place): Create & { id: string } {
		const made = { id: this.#at(place).id, group: groupOf(place.thread), name: JSON.stringify(place) };
		return this.#keepLast ? { ...made, retention: this.#keepLast } : made;
	}

	/** Returns the namespaces of a thread, or of all threads. */
	async #places(thread?: unknown): Promise<Place[]> {
		const found = await listed(this.#client, { group: thread === undefined ? group : groupOf(String(thread)) });
		return found.flatMap((i) => this.#placeOf(i) ?? []).filter((p) => thread === undefined || p.thread === String(thread));
	}

	/** Returns the thread and namespace of a session of the group, or undefined if this saver has not made it. */
	#placeOf({ id, name }: Info): Place | undefined {
		try {
			const { thread, ns } = JSON.parse(name ?? "") as Place;
			return this.#at({ thread, ns }).id === id ? { thread, ns } : undefined;
		} catch {
			return undefined;
		}
	}

	/** Returns what a promise gives, or undefined if what it asks for is not there, or not any more. */
	async #unlessGone<T>(promise: Promise<T>): Promise<T | undefined> {
		try {
			return await promise;
		} catch (e) {
			if (e instanceof NotFoundError) return undefined;
			throw e;
		}
	}

	// Reading

	async #entries(session: Session): Promise<Entry[]> {
		return ((await this.#unlessGone(this.#records(session, checkpointKey))) ?? []).map((r) => JSON.parse(r.value.toString()) as Entry);
	}

	async #records(session: Session, prefix: string): Promise<StoredRecord[]> {
		const out: StoredRecord[] = [];
		for (let after: string | undefined = ""; after !== undefined; ) {
			const page = await session.records(prefix, { after, limit: 1000 });
			out.push(...page.records);
			after = page.next;
		}
		return out;
	}

	/** Returns the checkpoints that records of a namespace lead to. One that is not there, or not any more, is left out. */
	async #tuples(place: Place, keys: string[]): Promise<CheckpointTuple[]> {
		const session = this.#at(place);
		const seen = this.#seen.get(session.id);
		const wanted = keys.map((key) => ({ key, known: seen?.versions.get(key) ?? "none" }));
		const out: CheckpointTuple[] = [];
		for (const ref of (await this.#unlessGone(session.refs(wanted))) ?? []) {
			const parts = ref.parts ?? (seen?.parts as Map<string, Buffer>);
			if (ref.parts && keys.length === 1) this.#remember(session.id, new Map([[ref.record.key, ref.record.version]]), parts);
			this.#given(session, JSON.parse(ref.record.value.toString()), ref.record.key === latestKey ? ref.record.version : undefined);
			const tuple = await this.#unlessGone(this.#tuple(place, ref, parts));
			if (tuple) out.push(tuple);
		}
		return out;
	}

	/** Returns the checkpoints of some places, in their order, with a request for each namespace. */
	async #page(some: { place: Place; entry: Entry }[]): Promise<CheckpointTuple[]> {
		const of = new Map<string, { place: Place; keys: string[] }>();
		for (const { place, entry } of some) {
			const session = this.#at(place).id;
			const { keys } = of.get(session) ?? { keys: [] };
			of.set(session, { place, keys: [...keys, checkpointKey + keyOf(entry.id)] });
		}
		const found = new Map<string, CheckpointTuple>();
		for (const [session, { place, keys }] of of) {
			for (const t of await this.#tuples(place, keys)) found.set(`${session} ${t.checkpoint.id}`, t);
		}
		return some.flatMap(({ place, entry }) => found.get(`${this.#at(place).id} ${entry.id}`) ?? []);
	}

	#remember(id: string, versions: Map<string, string>, parts: Map<string, Buffer>): void {
		this.#seen.delete(id);
		let size = 0;
		for (const content of parts.values()) size += content.length;
		if (size <= maxSeenBytes) this.#seen.set(id, { versions, parts });
	}

	/** Remembers what the caller knows of a checkpoint then, and the version of the record if it is that of the latest one. */
	#given(session: Session, { id, born }: Entry, latest?: string): void {
		if (!born) return;
		this.#births.set(birthOf(session, id), born);
		if (latest !== undefined) this.#latest.set(session.id, { born, version: latest });
	}

	async #tuple(place: Place, ref: Ref, parts: Map<string, Buffer>): Promise<CheckpointTuple> {
		const session = this.#at(place);
		const entry = JSON.parse(ref.record.value.toString()) as Entry;
		const pendingWrites = await this.#writes(session, ref.beside);
		const [body, metadata] = (await this.#unpack(parts.get(bodyPart) as Buffer)) as Body;
		const values: [string, unknown][] = [];
		for (const channel of Object.keys(body.channel_versions)) {
			const content = parts.get(partOf(channel));
			if (content) values.push([channel, await this.#unpack(content)]);
		}
		const checkpoint: Checkpoint = { ...body, channel_values: Object.fromEntries(values) };
		if (checkpoint.v < 4 && entry.parent !== undefined) {
			const sent = (await this.#writes(session, await this.#records(session, writesOf(entry.parent)))).filter(([, channel]) => channel === tasks);
			const versions = Object.values(checkpoint.channel_versions);
			checkpoint.channel_values[tasks] = sent.map(([, , value]) => value);
			checkpoint.channel_versions[tasks] = versions.length > 0 ? maxChannelVersion(...versions) : this.getNextVersion(undefined);
		}
		return {
			config: configOf(place, entry.id),
			checkpoint,
			metadata,
			...(entry.parent === undefined ? {} : { parentConfig: configOf(place, entry.parent) }),
			pendingWrites,
		};
	}

	/** Returns the pending writes of a checkpoint, in the order in which a graph applies them. */
	async #writes(session: Session, stored: StoredRecord[]): Promise<CheckpointPendingWrite[]> {
		const records = stored.map((r) => readWrite(r.value));
		const keys = records.flatMap(([write]) => write.node ?? []);
		const nodes = new Map<string, Node>();
		for (let i = 0; i < keys.length; i += maxRecords) for (const n of await session.nodesByKey(keys.slice(i, i + maxRecords))) nodes.set(...n);
		const found: { write: Write; value: unknown }[] = [];
		for (const [write, content] of records) {
			const bytes = write.node === undefined ? content : (nodes.get(write.node) as Node).payload;
			found.push({ write, value: await this.serde.loadsTyped(write.kind, new Uint8Array(bytes)) });
		}
		found.sort((a, b) => compare(a.write.path, b.write.path) || compare(a.write.task, b.write.task) || a.write.index - b.write.index);
		return found.map(({ write, value }) => [write.task, write.channel, value]);
	}

	/** Returns a value as bytes, with the kind that its serializer gives it. */
	async #pack(value: unknown): Promise<Buffer> {
		const [kind, bytes] = await this.serde.dumpsTyped(value);
		return Buffer.concat([Buffer.from(`${kind}\0`), bytes]);
	}

	async #unpack(bytes: Buffer): Promise<unknown> {
		const end = bytes.indexOf(0);
		return await this.serde.loadsTyped(bytes.toString("utf8", 0, end), new Uint8Array(bytes.subarray(end + 1)));
	}

	// Writing

	/** Returns the head of a session, or undefined if there is no session. */
	async #head(session: Session): Promise<Head | undefined> {
		const state = await this.#unlessGone(session.load({ last: 1, parts: [bodyPart], records: [latestKey] }));
		if (!state) return undefined;
		const content = state.contents.get(bodyPart);
		const [body] = content ? ((await this.#unpack(content)) as Body) : [];
		const record = state.records.get(latestKey) as StoredRecord;
		const latest = record.value.length > 0 ? (JSON.parse(record.value.toString()) as Entry) : undefined;
		return {
			revision: state.revision,
			id: body?.id,
			parts: new Set(state.parts.map((p) => p.name)),
			versions: body?.channel_versions ?? {},
			latest: { id: latest?.id ?? "", version: record.version },
			born: latest?.born ?? "",
		};
	}

	/** Returns the head on top of which a checkpoint of a birth is put, whether its session is there, and whether this saver has put it. */
	async #ground(place: Place, born: string | undefined): Promise<{ head: Head; found: boolean; known: boolean }> {
		const session = this.#at(place);
		const known = this.#heads.get(session.id);
		if (known && (born === undefined || born === known.born)) return { head: known, found: true, known: true };
		const head = await this.#head(session);
		// A session without a birth has no checkpoints left.
		if (born !== undefined && head?.born !== born && head?.born !== "") throw deleted(place);
		if (head) return { head: { ...head, born: head.born || newId() }, found: true, known: false };
		const none = { revision: 0, id: undefined, parts: new Set<string>(), versions: {}, latest: { id: "", version: "none" }, born: newId() };
		return { head: none, found: false, known: false };
	}

	/** Returns what refuses a change if a namespace has been deleted since a birth. Fails if it has been already. */
	async #guard(place: Place, born: string): Promise<RecordChange> {
		const session = this.#at(place);
		let latest = this.#latest.get(session.id);
		if (latest?.born !== born) {
			const state = await this.#unlessGone(session.load({ last: 1, records: [latestKey] }));
			const record = state?.records.get(latestKey);
			if (!record || (record.value.length > 0 && (JSON.parse(record.value.toString()) as Entry).born !== born)) throw deleted(place);
			latest = { born, version: record.version };
			this.#latest.set(session.id, latest);
		}
		return { key: latestKey, action: "check", expect: latest.version };
	}

	/** Commits a checkpoint: the parts that are not those of the head already, and its record. */
	async #commit(
		place: Place,
		{ id, parent, metadata }: { id: string; parent: string | undefined; metadata: CheckpointMetadata },
		body: Buffer,
		versions: ChannelVersions,
		values: Map<string, unknown>,
		changed: ChannelVersions,
	): Promise<void> {
		const session = this.#at(place);
		const born = parent === undefined ? undefined : this.#births.get(birthOf(session, parent));
		if (born !== undefined) this.#births.set(birthOf(session, id), born); // Of its writes as well, which may come when it was refused.
		const packed = new Map<string, Buffer>();
		let before: { parts: Map<string, Buffer>; versions: ChannelVersions } | undefined; // of the parent
		for (;;) {
			const { head, found, known } = await this.#ground(place, born);
			const parts = new Map([[bodyPart, body]]);
			const stay = new Set<string>();
			for (const [channel, version] of Object.entries(versions)) {
				const name = partOf(channel);
				const unchanged = parent !== undefined && head.id === parent && head.versions[channel] === version && !Object.hasOwn(changed, channel);
				// Of a head that this saver has not put, nobody knows whether it has the value that the caller has.
				if (unchanged && head.parts.has(name) && (known || !values.has(channel))) {
					stay.add(name);
					continue;
				}
				if (!packed.has(channel) && values.has(channel)) packed.set(channel, await this.#pack(values.get(channel)));
				else if (!packed.has(channel) && parent !== undefined && !Object.hasOwn(changed, channel) && !unchanged) {
					// The value, if there is one, is that of the parent, and the head has gone on since. A value of another version is none.
					before ??= await this.#before(session, parent);
					const content = before.parts.get(name);
					if (content && before.versions[channel] === version) packed.set(channel, content);
				}
				const content = packed.get(channel);
				if (content) parts.set(name, content);
			}
			const drop = [...head.parts].filter((name) => !stay.has(name) && !parts.has(name));
			let latest: Head["latest"];
			let lead: Map<string, string>;
			const entry: Entry = {
				id,
				...(parent === undefined ? {} : { parent }),
				...asJSON(metadata),
				revision: head.revision + 1,
				beside: writesOf(id),
				born: head.born,
			};
			try {
				[latest, lead] = await this.#apply(place, entry, head, !found, parts, drop);
			} catch (e) {
				const gone = e instanceof NotFoundError && known; // The thread was deleted since this saver saw it.
				if (!(e instanceof ConflictError || e instanceof RecordConflictError || gone)) throw e;
				this.#heads.delete(session.id);
				continue;
			}
			const names = new Set([...stay, ...parts.keys()]);
			const seen = this.#seen.get(session.id);
			if (seen && head.id !== undefined && head.record && seen.versions.get(checkpointKey + keyOf(head.id)) === head.record) {
				for (const name of stay) {
					const content = seen.parts.get(name);
					if (content) parts.set(name, content);
				}
			}
			if (parts.size === names.size) this.#remember(session.id, lead, parts);
			else this.#seen.delete(session.id);
			this.#heads.set(session.id, {
				revision: head.revision + 1,
				id,
				parts: names,
				versions: { ...versions },
				latest,
				born: head.born,
				record: lead.get(checkpointKey + keyOf(id)) as string,
			});
			this.#given(session, entry, latest.version);
			return;
		}
	}

	/** Commits a checkpoint on top of a head, and returns what is the latest one then, and the versions of the records that lead to this one. */
	async #apply(
		place: Place,
		entry: Entry,
		head: Head,
		made: boolean,
		parts: Map<string, Buffer>,
		drop: string[],
	): Promise<[Head["latest"], Map<string, string>]> {
		const session = this.#at(place);
		const text = JSON.stringify(entry);
		const key = checkpointKey + keyOf(entry.id);
		const { id, version } = head.latest;
		const newest = id <= entry.id;
		const commit: Commit = {
			expected: head.revision,
			checkpoint: parts,
			drop,
			records: [
				{ key, action: "set", value: text },
				newest ? { key: latestKey, action: "set", value: text, expect: version } : { key: latestKey, action: "check", expect: version },
			],
			...(newest ? { keep: keptName } : {}),
		};
		try {
			const result = made ? (await this.#client.commitAll([{ create: this.#made(place), ...commit }]))[0] : await session.commit(commit);
			const [own = "none", last = "none"] = result?.records ?? [];
			return [
				{ id: newest ? entry.id : id, version: last },
				new Map(
					newest
						? [
								[key, own],
								[latestKey, last],
							]
						: [[key, own]],
				),
			];
		} catch (e) {
			if (!(e instanceof TurnstoneError && e.outcomeUnknown)) throw e;
			// Nobody knows whether it was made: its record tells.
			const stands = await this.#unlessGone(session.record(key));
			const latest = await this.#unlessGone(session.record(latestKey));
			if (stands?.value.toString() !== text || !latest) throw e;
			return [{ id: (JSON.parse(latest.value.toString()) as Entry).id, version: latest.version }, new Map([[key, stands.version]])];
		}
	}

	/** Returns the parts of a checkpoint, and the versions of its channels. */
	async #before(session: Session, id: string): Promise<{ parts: Map<string, Buffer>; versions: ChannelVersions }> {
		const refs = (await this.#unlessGone(session.refs([{ key: checkpointKey + keyOf(id) }]))) ?? [];
		const parts = refs[0]?.parts ?? new Map<string, Buffer>();
		const body = parts.get(bodyPart);
		return { parts, versions: body ? ((await this.#unpack(body)) as Body)[0].channel_versions : {} };
	}

	/** Returns those of some nodes that are not stored yet, each once. */
	async #absent(session: Session, nodes: NewNode[]): Promise<NewNode[]> {
		if (nodes.length === 0) return [];
		const present = (await this.#unlessGone(session.nodesByKey(nodes.map((n) => n.key as string)))) ?? new Map();
		return [...new Map(nodes.filter((n) => !present.has(n.key as string)).map((n) => [n.key, n])).values()];
	}

	/** Stores nodes that are not there yet, and changes records, unless the session was deleted since its birth, if the caller knows of that. */
	async #change(place: Place, nodes: NewNode[], changes: RecordChange[], born?: string): Promise<void> {
		const session = this.#at(place);
		let fresh = await this.#absent(session, nodes);
		for (let left = changes, failures = 0; fresh.length > 0 || left.length > 0; ) {
			const guard = born === undefined ? [] : [await this.#guard(place, born)];
			try {
				if (fresh.length > 0) {
					await this.#client.commitAll([{ create: this.#made(place), expected: "any", turn: newId(), nodes: fresh, records: guard }]);
					this.#heads.delete(session.id);
					fresh = [];
				} else {
					const some = fitting(left);
					await session.changeRecords([...guard, ...some]);
					left = left.slice(some.length);
				}
			} catch (e) {
				if (e instanceof RecordConflictError) {
					if (e.key === latestKey) this.#latest.delete(session.id);
					left = left.filter((c) => c.key !== e.key);
				} else if (e instanceof InvalidError) {
					const still = await this.#absent(session, fresh);
					if (still.length === fresh.length) throw e; // Nobody has stored one of them since.
					fresh = still;
				} else if (e instanceof NotFoundError) {
					if (born !== undefined) throw deleted(place);
					const { id, ...options } = this.#made(place);
					await this.#client.create(id, options);
				} else if (!(e instanceof TurnstoneError && e.outcomeUnknown) || ++failures > repeats) throw e;
			}
		}
	}
}

/** Returns the first changes: as many as fit one request. */
function fitting(changes: RecordChange[]): RecordChange[] {
	let size = 0;
	const end = changes.findIndex((c, i) => {
		if (c.action === "set") size += c.value.length;
		return i > 0 && (i >= maxRecords || size > maxBytes);
	});
	return end < 0 ? changes : changes.slice(0, end);
}

/** A map that forgets what it was given first. */
class Recent<K, V> extends Map<K, V> {
	readonly #most: number;

	constructor(most: number) {
		super();
		this.#most = most;
	}

	override set(key: K, value: V): this {
		this.delete(key);
		super.set(key, value);
		for (const oldest of this.keys()) {
			if (this.size <= this.#most) break;
			this.delete(oldest);
		}
		return this;
	}
}

function birthOf(session: Session, id: string): string {
	return `${session.id} ${id}`;
}

function deleted({ thread, ns }: Place): SessionDeletedError {
	const of = `the thread ${JSON.stringify(thread)}${ns ? ` (namespace ${JSON.stringify(ns)})` : ""}`;
	return new SessionDeletedError(`${of} was deleted after the checkpoint that this goes on from`, { type: "#session-deleted" });
}

function placeOf(config: RunnableConfig): Place {
	const { thread_id: thread, checkpoint_ns: ns = "" } = config.configurable ?? {};
	if (thread === undefined) throw new TypeError("thread_id is missing in the configurable property of the config");
	return { thread: String(thread), ns: String(ns) };
}

function configOf({ thread, ns }: Place, id: string): RunnableConfig {
	return { configurable: { thread_id: thread, checkpoint_ns: ns, checkpoint_id: id } };
}

function groupOf(thread: string): string {
	return `${group}/${short(escaped(thread), maxName)}`;
}

/**
 * Returns the id of the session of a thread's namespace.
 *
 * @internal
 */
export function sessionOf({ thread, ns }: Place): string {
	return `${groupOf(thread)}/${short(escaped(ns), maxName)}`;
}

/** Returns text as a part of a session's id, without slashes. */
function escaped(text: string): string {
	if (!text.isWellFormed()) throw new TypeError(`${JSON.stringify(text)} has a surrogate without its other half`);
	return encodeURIComponent(text);
}

/** Returns the name of the part that has a channel's value. */
function partOf(channel: string): string {
	return `=${short(channel, maxPart)}`;
}

/** Returns text, or what stands for it if it is long. */
function short(text: string, most: number): string {
	if (Buffer.byteLength(text) <= most) return text;
	return `#${createHash("sha256")
		.update(text)
		.digest("hex")
		.slice(0, most - 1)}`;
}

/** Returns text as a part of a record's key, without slashes. */
function quoted(text: string): string {
	return text.replaceAll("%", "%25").replaceAll("/", "%2F").replaceAll("\0", "%00");
}

/** Returns the id of a checkpoint as a part of a record's key. */
function keyOf(id: string): string {
	return short(quoted(id), maxId);
}

/** Returns with what the keys of the records of a checkpoint's writes begin. */
function writesOf(id: string): string {
	return `${writeKey}${keyOf(id)}/`;
}

/** Returns metadata for the record of a checkpoint, or nothing: they may be long, and JSON changes some. */
function asJSON(metadata: CheckpointMetadata): { metadata?: CheckpointMetadata } {
	try {
		const text = JSON.stringify(metadata);
		return text.length <= maxMetadata && isDeepStrictEqual(JSON.parse(text), metadata) ? { metadata } : {};
	} catch {
		return {}; // JSON has no way to say them.
	}
}

/** Compares by code points. */
function compare(a: string, b: string): number {
	return Buffer.compare(Buffer.from(a), Buffer.from(b));
}

/** Whether two values of metadata are the same, as JSON has them. */
function isSame(a: unknown, b: unknown): boolean {
	return a === b || (typeof a === "object" && JSON.stringify(a) === JSON.stringify(b));
}

function readWrite(record: Buffer): [Write, Buffer] {
	const end = record.indexOf(10);
	return [JSON.parse(record.toString("utf8", 0, end)) as Write, record.subarray(end + 1)];
}
