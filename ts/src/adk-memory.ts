// Memory of ADK.

import type { Session as AdkSession, BaseMemoryService, Event, MemoryEntry, SearchMemoryRequest, SearchMemoryResponse } from "@google/adk";
import { gone, inCommits, join, newId, short } from "./adapter.ts";
import { eventOf, payloadOf } from "./adk-events.ts";
import type { Client, Session } from "./client.ts";
import { ConflictError } from "./errors.ts";
import type { NewNode } from "./types.ts";

const memoryRoot = "adk-memory";
/** And the id of an event: the key of the record that says that it was deleted. */
const deletedPrefix = "deleted/";

/**
 * A memory service on a store: it finds what a user and the agents have said in all sessions that were added, by words.
 * An event that is added again is not stored again. A search reads all events of the user that have a text.
 */
export class TurnstoneMemory implements BaseMemoryService {
	readonly #client: Client;
	readonly #most: number;

	/** A search returns `most` events at most. */
	constructor(client: Client, { most = 10 }: { most?: number } = {}) {
		this.#client = client;
		this.#most = most;
	}

	/** Adds the events of a session that have a text. */
	async addSessionToMemory({ appName, userId, id, events }: AdkSession): Promise<void> {
		const nodes = new Map<string, NewNode>();
		for (const e of events) {
			const key = short(join("event", id, e.id));
			// The state delta is no memory, and may have values that JSON can't keep.
			if (wordsOf(textOf(e)).size > 0) nodes.set(key, { kind: "memory", key, payload: payloadOf(e, new Map()) });
		}
		if (nodes.size === 0) return;
		// A search changes nothing in this session: otherwise a prune could take it for inactive.
		const place = { group: join(memoryRoot, appName), retention: "all" } as const;
		const { session } = await this.#client.create(join(memoryRoot, appName, userId), place);
		for (const some of inCommits([...nodes.values()], (n) => Buffer.byteLength(n.payload ?? ""))) await remember(session, some);
	}

	/** Returns events that share a word with a query, those that share the most first. */
	async searchMemory({ appName, userId, query }: SearchMemoryRequest): Promise<SearchMemoryResponse> {
		const asked = wordsOf(query);
		const found: { shared: number; memory: MemoryEntry }[] = [];
		try {
			const session = await this.#client.session(join(memoryRoot, appName, userId));
			for await (const n of session.nodes()) {
				const event = eventOf(n.payload);
				const shared = [...wordsOf(textOf(event))].filter((w) => asked.has(w)).length;
				const { content, author, timestamp } = event;
				if (content && shared > 0) found.push({ shared, memory: { content, author, timestamp: new Date(timestamp).toISOString() } });
			}
		} catch (e) {
			if (!gone(e)) throw e;
		}
		found.sort((a, b) => b.shared - a.shared);
		return { memories: found.slice(0, this.#most).map((f) => f.memory) };
	}
}

/** Commits the nodes that are not there. */
async function remember(session: Session, nodes: NewNode[]): Promise<void> {
	for (;;) {
		const { revision } = await session.info();
		const there = await session.nodesByKey(nodes.map((n) => n.key as string));
		const deleted = await deletedOf(session);
		const fresh = nodes.filter((n) => !there.has(n.key as string) && !deleted.has(deletedKey(n)));
		if (fresh.length === 0) return;
		try {
			await session.commit({ nodes: fresh, expected: revision, turn: newId() });
			return;
		} catch (e) {
			if (!(e instanceof ConflictError) || e.outcomeUnknown) throw e;
		}
	}
}

/** Returns the keys of the records that say which events somebody has deleted, in Python. */
async function deletedOf(session: Session): Promise<Set<string>> {
	const out = new Set<string>();
	for (let after: string | undefined = ""; after !== undefined; ) {
		const page = await session.records(deletedPrefix, { after, limit: 1000 });
		for (const r of page.records) out.add(r.key);
		after = page.next;
	}
	return out;
}

function deletedKey(node: NewNode): string {
	const { id } = JSON.parse(String(node.payload)) as { id?: string };
	return deletedPrefix + short(join("", id ?? "").slice(1), 400);
}

/** Returns what an event says. */
function textOf(event: Event): string {
	return (event.content?.parts ?? []).map((p) => p.text ?? "").join(" ");
}

/**
 * Returns the words of a text in small letters. Where scripts without spaces have Latin words between them, these are
 * words of their own.
 */
function wordsOf(text: string): Set<string> {
	const words = text.toLowerCase().match(/[\p{L}\p{N}\p{M}_]+/gu) ?? [];
	return new Set(words.flatMap((w) => [w, ...(w.match(/[\p{ASCII}\p{Script=Latin}]+|[^\p{ASCII}\p{Script=Latin}]+/gu) ?? [])]));
}
