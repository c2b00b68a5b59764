// A host of a shape, `node host.mjs SHAPE STORE`: workers of a cluster, or threads, that share a store, and each of which reads and writes what is its own. It
// runs the package as it is built.

import assert from "node:assert/strict";
import cluster from "node:cluster";
import { isMainThread, Worker, workerData } from "node:worker_threads";
import { Client } from "../dist/index.js";

const tenants = 4;
const [shape, store] = isMainThread ? process.argv.slice(2) : [workerData.shape, workerData.store];
const db = await Client.open(store, { idle: 10 });
const own = (n) => `tenant ${n}`;

async function work(n) {
	const s = await db.session(own(n));
	const once = async () => {
		await s.commit({ nodes: [{ kind: "user", payload: own(n) }], expected: "any" });
		for (const node of (await s.load()).nodes) assert.equal(node.payload.toString(), own(n));
		assert.equal((await s.info()).id, own(n));
	};
	for (let i = 0; i < 3; i++) await Promise.all(Array.from({ length: 8 }, once));
}

async function main() {
	for (let n = 0; n < tenants; n++) await db.create(own(n)); // so that there are connections
	const ended = (w) => new Promise((done) => w.once("exit", done));
	const start = (n) =>
		shape === "cluster" ? cluster.fork({ TENANT: String(n) }) : new Worker(new URL(import.meta.url), { workerData: { shape, store, tenant: n } });
	const workers = [1, 2, 3].map(start).map(ended);
	await work(0);
	for (const code of await Promise.all(workers)) assert.equal(code, 0);
	for (let n = 0; n < tenants; n++) assert.equal((await (await db.session(own(n))).load()).nodes.length, 24);
	console.log("done"); // The client is not closed: the process ends all the same.
}

if (!isMainThread) await work(workerData.tenant);
else if (cluster.isWorker) {
	await work(Number(process.env.TENANT));
	process.exit(0);
} else await main();
