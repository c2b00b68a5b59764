// Files with versions. Package adapter has the same for Go, and turnstonedb.adk for Python: each reads what the others
// have written.

import type { Session } from "./client.ts";
import { NotFoundError, RecordConflictError } from "./errors.ts";
import { newId, records } from "./sessions.ts";
import type { Attachment, StoredRecord } from "./types.ts";
import { json } from "./values.ts";

/**
 * A version of a file of a session, without its content. The content is an attachment, so the store has equal contents
 * once. A record says what the version is, and another record has the number of the last version of the file.
 */
export interface File<About = unknown> {
	/** From 1 on. */
	version: number;
	/** A time of RFC 3339. */
	created: string;
	/** The key of the node that refers to the content. */
	node: string;
	content: Attachment;
	/** What the adapter says of it. */
	about: About;
}

const namePrefix = "name/"; // and the name of a file: the key of the record with its last version's number
const atOnce = 200; // versions that one commit deletes

/** Returns what the keys of the records of a file's versions begin with, and no others. */
function prefix(name: string): string {
	return `version/${name.replaceAll("%", "%25").replaceAll("/", "%2F")}/`;
}

/** Returns the key of a version's record. A later version has a lesser key, so a list begins with the last version. */
function keyOf(name: string, version: number): string {
	return prefix(name) + ((1n << 63n) - 1n - BigInt(version)).toString(16).padStart(16, "0");
}

function fileOf<About>(r: StoredRecord): File<About> {
	return JSON.parse(r.value.toString()) as File<About>;
}

/** Stores the next version of a file, and returns it. The name and the media type have 256 bytes at most. */
export async function saveFile<About>(session: Session, name: string, mediaType: string, bytes: Uint8Array, about: About): Promise<File<About>> {
	const said = { about, created: new Date().toISOString(), node: newId() };
	json(said); // What can't be stored is refused before any effect.
	const content = await session.putAttachment(bytes, { mediaType, name });
	for (;;) {
		const last = await session.record(namePrefix + name);
		const file = { ...said, version: Number(last?.value ?? 0) + 1, content };
		try {
			await session.commit({
				nodes: [{ kind: "artifact", key: file.node, parent: "none", attachments: [content] }],
				expected: "any",
				turn: `${file.node} ${file.version}`,
				records: [
					{ key: namePrefix + name, action: "set", value: String(file.version), expect: last?.version ?? "none" },
					{ key: keyOf(name, file.version), action: "set", value: json(file) },
				],
			});
			return file;
		} catch (e) {
			if (!(e instanceof RecordConflictError) || e.outcomeUnknown) throw e;
			// Somebody else has saved or deleted a version.
		}
	}
}

/** Returns a version of a file, or the last one; undefined if there is none. */
export async function findFile<About>(session: Session, name: string, version?: number): Promise<File<About> | undefined> {
	if (version !== undefined && !(Number.isSafeInteger(version) && version > 0)) return undefined;
	const found = version === undefined ? (await session.records(prefix(name), { limit: 1 })).records[0] : await session.record(keyOf(name, version));
	return found && fileOf(found);
}

/** Returns a version of a file with its content, or the last one; undefined if there is none. */
export async function loadFile<About>(session: Session, name: string, version?: number): Promise<{ file: File<About>; bytes: Buffer } | undefined> {
	for (let before: string | undefined; ; ) {
		const file = await findFile<About>(session, name, version);
		if (!file) return undefined;
		try {
			const pieces: Buffer[] = [];
			for await (const piece of session.readAttachment(file.content.id)) pieces.push(piece);
			return { file, bytes: Buffer.concat(pieces) };
		} catch (e) {
			if (!(e instanceof NotFoundError) || file.node === before) throw e;
			before = file.node; // It was deleted meanwhile.
		}
	}
}

/** Returns the names of the files of a session, in their order. */
export async function fileNames(session: Session): Promise<string[]> {
	return (await records(session, namePrefix)).found.map((r) => r.key.slice(namePrefix.length));
}

/** Returns the versions of a file, the first one first: none if there is no such file. */
export async function fileVersions<About>(session: Session, name: string): Promise<File<About>[]> {
	return (await records(session, prefix(name))).found.reverse().map(fileOf<About>);
}

/** Deletes all versions of a file. Of more than 200 versions the latest are deleted first, in several commits. */
export async function deleteFile(session: Session, name: string): Promise<void> {
	for (let more = true; more; ) {
		const named = await session.record(namePrefix + name);
		if (!named) return;
		const page = await session.records(prefix(name), { limit: atOnce });
		more = page.next !== undefined;
		const nodes = await session.nodesByKey(page.records.map((r) => fileOf(r).node));
		try {
			await session.commit({
				expected: "any",
				turn: newId(),
				// The record of the name changes with each version that is saved.
				records: [
					{ key: named.key, action: more ? "check" : "delete", expect: named.version },
					...page.records.map((r) => ({ key: r.key, action: "delete" as const, expect: r.version })),
				],
				tombstone: [...nodes.values()].map((n) => n.id),
			});
		} catch (e) {
			if (!(e instanceof RecordConflictError) || e.outcomeUnknown) throw e;
			more = true; // Somebody else has saved or deleted a version.
		}
	}
}
