#!/usr/bin/env node
// The command turnstonedb-migrate: see migrate.ts.

import { existsSync, mkdtempSync, readdirSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { parseArgs } from "node:util";
import type { BaseCheckpointSaver } from "@langchain/langgraph-checkpoint";
import { Client } from "./client.ts";
import { langgraph } from "./migrate.ts";

const usage = `turnstonedb-migrate langgraph sqlite:FILE|postgresql://…
    --store DIR|https://…|unix:PATH [--token T] [--namespace N] [--dry-run]

Brings the threads of LangGraph.js' own savers to a store. It returns 1 if something is there already and differs.`;

/** Opens the saver that has its tables in a database, to be read. */
async function opened(url: string): Promise<{ saver: BaseCheckpointSaver; close: () => unknown }> {
	if (/^postgres(ql)?:/.test(url)) {
		const { PostgresSaver } = await import("@langchain/langgraph-checkpoint-postgres");
		const saver = PostgresSaver.fromConnString(url);
		return { saver, close: () => saver.end() };
	}
	const { SqliteSaver } = await import("@langchain/langgraph-checkpoint-sqlite");
	const Database = createRequire(import.meta.resolve("@langchain/langgraph-checkpoint-sqlite"))("better-sqlite3");
	const db = new Database(url.replace(/^sqlite:(\/\/\/)?/, ""), { readonly: true, fileMustExist: true });
	const saver = Object.assign(new SqliteSaver(db), { isSetup: true }); // It would make tables.
	return { saver, close: () => db.close() };
}

async function main(): Promise<number> {
	const text = { type: "string" } as const;
	const flag = { type: "boolean" } as const;
	const { values, positionals } = parseArgs({
		allowPositionals: true,
		options: { store: text, token: text, namespace: text, "dry-run": flag, help: { ...flag, short: "h" } },
	});
	const { store, token, namespace, "dry-run": dryRun = false, help } = values;
	const [framework, url, ...more] = positionals;
	if (help || !store || framework !== "langgraph" || !url || more.length > 0) {
		console.error(usage);
		return help ? 0 : 2;
	}
	const options = { ...(token ? { token } : {}), ...(namespace ? { namespace } : {}) };
	const served = /^(https?:\/\/|unix:)/.test(store);
	// A dry run makes no store: it looks at an empty one if there is none yet.
	const empty = dryRun && !served && !(existsSync(store) && readdirSync(store).length > 0) ? mkdtempSync(join(tmpdir(), "t")) : undefined;
	const client = served ? new Client(store, options) : await Client.open(empty ? join(empty, "s") : store, options);
	try {
		const { saver, close } = await opened(url);
		try {
			const { found, unchanged, brought, different } = await langgraph(saver, client, { dryRun });
			console.log(`${found} found, ${unchanged} unchanged, ${brought} checkpoints ${dryRun ? "to bring" : "brought"}`);
			for (const d of different) console.error(d);
			return different.length > 0 ? 1 : 0;
		} finally {
			await close();
		}
	} finally {
		client.close();
		if (empty) rmSync(empty, { recursive: true, force: true, maxRetries: 20 });
	}
}

process.exitCode = await main().catch((e) => {
	console.error(e instanceof TypeError ? e.message : e); // parseArgs names an option that there is not.
	return 2;
});
