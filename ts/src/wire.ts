// Documents: a line of JSON, and behind it the bytes that it refers to. See docs/http.md of the project.

import { InvalidError, TurnstoneError } from "./errors.ts";

/** A value of bytes: text stands for its UTF-8. */
export type Bytes = Uint8Array | string;

/** Where a document has a value of bytes: the text itself, or its place among the bytes behind the line. */
export type Place = string | [offset: number, length: number];

/** The answer was cut off, or a proxy has answered: the server may have made the request. */
export class LostError extends Error {}

/** A document that was read. */
export class Document {
	/** The object of its line. */
	// biome-ignore lint/suspicious/noExplicitAny: what a server says is JSON
	readonly value: any;
	readonly #block: Buffer;

	constructor(value: unknown, block: Buffer) {
		this.value = value;
		this.#block = block;
	}

	/** Returns a value of bytes. It shares the memory of the document. */
	bytes(place?: Place): Buffer {
		if (place === undefined || typeof place === "string") return Buffer.from(place ?? "");
		const [offset, length] = place;
		if (!(offset >= 0 && length >= 0 && offset + length <= this.#block.length)) {
			throw new TurnstoneError(`malformed document: ${length} bytes at ${offset}, and ${this.#block.length} follow`);
		}
		return this.#block.subarray(offset, offset + length);
	}
}

/** Returns a message as a document. The values of bytes in it are those that are bytes. Throws InvalidError for a string that is no text. */
export function encode(message: object): Buffer {
	const values: Uint8Array[] = [];
	let size = 0;
	const text = (s: string, where: string): string => {
		// A surrogate alone has no UTF-8: it would arrive as another character.
		if (!s.isWellFormed()) throw new InvalidError(`${where} has a surrogate without its other half`, { type: "#invalid", matches: ["invalid"] });
		return s;
	};
	const place = (v: unknown, where: string): unknown => {
		if (typeof v === "string") return text(v, where);
		if (typeof v === "number" && !Number.isFinite(v)) throw new InvalidError(`${where} is ${v}`, { type: "#invalid", matches: ["invalid"] });
		if (v instanceof Uint8Array) {
			if (v.length === 0) return "";
			values.push(v);
			size += v.length;
			return [size - v.length, v.length];
		}
		if (Array.isArray(v)) return v.map((x, i) => place(x, `${where}[${i}]`));
		if (typeof v !== "object" || v === null) return v;
		return Object.fromEntries(Object.entries(v).map(([k, x]) => [text(k, `a name in ${where}`), place(x, where === "" ? k : `${where}.${k}`)]));
	};
	const line = place(message, "") as Record<string, unknown>;
	if (size > 0) line.follow = size;
	return Buffer.concat([Buffer.from(`${JSON.stringify(line)}\n`), ...values]);
}

const newline = 10;

/** Reads documents from pieces of bytes. */
export class Decoder {
	#pieces: Buffer[] = [];
	#size = 0;
	#need = 1;
	#line: { follow?: number } | undefined;

	/** Returns the documents that are complete with this piece. */
	feed(piece: Buffer): Document[] {
		this.#pieces.push(piece);
		this.#size += piece.length;
		if (this.#size < this.#need) return [];
		const out: Document[] = [];
		let rest = this.#pieces.length === 1 ? piece : Buffer.concat(this.#pieces);
		for (;;) {
			if (this.#line === undefined) {
				const end = rest.indexOf(newline);
				if (end < 0) {
					this.#need = rest.length + 1;
					break;
				}
				const line = rest.toString("utf8", 0, end).trim();
				rest = rest.subarray(end + 1);
				if (line === "") continue;
				this.#line = parsed(line) as { follow?: number };
			}
			const follow = this.#line.follow ?? 0;
			if (rest.length < follow) {
				this.#need = follow;
				break;
			}
			out.push(new Document(this.#line, rest.subarray(0, follow)));
			this.#line = undefined;
			rest = rest.subarray(follow);
		}
		this.#pieces = [rest];
		this.#size = rest.length;
		return out;
	}
}

/** Returns what JSON has. Throws LostError for what is none: nothing else than a cut makes a server say that. */
export function parsed(text: string): unknown {
	try {
		return JSON.parse(text);
	} catch (e) {
		throw new LostError(`the answer is no JSON: ${text.slice(0, 100)}`, { cause: e });
	}
}

/** Returns the documents of a whole body, whose last line may have no end. */
export function documents(body: Buffer): Document[] {
	const decoder = new Decoder();
	return [...decoder.feed(body), ...decoder.feed(Buffer.from("\n"))];
}
