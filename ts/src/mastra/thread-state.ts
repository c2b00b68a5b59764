import {
	type PruneOptions,
	type PruneResult,
	type RetentionTablesDescriptor,
	type TableRetentionPolicy,
	ThreadStateStorage,
} from "@mastra/core/storage";
import { newId, recorded } from "../adapter.ts";
import type { Client } from "../client.ts";
import { each, keyOf, onto, pruned, type Standing, saidOf, standing, sum, untilCommitted } from "./stored.ts";
import { group, ofThread, sessionOf } from "./thread.ts";

const statePart = "state";

/** The values of a thread by their types, and when each was set. */
type Values = Record<string, { value: unknown; updatedAt: string }>;

/** State of threads, such as task lists: a part of the checkpoint of the thread's session. It leaves with the thread. */
export class TurnstoneThreadState extends ThreadStateStorage {
	readonly #client: Client;

	static override readonly retentionTables: RetentionTablesDescriptor = {
		threadState: { table: "mastra_thread_state", column: "updatedAt", indexed: false },
	};

	constructor(client: Client) {
		super();
		this.#client = client;
	}

	async init(): Promise<void> {}

	async getState<T = unknown>({ threadId, type }: { threadId: string; type: string }): Promise<T | undefined> {
		return (await this.#values(threadId)).values.get(type)?.value as T | undefined;
	}

	async setState<T = unknown>({ threadId, type, value }: { threadId: string; type: string; value: T }): Promise<void> {
		await this.#change(threadId, (values) => values.set(type, { value, updatedAt: new Date().toISOString() }) !== undefined);
	}

	async deleteState({ threadId, type }: { threadId: string; type: string }): Promise<void> {
		await this.#change(threadId, (values) => values.delete(type));
	}

	async dangerouslyClearAll(): Promise<void> {
		await each(await this.#threads(), (thread) =>
			this.#change(thread, (values) => {
				values.clear();
				return true;
			}),
		);
	}

	/** Returns the threads that have values. */
	async #threads(): Promise<string[]> {
		return saidOf<{ thread: string }>(await recorded(this.#client, keyOf("state")), ofThread).map((s) => s.thread);
	}

	async #values(threadId: string): Promise<Pick<Standing, "incarnation" | "revision"> & { values: Map<string, Values[string]> }> {
		const { incarnation, revision, parts } = await standing(this.#client, sessionOf(threadId), [statePart]);
		return { incarnation, revision, values: new Map(Object.entries((parts.get(statePart) as Values | undefined) ?? {})) };
	}

	/** Commits what f changes of the values of a thread, unless somebody else has committed meanwhile. Nothing is committed if f returns false: then so does this. */
	async #change(threadId: string, f: (values: Map<string, Values[string]>) => boolean): Promise<boolean> {
		return untilCommitted(async () => {
			const { incarnation, revision, values } = await this.#values(threadId);
			if (!f(values)) return false;
			const key = keyOf("state", threadId);
			const to = onto(this.#client, incarnation, { id: sessionOf(threadId), group });
			const now =
				values.size > 0
					? {
							checkpoint: { [statePart]: JSON.stringify(Object.fromEntries(values)) },
							records: [{ key, action: "set" as const, value: JSON.stringify({ thread: threadId }) }],
						}
					: { drop: [statePart], records: [{ key, action: "delete" as const }] };
			await this.#client.commitAll([{ ...to, expected: revision, turn: newId(), ...now }]);
			return true;
		});
	}

	/** Deletes values that were set longer ago than the policy says. */
	override async prune(policies: Record<string, TableRetentionPolicy>, options?: PruneOptions): Promise<PruneResult[]> {
		const older = async (_: string, before: number) => {
			const found = await each(await this.#threads(), async (threadId) => {
				const { values } = await this.#values(threadId);
				return [...values].filter(([, v]) => Date.parse(v.updatedAt) < before).map(([type]) => ({ threadId, type }));
			});
			return found.flat();
		};
		return pruned("threadState", TurnstoneThreadState.retentionTables, [policies, options], older, async (_, found, before) => {
			const removed = await each(found, async ({ threadId, type }): Promise<number> => {
				const isOld = (v?: Values[string]) => v !== undefined && Date.parse(v.updatedAt) < before;
				return (await this.#change(threadId, (values) => isOld(values.get(type)) && values.delete(type))) ? 1 : 0;
			});
			return sum(removed);
		});
	}
}
