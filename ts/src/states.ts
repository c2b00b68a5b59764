// State that belongs to a user or an app. Package adapter has the same for Go, and turnstonedb.adapter for Python: each
// reads what the others have written.

import { randomBytes } from "node:crypto";
import { type Client, Session, type SessionCommit } from "./client.ts";
import { InvalidError, NotFoundError, RecordConflictError, TurnstoneError } from "./errors.ts";
import { gone, records } from "./sessions.ts";
import type { RecordChange, Result, StoredRecord } from "./types.ts";

const valuePrefix = "state/";
const largeKey = "state-large"; // of the directory of large values, which sorts before the values
const partPrefix = "part/";
const maxRecord = 64 << 10;
const maxRecords = 256;
const maxParts = 200;
const maxKey = 506;
const maxKnown = 1000; // directories that are remembered

/** What changes of a state: values by their keys, or null for one that is removed. */
export type StateChange = Map<string, Uint8Array | string | null>;

/** Where the records are that have a large value, by its key. */
type Directory = Map<string, { ID: string; Records: number }>;

/**
 * The states of users and apps, which several sessions share. Each state is stored as the records of a session of its
 * own, in a group.
 *
 * That session is made when the state gets its first value, and no prune deletes it. A value that is too large for one
 * record is stored in several, and the directory, which is a record as well, says in how many: a value has at most 12.5
 * MiB, and a key 506 bytes.
 */
export class States {
	readonly #client: Client;
	readonly #group: string;
	/** The directories that were read, by the ids of the states: undefined is that there is none. */
	readonly #known = new Map<string, StoredRecord | undefined>();

	constructor(client: Client, group: string) {
		this.#client = client;
		this.#group = group;
	}

	/** Returns the values of a state, by their keys: none if it has none. */
	async read(id: string): Promise<Map<string, Buffer>> {
		for (;;) {
			try {
				const values = await this.#values(await this.#client.session(id));
				if (values) return values;
			} catch (e) {
				if (gone(e)) return new Map();
				throw e;
			}
		}
	}

	/** Returns the values, or undefined if somebody has changed large ones meanwhile. */
	async #values(session: Session): Promise<Map<string, Buffer> | undefined> {
		const { found, pages } = await records(session, "state");
		const directory = found.find((r) => r.key === largeKey);
		const values = found.filter((r) => r.key.startsWith(valuePrefix));
		const out = new Map(values.map((r) => [r.key.slice(valuePrefix.length), r.value]));
		const large = read(directory);
		if (pages === 1 && large.size === 0) return out; // One page is of one moment.
		let whole = true;
		for (const [key, { ID, Records }] of large) {
			const parts = (await records(session, `${partPrefix}${ID}/`)).found;
			whole &&= parts.length === Records;
			out.set(key, Buffer.concat(parts.map((r) => r.value)));
		}
		if ((await session.record(largeKey))?.version !== directory?.version) return undefined;
		if (!whole) throw new TurnstoneError(`state ${JSON.stringify(session.id)} is damaged: records of it are missing`);
		return out;
	}

	/**
	 * Makes changes of states, by their ids, and commits to other sessions in one batch. Returns the results of the
	 * commits.
	 */
	async commit(changes: Map<string, StateChange>, own: SessionCommit[]): Promise<Result[]> {
		const changed = [...changes].filter(([, values]) => values.size > 0);
		for (;;) {
			const commits = [...own];
			for (const [id, values] of changed) {
				// Using a state changes nothing in this session: otherwise a prune could take it for inactive.
				const create = { id, group: this.#group, retention: "all" } as const;
				commits.push({ create, recordsOnly: true, records: changesOf(await this.#directory(id), values) });
			}
			try {
				const results = await this.#client.commitAll(commits);
				for (const [id, values] of changed) if (isLarge(read(this.#known.get(id)), values)) this.#known.delete(id);
				return results.slice(0, own.length);
			} catch (e) {
				for (const [id] of changed) this.#known.delete(id);
				if (!(e instanceof RecordConflictError) || e.outcomeUnknown || e.key !== largeKey) throw e;
			}
		}
	}

	async #directory(id: string): Promise<StoredRecord | undefined> {
		if (this.#known.has(id)) return this.#known.get(id);
		let directory: StoredRecord | undefined;
		try {
			directory = await new Session(this.#client, id).record(largeKey);
		} catch (e) {
			if (!(e instanceof NotFoundError && gone(e))) throw e;
		}
		if (this.#known.size >= maxKnown) this.#known.clear();
		this.#known.set(id, directory);
		return directory;
	}
}

function read(directory: StoredRecord | undefined): Directory {
	return new Map(directory ? Object.entries(JSON.parse(directory.value.toString())) : []);
}

/** Reports whether values that change are or were large, so that the directory changes. */
function isLarge(large: Directory, values: StateChange): boolean {
	return [...values].some(([key, value]) => large.has(key) || (value !== null && Buffer.byteLength(value) > maxRecord));
}

/** Returns what changes of the records when values change. */
function changesOf(directory: StoredRecord | undefined, values: StateChange): RecordChange[] {
	const large = read(directory);
	const named: Directory = new Map(large);
	const out: RecordChange[] = [];
	for (const [key, value] of values) {
		if (Buffer.byteLength(key) > maxKey) throw tooLarge(key, `the key has more than ${maxKey} bytes`);
		const content = Buffer.from(value ?? "");
		const old = large.get(key);
		named.delete(key);
		const count = content.length > maxRecord ? Math.ceil(content.length / maxRecord) : 0;
		if (count > maxParts) throw tooLarge(key, `the value has more than ${maxParts * maxRecord} bytes`);
		if (count > 0) {
			const id = old?.ID ?? randomBytes(13).toString("hex");
			named.set(key, { ID: id, Records: count });
			for (let i = 0; i < count; i++) {
				out.push({ key: partKey(id, i), action: "set", value: content.subarray(i * maxRecord, (i + 1) * maxRecord) });
			}
		}
		for (let i = count; old && i < old.Records; i++) out.push({ key: partKey(old.ID, i), action: "delete" });
		// The record of a large value stays, so that a reader of all keys finds this one while the value changes its
		// place.
		if (value === null) out.push({ key: valuePrefix + key, action: "delete" });
		else out.push({ key: valuePrefix + key, action: "set", value: count > 0 ? "" : content });
	}
	const expect = directory?.version ?? "none";
	if (isLarge(large, values)) out.push({ key: largeKey, action: "set", value: JSON.stringify(Object.fromEntries(named)), expect });
	else out.push({ key: largeKey, action: "check", expect });
	if (out.length > maxRecords) {
		throw tooLarge([...values.keys()].join(", "), `${out.length} values and parts of large ones change at once, at most ${maxRecords} can`);
	}
	return out;
}

function partKey(id: string, i: number): string {
	return `${partPrefix}${id}/${String(i).padStart(3, "0")}`;
}

function tooLarge(key: string, reason: string): InvalidError {
	return new InvalidError(`state ${JSON.stringify(key.slice(0, 80))}: ${reason}`, { type: "#too-large", matches: ["too-large"] });
}
