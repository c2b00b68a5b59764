import { randomUUID } from "node:crypto";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { deltaChannelHistoryTests, validate } from "@langchain/langgraph-checkpoint-validation";
import { Client } from "../src/index.ts";
import { TurnstoneSaver } from "../src/langgraph.ts";
import { removeStore } from "./helpers.ts";
import { serve, startPostgres } from "./servers.ts";

/** Runs LangGraph's validation suite on an engine, also the part of it that is optional. Each saver that it asks for has a namespace of its own. */
export function suite(engine: "badger" | "pebble" | "postgres", saver: new (client: Client) => TurnstoneSaver = TurnstoneSaver): void {
	const clients = new Map<TurnstoneSaver, Client>();
	let directory: string;
	let open: (namespace: string) => Promise<Client>;
	const stops: (() => unknown)[] = [];
	const initializer = {
		checkpointerName: `TurnstoneSaver on ${engine}`,
		async beforeAll() {
			directory = mkdtempSync(join(tmpdir(), "ts-"));
			stops.push(() => removeStore(directory));
			if (engine !== "postgres") {
				open = (namespace) => Client.open(`${engine}:${directory}/s`, { namespace, idle: 2 });
				return;
			}
			const database = startPostgres();
			stops.unshift(database.stop);
			const server = await serve("--store", database.url, "--listen", `unix:${directory}/s`);
			stops.unshift(server.stop);
			open = async (namespace) => new Client(`unix:${directory}/s`, { namespace });
		},
		beforeAllTimeout: 60_000,
		async afterAll() {
			for (const stop of stops) await stop();
		},
		async createCheckpointer() {
			const client = await open(randomUUID());
			const s = new saver(client);
			clients.set(s, client);
			return s;
		},
		async destroyCheckpointer(s: TurnstoneSaver) {
			clients.get(s)?.close();
		},
	};
	describe(engine, () => {
		validate(initializer);
		deltaChannelHistoryTests(initializer);
	});
}
