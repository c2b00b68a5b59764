// Ids that are joined of names, and lists that miss nothing. Package adapter has the same for Go, and turnstonedb.adapter for Python.

import { createHash, randomBytes } from "node:crypto";
import type { Client, Session } from "./client.ts";
import { ConflictError, NotFoundError, RecordConflictError, TurnstoneError } from "./errors.ts";
import { compareTimes } from "./times.ts";
import type { Info, ListOptions, StoredRecord } from "./types.ts";

/** How many bytes the id of a session has at most. */
export const maxId = 512;

/** How many sessions or records a page has at most. */
export const maxPage = 1000;

/** Returns the id of a session or a group: a root, and names of any content. The store refuses one that is longer than maxId. */
export function join(root: string, ...names: string[]): string {
	return [root, ...names.map((n) => n.replaceAll("%", "%25").replaceAll("/", "%2F"))].join("/");
}

/**
 * Returns text that has so many bytes at most: the same, or its beginning and a hash. It is for names of any length; what was shortened has to be kept elsewhere
 * if it is to be given back.
 */
export function short(text: string, most = maxId): string {
	const content = Buffer.from(text);
	if (content.length <= most && !/~[0-9a-f]{64}$/.test(text)) return text;
	return `${new TextDecoder().decode(whole(content.subarray(0, Math.max(0, most - 65))))}~${createHash("sha256").update(content).digest("hex")}`;
}

/** Returns text without a character that is cut in two at its end. */
function whole(content: Buffer): Buffer {
	let end = content.length;
	while (end > 0 && ((content[end - 1] as number) & 0xc0) === 0x80) end--;
	const first = content[end - 1] ?? 0;
	const size = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
	return end - 1 + size <= content.length ? content.subarray(0, end - 1 + size) : content.subarray(0, end - 1);
}

/** Returns the names that an id was joined of, without its root. */
export function names(id: string): string[] {
	return id
		.split("/")
		.slice(1)
		.map((n) => n.replace(/%2F|%25/g, (m) => (m === "%25" ? "%" : "/")));
}

/** Reports whether an error says that there is no such session. */
export function gone(error: unknown): boolean {
	return error instanceof NotFoundError && (error.kind === "session-not-found" || error.kind === "session-deleted");
}

/** Reports whether what a call was to do may or may not stand after an error. */
export function outcomeUnknown(error: unknown): boolean {
	return !(error instanceof TurnstoneError) || error.outcomeUnknown;
}

/** Returns an id that nobody has had: of a turn, or the key of a node. */
export function newId(): string {
	return randomBytes(16).toString("hex");
}

/** Bytes of the events of a commit. */
const maxCommitBytes = 4 << 20;

/** Returns events in groups for commits: at most `most` of them, and 4 MiB by what `size` says of each, unless one alone has more. */
export function inCommits<E>(events: E[], size: (event: E) => number, most = 200): E[][] {
	const out: E[][] = [];
	let total = 0;
	for (const e of events) {
		const [n, last] = [size(e), out.at(-1)];
		if (last && last.length < most && total + n <= maxCommitBytes) last.push(e);
		else {
			out.push([e]);
			total = 0;
		}
		total += n;
	}
	return out;
}

/**
 * Calls f, which reads and then changes what it has read, until nobody has changed that in between. Returns what f returns. A conflict after which the change
 * may stand is thrown: it would be made twice.
 */
export async function untilStands<T>(f: () => Promise<T>): Promise<T> {
	for (;;) {
		try {
			return await f();
		} catch (e) {
			if (!(e instanceof ConflictError || e instanceof RecordConflictError) || e.outcomeUnknown) throw e;
		}
	}
}

/** How often `recorded` reads several pages at most: while others write steadily, each reading has something new. */
const maxReadings = 5;
/** At most, of processes that share a store, in milliseconds. */
const clocksDiffer = 60_000;

/**
 * Returns the records of all sessions whose keys begin with a prefix. A session may give up one key for another while several pages are read, so these are read
 * again until nothing is new, up to five times: such a session may have both records in the result, the later one with the later time. One that is not in the
 * result was made meanwhile, or has got another key in each reading, every time before its old one was read and after the place of its new one was.
 */
export async function recorded(client: Client, prefix: string): Promise<StoredRecord[]> {
	const seen = new Map<string, StoredRecord>();
	for (let more = true, readings = 0; more && readings < maxReadings; readings++) {
		more = false;
		for (let after: string | undefined, first = true; after || first; first = false) {
			const page = await client.records(prefix, { limit: maxPage, ...(after ? { after } : {}) });
			after = page.next;
			for (const r of page.records) {
				const id = JSON.stringify([r.session, r.key]);
				more ||= !seen.has(id) && !(first && !after);
				seen.set(id, r);
			}
		}
	}
	return [...seen.values()];
}

/**
 * Returns the sessions that the options of Client.list choose, the most recently updated first. A session that is updated meanwhile moves to the front of the
 * store's list, which was read already. So what was updated since the reading before is read again. The last reading is one of one page, or the second one in a row
 * that finds no new session which is older than the call. A session is missed only if somebody uses it between two pages of each reading.
 */
export async function listed(client: Client, chosen: Omit<ListOptions, "after" | "limit">): Promise<Info[]> {
	const seen = new Map<string, Info>();
	for (let start = "", since = "", quiet = 0; ; ) {
		let [pages, missed, front, after] = [0, false, "", ""];
		do {
			const page = await client.list({ ...chosen, limit: maxPage, ...(after ? { after } : {}) });
			front ||= page.sessions[0]?.updated ?? "";
			for (const i of page.sessions) {
				missed ||= !seen.has(i.id) && (!start || compareTimes(i.created, start) < 0);
				seen.set(i.id, i);
			}
			pages++;
			const last = page.sessions.at(-1);
			after = last && since && compareTimes(last.updated, since) < 0 ? "" : (page.next ?? "");
		} while (after);
		quiet = missed ? 0 : quiet + 1;
		if (pages === 1 || quiet === 2 || !front) break;
		start ||= front;
		since = new Date(Date.parse(front) - clocksDiffer).toISOString();
	}
	return [...seen.values()].sort((a, b) => compareTimes(b.updated, a.updated) || (a.id < b.id ? 1 : -1));
}

/** Returns all records of a session whose keys begin with a prefix, and in how many pages they came: one page is of one moment, and several are not. */
export async function records(session: Session, prefix: string): Promise<{ found: StoredRecord[]; pages: number }> {
	const found: StoredRecord[] = [];
	for (let pages = 1, after = ""; ; pages++) {
		const page = await session.records(prefix, { limit: maxPage, ...(after ? { after } : {}) });
		found.push(...page.records);
		if (!page.next) return { found, pages };
		after = page.next;
	}
}
