import { createServer, type IncomingMessage, request, type ServerResponse } from "node:http";
import { join } from "node:path";
import { onTestFinished } from "vitest";
import { children } from "../src/server.ts";
import { newStore, open } from "./helpers.ts";

/**
 * What becomes of a request: it is not forwarded, or so many bytes of its body are; its answer is cut off after so many bytes; or it is answered by f.
 * Otherwise it passes.
 */
export type Cut = "lost" | { sent: number } | { after: number } | ((answer: ServerResponse) => void) | undefined;

/** A proxy that loses requests and answers, before the server of a store. */
export class Cutter {
	/** Decides of each request. */
	plan: (request: IncomingMessage) => Cut = () => undefined;
	/** The paths of the requests that have come. */
	readonly asked: string[] = [];
	readonly store: string;
	/** Where it listens. */
	readonly address: string;
	readonly #upstream: string;
	#dropped: () => void = () => {};

	private constructor(store: string) {
		this.store = store;
		this.#upstream = join(store, "turnstone.http");
		this.address = `unix:${store}.cut`;
	}

	static async start(): Promise<Cutter> {
		const store = newStore();
		await open(store, { idle: 20 }); // which starts the server
		const cutter = new Cutter(store);
		const server = createServer((q, a) => cutter.#forward(q, a));
		await new Promise<void>((done) => server.listen(`${store}.cut`, done));
		onTestFinished(() => {
			server.closeAllConnections();
			server.close();
		});
		return cutter;
	}

	/** Kills the server, and starts another one. */
	async restart(): Promise<void> {
		process.kill(children.at(-1) as number, "SIGKILL");
		await open(this.store, { idle: 20 });
	}

	/**
	 * Makes a call, whose first request of a path is answered by the server, but not to the client, or does not get there: the server is killed, and
	 * another one gets what follows.
	 */
	async beforeRestart<T>(path: string, call: () => Promise<T>, cut: Cut = { after: 0 }): Promise<T> {
		let restarted: Promise<void> | undefined;
		let up = false;
		this.plan = (q) => {
			if (up || !q.url?.startsWith(path)) return undefined;
			if (restarted) return "lost";
			if (cut === "lost") this.#dropped();
			return cut;
		};
		this.#dropped = () => {
			restarted ??= this.restart().then(() => {
				up = true;
			});
		};
		try {
			return await call();
		} finally {
			await restarted;
			this.plan = () => undefined;
			this.#dropped = () => {};
		}
	}

	#forward(q: IncomingMessage, a: ServerResponse): void {
		const cut = this.plan(q);
		this.asked.push(q.url ?? "");
		if (typeof cut === "function") {
			cut(a);
			return;
		}
		if (cut === "lost") {
			q.socket.destroy();
			return;
		}
		if (cut && "sent" in cut) {
			let left = cut.sent;
			const up = request({ socketPath: this.#upstream, method: q.method, path: q.url, headers: q.headers });
			up.on("error", () => {});
			// The server has what was sent when the connection ends.
			const end = () =>
				setTimeout(() => {
					up.destroy();
					q.socket.destroy();
				}, 50);
			q.on("data", (piece: Buffer) => {
				if (left <= 0) return;
				up.write(piece.subarray(0, left));
				left -= piece.length;
				if (left <= 0) end();
			});
			q.on("end", end);
			return;
		}
		const up = request({ socketPath: this.#upstream, method: q.method, path: q.url, headers: q.headers }, async (answer) => {
			if (cut === undefined) {
				a.writeHead(answer.statusCode ?? 0, answer.headers);
				answer.pipe(a);
				answer.on("error", () => a.destroy());
				return;
			}
			const pieces: Buffer[] = [];
			for await (const piece of answer) {
				pieces.push(piece);
				if (Buffer.concat(pieces).length > cut.after && answer.headers["content-type"] === "text/event-stream") break;
			}
			if (cut.after > 0) {
				a.writeHead(answer.statusCode ?? 0, { ...answer.headers, connection: "close" });
				a.write(Buffer.concat(pieces).subarray(0, cut.after));
				await new Promise((done) => setTimeout(done, 5));
			}
			q.socket.destroy();
			this.#dropped();
		});
		up.on("error", () => q.socket.destroy());
		q.pipe(up);
	}
}

/** Answers with a problem. */
export function problem(kind: string, status: number) {
	return (a: ServerResponse) => {
		a.writeHead(status, { "content-type": "application/problem+json", "turnstone-call": a.req.headers["turnstone-call"] });
		a.end(JSON.stringify({ type: `#${kind}`, detail: kind, matches: [kind] }));
	};
}
