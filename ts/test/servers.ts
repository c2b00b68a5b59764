import { execFileSync, spawn } from "node:child_process";
import { chownSync, existsSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { delimiter, join } from "node:path";

/** Returns the path of a command of PostgreSQL, or undefined. */
function find(name: string): string | undefined {
	const versions = "/usr/lib/postgresql";
	const installed = existsSync(versions) ? readdirSync(versions).sort().reverse() : [];
	const directories = [...(process.env.PATH ?? "").split(delimiter), ...installed.map((v) => join(versions, v, "bin"))];
	return directories.map((d) => join(d, name)).find(existsSync);
}

/** Whether PostgreSQL is installed. A test that needs it is skipped if not, and fails if TURNSTONE_TEST_REQUIRE is "postgres". */
export const postgresIsInstalled = Boolean(find("initdb") && find("pg_ctl")) || process.env.TURNSTONE_TEST_REQUIRE === "postgres";

/** Starts a private PostgreSQL server. */
export function startPostgres(): { url: string; stop: () => void } {
	const [initdb, control] = [find("initdb"), find("pg_ctl")];
	if (!initdb || !control) throw new Error("PostgreSQL is not installed");
	const directory = mkdtempSync(join(tmpdir(), "pg-"));
	let user = {};
	if (process.getuid?.() === 0) {
		// Its commands refuse to run as root.
		const id = (flag: string) => Number(execFileSync("id", [flag, "postgres"]).toString());
		user = { uid: id("-u"), gid: id("-g") };
		chownSync(directory, id("-u"), id("-g"));
	}
	const run = (command: string, ...args: string[]) => execFileSync(command, args, { cwd: directory, stdio: "ignore", ...user });
	const data = join(directory, "data");
	run(initdb, "-D", data, "-U", "test", "-A", "trust", "-N");
	run(control, "-D", data, "-w", "-o", `-c listen_addresses= -c fsync=off -k ${directory}`, "start");
	const stop = () => {
		run(control, "-D", data, "-m", "immediate", "stop");
		rmSync(directory, { recursive: true, force: true, maxRetries: 20 });
	};
	return { url: `postgres://test@/postgres?host=${directory}`, stop };
}

/** Starts `turnstone serve`, and returns when it listens. */
export async function serve(...args: string[]): Promise<{ listens: string; stop: () => Promise<void> }> {
	const server = spawn(process.env.TURNSTONE_COMMAND as string, ["serve", ...args], { stdio: ["ignore", "pipe", "inherit"] });
	const ended = new Promise<void>((done) => server.once("exit", () => done()));
	const listens = await new Promise<string>((done, fail) => {
		server.stdout.once("data", (text: Buffer) => done(text.toString()));
		server.once("exit", () => fail(new Error("the server has ended")));
	});
	return {
		listens,
		stop: () => {
			server.kill("SIGTERM");
			return ended;
		},
	};
}
