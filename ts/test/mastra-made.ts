// What tests of the storage for Mastra make: names, threads, messages, snapshots of runs, and stores.

import type { MastraDBMessage, StorageThreadType } from "@mastra/core/memory";
import type { WorkflowRunState } from "@mastra/core/workflows";
import type { Client } from "../src/client.ts";
import { TurnstoneStore } from "../src/mastra.ts";
import type { Random } from "../src/testing.ts";
import { open } from "./helpers.ts";

/** Names that are easily taken for each other, cut off or refused. */
export const hostile = ["a", "a/b", "a%2Fb", "a%2fb", "é".repeat(200), "t".repeat(300), `${"t".repeat(299)}u`, " ~", `n~${"0".repeat(64)}`];
/** A few of them, so that calls meet. */
export const few = [1, 2, 5, 6].map((i) => hostile[i] as string);
export const pick = <T>(r: Random, items: readonly T[]): T => items[r(items.length)] as T;
export const some = <T>(r: Random, items: readonly T[]): T[] => items.filter(() => r(3) === 0);
/** Returns a value sometimes. */
export const maybe = <K extends string, T>(r: Random, key: K, value: T) => (r(2) ? ({ [key]: value } as { [k in K]: T }) : {});

export const text = (content: string) => ({ format: 2 as const, parts: [{ type: "text" as const, text: content }], content });
export const thread = (id: string, resourceId = "r", fields: Partial<StorageThreadType> = {}): StorageThreadType => {
	const at = new Date(Date.UTC(2026, 0, 1 + hostile.indexOf(id)));
	return { id, resourceId, title: `of ${id}`, createdAt: at, updatedAt: at, metadata: { a: 1 }, ...fields };
};
export const message = (id: string, threadId: string, fields: Partial<MastraDBMessage> = {}): MastraDBMessage => ({
	id,
	threadId,
	resourceId: "r",
	role: "user",
	type: "text",
	createdAt: new Date(Date.UTC(2026, 0, 1, 0, hostile.indexOf(id.slice(1)))),
	content: text(id),
	...fields,
});

export async function storeOf(client?: Client): Promise<TurnstoneStore["stores"]> {
	return new TurnstoneStore({ client: client ?? (await open()) }).stores;
}

/** Returns what is the same for both stores: copies have ids of their own, and no clock is asked twice at once. */
export function plain(found: unknown): unknown {
	const known = new Set(hostile.flatMap((h) => [h, `m${h}`]));
	return JSON.parse(
		JSON.stringify(found, (key, v) => (key === "updatedAt" || key === "clonedAt" || (key === "id" && !known.has(v)) ? "…" : v)),
		(key, v) => (key === "lastMessageId" ? "…" : v),
	);
}

export function snapshot(runId: string, status: WorkflowRunState["status"], context: WorkflowRunState["context"] = {}): WorkflowRunState {
	const fields = { value: {}, activePaths: [], activeStepsPath: {}, serializedStepGraph: [], suspendedPaths: {}, resumeLabels: {}, waitingPaths: {} };
	return { ...fields, runId, status, context, timestamp: 1 };
}

/** Returns the context of an agent's run that waits for somebody. */
export function inThread(threadId: string): WorkflowRunState["context"] {
	const suspendPayload = { __streamState: { messageList: { memoryInfo: { threadId } } } };
	return { step: { status: "suspended", payload: {}, suspendPayload, startedAt: 1, suspendedAt: 2 } };
}
