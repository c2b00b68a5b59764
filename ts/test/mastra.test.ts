import type { StorageThreadType } from "@mastra/core/memory";
import { InMemoryStore, type StorageDomains } from "@mastra/core/storage";
import { alike, type Random } from "../src/testing.ts";
import { few, hostile, inThread, maybe, message, pick, plain, snapshot, some, storeOf, text, thread } from "./mastra-made.ts";

const ids = hostile.map((h) => `m${h}`);

type Both = Required<Pick<StorageDomains, "memory" | "workflows" | "scores" | "threadState">>;

const threads = [
	async function saveThread({ memory }: Both, r: Random) {
		// Mastra's store in memory keeps the very object, which it changes afterwards: it gets a copy.
		return plain(await memory.saveThread({ thread: thread(pick(r, hostile), pick(r, few), maybe(r, "metadata", { [pick(r, ["a", "b"])]: r(3) })) }));
	},
	async function getThread({ memory }: Both, r: Random) {
		return plain(await memory.getThreadById({ threadId: pick(r, hostile), ...maybe(r, "resourceId", pick(r, few)) }));
	},
	async function updateThread({ memory }: Both, r: Random) {
		return plain(await memory.updateThread({ id: pick(r, hostile), ...maybe(r, "title", `title ${r(9)}`), ...maybe(r, "metadata", { b: r(3) }) }));
	},
	async function updateThreadMetadata({ memory }: Both, r: Random) {
		const update = (t: StorageThreadType) => (r(4) ? { n: Number(t.metadata?.n ?? 0) + 1 } : undefined);
		return plain(await memory.updateThreadMetadata({ id: pick(r, hostile), ...maybe(r, "resourceId", pick(r, few)), update }));
	},
	async function updateThreadResourceId({ memory }: Both, r: Random) {
		return plain(await memory.updateThreadResourceId({ threadId: pick(r, hostile), resourceId: pick(r, few) }));
	},
	async function deleteThread({ memory }: Both, r: Random) {
		if (r(3) === 0) await memory.deleteThread({ threadId: pick(r, hostile) });
	},
	async function listThreads({ memory }: Both, r: Random) {
		const metadata = pick(r, [{ a: 1 }, { b: 1, a: 1 }, { "a-b": 1 }, {}]);
		const paging = pick(r, [{ perPage: false as const }, { perPage: 2, page: r(3) }, { perPage: 0 }, { perPage: -1 }, {}]);
		const filter = { ...maybe(r, "resourceId", pick(r, few)), ...maybe(r, "metadata", metadata) };
		const orderBy = { field: "createdAt" as const, direction: pick(r, ["ASC", "DESC"] as const) };
		const { perPage, ...found } = await memory.listThreads({ ...paging, ...maybe(r, "orderBy", orderBy), ...maybe(r, "filter", filter) });
		return plain({ ...found, perPage });
	},
	async function threadsOf({ memory }: Both, r: Random) {
		return plain(await memory.listThreads({ perPage: false, filter: { resourceId: pick(r, few) }, orderBy: { field: "createdAt" } }));
	},
	async function copyThread({ memory }: Both, r: Random) {
		if (r(3)) return;
		const options = {
			...maybe(r, "messageLimit", 1 + r(3)),
			...maybe(r, "messageFilter", pick(r, [{ messageIds: some(r, ids) }, { startDate: new Date(Date.UTC(2026, 0, 1, 0, 3)) }])),
		};
		const args = { sourceThreadId: pick(r, hostile), newThreadId: pick(r, hostile), options, ...maybe(r, "resourceId", pick(r, few)) };
		const { thread, messageIdMap } = await memory.copyThread(args);
		const { messages } = await memory.listMessages({ threadId: args.newThreadId, perPage: false });
		// Copies would be other messages of the same time: they go again, with the ids that each store gave them.
		await memory.deleteThread({ threadId: args.newThreadId });
		return plain([{ ...thread, createdAt: "now" }, Object.keys(messageIdMap ?? {}).sort(), messages]);
	},
];

const messages = [
	async function saveMessages({ memory }: Both, r: Random) {
		const saved = some(r, ids).map((id) =>
			message(id, pick(r, few), {
				resourceId: pick(r, few),
				role: pick(r, ["user", "assistant"]),
				content: { ...text(`${r(5)}`), metadata: { k: r(3) } },
			}),
		);
		return plain((await memory.saveMessages({ messages: saved })).messages);
	},
	async function saveMessagesAgain({ memory }: Both, r: Random) {
		await memory.saveMessages({ messages: [message(pick(r, ids), pick(r, few), { content: text("again") })] });
	},
	async function updateMessages({ memory }: Both, r: Random) {
		const updates = some(r, ids).map((id) => ({
			id,
			...maybe(r, "threadId", pick(r, few)),
			...maybe(r, "resourceId", pick(r, few)),
			...maybe(r, "content", { content: `${r(9)}`, ...maybe(r, "metadata", { [pick(r, ["k", "l"])]: r(3) }) }),
		}));
		return plain(await memory.updateMessages({ messages: r(4) ? updates : [...updates, ...updates] }));
	},
	async function deleteMessages({ memory }: Both, r: Random) {
		if (r(2)) await memory.deleteMessages(some(r, ids));
	},
	async function listMessages({ memory }: Both, r: Random) {
		const threadId = r(3) ? pick(r, few) : some(r, few);
		return plain(await memory.listMessages({ threadId, ...maybe(r, "resourceId", pick(r, few)), ...query(r) }));
	},
	async function listMessagesByResourceId({ memory }: Both, r: Random) {
		return plain(await memory.listMessagesByResourceId({ resourceId: pick(r, few), ...query(r) }));
	},
	async function listMessagesById({ memory }: Both, r: Random) {
		return plain(await memory.listMessagesById({ messageIds: some(r, [...ids, "none"]) }));
	},
];

function query(r: Random) {
	const at = (minute: number) => new Date(Date.UTC(2026, 0, 1, 0, minute));
	const dateRange = { ...maybe(r, "start", at(r(4))), ...maybe(r, "end", at(4 + r(4))), startExclusive: r(2) > 0, endExclusive: r(2) > 0 };
	const include = some(r, ids).map((id) => ({ id, ...maybe(r, "withPreviousMessages", r(3)), ...maybe(r, "withNextMessages", r(3)) }));
	return {
		...pick(r, [{ perPage: false as const }, { perPage: 1 + r(3), page: r(3) }, { perPage: 0 }, { page: -1 }, {}]),
		...maybe(r, "orderBy", { field: "createdAt" as const, direction: pick(r, ["ASC", "DESC"] as const) }),
		...maybe(r, "include", include),
		...maybe(r, "filter", { ...maybe(r, "dateRange", dateRange), ...maybe(r, "metadata", { k: r(3) }) }),
	};
}

const resources = [
	async function saveResource({ memory }: Both, r: Random) {
		const resource = {
			id: pick(r, hostile),
			...maybe(r, "workingMemory", `${r(9)}`),
			metadata: { a: r(3) },
			createdAt: new Date(r(9)),
			updatedAt: new Date(r(9)),
		};
		return plain(await memory.saveResource({ resource }));
	},
	async function updateResource({ memory }: Both, r: Random) {
		const { createdAt: _, ...updated } = await memory.updateResource({
			resourceId: pick(r, hostile),
			...maybe(r, "workingMemory", `${r(9)}`),
			...maybe(r, "metadata", { b: r(3) }),
		});
		return plain(updated);
	},
	async function getResource({ memory }: Both, r: Random) {
		const found = await memory.getResourceById({ resourceId: pick(r, hostile) });
		return found && plain({ ...found, createdAt: found.createdAt.getTime() < 1e6 ? found.createdAt : "now" });
	},
];

test("random calls of Mastra's memory do what its store in memory does, whatever the names are", { timeout: 300_000 }, async () => {
	for (const seed of [1, 2]) {
		const stores = [await storeOf(), new InMemoryStore().stores as Both] as Both[];
		await alike(stores, [...threads, ...messages, ...messages, ...resources], { steps: 250, seed });
	}
});

const runs = [
	async function persist({ workflows }: Both, r: Random) {
		await workflows.persistWorkflowSnapshot({
			...runOf(r),
			...maybe(r, "resourceId", pick(r, hostile)),
			snapshot: { ...snapshot("x", pick(r, ["running", "suspended"])), ...maybe(r, "context", inThread(pick(r, hostile))) },
			...maybe(r, "createdAt", new Date(Date.UTC(2026, 0, 1, 0, 0, 0, r(1e6)))),
		});
	},
	async function results({ workflows }: Both, r: Random) {
		const result = { status: "success" as const, output: [r(3), null], payload: {}, startedAt: 1, endedAt: 2 };
		return plain(
			await workflows.updateWorkflowResults({ ...runOf(r), stepId: pick(r, hostile), result, requestContext: { [pick(r, ["a", "b"])]: r(3) } }),
		);
	},
	async function state({ workflows }: Both, r: Random) {
		const opts = {
			status: pick(r, ["running", "suspended", "success"] as const),
			...maybe(r, "expectedStatus", pick(r, ["running", ["suspended" as const]] as const)),
		};
		return plain((await workflows.updateWorkflowState({ ...runOf(r), opts: opts as never })) ?? null);
	},
	async function load({ workflows }: Both, r: Random) {
		return plain(await workflows.loadWorkflowSnapshot(runOf(r)));
	},
	async function listRuns({ workflows }: Both, r: Random) {
		const { runs, total } = await workflows.listWorkflowRuns({
			...maybe(r, "workflowName", pick(r, hostile)),
			...maybe(r, "status", pick(r, ["running", "suspended"] as const)),
			...maybe(r, "resourceId", pick(r, hostile)),
			...(r(4) ? {} : { threadId: pick(r, hostile) }),
			...(r(4) ? {} : { fromDate: new Date(Date.UTC(2026, 0, 1, 0, 0, 0, 500_000)) }),
			...(r(4) ? {} : { toDate: new Date(Date.UTC(2026, 0, 1, 0, 0, 0, 600_000)) }),
		});
		return plain([runs.map(fieldsOfRun).sort((a, b) => (JSON.stringify(a) < JSON.stringify(b) ? -1 : 1)), total]);
	},
	async function pageOfRuns({ workflows }: Both, r: Random) {
		const toDate = new Date(Date.UTC(2026, 5)); // Those of which the time is given: the others have that of the call.
		const { runs, total } = await workflows.listWorkflowRuns({ perPage: pick(r, [1, 2, false]), page: r(3), toDate });
		return plain([runs.map(fieldsOfRun), total]);
	},
	async function getRun({ workflows }: Both, r: Random) {
		const { workflowName, runId } = runOf(r);
		const run = await workflows.getWorkflowRunById({ workflowName, runId });
		return run && plain(fieldsOfRun(run));
	},
	async function deleteRun({ workflows }: Both, r: Random) {
		if (r(3) === 0) await workflows.deleteWorkflowRunById(runOf(r));
	},
];

// Mastra's store in memory takes the run "c" of "a-b" for the run "b-c" of "a": no name here has a "-".
function runOf(r: Random) {
	return { workflowName: pick(r, hostile.slice(0, 7)), runId: pick(r, hostile.slice(0, 7)) };
}

function fieldsOfRun({
	workflowName,
	runId,
	snapshot,
	resourceId,
	createdAt,
}: NonNullable<Awaited<ReturnType<Both["workflows"]["getWorkflowRunById"]>>>) {
	return { workflowName, runId, snapshot, resourceId, createdAt: createdAt < new Date(Date.UTC(2026, 5)) ? createdAt : "now" };
}

test("random calls of Mastra's workflows do what its store in memory does, whatever the names are", { timeout: 120_000 }, async () => {
	await alike([(await storeOf()) as Both, new InMemoryStore().stores as Both], [...runs, ...runs.slice(0, 3)], { steps: 400 });
});

test("a run is found by its id alone, and one that was made later first", async () => {
	const { workflows } = await storeOf();
	const at = (workflowName: string, ms: number) =>
		workflows.persistWorkflowSnapshot({ workflowName, runId: "x/y", snapshot: snapshot("x/y", "running"), createdAt: new Date(ms) });
	for (const [name, ms] of [
		["a", 1],
		["b", 3],
		["c", 2],
	] as const)
		await at(name, ms);
	expect((await workflows.getWorkflowRunById({ runId: "x/y" }))?.workflowName).toBe("b");
	expect(await workflows.getWorkflowRunById({ runId: "x" })).toBeNull();
});

const scores = [
	async function saveScore({ scores }: Both, r: Random) {
		const id = pick(r, hostile);
		const { score } = await scores.saveScore({
			id,
			scorerId: pick(r, hostile),
			entityId: pick(r, hostile),
			entityType: pick(r, ["AGENT", "WORKFLOW"]),
			runId: pick(r, hostile),
			score: r(9),
			output: { text: "x".repeat(r(3)) },
			scorer: {},
			entity: {},
			source: pick(r, ["LIVE", "TEST"] as const),
			...maybe(r, "traceId", "t"),
			...maybe(r, "spanId", pick(r, ["s", "s/"])),
			...maybe(r, "projectId", "p"),
			createdAt: new Date(Date.UTC(2026, 0, 1, 0, hostile.indexOf(id))),
		} as never);
		return plain(score);
	},
	async function getScore({ scores }: Both, r: Random) {
		return plain(await scores.getScoreById({ id: pick(r, hostile) }));
	},
	async function ofScorer({ scores }: Both, r: Random) {
		const filters = maybe(r, "filters", { projectId: "p" });
		return plain(
			await scores.listScoresByScorerId({ scorerId: pick(r, hostile), pagination: paging(r), ...maybe(r, "source", "LIVE" as const), ...filters }),
		);
	},
	async function ofSpan({ scores }: Both, r: Random) {
		return plain(await scores.listScoresBySpan({ traceId: "t", spanId: pick(r, ["s", "s/"]), pagination: paging(r) }));
	},
	// Of a run and an entity, Mastra's store in memory lists scores as they came; its databases list the newest first, and so do we.
	async function ofRun({ scores }: Both, r: Random) {
		return inOrder(await scores.listScoresByRunId({ runId: pick(r, hostile), pagination: { page: 0, perPage: false } }));
	},
	async function ofEntity({ scores }: Both, r: Random) {
		const of = { entityId: pick(r, hostile), entityType: pick(r, ["AGENT", "WORKFLOW"]) as never };
		return inOrder(await scores.listScoresByEntityId({ ...of, pagination: { page: 0, perPage: false } }));
	},
];

function paging(r: Random) {
	return pick(r, [
		{ page: 0, perPage: false as const },
		{ page: r(3), perPage: 1 + r(2) },
	]);
}

function inOrder(found: { scores: { id: string }[] }) {
	return plain({ ...found, scores: found.scores.sort((a, b) => (a.id < b.id ? -1 : 1)) });
}

test("random calls of Mastra's scores do what its store in memory does, whatever the names are", { timeout: 120_000 }, async () => {
	await alike([(await storeOf()) as Both, new InMemoryStore().stores as Both], [...scores, ...scores.slice(0, 1)], { steps: 300 });
});

const states = [
	async function setState({ threadState }: Both, r: Random) {
		await threadState.setState({
			threadId: pick(r, hostile),
			type: pick(r, [...hostile, "__proto__"]),
			value: pick(r, [r(9), { a: [r(9)] }, null, "x", false]),
		});
	},
	async function getState({ threadState }: Both, r: Random) {
		return threadState.getState({ threadId: pick(r, hostile), type: pick(r, [...hostile, "__proto__"]) });
	},
	async function deleteState({ threadState }: Both, r: Random) {
		await threadState.deleteState({ threadId: pick(r, hostile), type: pick(r, hostile) });
	},
];

test("random calls of Mastra's thread state do what its store in memory does, and it leaves with its thread", { timeout: 120_000 }, async () => {
	const stores = await storeOf();
	await alike([stores as Both, new InMemoryStore().stores as Both], states, { steps: 300 });
	await stores.memory.saveThread({ thread: thread("new") });
	await stores.threadState.setState({ threadId: "new", type: "task", value: [1] });
	expect((await stores.memory.getThreadById({ threadId: "new" }))?.title).toBe("of new");
	await stores.memory.deleteThread({ threadId: "new" });
	expect(await stores.threadState.getState({ threadId: "new", type: "task" })).toBeUndefined();
	await stores.threadState.dangerouslyClearAll();
	for (const threadId of hostile) for (const type of hostile) expect(await stores.threadState.getState({ threadId, type })).toBeUndefined();
});
