import { spawn } from "node:child_process";
import { mkdtempSync } from "node:fs";
import { rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { onTestFinished } from "vitest";
import { Client, type OpenOptions } from "../src/index.ts";

/** Removes a directory with a store. A server may write to it until it has ended: then this is tried again, for some 20 seconds at most. */
export function removeStore(directory: string): Promise<void> {
	return rm(directory, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
}

/** Returns the path of a store for one test: a short one, because that of a socket has 100 bytes at most. */
export function newStore(): string {
	const directory = mkdtempSync(join(tmpdir(), "ts-"));
	onTestFinished(() => removeStore(directory));
	return join(directory, "s");
}

/** Opens a store for one test. */
export async function open(store = newStore(), options: OpenOptions = { idle: 2 }): Promise<Client> {
	const db = await Client.open(store, options);
	onTestFinished(() => db.close());
	return db;
}

/** Returns what an iterable yields. */
export async function all<T>(items: AsyncIterable<T>): Promise<T[]> {
	const out: T[] = [];
	for await (const i of items) out.push(i);
	return out;
}

/** Runs a module of this directory in another process, and returns its exit code. */
export function run(script: string, ...args: string[]): Promise<number | null> {
	const child = spawn(process.execPath, ["--input-type=module", "-e", script, ...args], {
		cwd: import.meta.dirname,
		stdio: ["ignore", "inherit", "inherit"],
	});
	return new Promise((done) => child.on("exit", done));
}
