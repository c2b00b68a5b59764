import { spawn } from "node:child_process";
import { createServer, type IncomingHttpHeaders, request } from "node:http";
import type { AddressInfo } from "node:net";
import { join } from "node:path";
import { onTestFinished } from "vitest";
import { Client, NotFoundError } from "../src/index.ts";
import { newStore, open } from "./helpers.ts";

for (const shape of ["cluster", "threads"]) {
	test(`a host of ${shape} reads and writes what is its own`, { timeout: 60_000 }, async () => {
		const child = spawn(process.execPath, [join(import.meta.dirname, "host.mjs"), shape, newStore()], { stdio: ["ignore", "pipe", "inherit"] });
		let said = "";
		child.stdout.on("data", (piece) => {
			said += piece;
		});
		const code = await new Promise((done) => child.on("close", done));
		expect([code, said]).toEqual([0, "done\n"]);
	});
}

test("the answer to another request is no answer", async () => {
	const store = newStore();
	await open(store, { idle: 20 });
	let last: { status: number; headers: IncomingHttpHeaders; body: Buffer } | undefined;
	let count = 0;
	const proxy = createServer((q, a) => {
		const up = request({ socketPath: join(store, "turnstone.http"), method: q.method, path: q.url, headers: q.headers }, async (answer) => {
			const pieces: Buffer[] = [];
			for await (const piece of answer) pieces.push(piece);
			const own = { status: answer.statusCode ?? 0, headers: answer.headers, body: Buffer.concat(pieces) };
			const { status, headers, body } = ++count % 2 === 0 && last ? last : own; // Every second request gets the answer to the one before.
			last = own;
			const { "transfer-encoding": _, ...rest } = headers;
			a.writeHead(status, { ...rest, "content-length": body.length });
			a.end(body);
		});
		q.pipe(up);
	});
	await new Promise<void>((done) => proxy.listen(0, "127.0.0.1", done));
	const db = new Client(`http://127.0.0.1:${(proxy.address() as AddressInfo).port}`);
	onTestFinished(() => {
		db.close();
		proxy.closeAllConnections();
		proxy.close();
	});
	const sessions = [];
	for (let n = 0; n < 3; n++) sessions.push((await db.create(`s${n}`)).session);
	for (let revision = 1; revision < 8; revision++) {
		for (const [n, s] of sessions.entries()) {
			expect((await s.commit({ nodes: [{ kind: "user", payload: `of ${n}` }], expected: revision - 1 })).revision).toBe(revision);
			expect((await s.info()).id).toBe(`s${n}`);
			expect((await s.load()).nodes.map((x) => x.payload.toString())).toEqual(Array(revision).fill(`of ${n}`));
		}
	}
	await expect(db.session("nobody")).rejects.toThrow(NotFoundError);
});
