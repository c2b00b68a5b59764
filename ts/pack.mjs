// Makes the npm packages of a release, as directories that `npm pack` takes: see .ci/dist.
//
//   node pack.mjs OUT OS ARCH COMMAND  the package that has the command for one system, as Node names systems
//   node pack.mjs OUT                  the package turnstonedb, which depends on those that are in OUT

import { chmodSync, cpSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { basename, join } from "node:path";

const [out, os, arch, command] = process.argv.slice(2);
const main = JSON.parse(readFileSync(join(import.meta.dirname, "package.json"), "utf8"));

/** Begins a package, and returns its directory. */
function begin(description) {
	const dir = join(out, description.name);
	mkdirSync(dir, { recursive: true });
	writeFileSync(join(dir, "package.json"), JSON.stringify(description, null, "\t"));
	return dir;
}

if (command) {
	const dir = begin({
		name: `turnstonedb-${os}-${arch}`,
		version: main.version,
		description: `The command turnstone for ${os} on ${arch}, which turnstonedb uses`,
		os: [os],
		cpu: [arch],
		files: ["bin"],
	});
	mkdirSync(join(dir, "bin"), { recursive: true });
	cpSync(command, join(dir, "bin", basename(command)));
	chmodSync(join(dir, "bin", basename(command)), 0o755);
} else {
	const { scripts, devDependencies, ...rest } = main;
	rest.optionalDependencies = Object.fromEntries(readdirSync(out).map((name) => [name, main.version]));
	const dir = begin(rest);
	cpSync(join(import.meta.dirname, "dist"), join(dir, "dist"), { recursive: true });
	cpSync(join(import.meta.dirname, "README.md"), join(dir, "README.md"));
}
