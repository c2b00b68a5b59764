import { createHash, randomUUID } from "node:crypto";
import { MessageList } from "@mastra/core/agent";
import type { MastraDBMessage, StorageThreadType } from "@mastra/core/memory";
import {
	calculatePagination,
	filterByDateRange,
	jsonValueEquals,
	normalizePerPage,
	type PruneOptions,
	type PruneResult,
	type RetentionTablesDescriptor,
	type StorageCloneThreadInput,
	type StorageCopyThreadOutput,
	type StorageListMessagesByResourceIdInput,
	type StorageListMessagesInput,
	type StorageListMessagesOutput,
	type StorageListThreadsInput,
	type StorageListThreadsOutput,
	type StorageResourceType,
	storageMessageMatchesMetadataFilter,
	type TableRetentionPolicy,
	type ThreadSortDirection,
	validateStorageMetadataFilter,
} from "@mastra/core/storage";
import { gone, listed, recorded } from "../adapter.ts";
import { Session } from "../client.ts";
import { compareTimes } from "../times.ts";
import type { StoredRecord } from "../types.ts";
import { observationsPart, resourceGroup, resourcePart, resourceSession } from "./observations.ts";
import { ResourceMemory } from "./resources.ts";
import { chunks, each, grouped, keyOf, nodesOf, partsOf, pruned, remove, removeIf, saidOf, sum, untilCommitted } from "./stored.ts";
import { group, groupOf, type Header, messageKey, messageOf, ofThread, sessionOf, Thread, threadOf, threadPart } from "./thread.ts";

type Update = Parameters<ResourceMemory["updateMessages"]>[0]["messages"][number];
type Load = (headers: Header[]) => Promise<MastraDBMessage[]>;
/** What lists of messages have in common, and how they differ. */
type Query = Omit<StorageListMessagesByResourceIdInput, "resourceId"> & {
	find: () => Promise<Header[]>;
	resource?: string;
	thread?: string | string[];
};

/** What a commit to one thread has at most: messages, bytes, records, and threads that they come from. The store allows 256 records, and 64 sessions. */
const maxSaved = 200;
const maxBytes = 16 << 20;
const maxRecords = 250;
const maxSources = 60;
/** Messages of any threads that a commit has: it has at most 64 sessions. */
const maxChanged = 30;
/** The id of a copy that a call with the id of a new thread has made. */
const copyForm = /^copy-[0-9a-f]{64}$/;

/** Threads, messages and resources. */
export class TurnstoneMemory extends ResourceMemory {
	override readonly supportsPartialThreadUpdate = true;

	static override readonly retentionTables: RetentionTablesDescriptor = {
		messages: { table: "mastra_messages", column: "createdAt", indexed: false },
		resources: { table: "mastra_resources", column: "createdAt", indexed: false },
		// By its last change, because a thread leaves with its messages.
		threads: { table: "mastra_threads", column: "updatedAt", indexed: false },
	};

	async dangerouslyClearAll(): Promise<void> {
		for (const g of [group, resourceGroup]) await each(await listed(this.client, { group: g }), (i) => remove(this.client, i.id));
	}

	// Threads

	async getThreadById({ threadId, resourceId }: { threadId: string; resourceId?: string }): Promise<StorageThreadType | null> {
		const stored = (await partsOf(this.client, sessionOf(threadId), [threadPart])).get(threadPart);
		const thread = stored ? threadOf(stored) : null;
		return resourceId === undefined || thread?.resourceId === resourceId ? thread : null;
	}

	async saveThread({ thread }: { thread: StorageThreadType }): Promise<StorageThreadType> {
		await this.#change([], [thread.id], ([t]) => t?.set(thread));
		return thread;
	}

	async updateThread({ id, title, metadata }: { id: string; title?: string; metadata?: Record<string, unknown> }): Promise<StorageThreadType> {
		const updated = await this.#update(id, () => ({ ...(title === undefined ? {} : { title }), ...(metadata ? { metadata } : {}) }));
		if (!updated) throw new Error(`Thread with id ${id} not found`);
		return updated;
	}

	override async updateThreadMetadata({
		id,
		resourceId,
		update,
	}: {
		id: string;
		resourceId?: string;
		update: (thread: StorageThreadType) => Record<string, unknown> | undefined;
	}): Promise<StorageThreadType | null> {
		return this.#update(id, (thread) => {
			const metadata = resourceId === undefined || thread.resourceId === resourceId ? update(thread) : null;
			return metadata === null ? null : metadata && { metadata };
		});
	}

	/** Changes a thread by what f returns for it. Returns null if there is none, or f returns null. */
	async #update(
		id: string,
		f: (thread: StorageThreadType) => { title?: string; metadata?: Record<string, unknown> } | undefined | null,
	): Promise<StorageThreadType | null> {
		return this.#change([], [id], ([t]) => {
			if (!t?.thread) return null;
			const changes = f(structuredClone(t.thread));
			if (!changes) return changes === null ? null : t.thread;
			t.set({ ...t.thread, ...changes, metadata: { ...t.thread.metadata, ...changes.metadata }, updatedAt: new Date() });
			return t.thread;
		});
	}

	async deleteThread({ threadId }: { threadId: string }): Promise<void> {
		await remove(this.client, sessionOf(threadId));
	}

	async listThreads({ page = 0, perPage: wanted, orderBy, filter }: StorageListThreadsInput): Promise<StorageListThreadsOutput> {
		const { field, direction } = this.parseOrderBy(orderBy);
		this.validatePaginationInput(page, wanted ?? 100);
		this.validateMetadataKeys(filter?.metadata);
		const { offset, perPage } = calculatePagination(page, wanted, normalizePerPage(wanted, 100));
		const conditions = Object.entries(filter?.metadata ?? {});
		const threads = (await this.#threads(filter?.resourceId || undefined)).filter((t) =>
			conditions.every(([key, value]) => t.metadata && jsonValueEquals(t.metadata[key], value)),
		);
		const sign = direction === "ASC" ? 1 : -1;
		threads.sort((a, b) => sign * (a[field].getTime() - b[field].getTime()) || (a.id < b.id ? -1 : 1));
		const end = perPage === false ? threads.length : offset + perPage;
		return { threads: threads.slice(offset, end), total: threads.length, page, perPage, hasMore: end < threads.length };
	}

	/** Returns all threads, or those of a resource. */
	async #threads(resource?: string): Promise<StorageThreadType[]> {
		const latest = new Map<string, StoredRecord>();
		for (const r of await recorded(this.client, resource === undefined ? keyOf("thread") : keyOf("thread", resource))) {
			if (compareTimes(r.time, latest.get(r.session)?.time ?? "") >= 0) latest.set(r.session, r);
		}
		const said = saidOf<StorageThreadType & { large?: true }>([...latest.values()], (t) => sessionOf(t.id));
		const threads = await each(said, async (t) => (t.large ? await this.getThreadById({ threadId: t.id }) : threadOf(t)));
		return threads.filter((t): t is StorageThreadType => t !== null && (resource === undefined || t.resourceId === resource));
	}

	override async copyThread(args: StorageCloneThreadInput): Promise<StorageCopyThreadOutput> {
		const { sourceThreadId, newThreadId, resourceId, title, metadata, options: { messageFilter, messageLimit } = {} } = args;
		const source = await this.getThreadById({ threadId: sourceThreadId });
		if (!source) throw new Error(`Source thread with id ${sourceThreadId} not found`);
		const id = newThreadId || randomUUID();
		const wanted = messageFilter?.messageIds?.length ? new Set(messageFilter.messageIds) : undefined;
		const messages = await this.#fresh(async (load) => {
			const { startDate: start, endDate: end } = messageFilter ?? {};
			const headers = between(await this.#headers(sourceThreadId), { ...(start && { start }), ...(end && { end }) });
			const chosen = headers.filter((h) => !wanted || wanted.has(h.id)).sort(byTime("ASC"));
			return load(messageLimit && messageLimit > 0 ? chosen.slice(-messageLimit) : chosen);
		});
		const last = messages.at(-1);
		const now = new Date();
		const thread: StorageThreadType = {
			id,
			resourceId: resourceId || source.resourceId,
			title: title || (source.title ? `Clone of ${source.title}` : undefined),
			metadata: { ...metadata, clone: { sourceThreadId, clonedAt: now, ...(last && { lastMessageId: last.id }) } },
			createdAt: now,
			updatedAt: now,
		};
		// A call that was cut off and is made again with the same new id replaces the copies that it had made, and deletes those of what is not in the source any more.
		const copyOf = (m: MastraDBMessage) =>
			newThreadId
				? `copy-${createHash("sha256")
						.update(JSON.stringify([id, m.id]))
						.digest("hex")}`
				: randomUUID();
		const messageIdMap = Object.fromEntries(messages.map((m) => [m.id, copyOf(m)]));
		const copies = messages.map((m) => ({ ...m, id: messageIdMap[m.id] as string, resourceId: resourceId || m.resourceId }));
		const kept = new Set(copies.map((m) => m.id));
		const earlier = newThreadId ? (await this.#headers(id)).map((h) => h.id).filter((m) => copyForm.test(m) && !kept.has(m)) : [];
		for (const some of chunks(earlier, maxSaved)) {
			await this.#change(some, [id], ([t]) => {
				if (t?.thread) throw new Error(`Thread with id ${id} already exists`);
				for (const m of some) t?.drop(m);
			});
		}
		const moved = new Map<string, string>();
		// The thread comes with its last messages: it is listed when it is whole. Those that were copied before are found already.
		const parts = copies.length > 0 ? commitsOf(copies) : [[]];
		for (const [i, some] of parts.entries()) {
			const known = newThreadId ? some.map((m) => m.id) : [];
			await this.#change(known, [id], ([t, ...others]) => {
				if (t?.thread) throw new Error(`Thread with id ${id} already exists`);
				for (const m of some) {
					// A copy of an earlier thread of this id, which somebody has moved to another thread, stays there.
					if (others.some((o) => o.messages.has(m.id))) moved.set(m.id, randomUUID());
					t?.put({ ...m, id: moved.get(m.id) ?? m.id });
				}
				if (i === parts.length - 1) t?.set(thread);
			});
		}
		return { thread, messageIdMap: Object.fromEntries(Object.entries(messageIdMap).map(([from, to]) => [from, moved.get(to) ?? to])) };
	}

	override async updateThreadResourceId({ threadId, resourceId }: { threadId: string; resourceId: string }): Promise<StorageThreadType> {
		// The thread moves with its last messages, so that a call which was cut off is made whole by another one. It moves only as it stood
		// before its messages were listed: one that is saved meanwhile would keep the old resource.
		for (;;) {
			const loaded = await Thread.load(this.client, threadId, []);
			const { thread, stands } = loaded;
			if (!thread) throw new Error(`Thread "${threadId}" not found`);
			if (thread.resourceId === resourceId) {
				await this.#regroup(loaded); // A call that was cut off may have left that.
				return thread;
			}
			const others = (await this.#headers(threadId)).filter((h) => h.resource !== resourceId).map((h) => h.id);
			const moved = await this.#change(others.slice(0, maxSaved), [threadId], (threads) => {
				const t = threads.find((x) => x.id === threadId);
				if (!t?.thread) throw new Error(`Thread "${threadId}" not found`);
				for (const { header } of t.messages.values()) t.mark({ ...header, resource: resourceId });
				const unchanged = t.stands.incarnation === stands.incarnation && t.stands.revision === stands.revision;
				if (unchanged && others.length <= maxSaved) t.set({ ...t.thread, resourceId, updatedAt: new Date() });
				return t.thread;
			});
			if (moved.resourceId === resourceId) return moved;
		}
	}

	// Messages

	async listMessages({ threadId, resourceId, ...options }: StorageListMessagesInput): Promise<StorageListMessagesOutput> {
		const threads = [...new Set([threadId].flat())];
		if (threads.length === 0 || threads.some((id) => !id.trim()))
			throw new TypeError("threadId must be a non-empty string or array of non-empty strings");
		const find = async () => (await each(threads, (id) => this.#headers(id))).flat();
		return this.#list({ ...options, find, thread: threadId, ...(resourceId ? { resource: resourceId } : {}) });
	}

	override async listMessagesByResourceId({ resourceId, ...options }: StorageListMessagesByResourceIdInput): Promise<StorageListMessagesOutput> {
		const find = async () => {
			const threads = saidOf<{ thread: string }>(await recorded(this.client, keyOf("resource", resourceId)), ofThread);
			return (await each(threads, (t) => this.#headers(t.thread))).flat();
		};
		const found = await this.#list({ ...options, find, resource: resourceId });
		const sign = this.parseOrderBy(options.orderBy, "ASC").direction === "ASC" ? 1 : -1;
		return { ...found, messages: asMastra(found.messages).sort((a, b) => sign * (a.createdAt.getTime() - b.createdAt.getTime())) };
	}

	async #list({ find, resource, thread, include = [], filter, page = 0, perPage: wanted, orderBy }: Query): Promise<StorageListMessagesOutput> {
		const condition = validateStorageMetadataFilter(filter?.metadata);
		const { direction } = this.parseOrderBy(orderBy, "ASC");
		const most = normalizePerPage(wanted, 40);
		if (page < 0) throw new RangeError("page must be >= 0");
		if (page * most > Number.MAX_SAFE_INTEGER / 2) throw new RangeError("page value too large");
		const { offset, perPage } = calculatePagination(page, wanted, most);
		const none = thread !== undefined && most === 0; // Of a thread, a page of nothing is not even counted.
		return this.#fresh(async (load) => {
			let headers = none
				? []
				: between(
						(await find()).filter((h) => resource === undefined || h.resource === resource),
						filter?.dateRange,
					);
			if (condition) {
				const matching = (await load(headers)).filter((m) => storageMessageMatchesMetadataFilter(m.content, condition)).map((m) => m.id);
				const ids = new Set(matching);
				headers = headers.filter((h) => ids.has(h.id));
			}
			headers.sort(byTime(direction));
			const shown = headers.slice(offset, offset + most);
			const beside = (await each(include, (i) => this.#around(i, resource))).flat();
			const chosen = new Map([...shown, ...beside].map((h) => [h.id, h]));
			const messages = await load([...chosen.values()].sort(byTime(direction)));
			const seen =
				thread === undefined || condition || include.length === 0 ? offset + shown.length : messages.filter((m) => m.threadId === thread).length;
			return { messages, total: headers.length, page, perPage, hasMore: !none && seen < headers.length };
		});
	}

	/** Returns the messages before and behind one, with it, as far as they are of a resource. */
	async #around(
		{ id, withPreviousMessages = 0, withNextMessages = 0 }: NonNullable<StorageListMessagesInput["include"]>[number],
		resource?: string,
	): Promise<Header[]> {
		const [found] = await this.#find([id]);
		if (!found) return [];
		const near = (await this.#headers(found.thread)).filter((h) => resource === undefined || h.resource === resource).sort(byTime("ASC"));
		const i = near.findIndex((h) => h.id === id);
		return i < 0 ? [] : near.slice(Math.max(0, i - withPreviousMessages), i + withNextMessages + 1);
	}

	async listMessagesById({ messageIds }: { messageIds: string[] }): Promise<{ messages: MastraDBMessage[] }> {
		return { messages: asMastra(await this.#fresh(async (load) => load(await this.#find([...new Set(messageIds)])))) };
	}

	async saveMessages({ messages }: { messages: MastraDBMessage[] }): Promise<{ messages: MastraDBMessage[] }> {
		const last = new Map(messages.map((m) => [m.id, m]));
		for (const m of last.values()) {
			if (!m.threadId || (m.resourceId as unknown) === null)
				throw new TypeError(`message ${JSON.stringify(m.id)} has no threadId, or none as its resourceId`);
		}
		for (const [threadId, all] of grouped(last.values(), (m) => m.threadId as string)) {
			const at = all.length > maxSources ? await this.#find(all.map((m) => m.id)) : [];
			for (const some of commitsOf(all, at)) {
				await this.#change(
					some.map((m) => m.id),
					[threadId],
					(threads) => {
						for (const t of threads) {
							for (const m of some) t.id === threadId ? t.put(m) : t.drop(m.id);
							if (t.id === threadId) t.touch();
						}
					},
				);
			}
		}
		return { messages: asMastra(messages) };
	}

	async updateMessages({ messages }: { messages: Update[] }): Promise<MastraDBMessage[]> {
		const out: MastraDBMessage[] = [];
		for (const some of chunks(messages, maxChanged)) {
			const ids = [...new Set(some.map((m) => m.id))];
			const to = some.flatMap((m) => m.threadId || []);
			out.push(...(await this.#change(ids, to, (threads) => updated(threads, some))));
		}
		return out;
	}

	override async deleteMessages(messageIds: string[]): Promise<void> {
		await this.#deleteMessages(messageIds, () => true, { touch: true });
	}

	/** Deletes those of some messages of which f says so, and returns how many these are. `touch` tells whether their threads are changed now. */
	async #deleteMessages(messageIds: string[], f: (h: Header) => boolean, { touch }: { touch: boolean }): Promise<number> {
		let deleted = 0;
		for (const ids of chunks([...new Set(messageIds)], maxChanged)) {
			deleted += await this.#change(ids, [], (threads) => {
				const chosen = threads.map((t) => [...t.messages.values()].filter(({ header }) => f(header)));
				for (const [i, t] of threads.entries()) {
					for (const { header } of chosen[i] ?? []) t.drop(header.id);
					if (touch && chosen[i]?.length) t.touch();
				}
				return chosen.flat().length;
			});
		}
		return deleted;
	}

	/**
	 * Loads the threads that some messages are in, and others, and commits what f makes of them: all or nothing, unless somebody else has changed one of the
	 * threads meanwhile. Then it begins again.
	 */
	async #change<T>(messages: string[], threads: string[], f: (threads: Thread[]) => T): Promise<T> {
		return untilCommitted(async () => {
			const found = await this.#standing(messages, threads);
			const result = f(found);
			const commits = found.flatMap((t) => t.commit() ?? []);
			if (commits.length > 0) await this.client.commitAll(commits);
			// The group is for people: lists of threads go by records, which are changed with the thread.
			for (const t of found) if (t.regroups) await this.#regroup(t);
			return result;
		});
	}

	/** Gives a session the group of its thread's resource, also if others move the thread meanwhile. */
	async #regroup(t: Thread): Promise<void> {
		const session = new Session(this.client, sessionOf(t.id), t.stands.incarnation);
		try {
			for (let [is, was] = [t.thread?.resourceId, undefined as string | undefined]; is !== was; ) {
				await session.saveMetadata({ group: groupOf(is) });
				const now = await Thread.load(this.client, t.id, []);
				if (now.stands.incarnation !== t.stands.incarnation) return;
				[is, was] = [now.thread?.resourceId, is];
			}
		} catch (e) {
			if (!gone(e)) throw e;
		}
	}

	async #standing(messages: string[], threads: string[]): Promise<Thread[]> {
		for (;;) {
			const found = await this.#find(messages);
			const loaded = await each(new Set([...threads, ...found.map((h) => h.thread)]), (id) => Thread.load(this.client, id, messages));
			const there = (h: Header) => loaded.some((t) => t.id === h.thread && t.messages.has(h.id));
			if (found.every(there)) return loaded; // Otherwise a message has moved meanwhile.
		}
	}

	/** Returns where messages are, those that there are. */
	async #find(ids: string[]): Promise<Header[]> {
		return (await each(ids, (id) => this.client.records(messageKey(id)))).flatMap((page) => saidOf<Header>(page.records, ofThread));
	}

	/** Returns what there is to say of each message of a thread. */
	async #headers(threadId: string): Promise<Header[]> {
		const out: Header[] = [];
		try {
			for (let after: string | undefined, first = true; after || first; first = false) {
				const page = await new Session(this.client, sessionOf(threadId)).records(keyOf("message"), { limit: 1000, ...(after ? { after } : {}) });
				out.push(...saidOf<Header>(page.records, ofThread));
				after = page.next;
			}
		} catch (e) {
			if (!gone(e)) throw e;
		}
		return out;
	}

	/** Calls f with what loads messages, and again if some were replaced since f had found them. Those whose nodes were erased are left out. */
	async #fresh<T>(f: (load: Load) => Promise<T>): Promise<T> {
		const missing = new Set<string>();
		for (;;) {
			let stale = false;
			const result = await f(async (headers) => {
				const threads = grouped(headers, (h) => h.thread);
				const nodes = await each(threads, ([id, of]) =>
					nodesOf(
						this.client,
						sessionOf(id),
						of.map((h) => h.node),
					),
				);
				const all = new Map(nodes.flatMap((n) => [...n]));
				return headers.flatMap((h) => {
					const node = all.get(h.node);
					if (node) return [messageOf(h, node)];
					stale ||= !missing.has(h.node);
					missing.add(h.node);
					return [];
				});
			});
			if (!stale) return result;
		}
	}

	// Retention

	/** Deletes messages and resources that are older than their policies say, and threads that have not changed for so long, with their messages. */
	override async prune(policies: Record<string, TableRetentionPolicy>, options?: PruneOptions): Promise<PruneResult[]> {
		return pruned(
			"memory",
			TurnstoneMemory.retentionTables,
			[policies, options],
			(table, before) => this.#older(table, before),
			async (table, ids, before) => {
				const isOld = (at: string | Date) => new Date(at).getTime() < before;
				// A thread that nobody uses stays as old as it is.
				if (table === "mastra_messages") return this.#deleteMessages(ids, (h) => isOld(h.createdAt), { touch: false });
				const isOldThread = (t: unknown) => isOld((t as StorageThreadType).updatedAt);
				const isOldResource = (r: unknown) => isOld((r as StorageResourceType).createdAt);
				const remove = (id: string) =>
					table === "mastra_threads"
						? removeIf(this.client, sessionOf(id), threadPart, isOldThread)
						: removeIf(this.client, resourceSession(id), resourcePart, isOldResource, [observationsPart]);
				return sum(await each(ids, remove));
			},
		);
	}

	/** Returns the ids of what is older than a time. */
	async #older(table: string, before: number): Promise<string[]> {
		let all: { id: string; createdAt: string | Date }[];
		if (table === "mastra_threads") all = (await this.#threads()).map((t) => ({ id: t.id, createdAt: t.updatedAt }));
		else if (table === "mastra_messages") all = saidOf<Header>(await recorded(this.client, keyOf("message")), ofThread);
		else {
			const stored = await each(await listed(this.client, { group: resourceGroup }), (i) => partsOf(this.client, i.id, [resourcePart]));
			all = stored.flatMap((parts) => (parts.get(resourcePart) as StorageResourceType | undefined) ?? []);
		}
		return all.filter((x) => new Date(x.createdAt).getTime() < before).map((x) => x.id);
	}
}

/** Changes messages of threads, and returns them as they are then. */
function updated(threads: Thread[], updates: Update[]): MastraDBMessage[] {
	const at = new Map(threads.map((t) => [t.id, t]));
	const now = new Map<string, MastraDBMessage>();
	const moves = new Map<string, string[]>();
	for (const t of threads) for (const { header, node } of t.messages.values()) if (node) now.set(header.id, messageOf(header, node));
	const out: MastraDBMessage[] = [];
	for (const { content, ...fields } of updates) {
		const old = now.get(fields.id);
		if (!old) continue;
		const set = Object.fromEntries(Object.entries(fields).filter(([, v]) => v !== undefined && v !== ""));
		const metadata = { ...old.content.metadata, ...content?.metadata };
		const whole = { ...old.content, ...content, ...(content?.metadata && old.content.metadata ? { metadata } : {}) };
		const message = { ...old, ...set, content: whole } as MastraDBMessage;
		now.set(message.id, message);
		moves.set(message.id, [...(moves.get(message.id) ?? []), old.threadId as string, message.threadId as string]);
		out.push(message);
	}
	for (const [id, all] of moves) {
		const m = now.get(id) as MastraDBMessage;
		at.get(m.threadId as string)?.put(m);
		for (const from of all) if (from !== m.threadId) at.get(from)?.drop(id);
		for (const from of new Set(all)) at.get(from)?.touch(Math.max(Date.now(), (at.get(from)?.thread?.updatedAt.getTime() ?? 0) + 1));
	}
	return out;
}

/** Returns messages of one thread as the commits that have them, in their order. `at` has those that are in a thread already. */
function commitsOf(messages: MastraDBMessage[], at: Header[] = []): MastraDBMessage[][] {
	const threads = grouped(at, (h) => h.id);
	const out: MastraDBMessage[][] = [];
	let bytes = 0;
	let records = new Set<string>();
	let sources = new Set<string>();
	for (const m of messages) {
		const size = Buffer.byteLength(JSON.stringify(m.content) ?? "");
		const of = [messageKey(m.id), ...(m.resourceId === undefined ? [] : [keyOf("resource", m.resourceId)])];
		const from = (threads.get(m.id) ?? []).map((h) => h.thread);
		const last = out.at(-1);
		bytes += size;
		for (const r of of) records.add(r);
		for (const t of from) sources.add(t);
		const fits = last && last.length < maxSaved && records.size <= maxRecords && sources.size <= maxSources && bytes <= maxBytes;
		if (fits) last.push(m);
		else {
			out.push([m]);
			bytes = size;
			records = new Set(of);
			sources = new Set(from);
		}
	}
	return out;
}

/** Compares messages by their times, and those of the same time in the order in which they were saved first. */
function byTime(direction: ThreadSortDirection): (a: Header, b: Header) => number {
	const sign = direction === "ASC" ? 1 : -1;
	return (a, b) => sign * (Date.parse(a.createdAt) - Date.parse(b.createdAt)) || a.order[0] - b.order[0] || a.order[1] - b.order[1];
}

function between(headers: Header[], range: NonNullable<StorageListMessagesInput["filter"]>["dateRange"]): Header[] {
	return filterByDateRange(headers, (h) => new Date(h.createdAt), range);
}

/** Returns messages as Mastra gives them to agents. */
function asMastra(messages: MastraDBMessage[]): MastraDBMessage[] {
	return new MessageList().add(messages, "memory").get.all.db();
}
