/**
 * Sessions of AI agents in a Turnstone store.
 *
 *     import { Client } from "turnstonedb";
 *
 *     const db = await Client.open("./data");
 *     const { session } = await db.create("chat-1");
 *     const { revision } = await session.load();
 *     await session.commit({ nodes: [{ kind: "user", payload: "hello" }], expected: revision, turn: "1" });
 *     db.close();
 *
 * `turnstonedb/langgraph` is a checkpointer for LangGraph, `turnstonedb/mastra` a storage for Mastra, `turnstonedb/agents` a session for the OpenAI Agents
 * SDK, `turnstonedb/adk` has services for Google ADK, and `turnstonedb/ai` keeps chats of the AI SDK. `turnstonedb/transcript` is for hosts that save whole
 * histories.
 *
 * @module
 */

export { Client, type OpenOptions, Session, type SessionCommit } from "./client.ts";
export {
	ConflictError,
	DamagedError,
	DivergedError,
	InvalidError,
	NotFoundError,
	OutcomeUnknownError,
	type Point,
	type Problem,
	PushError,
	RecordConflictError,
	RefusedError,
	SessionDeletedError,
	TurnConflictError,
	TurnstoneError,
	UnauthorizedError,
	UnavailableError,
} from "./errors.ts";
export type { Options, Progress } from "./requests.ts";
export type * from "./types.ts";
export type { Bytes } from "./wire.ts";
