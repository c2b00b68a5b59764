// Artifacts of ADK.

import type {
	BaseArtifactService,
	DeleteArtifactRequest,
	ListArtifactKeysRequest,
	ListVersionsRequest,
	LoadArtifactRequest,
	SaveArtifactRequest,
} from "@google/adk";
import { deleteFile, type File, fileNames, fileVersions, findFile, gone, join, loadFile, saveFile } from "./adapter.ts";
import { type Part, standard } from "./adk-events.ts";
import type { Client, Session } from "./client.ts";

export const artifactRoot = "adk-artifacts";

type ArtifactVersion = NonNullable<Awaited<ReturnType<BaseArtifactService["getArtifactVersion"]>>>;

/** What the adapters say of a version. */
interface About {
	/** The content is that of `text`, and not of `inlineData`. */
	text?: boolean;
	/** Without its content. */
	part: Part;
	customMetadata?: Record<string, unknown>;
}

/**
 * An artifact service on a store. The versions of an artifact are numbered from 0; the adapter for Go has the same ones
 * from 1. The content of a version is an attachment, so the store has equal contents once.
 * TurnstoneSessions.deleteSession deletes the artifacts of a session.
 */
export class TurnstoneArtifacts implements BaseArtifactService {
	readonly #client: Client;

	constructor(client: Client) {
		this.#client = client;
	}

	/** Stores the next version of an artifact, and returns its number. */
	async saveArtifact({ appName, userId, sessionId, filename, artifact, customMetadata }: SaveArtifactRequest): Promise<number> {
		if (!artifact.inlineData && !artifact.text && !artifact.fileData) throw new Error("Artifact must have either inlineData or text content.");
		const part = standard(artifact);
		const { text, ...rest } = part;
		const { data = "", ...blob } = part.inlineData ?? {};
		const binary = part.inlineData !== undefined;
		const about: About = {
			...(binary ? { part: { ...part, inlineData: blob } } : { part: rest, text: true }),
			...(customMetadata && { customMetadata }),
		};
		const bytes = binary ? Buffer.from(data, "base64") : Buffer.from(text ?? "");
		// Reading an artifact changes nothing in this session: otherwise a prune could take it for inactive.
		const place = { group: join(artifactRoot, appName, userId), retention: "all" } as const;
		const { session } = await this.#client.create(placeOf({ appName, userId, sessionId, filename }), place);
		return (await saveFile(session, filename, binary ? (blob.mimeType ?? "") : "text/plain", bytes, about)).version - 1;
	}

	/** Returns a version of an artifact, or the last one; undefined if there is none. */
	async loadArtifact({ version, ...of }: LoadArtifactRequest): Promise<Part | undefined> {
		const found = await this.#in(of, (s) => loadFile<About>(s, of.filename, version === undefined ? undefined : version + 1));
		if (!found) return undefined;
		const { text, part } = found.file.about;
		if (!text) return { ...part, inlineData: { ...part.inlineData, data: found.bytes.toString("base64") } };
		return part.fileData && found.bytes.length === 0 ? part : { ...part, text: found.bytes.toString() };
	}

	/** Returns the names of the artifacts of a session and of its user. */
	async listArtifactKeys(of: ListArtifactKeysRequest): Promise<string[]> {
		const found = ["", "user:"].map(async (filename) => (await this.#in({ ...of, filename }, fileNames)) ?? []);
		return (await Promise.all(found)).flat().sort();
	}

	/** Deletes all versions of an artifact. */
	async deleteArtifact(of: DeleteArtifactRequest): Promise<void> {
		await this.#in(of, (s) => deleteFile(s, of.filename));
	}

	/** Returns the numbers of the versions of an artifact. */
	async listVersions(of: ListVersionsRequest): Promise<number[]> {
		return (await this.listArtifactVersions(of)).map((v) => v.version);
	}

	/** Returns what is known of the versions of an artifact. */
	async listArtifactVersions(of: ListVersionsRequest): Promise<ArtifactVersion[]> {
		const found = await this.#in(of, (s) => fileVersions<About>(s, of.filename));
		return (found ?? []).map((f) => described(of, f));
	}

	/** Returns what is known of a version of an artifact, or of the last one; undefined if there is none. */
	async getArtifactVersion({ version, ...of }: LoadArtifactRequest): Promise<ArtifactVersion | undefined> {
		const found = await this.#in(of, (s) => findFile<About>(s, of.filename, version === undefined ? undefined : version + 1));
		return found && described(of, found);
	}

	/** Calls f with the session of the store that has an artifact. Returns undefined if there is none. */
	async #in<T>(of: ListVersionsRequest, f: (session: Session) => Promise<T>): Promise<T | undefined> {
		try {
			return await f(await this.#client.session(placeOf(of)));
		} catch (e) {
			if (gone(e)) return undefined;
			throw e;
		}
	}
}

/** Returns the id of the session of the store that has an artifact. */
function placeOf({ appName, userId, sessionId, filename }: ListVersionsRequest): string {
	const user = [appName, userId];
	return join(artifactRoot, ...(filename.startsWith("user:") ? user : [...user, sessionId]));
}

function described(of: ListVersionsRequest, { version, about: { text, part, customMetadata } }: File<About>): ArtifactVersion {
	const mimeType = text && !part.fileData ? "text/plain" : (part.inlineData ?? part.fileData)?.mimeType;
	return {
		version: version - 1,
		canonicalUri: part.fileData?.fileUri ?? `turnstone:${placeOf(of)}/${of.filename}/versions/${version - 1}`,
		...(customMetadata && { customMetadata }),
		...(mimeType !== undefined && { mimeType }),
	};
}
