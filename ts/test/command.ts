import { execFileSync } from "node:child_process";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

/** Builds the package, for the agent that is killed, and the command, unless TURNSTONE_COMMAND has it. */
export default function setup(): void {
	const run = (command: string, ...args: string[]) => execFileSync(command, args, { cwd: join(import.meta.dirname, ".."), stdio: "inherit" });
	run("npx", "tsc", "-p", "tsconfig.build.json");
	if (process.env.TURNSTONE_COMMAND) return;
	const out = join(mkdtempSync(join(tmpdir(), "turnstone-")), "turnstone");
	run("go", "build", "-C", "..", "-o", out, "./cmd/turnstone");
	process.env.TURNSTONE_COMMAND = out;
}
