// Starts `turnstone serve` on a directory.

import { spawn } from "node:child_process";
import { accessSync, closeSync, constants, fstatSync, mkdtempSync, openSync, readSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { delimiter, join, resolve } from "node:path";
import type { Readable } from "node:stream";
import { TurnstoneError, unavailable } from "./errors.ts";

export const commandVariable = "TURNSTONE_COMMAND";
const socketName = "turnstone.http";
/** The bytes of a path in the address of a socket. */
export const maxSocket = 103;
const startMilliseconds = 60_000;

/** Returns the path of the command that the package for this machine has, if it is installed. */
export function ownCommand(): string | undefined {
	const file = process.platform === "win32" ? "turnstone.exe" : "turnstone";
	try {
		return createRequire(import.meta.url).resolve(`turnstonedb-${process.platform}-${process.arch}/bin/${file}`);
	} catch {
		return undefined;
	}
}

/** Returns the path of the command: that of the environment variable, of the package for this machine, or on the path. */
export function command(): string {
	const named = process.env[commandVariable] || ownCommand();
	if (named) return named;
	for (const path of (process.env.PATH ?? "").split(delimiter).map((d) => join(d, "turnstone"))) {
		try {
			accessSync(path, constants.X_OK);
			return path;
		} catch {
			// It is not there.
		}
	}
	throw new TurnstoneError(
		`there is no command turnstone: install a package for this machine, or set ${commandVariable} to the command that \`go build ./cmd/turnstone\` makes`,
	);
}

/** Splits a store into its scheme and its directory. */
function split(store: string): [scheme: string, directory: string] {
	const scheme = /^(badger|pebble):/.exec(store)?.[0] ?? "";
	return [scheme, /^(postgres|postgresql|mem):/.test(store) ? "" : store.slice(scheme.length)];
}

/** Returns a store that is the same from any working directory. */
export function absolute(store: string): string {
	const [scheme, directory] = split(store);
	const unknown = /^[a-z][a-z0-9+.-]+:/i.exec(store)?.[0]; // One letter is a drive.
	if (unknown && unknown !== scheme && directory)
		throw new TypeError(`${JSON.stringify(store)}: there is no scheme ${unknown} want DIR, pebble:DIR or badger:DIR`);
	if (!directory) throw new TypeError(`${JSON.stringify(store)} has no directory: start \`turnstone serve\`, and connect with its address`);
	return scheme + resolve(directory);
}

/** Returns where a server of a store is that `start` has started. */
export function address(store: string): string {
	const path = join(split(store)[1], socketName);
	if (Buffer.byteLength(path) > maxSocket && process.platform !== "linux") {
		throw new TypeError(
			`${path}: the path of a socket has ${maxSocket} bytes at most. Start \`turnstone serve --listen unix:PATH\`, and connect with that`,
		);
	}
	return `unix:${path}`;
}

/** The ids of the processes that were started. */
export const children: number[] = [];

/** Starts a server, unless there is one. It ends when nobody has asked it anything for so many seconds. Returns whether it was started. */
export async function start(store: string, idleSeconds: number): Promise<boolean> {
	if (!(idleSeconds > 0 && idleSeconds < 1e9)) throw new RangeError(`idle is ${idleSeconds}, want seconds, more than 0`);
	// The server outlives this process, so what it warns of goes to a file without a name.
	const directory = mkdtempSync(join(tmpdir(), "turnstone-"));
	const warnings = openSync(join(directory, "warnings"), "w+");
	rmSync(directory, { recursive: true });
	try {
		const path = command();
		const child = spawn(path, ["serve", "--store", store, "--idle", `${Math.max(idleSeconds, 0.001).toFixed(3)}s`], {
			detached: true,
			stdio: ["ignore", "pipe", warnings],
		});
		child.unref();
		const said = child.stdout as Readable;
		const serves = await new Promise<boolean>((done, fail) => {
			const patience = setTimeout(() => {
				child.kill("SIGKILL");
				fail(unavailable(`${path} does not begin to serve ${store} within ${startMilliseconds / 1000} seconds`));
			}, startMilliseconds);
			said.on("data", (text: Buffer) => text.includes("\n") && done(true));
			child.on("error", (e) => fail(new TurnstoneError(`${path}: ${e.message}; ${commandVariable} says where the command is`, {}, e)));
			child.on("exit", () => done(false));
			child.on("close", () => clearTimeout(patience));
			said.on("close", () => clearTimeout(patience));
		}).finally(() => said.destroy());
		if (serves) {
			children.push(child.pid as number);
			return true;
		}
		const text = Buffer.alloc(fstatSync(warnings).size);
		readSync(warnings, text, 0, text.length, 0);
		if (!text.includes("another process serves on"))
			throw unavailable(text.toString().trim() || `${path} has ended, and said nothing: is it the command of Turnstone?`);
		return false;
	} finally {
		closeSync(warnings);
	}
}
