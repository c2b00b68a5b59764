// The suite with a saver that is broken in the way that MUTANT names: suite.test.ts sees that it fails.

import type { RunnableConfig } from "@langchain/core/runnables";
import type { ChannelVersions, Checkpoint, CheckpointListOptions, CheckpointMetadata, PendingWrite } from "@langchain/langgraph-checkpoint";
import { TurnstoneSaver } from "../src/langgraph.ts";
import { suite } from "./suite.ts";

class LosesWrites extends TurnstoneSaver {
	override putWrites(config: RunnableConfig, writes: PendingWrite[], task: string, path?: string) {
		return super.putWrites(config, writes.slice(1), task, path);
	}
}

class ListsInNoOrder extends TurnstoneSaver {
	override async *list(config: RunnableConfig, { limit, ...options }: CheckpointListOptions = {}) {
		const found = [];
		for await (const tuple of super.list(config, options)) found.unshift(tuple);
		yield* found.slice(0, limit);
	}
}

class ForgetsTheParent extends TurnstoneSaver {
	override put(config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, versions: ChannelVersions) {
		const { checkpoint_id: _, ...configurable } = config.configurable ?? {};
		return super.put({ configurable }, checkpoint, metadata, versions);
	}
}

suite("badger", { LosesWrites, ListsInNoOrder, ForgetsTheParent }[process.env.MUTANT as string]);
