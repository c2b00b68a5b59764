import type { StorageResourceType } from "@mastra/core/storage";
import { newId } from "../adapter.ts";
import { ObservationalMemory, resourceGroup, resourcePart, resourceSession } from "./observations.ts";
import { onto, partsOf, type Standing, standing, untilCommitted } from "./stored.ts";

/** Resources, with their working memory. Each is a part of the checkpoint of a session that no prune deletes. */
export abstract class ResourceMemory extends ObservationalMemory {
	override async getResourceById({ resourceId }: { resourceId: string }): Promise<StorageResourceType | null> {
		return resourceOf((await partsOf(this.client, resourceSession(resourceId), [resourcePart])).get(resourcePart));
	}

	override async saveResource({ resource }: { resource: StorageResourceType }): Promise<StorageResourceType> {
		await this.#saveResource(resource);
		return resource;
	}

	override async updateResource({
		resourceId,
		workingMemory,
		metadata,
	}: {
		resourceId: string;
		workingMemory?: string;
		metadata?: Record<string, unknown>;
	}): Promise<StorageResourceType> {
		return untilCommitted(async () => {
			const read = await standing(this.client, resourceSession(resourceId), [resourcePart]);
			const resource = resourceOf(read.parts.get(resourcePart));
			const now = new Date();
			const updated: StorageResourceType = {
				...(resource ?? { id: resourceId, createdAt: now }),
				workingMemory: workingMemory ?? resource?.workingMemory,
				metadata: { ...resource?.metadata, ...metadata },
				updatedAt: now,
			};
			await this.#saveResource(updated, read);
			return updated;
		});
	}

	/** Commits a resource, onto what was read of it if that is given. */
	async #saveResource(resource: StorageResourceType, read?: Standing): Promise<void> {
		const to = onto(this.client, read?.incarnation, { id: resourceSession(resource.id), group: resourceGroup, retention: "all" });
		const checkpoint = { [resourcePart]: JSON.stringify(resource) };
		await this.client.commitAll([{ ...to, expected: read?.revision ?? "any", turn: newId(), checkpoint }]);
	}
}

/** Returns a resource that JSON has, with its times. */
function resourceOf(stored: unknown): StorageResourceType | null {
	const r = stored as StorageResourceType | undefined;
	return r ? { ...r, createdAt: new Date(r.createdAt), updatedAt: new Date(r.updatedAt) } : null;
}
