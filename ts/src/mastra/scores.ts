import { randomUUID } from "node:crypto";
import type { ListScoresResponse, SaveScorePayload, ScoreRowData } from "@mastra/core/evals";
import {
	calculatePagination,
	type ListScoresByEntityIdInput,
	type ListScoresByRunIdInput,
	type ListScoresByScorerIdInput,
	type ListScoresBySpanInput,
	normalizePerPage,
	type PruneOptions,
	type PruneResult,
	type RetentionTablesDescriptor,
	ScoresStorage,
	type StoragePagination,
	type TableRetentionPolicy,
} from "@mastra/core/storage";
import { join, listed, newId, recorded, short } from "../adapter.ts";
import type { Client, SessionCommit } from "../client.ts";
import type { RecordChange } from "../types.ts";
import { each, grouped, keyOf, nodesOf, onto, pruned, remove, saidOf, standing, untilCommitted } from "./stored.ts";

const group = "mastra-scores";
const sessionOf = (runId: string) => short(join(group, runId));
const ofEntry = (e: { runId: string }) => sessionOf(e.runId);
const scoreKey = (id: string) => keyOf("score", id);

/** What the records of a score say: by what it is listed, and the key of the node that has it. */
type Entry = Pick<
	ScoreRowData,
	"id" | "runId" | "scorerId" | "entityId" | "entityType" | "source" | "organizationId" | "projectId" | "traceId" | "spanId"
> & {
	node: string;
	createdAt: string;
};

/** Scores. Each is a node of the session of its run, and records list it by scorer, entity and span. */
export class TurnstoneScores extends ScoresStorage {
	readonly #client: Client;

	static override readonly retentionTables: RetentionTablesDescriptor = {
		scorers: { table: "mastra_scorers", column: "createdAt", indexed: false },
	};

	constructor(client: Client) {
		super();
		this.#client = client;
	}

	override async dangerouslyClearAll(): Promise<void> {
		await each(await listed(this.#client, { group }), (i) => remove(this.#client, i.id));
	}

	async getScoreById({ id }: { id: string }): Promise<ScoreRowData | null> {
		return (await this.#read(await this.#entries(scoreKey(id))))[0] ?? null;
	}

	async saveScore(score: SaveScorePayload & { createdAt?: Date }): Promise<{ score: ScoreRowData }> {
		const id = score.id ?? randomUUID();
		return untilCommitted(async () => {
			const [old] = score.id ? await this.#entries(scoreKey(id)) : [];
			const now = new Date();
			const saved: ScoreRowData = { ...score, id, createdAt: old ? new Date(old.createdAt) : new Date(score.createdAt ?? now), updatedAt: now };
			const commits = await this.#without(old ? [old] : [], saved.runId);
			const { scorerId, entityId, entityType, source, organizationId, projectId, traceId, spanId, runId } = saved;
			const node = newId();
			const listing = { id, runId, scorerId, entityId, entityType, source, organizationId, projectId, traceId, spanId, node };
			const value = JSON.stringify({ ...listing, createdAt: saved.createdAt.toISOString() } satisfies Entry);
			const own = commits.get(runId) as Removal;
			own.nodes = [{ kind: "score", payload: JSON.stringify(saved), key: node }];
			for (const key of keysOf(saved)) own.changes.set(key, { key, action: "set", value });
			await this.#client.commitAll([...commits].map(([of, r]) => commitOf(this.#client, of, r)));
			return { score: saved };
		});
	}

	/** Returns what removes scores, by their runs, as far as they are from before a time, and begins a commit to another run. */
	async #without(entries: Entry[], runId?: string, before = Number.POSITIVE_INFINITY): Promise<Map<string, Removal>> {
		const runs = grouped(entries, (e) => e.runId);
		const all = new Set([...(runId === undefined ? [] : [runId]), ...runs.keys()]);
		const out = await each(all, async (of): Promise<[string, Removal]> => {
			const own = runs.get(of) ?? [];
			const { incarnation, revision, records } = await standing(
				this.#client,
				sessionOf(of),
				[],
				own.map((e) => scoreKey(e.id)),
			);
			// What stands now, in place of what was found.
			const there = saidOf<Entry>([...records.values()], ofEntry).filter((e) => !(Date.parse(e.createdAt) >= before));
			const nodes = await nodesOf(
				this.#client,
				sessionOf(of),
				there.map((e) => e.node),
			);
			const changes = new Map(there.flatMap(keysOf).map((key) => [key, { key, action: "delete" } as RecordChange]));
			return [of, { incarnation, revision, changes, tombstone: [...nodes.values()].map((n) => n.id) }];
		});
		return new Map(out);
	}

	async listScoresByScorerId({
		scorerId,
		pagination,
		entityId,
		entityType,
		source,
		filters,
	}: ListScoresByScorerIdInput): Promise<ListScoresResponse> {
		return this.#list(
			keyOf("scorer", scorerId),
			pagination,
			(e) =>
				(!entityId || e.entityId === entityId) &&
				(!entityType || e.entityType === entityType) &&
				(!source || e.source === source) &&
				isOf(e, filters),
		);
	}

	async listScoresByRunId({ runId, pagination, filters }: ListScoresByRunIdInput): Promise<ListScoresResponse> {
		return this.#list(keyOf("score-run", runId), pagination, (e) => isOf(e, filters));
	}

	async listScoresByEntityId({ entityId, entityType, pagination, filters }: ListScoresByEntityIdInput): Promise<ListScoresResponse> {
		return this.#list(keyOf("score-entity", entityType, entityId), pagination, (e) => isOf(e, filters));
	}

	override async listScoresBySpan({ traceId, spanId, pagination, filters }: ListScoresBySpanInput): Promise<ListScoresResponse> {
		return this.#list(keyOf("score-span", traceId, spanId), pagination, (e) => isOf(e, filters));
	}

	/** Returns a page of the scores whose records have keys that begin so, the newest first. */
	async #list(prefix: string, { page, perPage: wanted }: StoragePagination, matches: (e: Entry) => boolean): Promise<ListScoresResponse> {
		const all = (await this.#entries(prefix)).filter(matches);
		all.sort((a, b) => Date.parse(b.createdAt) - Date.parse(a.createdAt) || (a.id < b.id ? -1 : 1));
		const most = normalizePerPage(wanted, Number.MAX_SAFE_INTEGER);
		const { offset, perPage } = calculatePagination(page, wanted, most);
		const scores = await this.#read(all.slice(offset, offset + most));
		return { scores, pagination: { total: all.length, page, perPage, hasMore: wanted !== false && all.length > offset + most } };
	}

	async #entries(prefix: string): Promise<Entry[]> {
		return saidOf<Entry>(await recorded(this.#client, prefix), ofEntry);
	}

	/** Returns scores, but for those that are gone since they were found, or were replaced. */
	async #read(entries: Entry[]): Promise<ScoreRowData[]> {
		const nodes = await each(
			grouped(entries, (e) => e.runId),
			([runId, of]) =>
				nodesOf(
					this.#client,
					sessionOf(runId),
					of.map((e) => e.node),
				),
		);
		const all = new Map(nodes.flatMap((n) => [...n]));
		return entries.flatMap((e) => {
			const n = all.get(e.node);
			if (!n) return [];
			const score = JSON.parse(n.payload.toString()) as ScoreRowData;
			return [{ ...score, createdAt: new Date(score.createdAt), updatedAt: score.updatedAt && new Date(score.updatedAt) }];
		});
	}

	/** Deletes scores that are older than the policy says. */
	override async prune(policies: Record<string, TableRetentionPolicy>, options?: PruneOptions): Promise<PruneResult[]> {
		const older = async (_: string, before: number) => (await this.#entries(keyOf("score"))).filter((e) => Date.parse(e.createdAt) < before);
		return pruned("scores", TurnstoneScores.retentionTables, [policies, options], older, async (_, entries, before) => {
			let deleted = 0;
			for (const e of entries) {
				deleted += await untilCommitted(async () => {
					const removals = [...(await this.#without([e], undefined, before))].filter(([, r]) => r.changes.size > 0);
					if (removals.length > 0) await this.#client.commitAll(removals.map(([of, r]) => commitOf(this.#client, of, r)));
					return removals.length;
				});
			}
			return deleted;
		});
	}
}

/** What a commit to the session of a run does. */
interface Removal {
	incarnation: string | undefined;
	revision: number;
	changes: Map<string, RecordChange>;
	tombstone: string[];
	nodes?: { kind: string; payload: string; key: string }[];
}

function commitOf(client: Client, runId: string, { incarnation, revision, changes, tombstone, nodes = [] }: Removal): SessionCommit {
	const to = onto(client, incarnation, { id: sessionOf(runId), group });
	return { ...to, expected: revision, turn: newId(), nodes, tombstone, records: [...changes.values()] };
}

/** Returns the keys of the records that list a score. */
function keysOf(s: Pick<Entry, "id" | "runId" | "scorerId" | "entityId" | "entityType" | "traceId" | "spanId">): string[] {
	const { id, runId, scorerId, entityId, entityType, traceId, spanId } = s;
	return [
		scoreKey(id),
		keyOf("score-run", runId, id),
		keyOf("scorer", scorerId, id),
		...(entityType === undefined ? [] : [keyOf("score-entity", entityType, entityId, id)]),
		...(traceId === undefined || spanId === undefined ? [] : [keyOf("score-span", traceId, spanId, id)]),
	];
}

function isOf(e: Entry, filters?: { organizationId?: string; projectId?: string }): boolean {
	const { organizationId, projectId } = filters ?? {};
	return (organizationId === undefined || e.organizationId === organizationId) && (projectId === undefined || e.projectId === projectId);
}
