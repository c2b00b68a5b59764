// Uploads and downloads, which go on where they were when the connection is cut.

import { createHash, randomBytes } from "node:crypto";
import { outcomeUnknown, TurnstoneError } from "./errors.ts";
import type { Requests } from "./requests.ts";
import type { Send } from "./transport.ts";
import type { Attachment, Unbundled } from "./types.ts";
import { documents } from "./wire.ts";

const pieceBytes = 4 << 20;

/** How far an upload has got, and what the server has made of all of it. */
interface Stored {
	offset?: number;
	attachment?: Attachment;
	bundle?: { sessions?: Unbundled[] };
}

/** Brings content to the server, and returns what it has made of that. */
export async function upload(
	requests: Requests,
	path: string,
	query: Record<string, string>,
	content: Uint8Array | AsyncIterable<Uint8Array>,
): Promise<Stored> {
	const of = { ...query, upload: randomBytes(16).toString("hex") };
	const pieces = inPieces(content);
	try {
		let offset = 0;
		let piece = (await pieces.next()).value ?? Buffer.alloc(0);
		for (;;) {
			const following = await pieces.next();
			const stored = await put(requests, path, of, piece, offset, following.done === true);
			if (following.done) return stored;
			offset += piece.length;
			piece = following.value as Buffer;
		}
	} catch (e) {
		// It is given up, so that it does not take a place on the server until it expires.
		const given = await requests.stream("DELETE", "/v1/upload", { query: { upload: of.upload } }).catch(() => undefined);
		await given?.body().catch(() => undefined);
		throw e;
	} finally {
		await pieces.return(undefined);
	}
}

/** Brings one piece to the server. After the last one it returns what the server has made of all. */
async function put(requests: Requests, path: string, query: { upload: string }, piece: Buffer, begin: number, last: boolean): Promise<Stored> {
	const attempts = requests.attempts();
	const end = begin + piece.length;
	let offset = begin;
	for (let asks = false; ; ) {
		try {
			// A server that has a part of the piece, or all of it, answers before it has read the rest, and closes the connection. So after an
			// attempt without an answer it is asked what it has.
			const place = { ...query, offset: String(offset), ...(last ? {} : { more: "1" }) };
			const answer = asks
				? await requests.stream("GET", "/v1/upload", { query: { upload: query.upload } })
				: await requests.stream("PUT", path, { query: place, body: piece.subarray(offset - begin) });
			const stored = (documents(await answer.body())[0]?.value ?? {}) as Stored;
			const at = Number(stored.offset ?? begin);
			if (stored.attachment || stored.bundle || (at === end && !last)) return stored;
			asks = false;
			offset = Math.max(begin, Math.min(at, end)); // Of the last piece it waits for what comes of all.
		} catch (e) {
			if (!(e instanceof TurnstoneError)) {
				await requests.pause(attempts, e);
				asks = attempts.sent;
				continue;
			}
			if (e.kind === "upload-not-found" && asks && begin === 0) {
				asks = false; // Nothing of it has come.
				offset = 0;
				continue;
			}
			if (e.kind === "upload-not-found" && last && attempts.sent) throw outcomeUnknown(e.message, e);
			const at = e.problem.offset ?? -1;
			if (e.kind !== "upload-offset" || at < begin || at > end) throw e;
			// An earlier attempt has brought a part of the piece, or all of it.
			if (at === end && !last) return {};
			asks = at === end;
			offset = at;
		}
	}
}

/** Yields what the answer to a request has. `from` returns the request for what comes from an offset on; `before` is the SHA-256 of what came before. */
export async function* download(requests: Requests, from: (offset: number, before: () => string) => [string, string, Send]): AsyncGenerator<Buffer> {
	const attempts = requests.attempts();
	const sum = createHash("sha256");
	for (let offset = 0; ; ) {
		const begin = offset;
		try {
			const answer = await requests.stream(...from(offset, () => sum.copy().digest("hex")));
			for await (const piece of answer.pieces()) {
				offset += piece.length;
				sum.update(piece);
				yield piece;
			}
			return;
		} catch (e) {
			if (offset > begin) attempts.renew();
			await requests.pause(attempts, e);
		}
	}
}

/** Yields bytes in pieces of equal length, but for the last one. What an iterable yields is copied: it may use its buffer again. */
async function* inPieces(content: Uint8Array | AsyncIterable<Uint8Array>): AsyncGenerator<Buffer> {
	if (content instanceof Uint8Array) {
		const bytes = Buffer.from(content.buffer, content.byteOffset, content.length);
		for (let i = 0; i < bytes.length; i += pieceBytes) yield bytes.subarray(i, i + pieceBytes);
		return;
	}
	let held: Buffer[] = [];
	let size = 0;
	for await (const some of content) {
		held.push(Buffer.from(some));
		size += some.length;
		if (size <= pieceBytes) continue;
		let rest = Buffer.concat(held);
		for (; rest.length > pieceBytes; rest = rest.subarray(pieceBytes)) yield rest.subarray(0, pieceBytes);
		held = [rest];
		size = rest.length;
	}
	if (size > 0) yield Buffer.concat(held);
}
