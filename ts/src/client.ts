import { randomBytes } from "node:crypto";
import { InvalidError, NotFoundError, UnavailableError } from "./errors.ts";
import { push } from "./push.ts";
import { type Options, type Progress, Requests } from "./requests.ts";
import { absolute, address, start } from "./server.ts";
import { download, upload } from "./transfer.ts";
import type {
	Attached,
	Attachment,
	Bundled,
	Change,
	Commit,
	Create,
	Feed,
	History,
	Info,
	ListOptions,
	LoadOptions,
	LogEntry,
	Message,
	Metadata,
	Node,
	NodesOptions,
	Page,
	PruneOptions,
	PushOptions,
	PushReport,
	RecordChange,
	RecordPage,
	RecordUpdate,
	Ref,
	Report,
	Result,
	Revision,
	Saved,
	SaveOptions,
	Standing,
	StandingQuery,
	State,
	StoredRecord,
	Unbundled,
} from "./types.ts";
import { type Document, encode, type Place } from "./wire.ts";

/** How `Client.open` opens a store. */
export interface OpenOptions extends Pick<Options, "namespace" | "patience"> {
	/** After how many seconds in which nobody has asked it anything the server ends: 60 without it. */
	idle?: number;
}

/** One of the commits of `Client.commitAll`: to a session, to one that it makes if there is none of the id, or to the records of a session alone. */
export type SessionCommit =
	| ({ session: Session; create?: never; recordsOnly?: never } & Commit)
	| ({ create: Create & { id: string }; session?: never; recordsOnly?: never } & Commit)
	| { session: Session; recordsOnly: true; records: RecordChange[]; create?: never }
	| { create: Create & { id: string }; recordsOnly: true; records: RecordChange[]; session?: never };

/** A connection with a server of stores. Use `Client.open` for a store in a directory, and `new Client(address)` for a server that runs. */
export class Client {
	/** @internal */
	readonly requests: Requests;

	/** Connects with a server at "unix:PATH", "https://HOST:PORT" or "http://HOST:PORT". */
	constructor(address: string, options: Options = {}) {
		this.requests = new Requests(address, options);
	}

	/**
	 * Opens a store: "DIR", "pebble:DIR" or "badger:DIR".
	 *
	 * Processes that open the same store share a server, which the first one starts. It ends when nobody has asked it anything for some time, and the next
	 * call starts another one.
	 */
	static async open(store: string, { idle = 60, ...options }: OpenOptions = {}): Promise<Client> {
		const place = absolute(store);
		let starting: Promise<boolean> | undefined;
		const restart = () => {
			starting ??= start(place, idle).finally(() => {
				starting = undefined;
			});
			return starting;
		};
		const client = new Client(address(place), { ...options, restart });
		try {
			await client.requests.hello();
		} catch (e) {
			client.close();
			throw e;
		}
		return client;
	}

	/** Closes the connections. Calls that come later fail, and so do those that have no answer yet. */
	close(): void {
		this.requests.close();
	}

	async [Symbol.asyncDispose](): Promise<void> {
		this.close();
	}

	/** Makes a session, or returns the one that exists, and whether it was made. */
	async create(id: string, options: Create = {}): Promise<{ session: Session; created: boolean; info: Info }> {
		const { new: created, ...info } = (await this.requests.one("create", { id, ...options }, write())).value as Info & { new: boolean };
		return { session: new Session(this, info.id, info.incarnation), created, info };
	}

	/**
	 * Makes messages the history of a session, and stores the difference. It makes the session if there is none, as `create` does. What is edited or left out
	 * stays in the graph, as a branch.
	 */
	async save(id: string, messages: Message[], options: SaveOptions = {}): Promise<Saved> {
		const { state, empty, usage, turn, base, touch, summary, parent, forkNode, forkAt, noCheckpoint, detached, ...metadata } = options;
		const parts = state instanceof Map ? [...state] : Object.entries(state ?? {});
		const sent = {
			session: id,
			messages: messages.map(({ kind, payload, attachments }) => ({ kind, payload, attachments })),
			...metadata,
			...{ empty, usage, turn, base, touch, new: { summary, parent, forkNode, forkAt, noCheckpoint, detached } },
			...(state && { state: parts.map(([name, content]) => ({ name, content })) }),
		};
		return (await this.requests.one("save", sent, write())).value; // Another server might save it again, over what others have saved since.
	}

	/** Returns the whole history of a session, or undefined if there is none. */
	async history(id: string): Promise<History | undefined> {
		for (;;) {
			try {
				const session = await this.session(id);
				const { revision, commit, nodes, parts } = await session.load();
				const state = parts.length > 0 ? await session.checkpoint(revision) : new Map<string, Buffer>();
				const info = await session.info();
				if ((info.commit ?? "") !== (commit ?? "")) continue; // Somebody has committed between these reads.
				return {
					info,
					state,
					messages: nodes.map(({ id, kind, payload, attachments }) => ({ id, kind, payload, ...(attachments && { attachments }) })),
				};
			} catch (e) {
				if (!(e instanceof NotFoundError)) throw e;
				if (["session-not-found", "session-deleted"].includes(e.kind)) return undefined;
				if (e.kind !== "revision-pruned") throw e;
			}
		}
	}

	/** Returns an existing session, or fails with NotFoundError. */
	async session(id: string): Promise<Session> {
		const info = await new Session(this, id).info();
		return new Session(this, info.id, info.incarnation);
	}

	/** Lists sessions, the most recently updated first: a page of them. */
	async list(options: ListOptions = {}): Promise<Page> {
		const page = (await this.requests.one("list", options)).value as Page;
		return { ...page, sessions: page.sessions ?? [] };
	}

	/** Stores a turn in each of several sessions, all or none. */
	async commitAll(commits: SessionCommit[]): Promise<Result[]> {
		const anywhere = commits.some((c) => !c.recordsOnly); // A commit has a turn id, or that of the request.
		const sent = commits.map(({ session, create, recordsOnly, ...commit }) => {
			if (session && session.client !== this) {
				throw new InvalidError(`session ${JSON.stringify(session.id)} is of another client`, { type: "#invalid", matches: ["invalid"] });
			}
			return { ...session?.target, create, ...(recordsOnly ? { ...commit, recordsOnly } : wireCommit(commit)) };
		});
		return (await this.requests.one("commit-all", { commits: sent }, write(anywhere))).value.results ?? [];
	}

	/** Lists records of all sessions, in the order of their keys: a page of them. */
	async records(prefix = "", { after, limit }: { after?: string; limit?: number } = {}): Promise<RecordPage> {
		return readRecords(await this.requests.one("records", { prefix, after, limit }));
	}

	/**
	 * Yields the records of all sessions whose keys begin with a prefix, and the changes of them that come. It begins anew when the connection is cut, and
	 * ends with the signal, or when the client is closed.
	 */
	watchRecords(prefix = "", { signal }: { signal?: AbortSignal } = {}): AsyncGenerator<RecordUpdate> {
		return updates(this.requests, { prefix }, signal);
	}

	/** Removes the session that has an id now. children says what becomes of its forks. */
	async delete(id: string, children: "keep" | "refuse" | "cascade" = "keep"): Promise<void> {
		await this.requests.one("delete", { session: id, children }, write());
	}

	/** Turns the feed of changes on. It keeps changes for so many seconds; those of records are in it if asked for. */
	async startFeed(keepSeconds: number, { records = false } = {}): Promise<void> {
		await this.requests.one("start-feed", { keepNanoseconds: Math.round(keepSeconds * 1e9), records }, write());
	}

	/** Turns the feed of changes off. */
	async stopFeed(): Promise<void> {
		await this.requests.one("stop-feed", {}, write());
	}

	/** Returns what the feed has. */
	async feed(): Promise<Feed> {
		return (await this.requests.one("feed", {})).value;
	}

	/** Yields the changes of all sessions after a cursor, and those that come. A loop that waits ends with the signal, or when the client is closed. */
	async *changes(after: string, { signal }: { signal?: AbortSignal } = {}): AsyncGenerator<Change> {
		for await (const event of this.requests.events("/v1/changes", () => ({ after }), signal)) {
			after = (event as Change).cursor;
			yield event as Change;
		}
	}

	/** Returns where sessions stand, to compare it with where they do in another store. Those that do not exist are left out. */
	async standings(sessions: StandingQuery[]): Promise<Standing[]> {
		return (await this.requests.one("standings", { sessions })).value.sessions ?? [];
	}

	/** Yields sessions as one bundle, which `unbundle` of any store reads. When the connection is cut, it goes on where it was. */
	bundle(sessions: Bundled[]): AsyncGenerator<Buffer> {
		return download(this.requests, (offset, before) => [
			"POST",
			"/v1/bundle",
			{ body: encode({ sessions, ...(offset > 0 && { offset, before: before() }) }) },
		]);
	}

	/**
	 * Makes the sessions of a bundle, or brings those that exist forward. The only one of a bundle gets the id `as`; if it has diverged, it becomes a branch of
	 * the one that is there, whose end is kept under the name `branch`. Otherwise the call fails with DivergedError.
	 */
	async unbundle(content: Uint8Array | AsyncIterable<Uint8Array>, { as, branch }: { as?: string; branch?: string } = {}): Promise<Unbundled[]> {
		const stored = await upload(this.requests, "/v1/bundle", { ...(as && { as }), ...(branch && { branch }) }, content);
		return stored.bundle?.sessions ?? [];
	}

	/**
	 * Brings sessions to another store, which gets what it lacks of them. A session only goes forward. What can't be pushed is in the PushError with which
	 * the call fails when it has pushed all others: of one that has diverged, a DivergedError; of one that does not exist, a NotFoundError. A push that failed goes on when it is called again.
	 */
	push(to: Client, options: PushOptions): Promise<PushReport> {
		return push(this, to, options);
	}

	/** Deletes the blobs that nothing refers to. */
	async gc({ progress, ...options }: { dryRun?: boolean; full?: boolean; progress?: Progress } = {}): Promise<Report> {
		return report(await this.requests.several("gc", options, write(true), progress));
	}

	/** Removes what is detached, and gives the space back. */
	async vacuum({ noCompaction = false, progress }: { noCompaction?: boolean; progress?: Progress } = {}): Promise<Report> {
		return report(await this.requests.several("vacuum", { noCompaction }, write(true), progress));
	}

	/** Applies retention to all sessions, or to those of a group. */
	async prune(options: PruneOptions = {}): Promise<Report> {
		const { age, inactive, ...rest } = options;
		const message = { ...rest, ageNanoseconds: nanoseconds(age), inactiveNanoseconds: nanoseconds(inactive) };
		return report(await this.requests.several("prune", message, write()));
	}

	/** Deletes the session that has an id now, and removes what it alone had from the store's files. */
	async erase(id: string, children: "keep" | "refuse" | "cascade" = "keep", { progress }: { progress?: Progress } = {}): Promise<Report> {
		return report(await this.requests.several("erase", { session: id, children }, write(), progress));
	}

	/** Makes segments of loose commits. */
	async seal(): Promise<void> {
		await this.requests.several("seal", {}, write(true));
	}

	/** Checks every hash, link, checksum and reference. Nothing is wrong if the report has no `problems`. */
	async verify({ progress }: { progress?: Progress } = {}): Promise<Report> {
		return report(await this.requests.several("verify", {}, write(true), progress));
	}

	/** Says what the namespace holds, and what that takes. */
	async stats(): Promise<Report> {
		return report(await this.requests.several("stats", {}, write(true)));
	}

	/** Raises the format of the store to the newest one. */
	async upgrade(): Promise<{ from: number; to: number }> {
		return (await this.requests.one("upgrade", {}, write())).value as unknown as { from: number; to: number };
	}
}

function nanoseconds(seconds: number | undefined): number | undefined {
	return seconds === undefined ? undefined : Math.round(seconds * 1e9);
}

/** A session. Its methods fail with SessionDeletedError when it was deleted or renamed. */
export class Session {
	readonly client: Client;
	readonly id: string;
	/** @internal */
	readonly target: { session: string; incarnation?: string };

	/** Returns a handle without asking the server. Without `incarnation` each call is about whatever session has the id then. */
	constructor(client: Client, id: string, incarnation?: string) {
		this.client = client;
		this.id = id;
		this.target = incarnation === undefined ? { session: id } : { session: id, incarnation };
	}

	/** Returns metadata, head and totals. */
	async info(): Promise<Info> {
		return (await this.#one("info", {})).value;
	}

	/** Reads history: the active path, or what the options say. */
	async load(options: LoadOptions = {}): Promise<State> {
		const answer = await this.client.requests.several("load", { ...this.target, ...options });
		const [first] = answer as [Document];
		const { contents, records, ...state } = first.value.state;
		return {
			...state,
			parts: state.parts ?? [],
			nodes: readNodes(answer),
			contents: new Map((contents ?? []).map((p: { name: string; content: Place }) => [p.name, first.bytes(p.content)])),
			records: new Map((records ?? []).map((r: WireRecord) => [r.key, readRecord(r, first)])),
		};
	}

	/** Yields the nodes that `load` returns, one at a time. When the connection is cut, it goes on where it was. */
	async *nodes(options: NodesOptions = {}): AsyncGenerator<Node> {
		for await (const d of this.client.requests.nodes({ ...this.target, ...options })) yield readNode(d.value.node, d);
	}

	/** Returns one node, by its id or by the caller's key. */
	async node(by: { id: string } | { key: string }): Promise<Node> {
		const d = await this.#one("node", "id" in by ? { node: by.id } : { key: by.key });
		return readNode(d.value, d);
	}

	/** Returns those nodes that have one of the caller's keys. */
	async nodesByKey(keys: string[]): Promise<Map<string, Node>> {
		return new Map(readNodes(await this.#several("nodes-by-key", { keys })).map((n) => [n.key as string, n]));
	}

	/** Returns the ends of branches, without payloads. */
	async leaves(): Promise<Node[]> {
		return readNodes(await this.#several("leaves", {}));
	}

	/** Returns the commits after a revision, up to the head. */
	async log(after = 0): Promise<LogEntry[]> {
		return (await this.#several("log", { after })).flatMap((d) => d.value.entry ?? []);
	}

	/** Returns the revisions that are kept by name. */
	async kept(): Promise<Map<string, number>> {
		const kept: { name: string; revision: number }[] = (await this.#one("kept", {})).value.kept ?? [];
		return new Map(kept.map((k) => [k.name, k.revision]));
	}

	/** Returns the contents of the checkpoint parts at a revision, the head's without one. */
	async checkpoint(at?: Revision): Promise<Map<string, Buffer>> {
		const d = await this.#one("checkpoint", { at });
		return new Map((d.value.parts ?? []).map((p: { name: string; content: Place }) => [p.name, d.bytes(p.content)]));
	}

	/** Stores one turn, whole or not at all. */
	async commit(commit: Commit): Promise<Result> {
		return (await this.#one("commit", wireCommit(commit), write(true))).value;
	}

	/** Returns the record of a key, or undefined. */
	async record(key: string): Promise<StoredRecord | undefined> {
		try {
			const d = await this.#one("record", { key });
			return readRecord(d.value, d);
		} catch (e) {
			if (e instanceof NotFoundError && e.kind === "record-not-found") return undefined;
			throw e;
		}
	}

	/**
	 * Returns the records of some keys whose values are JSON objects with a revision, each with the checkpoint of that, and the records whose keys begin with
	 * what the object has in `beside`. `known` is the version of a record whose parts the caller has: they are left out. Those that are gone are left out, too.
	 */
	async refs(wanted: { key: string; known?: string }[]): Promise<Ref[]> {
		const out: Ref[] = [];
		for (const d of await this.#several("refs", { refs: wanted })) {
			const { ref, beside } = d.value;
			if (ref) {
				const parts = ref.known
					? undefined
					: new Map<string, Buffer>((ref.parts ?? []).map((p: { name: string; content: Place }) => [p.name, d.bytes(p.content)]));
				out.push({ record: readRecord(ref.record, d), ...(parts && { parts }), beside: [] });
			} else if (beside) {
				out.at(-1)?.beside.push(...beside.records.map((r: WireRecord) => readRecord(r, d)));
			}
		}
		return out;
	}

	/** Lists records in the order of their keys: a page of them. */
	async records(prefix = "", { after, limit }: { after?: string; limit?: number } = {}): Promise<RecordPage> {
		return readRecords(await this.#one("records", { prefix, after, limit }));
	}

	/** Sets, deletes and checks records, all or none, without a commit. Returns their versions. */
	async changeRecords(changes: RecordChange[]): Promise<string[]> {
		return (await this.#one("change-records", { changes }, write())).value.versions ?? [];
	}

	/** Empties fields ("all" is every one), and merges others. Without both, it says that the session was used. */
	async saveMetadata(fields: Metadata, empty: (keyof Metadata | "all")[] = []): Promise<void> {
		await this.#one("save-metadata", { ...fields, empty }, write());
	}

	/** Hides nodes. */
	async tombstone(nodes: string[]): Promise<void> {
		await this.#one("tombstone", { nodes }, write());
	}

	/** Keeps a revision under a name. */
	async keep(name: string, revision: Revision): Promise<void> {
		await this.#one("keep", { name, revision }, write());
	}

	/** Ends the keeping of a revision. */
	async release(name: string): Promise<void> {
		await this.#one("release", { name }, write());
	}

	/** Gives the session another id. Handles of the session, this one included, fail with SessionDeletedError then. */
	async rename(to: string): Promise<void> {
		await this.#one("rename", { to }, write());
	}

	/**
	 * Removes this session, also if it was renamed since, and never another one that has its id by now. A handle that was made without an incarnation
	 * means whatever session has the id. If `expected` is a revision and the head is at another one, the session stays, and the error is ConflictError: that
	 * needs a handle with an incarnation, as `Client.session` returns it.
	 */
	async delete(children: "keep" | "refuse" | "cascade" = "keep", { expected }: { expected?: Revision } = {}): Promise<void> {
		await this.#one("delete", { children, ...(expected !== undefined && { expected }) }, write());
	}

	/** Yields the commits after a revision, and those that come. A loop that waits for the next one ends with the signal, or when the client is closed. */
	async *watch(after = 0, { signal }: { signal?: AbortSignal } = {}): AsyncGenerator<LogEntry> {
		for await (const event of this.client.requests.events("/v1/watch", () => ({ ...this.target, after: String(after) }), signal)) {
			after = (event as LogEntry).revision;
			yield event as LogEntry;
		}
	}

	/** Yields the records whose keys begin with a prefix, and the changes of them that come, as `Client.watchRecords` does. */
	watchRecords(prefix = "", { signal }: { signal?: AbortSignal } = {}): AsyncGenerator<RecordUpdate> {
		return updates(this.client.requests, { ...this.target, prefix }, signal);
	}

	/** Returns what is known of an attachment, without its bytes. */
	async attachment(id: string): Promise<Attached> {
		return (await this.#one("stat-attachment", { id })).value;
	}

	/** Returns the attachments of the session's nodes, in the order of time. */
	async attachments(): Promise<Attached[]> {
		return (await this.#one("attachments", {})).value.attachments ?? [];
	}

	/** Makes an attachment of another session one that commits of this one may refer to. */
	async linkAttachment(from: string, id: string): Promise<Attachment> {
		return (await this.#one("link-attachment", { from, id }, write())).value;
	}

	/** Stores bytes for a commit to refer to. When the connection is cut, it goes on where the server is. */
	async putAttachment(
		content: Uint8Array | AsyncIterable<Uint8Array>,
		{ mediaType = "", name = "" }: { mediaType?: string; name?: string } = {},
	): Promise<Attachment> {
		return (await upload(this.client.requests, "/v1/attachment", { ...this.target, mediaType, name }, content)).attachment as Attachment;
	}

	/** Yields the bytes of an attachment. When the connection is cut, it goes on where it was. */
	readAttachment(id: string): AsyncGenerator<Buffer> {
		return download(this.client.requests, (offset) => ["GET", "/v1/attachment", { query: { ...this.target, id, offset: String(offset) } }]);
	}

	/** Deletes blobs that this session let go of and nothing refers to. */
	async gc({ progress, ...options }: { dryRun?: boolean; full?: boolean; progress?: Progress } = {}): Promise<Report> {
		return report(await this.#several("gc", options, write(true), progress));
	}

	/** Removes the content of tombstoned nodes from the store's files. */
	async vacuum({ noCompaction = false, progress }: { noCompaction?: boolean; progress?: Progress } = {}): Promise<Report> {
		return report(await this.#several("vacuum", { noCompaction }, write(true), progress));
	}

	/** Retains the last revisions, and those that are kept by name. Returns whether the floor has moved. */
	async prune(revisions: number): Promise<boolean> {
		return report(await this.#several("prune", { revisions }, write())).sessions === 1;
	}

	/** Tombstones nodes, and removes their content from the store's files. */
	async erase(...nodes: string[]): Promise<Report> {
		return report(await this.#several("erase-nodes", { nodes }, write(true)));
	}

	/** Makes segments of loose commits. */
	async seal(): Promise<void> {
		await this.#several("seal", {}, write(true));
	}

	#one(name: string, message: object, as?: ReturnType<typeof write>): Promise<Document> {
		return this.client.requests.one(name, { ...message, ...this.target }, as);
	}

	#several(name: string, message: object, as?: ReturnType<typeof write>, progress?: Progress): Promise<Document[]> {
		return this.client.requests.several(name, { ...message, ...this.target }, as, progress);
	}
}

/** Returns what makes a request a write, that the server makes once. */
function write(anywhere = false): { id: string; anywhere: boolean } {
	return { id: randomBytes(16).toString("hex"), anywhere };
}

function wireCommit({ checkpoint, expected = 0, ...commit }: Commit): object {
	const parts = checkpoint instanceof Map ? [...checkpoint] : Object.entries(checkpoint ?? {});
	for (const [name, content] of parts) {
		if (content === undefined) throw new InvalidError(`part ${JSON.stringify(name)} has no content`, { type: "#invalid", matches: ["invalid"] });
	}
	return { ...commit, expected, checkpoint: parts.map(([name, content]) => ({ name, content })) };
}

type WireNode = Omit<Node, "payload"> & { payload: Place };
type WireUpdate = Omit<StoredRecord, "value"> & { value: string | null };
type WireRecord = Omit<StoredRecord, "value"> & { value: Place };

function readNode(n: WireNode, d: Document): Node {
	return { ...n, payload: d.bytes(n.payload) };
}

function readNodes(answer: Document[]): Node[] {
	return answer.flatMap((d) => (d.value.node ? readNode(d.value.node, d) : []));
}

function readRecord(r: WireRecord, d: Document): StoredRecord {
	return { ...r, value: d.bytes(r.value) };
}

async function* updates(requests: Requests, query: Record<string, string>, signal?: AbortSignal): AsyncGenerator<RecordUpdate> {
	for await (const event of requests.events("/v1/watch-records", () => query, signal)) {
		const { records = [], anew = false, more = false } = event as { records?: WireUpdate[]; anew?: boolean; more?: boolean };
		yield { records: records.map((r) => ({ ...r, value: Buffer.from(r.value ?? "", "base64") })), anew, more };
	}
}

function readRecords(d: Document): RecordPage {
	return { ...d.value, records: (d.value.records ?? []).map((r: WireRecord) => readRecord(r, d)) };
}

function report(answer: Document[]): Report {
	for (const { value: v } of answer) {
		const found = v.report ?? v.vacuum ?? v.prune ?? v.erasure ?? v.verified ?? v.stats;
		if (found) return found;
	}
	throw new UnavailableError("the answer has no report");
}
