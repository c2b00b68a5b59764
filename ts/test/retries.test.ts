// What comes of calls that meet faults: the table that the clients in Go, Python and TypeScript all keep.

import { execFileSync, spawn } from "node:child_process";
import { mkdtempSync, readFileSync } from "node:fs";
import { request } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { onTestFinished } from "vitest";
import { Client, TurnstoneError } from "../src/index.ts";
import { removeStore } from "./helpers.ts";

interface Row {
	call: string;
	faults: string[];
	outcome: string;
}

const root = new URL("../..", import.meta.url);
const table: Row[] = readFileSync(new URL("server/retries.jsonl", root), "utf8")
	.trim()
	.split("\n")
	.map((line) => JSON.parse(line));

/** Starts a server that fails as it is told to, and returns the path of its socket. */
async function faulty(): Promise<string> {
	const directory = mkdtempSync(join(tmpdir(), "ts-"));
	execFileSync("go", ["build", "-C", root.pathname, "-o", join(directory, "faulty"), "./internal/faulty/serve"]);
	const child = spawn(join(directory, "faulty"), [join(directory, "s")], { stdio: ["pipe", "pipe", "inherit"] });
	onTestFinished(() => {
		child.kill();
		return removeStore(directory);
	});
	await new Promise((ready) => child.stdout.once("data", ready));
	return join(directory, "s");
}

/** Says what happens to the requests that follow. */
function plan(socketPath: string, faults: string[]): Promise<void> {
	return new Promise((done, failed) => {
		const q = request({ socketPath, method: "POST", path: "/faults" }, (a) => a.resume().on("end", done));
		q.on("error", failed).end(JSON.stringify(faults));
	});
}

test("calls that meet faults end as the table says", async () => {
	const path = await faulty();
	const db = new Client(`unix:${path}`);
	onTestFinished(() => db.close());
	for (const [i, row] of table.entries()) {
		const { session: s } = await db.create(`s${i}`);
		await plan(path, row.faults);
		const calls: { [name: string]: () => Promise<unknown> } = {
			"commit with a turn id": () => s.commit({ expected: "any", turn: "t" }),
			"commit without a turn id": () => s.commit({ expected: "any" }),
			"change of records": () => s.changeRecords([{ key: "k", action: "set", value: "v", expect: "none" }]),
			read: () => s.load(),
		};
		let outcome = "made once";
		try {
			await calls[row.call]?.();
		} catch (e) {
			if (!(e instanceof TurnstoneError) || !e.outcomeUnknown) throw new Error(JSON.stringify(row), { cause: e });
			outcome = "unknown outcome";
		}
		expect({ ...row, outcome }).toEqual(row);
		await plan(path, []);
		expect((await s.info()).revision).toBe(row.call.startsWith("commit") ? 1 : 0);
		if (row.call === "change of records" && outcome === "made once") expect((await s.record("k"))?.value.toString()).toBe("v");
	}
}, 60_000);
