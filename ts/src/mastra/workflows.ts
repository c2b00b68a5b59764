import {
	createEmptyWorkflowSnapshot,
	getSnapshotMemoryInfo,
	matchesExpectedWorkflowStatus,
	mergeWorkflowStepResult,
	normalizePerPage,
	type PruneOptions,
	type PruneResult,
	type RetentionTablesDescriptor,
	type StorageListWorkflowRunsInput,
	type TableRetentionPolicy,
	type UpdateWorkflowStateOptions,
	type WorkflowRun,
	type WorkflowRuns,
	WorkflowsStorage,
} from "@mastra/core/storage";
import type { WorkflowRunState } from "@mastra/core/workflows";
import { join, listed, newId, recorded, short } from "../adapter.ts";
import type { Client } from "../client.ts";
import { each, keyOf, onto, partsOf, pruned, remove, removeIf, saidOf, standing, sum, untilCommitted } from "./stored.ts";

const group = "mastra-workflows";
const runPart = "run";
const snapshotPart = "snapshot";

/** What is said of a run without its snapshot. */
interface Run {
	workflowName: string;
	runId: string;
	resourceId?: string;
	createdAt: string;
	updatedAt: string;
	/** Of the snapshot. */
	status?: string;
	threadId?: string;
}

type StepUpdate = Parameters<WorkflowsStorage["updateWorkflowResults"]>[0];
type Persist = Parameters<WorkflowsStorage["persistWorkflowSnapshot"]>[0];

const sessionOf = (r: { workflowName: string; runId: string }) => short(join(group, r.workflowName, r.runId));

/** Runs of workflows. Each is a session, and its snapshot a part of the checkpoint: what a step changes is stored as a difference. */
export class TurnstoneWorkflows extends WorkflowsStorage {
	readonly #client: Client;

	static override readonly retentionTables: RetentionTablesDescriptor = {
		workflowSnapshot: { table: "mastra_workflow_snapshot", column: "updatedAt", indexed: false },
	};

	constructor(client: Client) {
		super();
		this.#client = client;
	}

	supportsConcurrentUpdates(): boolean {
		return true;
	}

	async dangerouslyClearAll(): Promise<void> {
		await each(await listed(this.#client, { group }), (i) => remove(this.#client, i.id));
	}

	async persistWorkflowSnapshot({ workflowName, runId, resourceId, snapshot, createdAt, updatedAt }: Persist): Promise<void> {
		const now = new Date();
		await this.#change({ workflowName, runId }, (run) => ({
			run: {
				...(resourceId || run?.resourceId ? { resourceId: resourceId ?? run?.resourceId } : {}),
				createdAt: createdAt?.toISOString() ?? run?.createdAt ?? now.toISOString(),
				updatedAt: (updatedAt ?? now).toISOString(),
			},
			snapshot,
			result: undefined,
		}));
	}

	async updateWorkflowResults({
		workflowName,
		runId,
		stepId,
		result,
		requestContext,
	}: StepUpdate): ReturnType<WorkflowsStorage["updateWorkflowResults"]> {
		const made = await this.#change({ workflowName, runId }, (run, stored) => {
			if (!run) return undefined;
			const snapshot = existing(runId, stored);
			const context = mergeWorkflowStepResult({ snapshot, stepId, result, requestContext });
			return { run: { ...run, updatedAt: new Date().toISOString() }, snapshot, result: context };
		});
		return made ?? {};
	}

	async updateWorkflowState({
		workflowName,
		runId,
		opts: { expectedStatus, ...state },
	}: {
		workflowName: string;
		runId: string;
		opts: UpdateWorkflowStateOptions;
	}): Promise<WorkflowRunState | undefined> {
		return this.#change({ workflowName, runId }, (run, stored) => {
			if (!run) return undefined;
			const before = existing(runId, stored);
			if (!matchesExpectedWorkflowStatus(before.status, expectedStatus)) return undefined;
			const snapshot = { ...before, ...state };
			return { run: { ...run, updatedAt: new Date().toISOString() }, snapshot, result: snapshot };
		});
	}

	/** Commits what f makes of a run as it stands, unless somebody else has committed meanwhile. If f makes nothing of it, it stays as it is. */
	async #change<T>(
		of: { workflowName: string; runId: string },
		f: (
			run: Run | undefined,
			snapshot: WorkflowRunState | undefined,
		) => { run: Omit<Run, "workflowName" | "runId">; snapshot: WorkflowRunState; result: T } | undefined,
	): Promise<T | undefined> {
		return untilCommitted(async () => {
			const { incarnation, revision, parts } = await standing(this.#client, sessionOf(of), [runPart, snapshotPart]);
			const made = f(parts.get(runPart) as Run | undefined, parts.get(snapshotPart) as WorkflowRunState | undefined);
			if (!made) return undefined;
			const { workflowName, runId } = of;
			const threadId = getSnapshotMemoryInfo(made.snapshot)?.threadId;
			const run = JSON.stringify({ ...made.run, workflowName, runId, status: made.snapshot.status, threadId });
			await this.#client.commitAll([
				{
					...onto(this.#client, incarnation, { id: sessionOf(of), group: short(join(group, ...(workflowName ? [workflowName] : []))) }),
					expected: revision,
					turn: newId(),
					checkpoint: { [runPart]: run, [snapshotPart]: JSON.stringify(made.snapshot) },
					records: [
						{ key: keyOf("run", workflowName, runId), action: "set", value: run },
						{ key: keyOf("run-id", runId, workflowName), action: "set", value: JSON.stringify(of) },
					],
				},
			]);
			return made.result;
		});
	}

	async loadWorkflowSnapshot(of: { workflowName: string; runId: string }): Promise<WorkflowRunState | null> {
		return ((await partsOf(this.#client, sessionOf(of), [snapshotPart])).get(snapshotPart) as WorkflowRunState | undefined) ?? null;
	}

	async listWorkflowRuns(args: StorageListWorkflowRunsInput = {}): Promise<WorkflowRuns> {
		const { workflowName, fromDate, toDate, perPage, page, resourceId, threadId, status } = args;
		if (page !== undefined && page < 0) throw new RangeError("page must be >= 0");
		const runs = (await this.#runs(workflowName || undefined)).filter(
			(r) =>
				(!status || r.status === status) &&
				(!fromDate || Date.parse(r.createdAt) >= fromDate.getTime()) &&
				(!toDate || Date.parse(r.createdAt) <= toDate.getTime()) &&
				(!resourceId || r.resourceId === resourceId) &&
				(!threadId || r.threadId === threadId),
		);
		runs.sort((a, b) => Date.parse(b.createdAt) - Date.parse(a.createdAt) || (a.runId < b.runId ? -1 : 1));
		let shown = runs;
		if (perPage !== undefined && page !== undefined) {
			const most = normalizePerPage(perPage, Number.MAX_SAFE_INTEGER);
			shown = runs.slice(page * most, (page + 1) * most);
		}
		return { runs: (await each(shown, (r) => this.#run(r))).filter((r) => r !== null), total: runs.length };
	}

	async #runs(workflowName?: string): Promise<Run[]> {
		return saidOf<Run>(await recorded(this.#client, workflowName === undefined ? keyOf("run") : keyOf("run", workflowName)), sessionOf);
	}

	async getWorkflowRunById({ runId, workflowName }: { runId: string; workflowName?: string }): Promise<WorkflowRun | null> {
		if (workflowName) return this.#run({ workflowName, runId });
		const { records } = await this.#client.records(keyOf("run-id", runId));
		const runs = (await each(saidOf<Pick<Run, "workflowName" | "runId">>(records, sessionOf), (r) => this.#run(r))).filter((r) => r !== null);
		return runs.sort((a, b) => b.createdAt.getTime() - a.createdAt.getTime())[0] ?? null;
	}

	async #run(of: { workflowName: string; runId: string }): Promise<WorkflowRun | null> {
		const parts = await partsOf(this.#client, sessionOf(of), [runPart, snapshotPart]);
		const run = parts.get(runPart) as Run | undefined;
		if (!run) return null;
		const { workflowName, runId, resourceId } = run;
		return {
			workflowName,
			runId,
			snapshot: parts.get(snapshotPart) as WorkflowRunState,
			createdAt: new Date(run.createdAt),
			updatedAt: new Date(run.updatedAt),
			...(resourceId === undefined ? {} : { resourceId }),
		};
	}

	async deleteWorkflowRunById(of: { runId: string; workflowName: string }): Promise<void> {
		await remove(this.#client, sessionOf(of));
	}

	/** Deletes runs that nothing was changed of for longer than the policy says. */
	override async prune(policies: Record<string, TableRetentionPolicy>, options?: PruneOptions): Promise<PruneResult[]> {
		const older = async (_: string, before: number) => (await this.#runs()).filter((r) => Date.parse(r.updatedAt) < before);
		return pruned("workflows", TurnstoneWorkflows.retentionTables, [policies, options], older, async (_, runs, before) => {
			const isOld = (run: unknown) => Date.parse((run as Run).updatedAt) < before;
			return sum(await each(runs, (r) => removeIf(this.#client, sessionOf(r), runPart, isOld)));
		});
	}
}

/** Returns the snapshot of a run. */
function existing(runId: string, stored: WorkflowRunState | undefined): WorkflowRunState {
	const snapshot = stored ?? createEmptyWorkflowSnapshot(runId);
	if (!snapshot.context) throw new Error(`Snapshot not found for runId ${runId}`);
	return snapshot;
}
