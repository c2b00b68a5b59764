import type { StorageResourceType } from "@mastra/core/storage";
import { untilStands } from "../adapter.ts";
import { ObservationalMemory, resourceGroup, resourcePart, resourceSession } from "./observations.ts";
import { newId, standing } from "./stored.ts";

/** Resources, with their working memory. Each is a part of the checkpoint of a session that no prune deletes. */
export abstract class ResourceMemory extends ObservationalMemory {
	async #resource(id: string): Promise<{ revision: number; resource: StorageResourceType | null }> {
		const { revision, parts } = await standing(this.client, resourceSession(id), [resourcePart]);
		const r = parts.get(resourcePart) as StorageResourceType | undefined;
		return { revision, resource: r ? { ...r, createdAt: new Date(r.createdAt), updatedAt: new Date(r.updatedAt) } : null };
	}

	override async getResourceById({ resourceId }: { resourceId: string }): Promise<StorageResourceType | null> {
		return (await this.#resource(resourceId)).resource;
	}

	override async saveResource({ resource }: { resource: StorageResourceType }): Promise<StorageResourceType> {
		await this.#saveResource(resource, "any");
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
		return untilStands(async () => {
			const { revision, resource } = await this.#resource(resourceId);
			const now = new Date();
			const updated: StorageResourceType = {
				...(resource ?? { id: resourceId, createdAt: now }),
				workingMemory: workingMemory ?? resource?.workingMemory,
				metadata: { ...resource?.metadata, ...metadata },
				updatedAt: now,
			};
			await this.#saveResource(updated, revision);
			return updated;
		});
	}

	async #saveResource(resource: StorageResourceType, expected: number | "any"): Promise<void> {
		const create = { id: resourceSession(resource.id), group: resourceGroup, retention: "all" as const };
		await this.client.commitAll([{ create, expected, turn: newId(), checkpoint: { [resourcePart]: JSON.stringify(resource) } }]);
	}
}
