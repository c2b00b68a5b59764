import type { MastraDBMessage, StorageThreadType } from "@mastra/core/memory";
import { join, newId, short } from "../adapter.ts";
import type { Client, SessionCommit } from "../client.ts";
import type { NewNode, Node, RecordChange } from "../types.ts";
import { keyOf, nodesOf, onto, type Standing, saidOf, standing } from "./stored.ts";

/** The group of all threads, which has one for each resource. */
export const group = "mastra";
/** The part of a session's checkpoint that has the thread without its messages. */
export const threadPart = "thread";
/** Bytes of a thread in the record that lists it. */
const maxListed = 60 << 10;

/** What the record of a message says: in which thread it is, the key of the node with its content, and by what it is listed. */
export interface Header {
	id: string;
	thread: string;
	node: string;
	createdAt: string;
	resource?: string;
	/** The revision of its first save and its place in that: the order of messages of the same time. */
	order: [number, number];
}

export const sessionOf = (threadId: string) => short(join("mastra", threadId));
export const ofThread = (h: { thread: string }) => sessionOf(h.thread);
export const messageKey = (id: string) => keyOf("message", id);
const listKey = (t: StorageThreadType) => keyOf("thread", t.resourceId, t.id);

/** Returns a thread that JSON has, with its times. */
export function threadOf(stored: unknown): StorageThreadType {
	const t = stored as StorageThreadType;
	const clone = t.metadata?.clone as { clonedAt?: string } | undefined;
	return {
		...t,
		createdAt: new Date(t.createdAt),
		updatedAt: new Date(t.updatedAt),
		...(clone?.clonedAt ? { metadata: { ...t.metadata, clone: { ...clone, clonedAt: new Date(clone.clonedAt) } } } : {}),
	};
}

/** Returns the message of a header and its node. */
export function messageOf(h: Header, n: Node): MastraDBMessage {
	const { content, ...rest } = JSON.parse(n.payload.toString()) as MastraDBMessage;
	return {
		...rest,
		id: h.id,
		createdAt: new Date(h.createdAt),
		threadId: h.thread,
		...(h.resource ? { resourceId: h.resource } : {}),
		content: typeof content === "string" ? { format: 2, content, parts: [{ type: "text", text: content }] } : content,
	};
}

/** A thread as it stands, and a commit that changes it. The commit is refused if somebody else has changed or replaced the thread meanwhile. */
export class Thread {
	readonly id: string;
	/** Those of the messages that were asked for. */
	readonly messages: Map<string, { header: Header; node: Node | undefined }>;
	/** The thread without its messages, if it was saved. */
	thread: StorageThreadType | undefined;
	/** Whether the session is to go to another group. */
	regroups = false;
	/** Which session it was, and its revision. */
	readonly stands: Pick<Standing, "incarnation" | "revision">;
	readonly #client: Client;
	readonly #nodes: NewNode[] = [];
	readonly #tombstones = new Set<string>();
	readonly #records = new Map<string, RecordChange>();
	#changed = false;

	private constructor(client: Client, id: string, stands: Standing, messages: Thread["messages"]) {
		const thread = stands.parts.get(threadPart);
		this.id = id;
		this.#client = client;
		this.stands = stands;
		this.thread = thread ? threadOf(thread) : undefined;
		this.messages = messages;
	}

	/** Loads a thread, and those of some messages that are in it. */
	static async load(client: Client, id: string, messages: string[]): Promise<Thread> {
		const s = await standing(client, sessionOf(id), [threadPart], messages.map(messageKey));
		const headers = saidOf<Header>([...s.records.values()], ofThread);
		const nodes = await nodesOf(
			client,
			sessionOf(id),
			headers.map((h) => h.node),
		);
		return new Thread(client, id, s, new Map(headers.map((h) => [h.id, { header: h, node: nodes.get(h.node) }])));
	}

	/** Saves the thread without its messages. */
	set(thread: StorageThreadType): void {
		if (this.thread && listKey(this.thread) !== listKey(thread))
			this.#records.set(listKey(this.thread), { key: listKey(this.thread), action: "delete" });
		this.regroups ||= this.stands.revision > 0 && this.thread?.resourceId !== thread.resourceId;
		this.thread = thread;
		this.#changed = true;
	}

	/** Makes now, or a later moment, the time of the thread's last change. */
	touch(now = Date.now()): void {
		if (this.thread) this.set({ ...this.thread, updatedAt: new Date(now) });
	}

	/** Saves a message, also in the place of the one that has its id. One that is stored already is not stored again. */
	put(message: MastraDBMessage): void {
		const { content, role = "user", type = "text" } = message;
		const payload = JSON.stringify({ role, type, content });
		const old = this.messages.get(message.id);
		const same = old?.node?.payload.toString() === payload;
		const header: Header = {
			id: message.id,
			thread: this.id,
			node: same ? old.header.node : newId(),
			createdAt: new Date(message.createdAt ?? Date.now()).toISOString(),
			...(message.resourceId ? { resource: message.resourceId } : {}),
			order: old?.header.order ?? [this.stands.revision + 1, this.#records.size],
		};
		if (!same) {
			this.#nodes.push({ kind: role, payload, key: header.node });
			if (old?.node) this.#tombstones.add(old.node.id);
		}
		this.mark(header);
	}

	/** Saves what is said of a message, and leaves its content. */
	mark(header: Header): void {
		this.#records.set(messageKey(header.id), { key: messageKey(header.id), action: "set", value: JSON.stringify(header) });
		if (header.resource === undefined) return;
		const key = keyOf("resource", header.resource, this.id);
		this.#records.set(key, { key, action: "set", value: JSON.stringify({ thread: this.id, resource: header.resource }) });
	}

	/** Removes a message: nobody can read it any more. */
	drop(id: string): void {
		const old = this.messages.get(id);
		if (!old) return;
		this.#records.set(messageKey(id), { key: messageKey(id), action: "delete" });
		if (old.node) this.#tombstones.add(old.node.id);
	}

	/** Returns the commit, or undefined if nothing changes. */
	commit(): SessionCommit | undefined {
		if (!this.#changed && this.#records.size === 0) return undefined;
		const json = JSON.stringify(this.thread);
		if (this.thread && this.#changed) {
			const listed = Buffer.byteLength(json) <= maxListed ? json : JSON.stringify({ id: this.thread.id, large: true });
			this.#records.set(listKey(this.thread), { key: listKey(this.thread), action: "set", value: listed });
		}
		return {
			...onto(this.#client, this.stands.incarnation, { id: sessionOf(this.id), group: groupOf(this.thread?.resourceId) }),
			expected: this.stands.revision,
			turn: newId(),
			nodes: this.#nodes,
			tombstone: [...this.#tombstones],
			records: [...this.#records.values()],
			...(this.thread && this.#changed ? { checkpoint: { [threadPart]: json } } : {}),
		};
	}
}

/** Returns the group of the threads of a resource. */
export function groupOf(resourceId?: string): string {
	return resourceId ? short(join(group, resourceId)) : group;
}
