// How requests are made, and made again.

import { setTimeout as sleep } from "node:timers/promises";
import { InvalidError, ofProblem, outcomeUnknown, type Problem, TurnstoneError, unavailable } from "./errors.ts";
import { type Answer, BrokenError, type Place, type Send, Transport } from "./transport.ts";
import { Decoder, type Document, documents, encode, LostError, parsed } from "./wire.ts";

const maxPatienceSeconds = 30;
/** The bytes that a server reads of a request. */
export const limits = { request: 128 << 20 };

/** How a client reaches its server. */
export interface Options {
	/** What the server asks for, unless it is on a Unix socket. */
	token?: string;
	/** The namespace of all requests; the default one without it. */
	namespace?: string;
	/** For how many seconds a request is made again when it gets no answer: 10 without it, and 30 at most. */
	patience?: number;
	/** A certificate to trust, in PEM. */
	ca?: string | Buffer;
	/** @internal What starts a server when nobody answers, and tells whether it did. */
	restart?: () => Promise<boolean>;
}

/** A write, as the server remembers it. */
interface Write {
	id: string;
	/** Any server may make it again, because it has a turn id. */
	anywhere: boolean;
}

/** The server has refused the request without an effect, and is to be asked again. */
class BusyError extends Error {}

/** The attempts of one request. */
class Attempts {
	readonly #patience: number;
	#deadline = 0;
	readonly #write: Write | undefined;
	#server: string;
	#pause = 5;
	/** Whether a server may have begun with it. */
	sent = false;

	constructor(patience: number, write?: Write, server = "") {
		this.#patience = patience;
		this.renew();
		this.#write = write;
		this.#server = write?.anywhere ? "" : server; // that has to make the write
	}

	headers(): Record<string, string> {
		if (!this.#write) return {};
		return { "Turnstone-Request": this.#write.id, ...(this.#server ? { "Turnstone-Server": this.#server } : {}) };
	}

	/** Begins anew to count the time: something has come. */
	renew(): void {
		this.#deadline = performance.now() + this.#patience * 1000;
	}

	/** Returns an error as that of all attempts: of a write that a server may have made, nobody knows. */
	last(error: Error): Error {
		return this.sent && this.#write ? outcomeUnknown(error.message, error) : error;
	}

	/** Throws what an answer says, unless it is that the write is for another server: then it returns how many milliseconds to wait. */
	refused(error: TurnstoneError, answer: Answer): number {
		if (error.kind === "restarted" && !this.sent) {
			this.#server = answer.header("Turnstone-Server");
			return this.again(error, false);
		}
		if (this.#write && this.sent && answer.header("Turnstone-Request") !== this.#write.id) {
			throw outcomeUnknown(error.message, error); // It says nothing of the attempts before.
		}
		throw error;
	}

	/** Notes an attempt without an answer, and returns how many milliseconds to wait before the next. */
	again(error: Error, sent: boolean): number {
		this.sent ||= sent;
		if (performance.now() > this.#deadline) throw this.last(unavailable(`no answer of the server: ${error.message}`, error));
		const pause = this.#pause;
		this.#pause = Math.min(2 * pause, 500);
		return pause;
	}
}

/** Throws what an answer says that is no success. */
async function check(answer: Answer): Promise<void> {
	if (answer.status >= 200 && answer.status < 300) return;
	const body = await answer.body();
	if (answer.header("Content-Type").startsWith("application/problem+json")) {
		const problem = parsed(body.toString()) as Problem;
		if (problem.type?.endsWith("#busy")) throw new BusyError(problem.detail);
		throw ofProblem(problem);
	}
	const text = `the answer is ${answer.status}, and no problem of a server: ${body.toString("utf8", 0, 200)}`;
	if (answer.status >= 500 || answer.status === 429) throw new LostError(text);
	throw new TurnstoneError(text);
}

/** Is called with the phase of what takes long, and how far it is in what the phase is about: sessions, uploads, blobs, records. */
export type Progress = (phase: string, done: number) => void;

/** Returns the documents of an answer, which tell of the progress of the work while they come. */
async function told(answer: Answer, progress: Progress): Promise<Document[]> {
	const decoder = new Decoder();
	const all: Document[] = [];
	for await (const piece of answer.pieces()) {
		for (const d of decoder.feed(piece)) {
			all.push(d);
			if (d.value.progress) progress(d.value.progress.phase, d.value.progress.done);
		}
	}
	return all;
}

/** Throws if the last of several documents is not the end. */
function finish(last: Document | undefined): void {
	if (last?.value.problem) throw ofProblem(last.value.problem as Problem);
	if (!last?.value.end) throw new LostError("the answer is cut off");
}

/** Returns where an address says that the server is. */
function place(address: string, options: Options): Place {
	const wrong = () => new TypeError(`${JSON.stringify(address)} is no address of a server: want unix:PATH, https://HOST:PORT or http://HOST:PORT`);
	const socket = /^unix:(.+)$/s.exec(address)?.[1];
	if (socket) return { socket, url: new URL("http://turnstone") };
	if (!/^https?:\/\/./.test(address) || !URL.canParse(address)) throw wrong();
	const url = new URL(address);
	if (!url.hostname || url.search || url.hash || url.username) throw wrong();
	if (options.token && url.protocol === "http:" && !["localhost", "127.0.0.1", "[::1]"].includes(url.hostname)) {
		throw new TypeError(`${address} would show the token to everybody on the way: want https`);
	}
	return { url, ...(options.ca === undefined ? {} : { ca: options.ca }) };
}

/** The requests of a client. */
export class Requests {
	readonly #patience: number;
	readonly #transport: Transport;
	readonly #restart: (() => Promise<boolean>) | undefined;
	#server = "";
	#closed = false;

	constructor(address: string, options: Options) {
		this.#patience = options.patience ?? 10;
		if (!(this.#patience > 0 && this.#patience <= maxPatienceSeconds)) {
			throw new RangeError(`patience is ${this.#patience}, want up to ${maxPatienceSeconds} seconds`);
		}
		if (!/^[!-~]*$/.test(options.token ?? "")) throw new TypeError("the token has characters that no token has");
		const headers: Record<string, string> = {};
		if (options.token) headers.Authorization = `Bearer ${options.token}`;
		if (options.namespace) headers["Turnstone-Namespace"] = encodeURIComponent(options.namespace);
		this.#transport = new Transport(place(address, options), headers);
		this.#restart = options.restart;
	}

	close(): void {
		this.#closed = true;
		this.#transport.close();
	}

	/** Finds out which server serves: a write names the one that it is for. */
	async hello(): Promise<void> {
		try {
			await this.one("list", { limit: 1 });
		} catch (e) {
			if (!(e instanceof TurnstoneError && ["scope", "store-not-found"].includes(e.kind))) throw e;
		}
	}

	/** Calls an operation that answers with one document. */
	async one(name: string, message: object, write?: Write): Promise<Document> {
		return (await this.#run(name, message, false, write))[0] as Document;
	}

	/** Calls an operation that answers with several documents. */
	several(name: string, message: object, write?: Write, progress?: Progress): Promise<Document[]> {
		return this.#run(name, message, true, write, progress);
	}

	async #run(name: string, message: object, several: boolean, write?: Write, progress?: Progress): Promise<Document[]> {
		const body = encode(message);
		if (body.length > limits.request) {
			const text = `${name} of ${body.length} bytes: a server reads ${limits.request} at most`;
			throw new InvalidError(text, { type: "#too-large", matches: ["too-large"] });
		}
		if (write && !write.anywhere && !this.#server) await this.hello();
		const attempts = this.attempts(write);
		for (;;) {
			let answer: Answer | undefined;
			let begun = false; // of several documents, which come for as long as the work takes
			try {
				answer = await this.#send("POST", `/v1/${name}`, { body, headers: attempts.headers() });
				await check(answer);
				begun = several;
				const answered = progress ? await told(answer, progress) : documents(await answer.body());
				if (several) finish(answered.at(-1));
				else if (answered.length === 0) throw new LostError("the answer is cut off");
				return answered;
			} catch (e) {
				if (begun) attempts.renew();
				if (answer && e instanceof TurnstoneError) await sleep(attempts.refused(e, answer));
				else await this.pause(attempts, e);
			}
		}
	}

	/** Returns the attempts of a request that is made with `stream`. */
	attempts(write?: Write): Attempts {
		return new Attempts(this.#patience, write, this.#server);
	}

	/** Waits before the next attempt, unless the error is the last one. */
	async pause(attempts: Attempts, error: unknown, signal?: AbortSignal): Promise<void> {
		const broken = error instanceof BrokenError || error instanceof LostError || error instanceof BusyError;
		const sent = error instanceof LostError || (error instanceof BrokenError && error.sent);
		attempts.sent ||= sent;
		if (this.#closed) throw attempts.last(new TurnstoneError("the client is closed", {}, error));
		if (!broken) throw error instanceof Error ? attempts.last(error) : error;
		const pause = attempts.again(error, sent);
		if (!sent && !(error instanceof BusyError) && this.#restart) {
			const started = await this.#restart().catch((e: Error) => Promise.reject(attempts.last(e)));
			if (started) return;
		}
		await sleep(pause, undefined, { signal });
	}

	async #send(method: string, path: string, send: Send): Promise<Answer> {
		const answer = await this.#transport.send(method, path, send);
		this.#server = answer.header("Turnstone-Server") || this.#server;
		return answer;
	}

	/** Makes a request once, and returns its answer if that is a success. */
	async stream(method: string, path: string, send: Send): Promise<Answer> {
		const answer = await this.#send(method, path, send);
		await check(answer);
		return answer;
	}

	/** Yields documents with nodes as they come, and goes on after the last of them when the connection is cut. */
	async *nodes(message: object): AsyncGenerator<Document> {
		const attempts = this.attempts();
		let from = {}; // where to go on
		for (let ended = false; !ended; ) {
			let alive = false;
			try {
				const answer = await this.stream("POST", "/v1/nodes", { body: encode({ ...message, ...from }) });
				const decoder = new Decoder();
				for await (const piece of answer.pieces()) {
					for (const d of decoder.feed(piece)) {
						alive = true;
						if (d.value.problem) finish(d);
						if (d.value.at !== undefined) from = { ...from, at: d.value.at };
						if (d.value.node) {
							from = { ...from, behind: d.value.node.id };
							yield d;
						}
						ended ||= Boolean(d.value.end);
					}
				}
				if (!ended) finish(undefined);
			} catch (e) {
				if (ended) return;
				if (alive) attempts.renew();
				await this.pause(attempts, e);
			}
		}
	}

	/** Yields server-sent events, and goes on after the last of them when the connection is cut: `next` returns the query that says so. */
	async *events(path: string, next: () => Record<string, string>, signal?: AbortSignal): AsyncGenerator<unknown> {
		const attempts = this.attempts();
		for (;;) {
			let alive = false;
			try {
				const answer = await this.stream("GET", path, { query: next(), ...(signal ? { signal } : {}) });
				if (!answer.header("Content-Type").startsWith("text/event-stream")) throw new LostError("the answer has no events");
				alive = true;
				let kind = "";
				let data = "";
				for await (const line of lines(answer.pieces())) {
					if (line.startsWith("event:")) kind = line.slice(6).trim();
					else if (line.startsWith("data:")) data = line.slice(5);
					else if (line === "" && data !== "") {
						const value = parsed(data);
						if (kind === "problem") throw ofProblem(value as Problem);
						kind = data = "";
						yield value;
					}
				}
				throw new LostError("the watch was cut off");
			} catch (e) {
				signal?.throwIfAborted();
				if (alive) attempts.renew();
				await this.pause(attempts, e, signal);
			}
		}
	}
}

async function* lines(pieces: AsyncIterable<Buffer>): AsyncGenerator<string> {
	let rest: Buffer = Buffer.alloc(0);
	for await (const piece of pieces) {
		rest = rest.length === 0 ? piece : Buffer.concat([rest, piece]);
		for (let end = rest.indexOf(10); end >= 0; end = rest.indexOf(10)) {
			yield rest.toString("utf8", 0, end).replace(/\r$/, "");
			rest = rest.subarray(end + 1);
		}
	}
}
