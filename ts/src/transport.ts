// Connections with a server, those of Node's own HTTP client.

import { randomBytes } from "node:crypto";
import { closeSync, openSync } from "node:fs";
import * as http from "node:http";
import * as https from "node:https";
import { basename, dirname } from "node:path";
import { setImmediate } from "node:timers/promises";
import type { TLSSocket } from "node:tls";
import { TurnstoneError } from "./errors.ts";
import { maxSocket } from "./server.ts";

const connectMilliseconds = 10_000;
/** How long a peer may send nothing before it is taken for gone: servers give a write a minute. */
export const silence = { milliseconds: 90_000 };
const maxIdle = 64;

/** A request got no answer. `sent` tells whether a server may have begun with it. */
export class BrokenError extends Error {
	readonly sent: boolean;

	constructor(cause: Error, sent: boolean) {
		super((cause as NodeJS.ErrnoException).code ?? cause.message, { cause });
		this.sent = sent;
	}
}

const callHeader = "turnstone-call";

/** Reports whether an answer is that to the request with an id, or that of a proxy, which tells nothing but a failure. */
function matches(id: string, { headers, statusCode = 0 }: http.IncomingMessage): boolean {
	const got = headers[callHeader];
	if (got !== undefined) return got === id;
	return Math.floor(statusCode / 100) !== 2 && !headers["content-type"]?.startsWith("application/problem+json");
}

/** An answer, whose body is not read yet. */
export class Answer {
	readonly status: number;
	readonly #message: http.IncomingMessage;

	constructor(message: http.IncomingMessage) {
		this.status = message.statusCode ?? 0;
		this.#message = message;
	}

	header(name: string): string {
		const value = this.#message.headers[name.toLowerCase()];
		return typeof value === "string" ? value : "";
	}

	/** Yields the body. A body that is not read to its end ends the connection. */
	async *pieces(): AsyncGenerator<Buffer> {
		try {
			for await (const piece of this.#message) yield piece as Buffer;
		} catch (e) {
			throw new BrokenError(e as Error, true);
		} finally {
			if (!this.#message.readableEnded) this.#message.destroy();
		}
	}

	async body(): Promise<Buffer> {
		const pieces: Buffer[] = [];
		for await (const piece of this.pieces()) pieces.push(piece);
		return pieces.length === 1 ? (pieces[0] as Buffer) : Buffer.concat(pieces);
	}
}

/** How to reach a server: the path of a socket, or a URL. */
export interface Place {
	socket?: string;
	url: URL;
	ca?: string | Buffer;
}

export interface Send {
	query?: Record<string, string>;
	body?: Uint8Array;
	headers?: Record<string, string>;
	signal?: AbortSignal;
}

/** The connections of a client. */
export class Transport {
	readonly #place: Place;
	readonly #headers: Record<string, string>;
	readonly #agent: http.Agent;
	#closed = false;
	#directory = -1; // of a socket whose path its address has no room for

	constructor(place: Place, headers: Record<string, string>) {
		this.#place = place;
		this.#headers = headers;
		const options = { keepAlive: true, maxFreeSockets: maxIdle, timeout: silence.milliseconds };
		this.#agent = place.url.protocol === "https:" ? new https.Agent({ ...options, ca: place.ca }) : new http.Agent(options);
	}

	close(): void {
		this.#closed = true;
		this.#agent.destroy();
		if (this.#directory >= 0) closeSync(this.#directory);
		this.#directory = -1;
	}

	/** Returns a path that leads to a socket, and that its address has room for: on Linux that of its directory, which is open. */
	#reachable(socket: string): string {
		if (Buffer.byteLength(socket) <= maxSocket) return socket;
		try {
			if (this.#directory < 0) this.#directory = openSync(dirname(socket), "r");
		} catch (e) {
			throw new BrokenError(e as Error, false); // There is no directory yet.
		}
		return `/proc/self/fd/${this.#directory}/${basename(socket)}`;
	}

	/** Makes a request. Fails with BrokenError if there is no answer, also if that is because of `close`. */
	async send(method: string, path: string, { query, body, headers, signal }: Send = {}): Promise<Answer> {
		// A connection that the server has ended while this process was busy is known to be ended when the event loop has looked at it:
		// the first of two immediates may come before that.
		await setImmediate();
		await setImmediate();
		if (this.#closed) throw new TurnstoneError("the client is closed");
		signal?.throwIfAborted();
		const { socket, url } = this.#place;
		const id = randomBytes(8).toString("hex");
		const options: https.RequestOptions = {
			method,
			agent: this.#agent,
			path: url.pathname.replace(/\/$/, "") + path + (query ? `?${new URLSearchParams(query)}` : ""),
			headers: { ...this.#headers, ...headers, [callHeader]: id, ...(body ? { "content-length": String(body.length) } : {}) },
			...(socket ? { socketPath: this.#reachable(socket) } : { host: url.hostname.replace(/^\[|\]$/g, ""), port: url.port }),
		};
		return new Promise((answer, fail) => {
			const request = (url.protocol === "https:" ? https : http).request(options);
			let sent = false;
			const connecting = setTimeout(() => request.destroy(new Error("no connection")), connectMilliseconds);
			const connected = () => {
				clearTimeout(connecting);
				sent = true;
			};
			request.on("socket", (s) => {
				if (!s.connecting) connected();
				else s.once((s as TLSSocket).encrypted ? "secureConnect" : "connect", connected);
			});
			const abort = () => request.destroy(signal?.reason as Error);
			signal?.addEventListener("abort", abort, { once: true });
			request.on("timeout", () => request.destroy(new Error("the server is silent")));
			request.on("response", (message) => {
				if (matches(id, message)) return answer(new Answer(message));
				fail(
					new BrokenError(
						new Error(`the answer is not that to the request: its header ${callHeader} is ${JSON.stringify(message.headers[callHeader])}`),
						true,
					),
				);
				message.on("error", () => {});
				message.destroy();
			});
			request.on("error", (e) => {
				if (signal?.aborted) fail(signal.reason);
				else fail(new BrokenError(e, sent));
			});
			request.on("close", () => {
				clearTimeout(connecting);
				signal?.removeEventListener("abort", abort);
			});
			request.end(body);
		});
	}
}
