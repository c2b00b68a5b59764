// How the domains read and write what they keep: JSON in the parts of a session's checkpoint, and records that find sessions.

import {
	executeRetentionPrune,
	type PruneOptions,
	type PruneResult,
	type RetentionTablesDescriptor,
	resolveRetentionTargets,
	retentionCutoffMs,
	type TableRetentionPolicy,
} from "@mastra/core/storage";
import { gone, join, newId, outcomeUnknown, short, untilStands } from "../adapter.ts";
import { type Client, Session } from "../client.ts";
import type { Create, Node, StoredRecord } from "../types.ts";

/** Bytes of a name within the key of a record. A key has three names at most. */
const maxName = 150;
/** How many requests are made at once. */
const atOnce = 16;

/** Returns the key of a record, or the beginning of the keys of several: names of any content, each with a slash behind it. */
export function keyOf(root: string, ...names: string[]): string {
	return `mastra/${root}/${names.map((n) => `${short(join("", n).slice(1), maxName)}/`).join("")}`;
}

/** A session as it stands: parts of its checkpoint, and records. All are of one moment, and empty if there is no session. */
export interface Standing {
	/** Which session of the id it is, or undefined if there is none. */
	incarnation: string | undefined;
	revision: number;
	parts: Map<string, unknown>;
	records: Map<string, StoredRecord>;
}

/** Returns a session as it stands, for who changes it by what it reads: the commit is to go `onto` this. */
export async function standing(client: Client, id: string, parts: string[], records: string[] = []): Promise<Standing> {
	for (;;) {
		let session: Session;
		try {
			session = await client.session(id);
		} catch (e) {
			if (gone(e)) return { incarnation: undefined, revision: 0, parts: new Map(), records: new Map() };
			throw e;
		}
		try {
			const s = await session.load({ last: 1, parts, records });
			return {
				incarnation: session.target.incarnation,
				revision: s.revision,
				parts: parsed(s.contents),
				records: new Map([...s.records].filter(([, r]) => r.version !== "none")),
			};
		} catch (e) {
			if (!gone(e)) throw e; // Otherwise it has left since, and another one may have come.
		}
	}
}

/** Returns parts of a session's checkpoint, for who only reads them. There are none if there is no session. */
export async function partsOf(client: Client, id: string, parts: string[]): Promise<Map<string, unknown>> {
	try {
		return parsed((await new Session(client, id).load({ last: 1, parts })).contents);
	} catch (e) {
		if (gone(e)) return new Map();
		throw e;
	}
}

function parsed(contents: Map<string, Buffer>): Map<string, unknown> {
	return new Map([...contents].map(([name, content]) => [name, JSON.parse(content.toString())]));
}

/** Returns where a commit goes: to the session that was read and to no other one of its id, or to a new one if there was none. */
export function onto(client: Client, incarnation: string | undefined, create: Create & { id: string }) {
	return incarnation === undefined ? { create } : { session: new Session(client, create.id, incarnation) };
}

/** Is `untilStands`, and begins again as well if a session that f has read has left before f commits to it. */
export async function untilCommitted<T>(f: () => Promise<T>): Promise<T> {
	for (;;) {
		try {
			return await untilStands(f);
		} catch (e) {
			if (!gone(e) || outcomeUnknown(e)) throw e;
		}
	}
}

/** Returns the nodes of a session by their keys, as far as they are there. */
export async function nodesOf(client: Client, id: string, keys: string[]): Promise<Map<string, Node>> {
	const out = new Map<string, Node>();
	try {
		for (const some of chunks(keys, 1000)) for (const [key, node] of await new Session(client, id).nodesByKey(some)) out.set(key, node);
	} catch (e) {
		if (!gone(e)) throw e;
	}
	return out;
}

/** Deletes a session if there is one. */
export async function remove(client: Client, id: string): Promise<void> {
	try {
		await client.delete(id);
	} catch (e) {
		if (!gone(e)) throw e;
	}
}

/** Returns what the records of sessions say, but for those of a session that was renamed: it is none of ours any more. */
export function saidOf<T>(records: StoredRecord[], sessionOf: (said: T) => string): T[] {
	return records.flatMap((r) => {
		const said: T = JSON.parse(r.value.toString());
		return r.session === sessionOf(said) ? [said] : [];
	});
}

/** Returns what f returns for each item, in their order. */
export async function each<T, R>(items: Iterable<T>, f: (item: T) => Promise<R>): Promise<R[]> {
	const out: R[] = [];
	for (const some of chunks([...items], atOnce)) out.push(...(await Promise.all(some.map(f))));
	return out;
}

export function chunks<T>(items: T[], most: number): T[][] {
	return Array.from({ length: Math.ceil(items.length / most) }, (_, i) => items.slice(i * most, (i + 1) * most));
}

/** Returns the values by what a function says of them, in the order in which that was first said. */
export function grouped<T>(items: Iterable<T>, by: (item: T) => string): Map<string, T[]> {
	const out = new Map<string, T[]>();
	for (const i of items) out.set(by(i), [...(out.get(by(i)) ?? []), i]);
	return out;
}

/**
 * Deletes a session if f says so of a part of its checkpoint, as it stands right before that, and never another one of its id. If one of the parts `beside` has
 * anything, only that part is dropped. Returns how many it has deleted.
 */
export function removeIf(client: Client, id: string, part: string, f: (content: unknown) => boolean, beside: string[] = []): Promise<number> {
	return untilCommitted(async () => {
		const { incarnation, revision: expected, parts } = await standing(client, id, [part, ...beside]);
		if (incarnation === undefined || !parts.has(part) || !f(parts.get(part))) return 0;
		const session = new Session(client, id, incarnation);
		if (beside.some((p) => (parts.get(p) as unknown[] | undefined)?.length)) await session.commit({ expected, turn: newId(), drop: [part] });
		else await session.delete("keep", { expected });
		return 1;
	});
}

export function sum(numbers: number[]): number {
	return numbers.reduce((a, b) => a + b, 0);
}

/**
 * Deletes what is older than the policies of a domain say, in the batches that Mastra wants. `older` finds it in a table, from before a time. `removeAll` gets
 * it later, looks at each thing again, leaves what is not so old any more, and returns how many it has deleted.
 */
export function pruned<T>(
	domain: string,
	descriptor: RetentionTablesDescriptor,
	[policies, options]: [Record<string, TableRetentionPolicy>, PruneOptions | undefined],
	older: (table: string, before: number) => Promise<T[]>,
	removeAll: (table: string, items: T[], before: number) => Promise<number>,
): Promise<PruneResult[]> {
	const left = new Map<string, T[]>();
	return executeRetentionPrune<string, number>({
		domain,
		targets: resolveRetentionTargets({ policies, descriptor, order: Object.keys(descriptor) }),
		...(options && { options }),
		cutoffFor: ({ policy }, now) => retentionCutoffMs(policy, now),
		deleteBatch: async ({ table }, before, limit) => {
			const items = left.get(table) ?? (await older(table, before));
			left.set(table, items);
			let deleted = 0;
			while (deleted < limit && items.length > 0) deleted += await removeAll(table, items.splice(0, limit - deleted), before);
			return deleted;
		},
	});
}
