/**
 * Savers, for hosts that save the whole history on every message: those that come within a delay become one save.
 *
 *     import { Client } from "turnstonedb";
 *     import { Saver } from "turnstonedb/transcript";
 *
 *     const db = await Client.open("./data");
 *     const saver = new Saver(db, "chat-1");
 *     saver.save([{ kind: "user", payload: "hello" }], { state: { prompt: "Be kind." } });
 *     await saver.flush(); // A crash loses what is due.
 *
 * `Client.history` reads the history again.
 *
 * @module
 */

import { randomUUID } from "node:crypto";
import type { Client } from "./client.ts";
import { TurnstoneError } from "./errors.ts";
import type { Message, Revision, Saved, SaveOptions, Usage } from "./types.ts";

/** What a saver does. */
export interface SaverOptions {
	/** How many milliseconds a save waits for others: 250 without it. */
	delay?: number;
	/** The revision of the history that the host has. Then each save builds on the one before: a ConflictError says that somebody else has saved meanwhile. */
	base?: Revision;
	/** Is called after each save. */
	report?: (result: { saved: Saved; error?: never } | { error: unknown; saved?: never }) => void;
}

/** The options of a save that a saver does not choose itself. */
export type Settings = Omit<SaveOptions, "base" | "turn">;

interface Snapshot {
	messages: Message[];
	options: Settings;
	turn: string;
}

/** Saves the history of one session some time after it changed. A save that failed is made again with the next one, and by `flush`. */
export class Saver {
	/** The id of the session: a random one if none was given. */
	readonly id: string;
	readonly #client: Client;
	readonly #delay: number;
	readonly #report: SaverOptions["report"];
	#base: Revision;
	#next: Snapshot | undefined;
	#again: Snapshot | undefined; // Its outcome is unknown: it is saved again under its turn, before the next one.
	#timer: NodeJS.Timeout | undefined;
	#saving: Promise<void> = Promise.resolve();

	constructor(client: Client, id = "", { delay = 250, base = 0, report }: SaverOptions = {}) {
		this.id = id || randomUUID();
		this.#client = client;
		this.#delay = delay;
		this.#base = base;
		this.#report = report;
	}

	/** Schedules a save, and returns at once. The payloads and options must not be changed any more. What is no JSON is refused. */
	save(messages: Message[], options: Settings = {}): void {
		JSON.stringify(options.custom); // A save of what can't be sent would fail again and again.
		const snapshot = { messages: [...messages], options, turn: `saver ${randomUUID()}` };
		this.#next = this.#next ? after(this.#next, snapshot) : snapshot;
		this.#timer ??= setTimeout(() => {
			this.flush().catch(() => {}); // The report has it, and what was not saved is due still.
		}, this.#delay);
	}

	/** Saves what is due, and returns when it is stored. */
	flush(): Promise<void> {
		const saving = this.#saving.catch(() => {}).then(() => this.#flush());
		this.#saving = saving;
		return saving;
	}

	async [Symbol.asyncDispose](): Promise<void> {
		await this.flush();
	}

	async #flush(): Promise<void> {
		for (;;) {
			clearTimeout(this.#timer);
			this.#timer = undefined;
			const snapshot = this.#again ?? this.#next;
			if (!snapshot) return;
			if (this.#again) this.#again = undefined;
			else this.#next = undefined;
			let saved: Saved;
			try {
				saved = await this.#client.save(this.id, snapshot.messages, { ...snapshot.options, turn: snapshot.turn, base: this.#base });
			} catch (error) {
				if (!(error instanceof TurnstoneError) || error.outcomeUnknown) this.#again = snapshot;
				else this.#next = this.#next ? after(snapshot, this.#next) : snapshot;
				this.#report?.({ error });
				throw error;
			}
			if (this.#base !== 0) this.#base = saved.revision;
			this.#report?.({ saved });
		}
	}
}

/** Those of the options that are metadata. */
const fields = ["name", "model", "cwd", "group", "labels", "retention", "custom", "hostCreated", "hostUpdated"];

/** Returns the snapshot that has the effect of saving one, and then a newer one. */
function after({ options: older }: Snapshot, newer: Snapshot): Snapshot {
	const emptied = newer.options.empty ?? [];
	const stays = Object.entries(older).filter(([name]) => !fields.includes(name) || !(emptied.includes(name) || emptied.includes("all")));
	const options: Settings = { ...Object.fromEntries(stays), ...given(newer.options) };
	if (newer.options.labels && !emptied.includes("labels") && !emptied.includes("all")) options.labels = { ...older.labels, ...newer.options.labels };
	const empty = new Set([...(older.empty ?? []), ...emptied]);
	if (empty.size > 0) options.empty = [...empty];
	options.usage = sum([...(older.usage ?? []), ...(newer.options.usage ?? [])]);
	return { ...newer, options };
}

function given(options: Settings): Settings {
	return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
}

function sum(usage: Usage[]): Usage[] {
	const by = new Map<string, Record<string, number>>();
	for (const { model, ...counts } of usage) {
		const have = by.get(model) ?? {};
		for (const [name, count] of Object.entries(counts)) have[name] = (have[name] ?? 0) + (count ?? 0);
		by.set(model, have);
	}
	return [...by].map(([model, counts]) => ({ model, ...counts }));
}
