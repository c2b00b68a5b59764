/**
 * Sessions, artifacts and memory of Google's Agent Development Kit.
 *
 *     import { Runner } from "@google/adk";
 *     import { Client } from "turnstonedb";
 *     import { TurnstoneArtifacts, TurnstoneMemory, TurnstoneSessions } from "turnstonedb/adk";
 *
 *     const db = await Client.open("./data");
 *     const runner = new Runner({
 *         appName: "trips",
 *         agent,
 *         sessionService: new TurnstoneSessions(db),
 *         artifactService: new TurnstoneArtifacts(db),
 *         memoryService: new TurnstoneMemory(db),
 *     });
 *
 * The adapters for Go and Python read these sessions, artifacts and memories, and this one reads theirs. A session is
 * ADK/APP/USER/ID in the store, and an event is a commit with one node. The state of a session is a part of its
 * checkpoint, which each revision and each fork has as it was then. The state of users and apps changes in the batch of
 * the event that changes it.
 *
 * @module
 */

import { randomUUID } from "node:crypto";
import {
	type Session as AdkSession,
	type AppendEventRequest,
	BaseSessionService,
	type CreateSessionRequest,
	type DeleteSessionRequest,
	type Event,
	type GetSessionConfig,
	type GetSessionRequest,
	type ListSessionsRequest,
	type ListSessionsResponse,
	State,
} from "@google/adk";
import {
	gone,
	join,
	json,
	listed,
	marshal,
	names,
	newId,
	outcomeUnknown,
	RawJSON,
	rawFields,
	type StateChange,
	States,
	unmarshal,
} from "./adapter.ts";
import { artifactRoot } from "./adk-artifacts.ts";
import { eventOf, kindOf, milliseconds, payloadOf, usageOf, type Values } from "./adk-events.ts";
import { type Client, Session, type SessionCommit } from "./client.ts";
import { ConflictError, TurnConflictError } from "./errors.ts";
import type { Info, Node, Result } from "./types.ts";

export { TurnstoneArtifacts } from "./adk-artifacts.ts";
export { TurnstoneMemory } from "./adk-memory.ts";

const root = "adk";
const stateGroup = "adk-state";
const statePart = "state"; // with a session's own state
const latePart = "late"; // says that an event has a later time than its commit
const skew = 3_600_000; // by how many milliseconds clocks may differ

/** What is known of a session that was read: which one it is, its revision, and its own state as it is stored. */
interface Standing {
	incarnation: string;
	revision: number;
	own: Map<string, RawJSON>;
}

/** What changes of the states of the app, the user and the session, without prefixes. */
interface Deltas {
	app: Values;
	user: Values;
	own: Values;
	/** All of these, with prefixes. */
	all: Values;
}

const standings = new WeakMap<AdkSession, Standing>();
/** The last append to a session: the next one waits for its end. */
const appends = new WeakMap<AdkSession, Promise<unknown>>();

/**
 * A session service on a store. Processes may share the store.
 *
 * An event that is appended to a session object which others have appended to since it was read is stored after theirs,
 * as ADK's database service does: the object gets their events and state first. An event of an id that is there is not
 * stored again; one that differs is refused with a TurnConflictError. Values of state are what JSON has: null,
 * booleans, numbers, text, and arrays and plain objects of them. A key whose value is undefined is removed.
 */
export class TurnstoneSessions extends BaseSessionService {
	readonly #client: Client;
	readonly #states: States;

	constructor(client: Client) {
		super();
		this.#client = client;
		this.#states = new States(client, stateGroup);
	}

	/** Makes a session. It fails if there is one of that id. */
	override async createSession({ appName, userId, state, sessionId }: CreateSessionRequest): Promise<AdkSession> {
		const id = sessionId || randomUUID();
		const deltas = deltasOf(state ?? {});
		const own = changed(new Map(), deltas.own);
		const shown = await this.#shared(appName, userId);
		const create = { id: join(root, appName, userId, id), group: join(root, appName, userId) };
		const first = { create, turn: newId(), checkpoint: { [statePart]: partOf(own) } };
		let revision: number | undefined;
		try {
			({ revision } = await this.#commit(appName, userId, deltas, first));
		} catch (e) {
			if (!(e instanceof ConflictError) || e.outcomeUnknown) throw e;
			throw new Error(`Session with id ${id} already exists.`, { cause: e });
		}
		const { target } = await this.#client.session(create.id);
		const out = { id, appName, userId, state: shownOf(changed(shown, deltas.all)), events: [], lastUpdateTime: Date.now() };
		standings.set(out, { incarnation: target.incarnation ?? "", revision, own });
		return out;
	}

	/** Returns a session with its events, or undefined. */
	override async getSession({ appName, userId, sessionId, config }: GetSessionRequest): Promise<AdkSession | undefined> {
		try {
			const handle = await this.#client.session(join(root, appName, userId, sessionId));
			return await this.#read(handle, { appName, userId, id: sessionId }, config);
		} catch (e) {
			if (gone(e)) return undefined;
			throw e;
		}
	}

	async #read(
		handle: Session,
		key: { appName: string; userId: string; id: string },
		{ numRecentEvents: last, afterTimestamp: since }: GetSessionConfig = {},
		known?: Map<string, Map<string, RawJSON>>,
	): Promise<AdkSession> {
		const [state, shared] = await Promise.all([
			handle.load({ parts: [statePart, latePart], ...(last || since ? { last: last || 1 } : {}) }),
			this.#shared(key.appName, key.userId, known),
		]);
		let { nodes } = state;
		if (since && !last && nodes.length > 0) {
			nodes = [];
			for await (const n of handle.nodes({ at: state.revision || "zero", reverse: true })) {
				nodes.push(n);
				if (!state.contents.has(latePart) && milliseconds(n.time) < since - skew) break;
			}
			nodes.reverse();
		}
		const events = nodes.map((n) => eventAt(handle, n));
		const own = rawFields(state.contents.get(statePart)?.toString() ?? "{}");
		const out = {
			...key,
			state: shownOf(new Map([...own, ...shared])),
			events: since ? events.filter((e) => e.timestamp >= since) : events,
			lastUpdateTime: events.at(-1)?.timestamp ?? (state.time ? milliseconds(state.time) : 0),
		};
		standings.set(out, { incarnation: handle.target.incarnation ?? "", revision: state.revision, own });
		return out;
	}

	/** Returns the states of an app and a user, with prefixes. known has those that were read before. */
	async #shared(appName: string, userId: string, known = new Map<string, Map<string, RawJSON>>()): Promise<Map<string, RawJSON>> {
		const read = async (prefix: string, id: string) => {
			const values = known.get(id) ?? new Map([...(await this.#states.read(id))].map(([k, v]) => [prefix + k, new RawJSON(v.toString())] as const));
			known.set(id, values);
			return values;
		};
		const all = await Promise.all([read(State.APP_PREFIX, join(root, appName)), read(State.USER_PREFIX, join(root, appName, userId))]);
		return new Map(all.flatMap((values) => [...values]));
	}

	/**
	 * Returns the sessions of a user, or of all users of an app, with their state and without events. They are in the
	 * order of their updates in the store, the most recently updated first unless `order` is "asc". Those of one page
	 * are read.
	 */
	override async listSessions({ appName, userId, limit, offset, page, order }: ListSessionsRequest): Promise<ListSessionsResponse> {
		const group = userId === undefined ? join(root, appName) : join(root, appName, userId);
		const found = (await listed(this.#client, { group })).filter((i) => {
			const of = names(i.id);
			return of.length === 3 && of[0] === appName && (userId === undefined || of[1] === userId); // Somebody else has put others into the group.
		});
		if (order === "asc") found.reverse();
		const from = limit !== undefined && page !== undefined ? (page - 1) * limit : (offset ?? 0);
		const known = new Map<string, Map<string, RawJSON>>();
		const sessions: AdkSession[] = [];
		for (const i of found.slice(from, limit === undefined ? undefined : from + limit)) {
			const one = await this.#listed(i, known);
			if (one) sessions.push(one);
		}
		const size = limit ?? found.length;
		const number = limit === undefined ? 1 : (page ?? (limit === 0 ? 1 : Math.floor(from / limit) + 1));
		return { sessions, page: number, limit: size, totalItems: found.length, totalPages: size === 0 ? 0 : Math.ceil(found.length / size) };
	}

	/** Returns a session without its events, or undefined if it was deleted since it was listed. */
	async #listed(info: Info, known: Map<string, Map<string, RawJSON>>): Promise<AdkSession | undefined> {
		const [appName = "", userId = "", id = ""] = names(info.id);
		try {
			const one = await this.#read(new Session(this.#client, info.id, info.incarnation), { appName, userId, id }, { numRecentEvents: 1 }, known);
			one.events = [];
			standings.delete(one); // Who appends to it gets the events first.
			return one;
		} catch (e) {
			if (gone(e)) return undefined;
			throw e;
		}
	}

	/** Deletes a session and its artifacts. The state and the artifacts of its user stay. */
	override async deleteSession({ appName, userId, sessionId }: DeleteSessionRequest): Promise<void> {
		// The session is deleted last, so that it is in lists as long as anything is left of it.
		for (const of of [artifactRoot, root]) await this.#client.delete(join(of, appName, userId, sessionId));
	}

	/** Stores an event and its changes to the state of the session, the user and the app: all of this, or nothing. */
	override async appendEvent({ session, event }: AppendEventRequest): Promise<Event> {
		if (event.partial) return event;
		const deltas = deltasOf(event.actions?.stateDelta ?? {}); // What can't be stored is refused before any effect.
		const payload = payloadOf(event, deltas.all);
		const call = (appends.get(session) ?? Promise.resolve()).then(() => this.#append(session, event, payload, deltas));
		appends.set(
			session,
			call.catch(() => {}),
		);
		return call;
	}

	async #append(session: AdkSession, event: Event, payload: string, deltas: Deltas): Promise<Event> {
		try {
			let standing = standings.get(session) ?? (await this.#renew(session));
			for (;;) {
				const stored = await this.#store(session, standing, event, payload, deltas);
				if (typeof stored === "object") {
					standings.set(session, stored);
					await super.appendEvent({ session, event });
					session.lastUpdateTime = event.timestamp;
					return event;
				}
				standing = await this.#renew(session, standing);
				if (stored !== "before") continue;
				if (session.events.some((e) => e.id === event.id)) return event;
				const text = `Event ${event.id} was appended before, and a rewind has taken it away: give it another id.`;
				throw new TurnConflictError(text, { type: "#turn-conflict" });
			}
		} catch (e) {
			if (!gone(e) || outcomeUnknown(e)) throw e;
			throw new Error(`Session ${session.id} not found for appendEvent`, { cause: e });
		}
	}

	/**
	 * Stores an event if a session stands as it was read. Returns how the session stands then; "before" is that the
	 * event was stored before.
	 */
	async #store(session: AdkSession, standing: Standing, event: Event, payload: string, deltas: Deltas): Promise<Standing | "stale" | "before"> {
		const { appName, userId, id } = session;
		const handle = new Session(this.#client, join(root, appName, userId, id), standing.incarnation);
		const own = changed(standing.own, deltas.own);
		try {
			const {
				revision,
				replayed,
				nodes = [],
			} = await this.#commit(appName, userId, deltas, {
				session: handle,
				expected: standing.revision,
				nodes: [{ kind: kindOf(event), payload }],
				turn: event.id,
				usage: usageOf(event),
				checkpoint: {
					...(deltas.own.size > 0 && { [statePart]: partOf(own) }),
					...(event.timestamp > Date.now() + skew / 2 && { [latePart]: "" }),
				},
			});
			const fresh = revision === standing.revision + 1 && (!replayed || (await shows(handle, nodes[0])));
			return fresh ? { ...standing, revision, own } : "before";
		} catch (e) {
			if (e instanceof ConflictError && !e.outcomeUnknown) return "stale";
			// The event may have been stored beside another state of the session: that is no other turn.
			if (e instanceof TurnConflictError && (await handle.load({ at: e.revision, last: 1 })).nodes[0]?.payload.toString() === payload)
				return "before";
			throw e;
		}
	}

	/**
	 * Reads a session object again, and returns how the session stands. One that was made again since is another
	 * session.
	 */
	async #renew(session: AdkSession, standing?: Standing): Promise<Standing> {
		const { appName, userId, id } = session;
		const sessionId = join(root, appName, userId, id);
		const handle = standing ? new Session(this.#client, sessionId, standing.incarnation) : await this.#client.session(sessionId);
		const read = await this.#read(handle, { appName, userId, id });
		const temporary = Object.entries(session.state).filter(([k]) => k.startsWith(State.TEMP_PREFIX));
		session.state = Object.fromEntries([...Object.entries(read.state), ...temporary]);
		session.events = read.events;
		session.lastUpdateTime = read.lastUpdateTime;
		const stands = standings.get(read) as Standing;
		standings.set(session, stands);
		return stands;
	}

	/** Makes a commit, and changes the states of an app and a user, in one batch. Returns the revision. */
	async #commit(appName: string, userId: string, deltas: Deltas, own: SessionCommit): Promise<Result> {
		const changes = new Map([
			[join(root, appName), changeOf(deltas.app)],
			[join(root, appName, userId), changeOf(deltas.user)],
		]);
		return (await this.#states.commit(changes, [own]))[0] as Result;
	}
}

/** Reports whether the path of a session has a node. */
async function shows(handle: Session, node?: string): Promise<boolean> {
	for await (const n of handle.nodes({ reverse: true })) if (n.id === node) return true;
	return false;
}

function deltasOf(given: Record<string, unknown>): Deltas {
	const deltas: Deltas = { app: new Map(), user: new Map(), own: new Map(), all: new Map() };
	for (const [key, v] of Object.entries(given)) {
		if (key.startsWith(State.TEMP_PREFIX)) continue;
		const value = v === undefined ? null : new RawJSON(marshal(v));
		deltas.all.set(key, value);
		if (key.startsWith(State.APP_PREFIX)) deltas.app.set(key.slice(State.APP_PREFIX.length), value);
		else if (key.startsWith(State.USER_PREFIX)) deltas.user.set(key.slice(State.USER_PREFIX.length), value);
		else deltas.own.set(key, value);
	}
	return deltas;
}

/** Returns values with changes. */
function changed(before: Map<string, RawJSON>, changes: Values): Map<string, RawJSON> {
	const out: Values = new Map([...before, ...changes]);
	for (const [key, value] of out) if (value === null) out.delete(key);
	return out as Map<string, RawJSON>;
}

function changeOf(values: Values): StateChange {
	return new Map([...values].map(([k, v]) => [k, v === null ? null : v.text]));
}

/** Returns the checkpoint part with a session's own state. */
function partOf(own: Map<string, RawJSON>): string {
	return json(Object.fromEntries(own));
}

function shownOf(values: Map<string, RawJSON>): Record<string, unknown> {
	return Object.fromEntries([...values].map(([k, v]) => [k, unmarshal(v.text)]));
}

function eventAt(handle: Session, n: Node): Event {
	try {
		return eventOf(n.payload);
	} catch (e) {
		throw new Error(`session ${JSON.stringify(handle.id)}: node ${n.id} is no event`, { cause: e });
	}
}
