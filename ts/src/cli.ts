#!/usr/bin/env node
// Runs the command of the package for this machine.

import { spawn } from "node:child_process";
import { ownCommand } from "./server.ts";

const path = ownCommand();
if (!path) {
	console.error(`turnstone: no package turnstonedb-${process.platform}-${process.arch} is installed`);
	process.exit(1);
}
const child = spawn(path, process.argv.slice(2), { stdio: "inherit" });
const signals = ["SIGINT", "SIGTERM", "SIGHUP"] as const;
// The command says when it ends. A terminal sends SIGINT to both, and a second one would cut the command off.
for (const signal of signals) process.on(signal, () => signal !== "SIGINT" && child.kill(signal));
child.on("error", (e) => {
	throw e;
});
child.on("exit", (status, signal) => {
	for (const s of signals) process.removeAllListeners(s);
	if (signal) process.kill(process.pid, signal);
	process.exitCode = status ?? 1;
});
