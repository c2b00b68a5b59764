import {
	type BufferedObservationChunk,
	type CreateObservationalMemoryInput,
	type CreateReflectionGenerationInput,
	InMemoryDB,
	InMemoryMemory,
	MemoryStorage,
	type ObservationalMemoryHistoryOptions,
	type ObservationalMemoryRecord,
	type SwapBufferedReflectionToActiveInput,
	type SwapBufferedToActiveInput,
	type SwapBufferedToActiveResult,
	type UpdateActiveObservationsInput,
	type UpdateBufferedObservationsInput,
	type UpdateBufferedReflectionInput,
	type UpdateObservationalMemoryConfigInput,
} from "@mastra/core/storage";
import { join, newId, short } from "../adapter.ts";
import type { Client } from "../client.ts";
import type { RecordChange } from "../types.ts";
import { keyOf, onto, standing, untilCommitted } from "./stored.ts";
import { group, sessionOf } from "./thread.ts";

/** The group of the sessions of resources. */
export const resourceGroup = "mastra-resources";
/** The part of such a session's checkpoint that has the resource. */
export const resourcePart = "resource";
export const resourceSession = (id: string) => short(join(resourceGroup, id));

export const observationsPart = "observations";
const recordKey = (id: string) => keyOf("observations", id);

/**
 * Observational memory: the records of a thread or a resource are one part of the checkpoint of its session. Mastra's own store in memory changes them, and
 * the change is committed unless somebody else has committed meanwhile.
 */
export abstract class ObservationalMemory extends MemoryStorage {
	override readonly supportsObservationalMemory = true;
	protected readonly client: Client;

	constructor(client: Client) {
		super();
		this.client = client;
	}

	/** Calls f with a store in memory that has the records of a session, and commits what f changes. */
	async #with<T>(session: string, f: (memory: InMemoryMemory) => Promise<T>): Promise<T> {
		return untilCommitted(async () => {
			const { incarnation, revision, parts } = await standing(this.client, session, [observationsPart]);
			const before = (parts.get(observationsPart) ?? []) as ObservationalMemoryRecord[];
			const db = new InMemoryDB();
			const [first] = before;
			if (first) db.observationalMemory.set(first.threadId ? `thread:${first.threadId}` : `resource:${first.resourceId}`, before.map(withDates));
			const result = await f(new InMemoryMemory({ db }));
			const after = [...db.observationalMemory.values()].flat();
			const json = JSON.stringify(after);
			if (json === JSON.stringify(before)) return result;
			const ids = new Set(after.map((r) => r.id));
			const gone = before.filter((r) => !ids.has(r.id)).map((r): RecordChange => ({ key: recordKey(r.id), action: "delete" }));
			for (const { id } of before) ids.delete(id);
			const found = [...ids].map((id): RecordChange => ({ key: recordKey(id), action: "set", value: "" }));
			const create = session.startsWith(`${resourceGroup}/`)
				? { id: session, group: resourceGroup, retention: "all" as const }
				: { id: session, group };
			const part = after.length > 0 ? { checkpoint: { [observationsPart]: json } } : { drop: [observationsPart] };
			await this.client.commitAll([
				{ ...onto(this.client, incarnation, create), expected: revision, turn: newId(), records: [...gone, ...found], ...part },
			]);
			return result;
		});
	}

	#of<T>(threadId: string | null, resourceId: string, f: (memory: InMemoryMemory) => Promise<T>): Promise<T> {
		return this.#with(threadId ? sessionOf(threadId) : resourceSession(resourceId), f);
	}

	async #byId<T>(id: string, f: (memory: InMemoryMemory) => Promise<T>): Promise<T> {
		const [found] = (await this.client.records(recordKey(id))).records;
		if (!found) throw new Error(`Observational memory record not found: ${id}`);
		return this.#with(found.session, f);
	}

	override getObservationalMemory(threadId: string | null, resourceId: string): Promise<ObservationalMemoryRecord | null> {
		return this.#of(threadId, resourceId, (m) => m.getObservationalMemory(threadId, resourceId));
	}

	override getObservationalMemoryHistory(
		threadId: string | null,
		resourceId: string,
		limit?: number,
		options?: ObservationalMemoryHistoryOptions,
	): Promise<ObservationalMemoryRecord[]> {
		return this.#of(threadId, resourceId, (m) => m.getObservationalMemoryHistory(threadId, resourceId, limit, options));
	}

	override initializeObservationalMemory(input: CreateObservationalMemoryInput): Promise<ObservationalMemoryRecord> {
		return this.#of(input.threadId, input.resourceId, (m) => m.initializeObservationalMemory(input));
	}

	override insertObservationalMemoryRecord(record: ObservationalMemoryRecord): Promise<void> {
		return this.#of(record.threadId, record.resourceId, (m) => m.insertObservationalMemoryRecord(record));
	}

	override clearObservationalMemory(threadId: string | null, resourceId: string): Promise<void> {
		return this.#of(threadId, resourceId, (m) => m.clearObservationalMemory(threadId, resourceId));
	}

	override createReflectionGeneration(input: CreateReflectionGenerationInput): Promise<ObservationalMemoryRecord> {
		const { threadId, resourceId } = input.currentRecord;
		return this.#of(threadId, resourceId, (m) => m.createReflectionGeneration(input));
	}

	override swapBufferedReflectionToActive(input: SwapBufferedReflectionToActiveInput): Promise<ObservationalMemoryRecord> {
		return this.#byId(input.currentRecord.id, (m) => m.swapBufferedReflectionToActive(input));
	}

	override updateActiveObservations(input: UpdateActiveObservationsInput): Promise<void> {
		return this.#byId(input.id, (m) => m.updateActiveObservations(input));
	}

	override updateBufferedObservations(input: UpdateBufferedObservationsInput): Promise<void> {
		return this.#byId(input.id, (m) => m.updateBufferedObservations(input));
	}

	override swapBufferedToActive(input: SwapBufferedToActiveInput): Promise<SwapBufferedToActiveResult> {
		return this.#byId(input.id, (m) => m.swapBufferedToActive(input));
	}

	override updateBufferedReflection(input: UpdateBufferedReflectionInput): Promise<void> {
		return this.#byId(input.id, (m) => m.updateBufferedReflection(input));
	}

	override setReflectingFlag(id: string, isReflecting: boolean): Promise<void> {
		return this.#byId(id, (m) => m.setReflectingFlag(id, isReflecting));
	}

	override setObservingFlag(id: string, isObserving: boolean): Promise<void> {
		return this.#byId(id, (m) => m.setObservingFlag(id, isObserving));
	}

	override setBufferingObservationFlag(id: string, isBuffering: boolean, lastBufferedAtTokens?: number): Promise<void> {
		return this.#byId(id, (m) => m.setBufferingObservationFlag(id, isBuffering, lastBufferedAtTokens));
	}

	override setBufferingReflectionFlag(id: string, isBuffering: boolean): Promise<void> {
		return this.#byId(id, (m) => m.setBufferingReflectionFlag(id, isBuffering));
	}

	override setPendingMessageTokens(id: string, tokenCount: number): Promise<void> {
		return this.#byId(id, (m) => m.setPendingMessageTokens(id, tokenCount));
	}

	override updateObservationalMemoryConfig(input: UpdateObservationalMemoryConfigInput): Promise<void> {
		return this.#byId(input.id, (m) => m.updateObservationalMemoryConfig(input));
	}
}

/** Returns a record that JSON has, with its times. */
function withDates(r: ObservationalMemoryRecord): ObservationalMemoryRecord {
	const chunks = r.bufferedObservationChunks?.map(
		(c): BufferedObservationChunk => ({ ...c, createdAt: new Date(c.createdAt), lastObservedAt: new Date(c.lastObservedAt) }),
	);
	return {
		...r,
		createdAt: new Date(r.createdAt),
		updatedAt: new Date(r.updatedAt),
		...(r.lastObservedAt ? { lastObservedAt: new Date(r.lastObservedAt) } : {}),
		...(r.lastBufferedAtTime ? { lastBufferedAtTime: new Date(r.lastBufferedAtTime) } : {}),
		...(chunks ? { bufferedObservationChunks: chunks } : {}),
	};
}
