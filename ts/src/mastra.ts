/**
 * A storage for Mastra.
 *
 *     import { Mastra } from "@mastra/core";
 *     import { Client } from "turnstonedb";
 *     import { TurnstoneStore } from "turnstonedb/mastra";
 *
 *     const client = await Client.open("./data");
 *     const mastra = new Mastra({ storage: new TurnstoneStore({ client }), agents: { … }, workflows: { … } });
 *
 * A thread is the session `mastra/THREAD`, with its messages as nodes and its state as parts of the checkpoint. A run of a workflow is the session
 * `mastra-workflows/WORKFLOW/RUN`, whose snapshot is stored as the difference that each step makes. Mastra's other domains need another store:
 * `new MastraCompositeStore({ id: "all", default: otherStore, domains: new TurnstoneStore({ client }).stores })`.
 *
 * @module
 */

import { MastraCompositeStore, type RetentionConfig } from "@mastra/core/storage";
import type { Client } from "./client.ts";
import { TurnstoneMemory } from "./mastra/memory.ts";
import { TurnstoneScores } from "./mastra/scores.ts";
import { TurnstoneThreadState } from "./mastra/thread-state.ts";
import { TurnstoneWorkflows } from "./mastra/workflows.ts";

/** Memory, workflows, scores and thread state of Mastra in a store. Any number of processes may share it. */
export class TurnstoneStore extends MastraCompositeStore {
	override stores: {
		memory: TurnstoneMemory;
		scores: TurnstoneScores;
		threadState: TurnstoneThreadState;
		workflows: TurnstoneWorkflows;
	};

	/** The client stays open when Mastra shuts down: its owner closes it. `retention` is what `prune` applies. */
	constructor({ client, id = "turnstone", retention }: { client: Client; id?: string; retention?: RetentionConfig }) {
		super({ id, name: "TurnstoneStore", ...(retention && { retention }) });
		this.stores = {
			memory: new TurnstoneMemory(client),
			scores: new TurnstoneScores(client),
			threadState: new TurnstoneThreadState(client),
			workflows: new TurnstoneWorkflows(client),
		};
	}
}
