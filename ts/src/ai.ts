/**
 * Chats of the AI SDK.
 *
 *     import { Client } from "turnstonedb";
 *     import { TurnstoneChats } from "turnstonedb/ai";
 *
 *     const chats = new TurnstoneChats(await Client.open("./data"));
 *     const messages = [...(await chats.load(id)), message];
 *     return streamText({ model, messages: await convertToModelMessages(messages) }).toUIMessageStreamResponse({
 *         originalMessages: messages,
 *         onFinish: ({ messages }) => chats.save({ chatId: id, messages }),
 *     });
 *
 * A message is a node of the session `ai/CHAT`. Saving stores what is new, in one commit. A message that was changed, or regenerated, is stored beside
 * the one that it replaces, which stays readable as an earlier revision.
 *
 * @module
 */

import { isDeepStrictEqual } from "node:util";
import type { UIMessage } from "ai";
import { newId } from "./adapter.ts";
import { type Client, Session } from "./client.ts";
import { ConflictError, NotFoundError } from "./errors.ts";
import { fromJSON, toJSON } from "./json.ts";
import type { Node } from "./types.ts";

const group = "ai";

/** Chats in a store. Processes may share them. */
export class TurnstoneChats<Message extends UIMessage = UIMessage> {
	readonly #client: Client;

	constructor(client: Client) {
		this.#client = client;
	}

	/** Returns the messages of a chat: none if there is no such chat. */
	async load(chatId: string): Promise<Message[]> {
		return (await this.loadAt(chatId)).messages;
	}

	/** Returns the messages of a chat, and the revision that they are of, for a save that is to be refused if somebody else saves meanwhile. */
	async loadAt(chatId: string): Promise<{ messages: Message[]; revision: number }> {
		const { nodes, revision } = await this.#nodes(chatId);
		return { messages: nodes.map((n) => fromJSON(n.payload) as Message), revision };
	}

	/** Makes a chat have these messages, all or none. Of two that save at once, the later one's stand, and those of both can be read. */
	async save(chat: { chatId: string; messages: Message[] }): Promise<void> {
		await this.saveAt(chat);
	}

	/**
	 * Saves as `save` does, and returns the revision of the chat then. With the revision of `loadAt`, or of the last save, a chat that somebody else has saved
	 * since is left as it is: the error is a ConflictError.
	 */
	async saveAt({ chatId, messages, revision: expected }: { chatId: string; messages: Message[]; revision?: number }): Promise<number> {
		const wanted = messages.map((m) => ({ kind: m.role, payload: toJSON(m, { dates: true }) }));
		const turn = newId();
		for (;;) {
			const { nodes, revision } = await this.#nodes(chatId);
			let same = 0;
			while (same < nodes.length && isSame(nodes[same]?.payload.toString(), wanted[same]?.payload)) same++;
			if (expected !== undefined && expected !== revision) {
				throw new ConflictError(`chat ${JSON.stringify(chatId)} is at revision ${revision}, not at ${expected}`, {
					type: "#conflict",
					matches: ["conflict"],
				});
			}
			if (same === nodes.length && same === wanted.length) return revision;
			const parent = same === 0 ? "none" : (nodes[same - 1] as Node).id;
			const fresh = wanted.slice(same).map((n, i) => (i === 0 ? { ...n, parent } : n));
			const create = { id: idOf(chatId), group };
			try {
				const [result] = await this.#client.commitAll([
					{ create, expected: revision, nodes: fresh, turn, ...(fresh.length === 0 ? { leaf: parent } : {}) },
				]);
				return result?.revision ?? revision + 1;
			} catch (e) {
				if (!(e instanceof ConflictError) || expected !== undefined) throw e; // Somebody else has saved it.
			}
		}
	}

	/** Lists chats, the most recently saved first: a page of at most `limit` of them. `next` is `after` of the next page, and absent on the last one. */
	async list(
		options: { after?: string; limit?: number } = {},
	): Promise<{ chats: { chatId: string; created: string; updated: string }[]; next?: string }> {
		const { sessions, next } = await this.#client.list({ ...options, group });
		const own = sessions.filter((i) => i.id.startsWith(`${group}/`)); // Somebody else may have put others into the group.
		const chats = own.map((i) => ({ chatId: i.id.slice(group.length + 1), created: i.created, updated: i.updated }));
		return next === undefined ? { chats } : { chats, next };
	}

	/** Deletes a chat, if there is one. */
	async delete(chatId: string): Promise<void> {
		try {
			await this.#client.delete(idOf(chatId));
		} catch (e) {
			if (!(e instanceof NotFoundError)) throw e;
		}
	}

	async #nodes(chatId: string): Promise<{ nodes: Node[]; revision: number }> {
		try {
			return await new Session(this.#client, idOf(chatId)).load();
		} catch (e) {
			if (e instanceof NotFoundError) return { nodes: [], revision: 0 };
			throw e;
		}
	}
}

/** Whether two messages as JSON are the same, whatever the order of their keys. */
function isSame(a?: string, b?: string): boolean {
	return a !== undefined && b !== undefined && (a === b || isDeepStrictEqual(JSON.parse(a), JSON.parse(b)));
}

function idOf(chatId: string): string {
	return `${group}/${chatId}`;
}
