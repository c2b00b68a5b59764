/**
 * A session for the OpenAI Agents SDK.
 *
 *     import { Client } from "turnstonedb";
 *     import { TurnstoneSession } from "turnstonedb/agents";
 *
 *     const db = await Client.open("./data");
 *     const result = await run(agent, "Hello", { session: new TurnstoneSession("user-1", db) });
 *
 * Each change of the history is one commit: all of it is stored, or nothing. Sessions of the Agents SDK may be forked, listed, watched and read by the
 * command and from other languages like all others.
 *
 * @module
 */

import { createHash } from "node:crypto";
import { isDeepStrictEqual } from "node:util";
import type {
	AgentInputItem,
	Session as AgentsSession,
	SessionHistoryRewriteArgs,
	SessionHistoryRewriteAwareSession,
	SessionHistoryTransactionArgs,
	SessionHistoryTransactionAwareSession,
} from "@openai/agents";
import { newId, untilStands } from "./adapter.ts";
import type { Client, Session } from "./client.ts";
import { NotFoundError, TurnstoneError } from "./errors.ts";
import { fromJSON, inOrder, toJSON } from "./json.ts";
import type { Commit, NewNode, Node, State } from "./types.ts";

/** The beginning of the keys of records that tell which transactions were applied. */
const operationKey = "operation/";
const maxKind = 64;
/** How often a session is made that may have been made. */
const repeats = 3;

/** A session of the Agents SDK in a store. Processes may share it; each call is atomic. */
export class TurnstoneSession implements AgentsSession, SessionHistoryRewriteAwareSession, SessionHistoryTransactionAwareSession {
	readonly #id: string;
	readonly #client: Client;
	readonly #group: string;
	#session: Session | undefined;

	/** group is the group of the store's session, by which it is listed. */
	constructor(id: string, client: Client, { group = "" }: { group?: string } = {}) {
		this.#id = id;
		this.#client = client;
		this.#group = group;
	}

	async getSessionId(): Promise<string> {
		return this.#id;
	}

	/** Returns the items, or the last ones. Reading makes no session. */
	async getItems(limit?: number): Promise<AgentInputItem[]> {
		if (limit !== undefined && limit <= 0) return [];
		const read = await this.#existing((s) => s.load(limit === undefined ? {} : { last: limit }));
		return read?.nodes.map(itemOf) ?? [];
	}

	/** Stores items, all or none, and once whatever happens to the server. */
	async addItems(items: AgentInputItem[]): Promise<void> {
		if (items.length === 0) return;
		const create = { id: this.#id, group: this.#group };
		await this.#client.commitAll([{ create, nodes: items.map(nodeOf), expected: "any", turn: newId() }]);
	}

	/** Removes the last item, and returns it. Of several callers each gets another one. */
	async popItem(): Promise<AgentInputItem | undefined> {
		return this.#existing((s) =>
			untilStands(async () => {
				const state = await s.load({ last: 1 });
				const [n] = state.nodes;
				if (!n) return undefined;
				await s.commit({ expected: state.revision, leaf: n.parent ?? "none", tombstone: [n.id], turn: newId() });
				return itemOf(n);
			}),
		);
	}

	/** Removes all items, and the session. */
	async clearSession(): Promise<void> {
		await this.#existing((s) => this.#client.delete(s.id));
		this.#session = undefined;
	}

	/** Replaces the history. What was there before stays readable as earlier revisions of the session. */
	async replaceHistoryWithCompaction(items: AgentInputItem[]): Promise<void> {
		await this.#rewrite(() => items, false);
	}

	/** Changes items that are stored already. The items that they were can't be read any more. */
	async applyHistoryMutations({ mutations }: SessionHistoryRewriteArgs): Promise<void> {
		if (mutations.length === 0) return;
		await this.#rewrite((items) => {
			for (const { callId, replacement } of mutations) {
				const first = items.findIndex((i) => isCall(i, callId));
				items = items.flatMap((item, i) => (i === first ? replacement : isCall(item, callId) ? [] : item));
			}
			return items;
		}, true);
	}

	/** Changes the history once for an operation, however often it is asked for. An operation that stands for another change is refused. */
	async applyHistoryTransaction({ operationId, transaction }: SessionHistoryTransactionArgs): Promise<void> {
		if (!operationId.trim()) throw new TypeError("the operation has no id");
		const { type } = transaction;
		if (type !== "append_items" && type !== "replace_suffix") throw new TypeError(`there is no transaction ${JSON.stringify(type)}`);
		const key = operationKey + hash(operationId);
		const value = hash(JSON.stringify(inOrder(JSON.parse(toJSON(transaction)))));
		const turn = newId();
		const [items, suffix] = type === "append_items" ? [transaction.items, []] : [transaction.replacement, transaction.expectedSuffix];
		await this.#made((s) =>
			untilStands(async () => {
				const state = await s.load({ last: Math.max(suffix.length, 1), records: [key] });
				const applied = state.records.get(key)?.value.toString();
				if (applied === value) return;
				if (applied) throw new TurnstoneError(`operation ${JSON.stringify(operationId)} stands for another change`);
				const replaced = suffix.length > 0 ? state.nodes : [];
				if (
					!isDeepStrictEqual(
						replaced.map(itemOf),
						suffix.map((i) => fromJSON(Buffer.from(toJSON(i)))),
					)
				) {
					throw new TurnstoneError("the history does not end with the items that are to be replaced");
				}
				const records = [{ key, action: "set" as const, value, expect: "none" }];
				await s.commit({ ...replacing(state, replaced, items.map(nodeOf), true), records, turn });
			}),
		);
	}

	/** Replaces the items from the first one on that a change changes. hidden tells whether the replaced ones can't be read any more. */
	async #rewrite(change: (items: AgentInputItem[]) => AgentInputItem[], hidden: boolean): Promise<void> {
		const turn = newId();
		await this.#made((s) =>
			untilStands(async () => {
				const state = await s.load();
				const before = state.nodes.map(itemOf);
				const after = change(before).map(nodeOf);
				const same = after.findIndex((n, i) => i >= before.length || n.payload !== toJSON(before[i]));
				const first = same < 0 ? after.length : same;
				if (first === before.length && first === after.length) return;
				await s.commit({ ...replacing(state, state.nodes.slice(first), after.slice(first), hidden), turn });
			}),
		);
	}

	/** Calls f with the session, which is made if there is none. */
	async #made<T>(f: (s: Session) => Promise<T>): Promise<T> {
		for (let failures = 0; ; ) {
			try {
				this.#session ??= (await this.#client.create(this.#id, { group: this.#group })).session;
			} catch (e) {
				// Making it again does no harm, so that nobody need know whether it was made.
				if (!(e instanceof TurnstoneError && e.outcomeUnknown) || ++failures > repeats) throw e;
				continue;
			}
			const s = this.#session;
			try {
				return await f(s);
			} catch (e) {
				this.#forget(s, e);
			}
		}
	}

	/** Calls f with the session if there is one. */
	async #existing<T>(f: (s: Session) => Promise<T>): Promise<T | undefined> {
		for (;;) {
			try {
				this.#session ??= await this.#client.session(this.#id);
			} catch (e) {
				if (e instanceof NotFoundError) return undefined;
				throw e;
			}
			const s = this.#session;
			try {
				return await f(s);
			} catch (e) {
				this.#forget(s, e);
			}
		}
	}

	/** Forgets a session that is gone, because another process has cleared it, and throws any other error. */
	#forget(s: Session, e: unknown): void {
		if (!(e instanceof NotFoundError && e.matches.has("session-deleted"))) throw e;
		if (this.#session === s) this.#session = undefined;
	}
}

/** Returns the commit that puts nodes in the place of the last ones of a path. */
function replacing(state: State, replaced: Node[], nodes: NewNode[], hidden: boolean): Commit {
	const [first] = replaced;
	if (!first) return { expected: state.revision, nodes };
	const parent = first.parent ?? "none";
	return {
		expected: state.revision,
		nodes: nodes.map((n, i) => (i === 0 ? { ...n, parent } : n)),
		...(nodes.length === 0 ? { leaf: parent } : {}),
		...(hidden ? { tombstone: replaced.map((n) => n.id) } : {}),
	};
}

function nodeOf(item: AgentInputItem): NewNode {
	const { role, type } = item as { role?: unknown; type?: unknown };
	const kind = Buffer.from(String(role || type || "item")).subarray(0, maxKind);
	return { kind: kind.toString().replace(/\ufffd+$/, "") || "item", payload: toJSON(item) };
}

function itemOf(n: Node): AgentInputItem {
	return fromJSON(n.payload) as AgentInputItem;
}

function isCall(item: AgentInputItem, callId: string): boolean {
	return item.type === "function_call" && item.callId === callId;
}

function hash(text: string): string {
	return createHash("sha256").update(text).digest("hex");
}
