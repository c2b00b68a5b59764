import { kinds } from "./kinds.ts";
import type { PushReport } from "./types.ts";

/** A problem, as RFC 9457 calls what a server answers instead of a result. docs/http.md of the project has the kinds. */
export interface Problem {
	type?: string;
	detail?: string;
	matches?: string[];
	conflict?: { session: string; expected: number | string; revision: number; leaf?: string; commit?: string; node?: string };
	turnConflict?: { session: string; turn: string; revision: number; commit?: string };
	recordConflict?: { session: string; key: string; expected: string; version: string };
	diverged?: { session: string; here: Point; there: Point; common: Point };
	limit?: { limit: string; have: number; max: number; where?: string };
	invalid?: { where: string; reason: string };
	/** Of an upload that goes on elsewhere: where. */
	offset?: number;
}

/** A commit of a session; of revision 0 it is empty. */
export interface Point {
	revision: number;
	commit: string | null;
}

/** Any error of a store or its server. Nothing of a write has happened, unless `outcomeUnknown` or `incomplete` is true. */
export class TurnstoneError extends Error {
	readonly problem: Problem;
	/** One of the kinds of docs/http.md, for example "session-not-found". */
	readonly kind: string;
	/** All kinds that the error matches. */
	readonly matches: ReadonlySet<string>;

	constructor(text: string, problem: Problem = {}, cause?: unknown) {
		super(text, cause === undefined ? undefined : { cause });
		this.name = new.target.name;
		this.problem = problem;
		this.kind = (problem.type ?? "#other").replace(/^.*#/, "");
		this.matches = new Set(problem.matches);
	}

	/** Whether what the call was to do may or may not stand. Repeat it with the same turn id. */
	get outcomeUnknown(): boolean {
		return this.matches.has("unknown-outcome");
	}

	/** Whether a part of the work was done, and stands. Calling again does the rest. */
	get incomplete(): boolean {
		return this.matches.has("incomplete");
	}
}

/** Somebody else committed first. `revision`, `leaf` and `commit` are those of the head that stands. */
export class ConflictError extends TurnstoneError {
	readonly session = this.problem.conflict?.session ?? "";
	readonly expected = this.problem.conflict?.expected ?? 0;
	readonly revision = this.problem.conflict?.revision ?? 0;
	readonly leaf = this.problem.conflict?.leaf;
	readonly commit = this.problem.conflict?.commit;
}

/** The turn id stands for another commit, of `revision`. */
export class TurnConflictError extends TurnstoneError {
	readonly session = this.problem.turnConflict?.session ?? "";
	readonly turn = this.problem.turnConflict?.turn ?? "";
	readonly revision = this.problem.turnConflict?.revision ?? 0;
}

/** A record is of `version`, and not of the version `expected`. */
export class RecordConflictError extends TurnstoneError {
	readonly session = this.problem.recordConflict?.session ?? "";
	readonly key = this.problem.recordConflict?.key ?? "";
	readonly expected = this.problem.recordConflict?.expected ?? "";
	readonly version = this.problem.recordConflict?.version ?? "";
}

/** What is stored does not allow it: the id or name is taken, the session has children, the feed is off, or it is another store. */
export class RefusedError extends TurnstoneError {}

/**
 * A session in a store, and the one that was to come to it, have gone different ways since revision `common`, or since before what is known of it if that is
 * 0. `here` and `there` are their revisions.
 */
export class DivergedError extends RefusedError {
	readonly session = this.problem.diverged?.session ?? "";
	readonly here = this.problem.diverged?.here.revision ?? 0;
	readonly there = this.problem.diverged?.there.revision ?? 0;
	readonly common = this.problem.diverged?.common.revision ?? 0;
}

/**
 * Not all was pushed: `refused` has an error for each session that can't be, and at the end the one that has ended the push, if there is such. `report` says
 * what has come.
 */
export class PushError extends RefusedError {
	readonly refused: TurnstoneError[];
	readonly report: PushReport;

	constructor(refused: TurnstoneError[], report: PushReport, cause?: unknown) {
		super(refused.map((e) => e.message).join("\n"), refused[0]?.problem, cause);
		this.refused = refused;
		this.report = report;
	}
}

/** There is no such session, node, record, revision or attachment. */
export class NotFoundError extends TurnstoneError {}

/** The session of this handle was deleted or renamed. */
export class SessionDeletedError extends NotFoundError {}

/** The request is malformed, contradicts itself or the session, or exceeds a limit. */
export class InvalidError extends TurnstoneError {}

/** Data of the store is missing or damaged. */
export class DamagedError extends TurnstoneError {}

/** The token is missing or unknown, or does not allow the request. */
export class UnauthorizedError extends TurnstoneError {}

/** The server, or the database of its store, could not be reached. */
export class UnavailableError extends TurnstoneError {}

/** The server could not be reached again, and may have made the write. */
export class OutcomeUnknownError extends UnavailableError {}

const classes = {
	ConflictError,
	DamagedError,
	DivergedError,
	InvalidError,
	NotFoundError,
	OutcomeUnknownError,
	RecordConflictError,
	RefusedError,
	SessionDeletedError,
	TurnConflictError,
	UnauthorizedError,
	UnavailableError,
} satisfies Record<string, typeof TurnstoneError>;

const classOf = new Map<string, typeof TurnstoneError>(Object.entries(kinds).map(([kind, name]) => [kind, classes[name]]));

/** Returns a problem as an error. */
export function ofProblem(problem: Problem): TurnstoneError {
	const error = classOf.get((problem.type ?? "").replace(/^.*#/, "")) ?? TurnstoneError;
	return new error(problem.detail ?? "", problem);
}

export function unavailable(text: string, cause?: unknown): UnavailableError {
	return new UnavailableError(text, { type: "#unavailable", matches: ["unavailable"] }, cause);
}

export function outcomeUnknown(text: string, cause?: unknown): OutcomeUnknownError {
	return new OutcomeUnknownError(text, { type: "#unknown-outcome", matches: ["unknown-outcome", "unavailable"] }, cause);
}
