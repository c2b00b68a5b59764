// How sessions go from one store to another. It does what package push of the Go library does.

import { setTimeout as sleep } from "node:timers/promises";
import type { Client } from "./client.ts";
import { DivergedError, ofProblem, PushError, RefusedError, TurnstoneError } from "./errors.ts";
import type { Bundled, Page, PushOptions, PushReport, Standing, Unbundled } from "./types.ts";

const together = 100; // sessions of a bundle
const attempts = 6; // in turn without a session that has come
const asked = 32; // commits that are compared at once
const page = 1000;
/** Kinds of errors after which another attempt may do it: the connection was cut, or a session was changed meanwhile. */
const transient = ["unavailable", "unknown-outcome", "conflict", "diverged", "session-deleted", "session-not-found"];

/** What the other store lacks of some sessions. */
interface Lacking {
	of: Bundled[];
	diverged: Bundled[];
	same: number;
	refused: TurnstoneError[];
}

/** Where a session stands in both stores. */
interface Pair {
	here: Standing | undefined;
	there: Standing | undefined;
}

export async function push(from: Client, to: Client, options: PushOptions): Promise<PushReport> {
	return new Pushing(from, to, options).run();
}

class Pushing {
	readonly #from: Client;
	readonly #to: Client;
	readonly #o: PushOptions;
	readonly #tried = new Map<string, Unbundled>();
	readonly #report: PushReport = { sessions: [], same: 0 };

	constructor(from: Client, to: Client, options: PushOptions) {
		const { sessions = [], group, all, changedSince, as } = options;
		if ([sessions.length > 0, Boolean(group), Boolean(all)].filter(Boolean).length !== 1) {
			throw new TypeError("name sessions, or a group, or say all");
		}
		if (changedSince && sessions.length > 0) throw new TypeError("changedSince is for a group or all sessions, and sessions are named");
		if (new Set(sessions).size < sessions.length) throw new TypeError("a session is named twice");
		if (as && sessions.length !== 1) throw new TypeError("as is for one session");
		this.#from = from;
		this.#to = to;
		this.#o = options;
	}

	async run(): Promise<PushReport> {
		const refused: TurnstoneError[] = [];
		try {
			const ids = this.#o.sessions?.length ? await this.#named(this.#o.sessions, refused) : await this.#listed();
			for (let i = 0; i < ids.length; i += together) refused.push(...(await this.#some(ids.slice(i, i + together))));
		} catch (e) {
			if (!(e instanceof TurnstoneError) || (refused.length === 0 && this.#report.sessions.length === 0)) throw e;
			throw new PushError([...refused, e], this.#report, e);
		}
		if (refused.length > 0) throw new PushError(refused, this.#report);
		return this.#report;
	}

	/** Returns those sessions that exist of those that are named, and adds an error for each of the others. */
	async #named(ids: string[], missing: TurnstoneError[]): Promise<string[]> {
		const exists = new Set<string>();
		for (let i = 0; i < ids.length; i += page) {
			for (const s of await this.#from.standings(ids.slice(i, i + page).map((id) => ({ id })))) exists.add(s.id);
		}
		for (const id of ids) if (!exists.has(id)) missing.push(refusal("session-not-found", `session not found: ${JSON.stringify(id)}`));
		return ids.filter((id) => exists.has(id));
	}

	/** Returns the ids of all sessions that are meant, parents before their forks. */
	async #listed(): Promise<string[]> {
		const found = new Map<string, string>();
		let since = this.#o.changedSince ? bare(this.#o.changedSince.toISOString()) : "";
		let limit = page;
		// A session that is updated meanwhile moves to the front, which may be behind the reader: so the front is read again until there is nothing new.
		for (let before = -1; found.size > before; limit = 50) {
			before = found.size;
			let newest = since;
			for (let after: string | undefined = ""; after !== undefined; ) {
				const list: Page = await this.#from.list({ limit, ...(after && { after }), ...(this.#o.group && { group: this.#o.group }) });
				after = list.next || undefined;
				for (const s of list.sessions) {
					const updated = bare(s.updated);
					if (updated < since) {
						after = undefined; // The others were updated before.
						break;
					}
					if (updated > newest) newest = updated;
					if (!found.has(s.id)) found.set(s.id, bare(s.created));
				}
			}
			since = newest;
		}
		return [...found].sort(([, a], [, b]) => (a < b ? -1 : Number(a > b))).map(([id]) => id);
	}

	#there(id: string): string {
		return this.#o.as || id;
	}

	/** Pushes some sessions, and returns the errors of those that can't be. */
	async #some(ids: string[]): Promise<TurnstoneError[]> {
		let last = "";
		let size = 0;
		let parents = true;
		for (let failed = 1; ; failed++) {
			let received = false;
			try {
				const lacking = await this.#compare(ids, parents);
				const now = JSON.stringify(lacking.of);
				if (now !== last) failed = 1;
				last = now;
				size = lacking.of.length;
				received = true;
				if (lacking.of.length > 0) await this.#send(lacking.of);
				for (const one of lacking.diverged) await this.#diverged(one);
				this.#report.same += lacking.same;
				return lacking.refused;
			} catch (e) {
				if (!(e instanceof TurnstoneError)) throw e;
				if (e.matches.has("invalid-bundle") && ids.length > 1) return this.#each(ids); // because of one of them
				if (e.matches.has("invalid-bundle") && parents && size > 1) {
					parents = false; // Perhaps it is because of the parent.
					continue;
				}
				const goesOn = transient.some((kind) => e.matches.has(kind));
				if (failed === attempts || !goesOn) throw e;
				parents &&= !(received && e.matches.has("conflict"));
				await sleep(20 * failed * failed + 20 * Math.random());
			}
		}
	}

	/** Sends a session that becomes a branch. */
	async #diverged(one: Bundled): Promise<void> {
		try {
			await this.#send([one], this.#o.branch);
		} catch (e) {
			if (!(e instanceof TurnstoneError && e.matches.has("revision-pruned") && one.since)) throw e;
			await this.#send([{ id: one.id }], this.#o.branch); // What came after the last common revision is relative to what is not there any more.
		}
	}

	async #each(ids: string[]): Promise<TurnstoneError[]> {
		const refused: TurnstoneError[] = [];
		for (const id of ids) {
			try {
				refused.push(...(await this.#some([id])));
			} catch (e) {
				if (!(e instanceof TurnstoneError && e.matches.has("invalid-bundle"))) throw e;
				refused.push(e);
			}
		}
		return refused;
	}

	/** Sends a bundle, and adds the sessions that have come to the report. */
	async #send(of: Bundled[], branch?: string): Promise<void> {
		const { as } = this.#o;
		const came = await this.#to.unbundle(this.#from.bundle(of), { ...(as && { as }), ...(branch && { branch }) });
		for (const s of came) {
			const before = this.#tried.get(s.id);
			this.#tried.delete(s.id);
			const all = { ...s, ...before, to: s.to }; // An attempt before this one may have brought some.
			if (s.changed || all.created || all.to > all.from) this.#report.sessions.push({ ...all, changed: true });
			else if (before) this.#report.same++; // What is different is of the other store alone.
		}
	}

	/** Finds out what the other store lacks of sessions, and of the parents of those that are new there. */
	async #compare(ids: string[], parents: boolean): Promise<Lacking> {
		const out: Lacking = { of: [], diverged: [], same: 0, refused: [] };
		const missing = new Set<string>();
		for (const { here, there } of (await this.#pairs(ids)).values()) {
			if (!here) continue; // It was deleted since it was found.
			await this.#add(out, here, there);
			if (parents && !this.#o.as && !there && here.parent) missing.add(here.parent);
		}
		for (const { id } of out.of) missing.delete(id);
		for (const [id, { here, there }] of await this.#pairs([...missing])) {
			if (!here || !there) continue;
			try {
				out.of.push({ id, since: (await this.#lacks(here, there)).since || "zero" });
			} catch (e) {
				if (!(e instanceof RefusedError)) throw e;
			}
		}
		return out;
	}

	/** Adds what the other store lacks of a session. */
	async #add(out: Lacking, here: Standing, there: Standing | undefined): Promise<void> {
		const id = this.#there(here.id);
		const before = this.#tried.get(id);
		try {
			const { since, lacks } = await this.#lacks(here, there);
			if (!lacks) {
				this.#tried.delete(id);
				if (before)
					this.#report.sessions.push({ ...before, to: there?.revision ?? 0, changed: true }); // An attempt that failed in the end has brought it.
				else out.same++;
				return;
			}
			out.of.push({ id: here.id, since: there ? since || "zero" : 0 });
		} catch (e) {
			if (!(e instanceof RefusedError)) throw e;
			if (!(e instanceof DivergedError && this.#o.branch)) {
				out.refused.push(e);
				return;
			}
			out.diverged.push({ id: here.id, since: e.common });
		}
		if (!before) this.#tried.set(id, there ? { id, from: there.revision, to: 0 } : { id, created: true, from: 0, to: 0 });
	}

	/** Compares where sessions stand. `at` of each has the commit at the revision where the other one stands. */
	async #pairs(ids: string[]): Promise<Map<string, Pair>> {
		if (ids.length === 0) return new Map();
		const ask = async (target: boolean, at: Map<string, Standing>): Promise<Map<string, Standing>> => {
			const name = (id: string) => (target ? this.#there(id) : id);
			const found = await (target ? this.#to : this.#from).standings(
				ids.map((id) => ({ id: name(id), ...(at.has(id) && { at: [at.get(id)?.revision ?? 0] }) })),
			);
			const by = new Map(found.map((s) => [s.id, s]));
			return new Map(ids.flatMap((id) => (by.has(name(id)) ? [[id, by.get(name(id)) as Standing]] : [])));
		};
		const there = await ask(true, new Map());
		const here = await ask(false, there);
		if ([...there].some(([id, s]) => s.revision > (here.get(id)?.revision ?? s.revision))) {
			for (const [id, now] of await ask(true, here)) if (there.get(id)?.commit === now.commit) there.set(id, now);
		}
		return new Map(ids.map((id) => [id, { here: here.get(id), there: there.get(id) }]));
	}

	/** Returns since which revision the other store lacks what, and whether it lacks anything. */
	async #lacks(here: Standing, there: Standing | undefined): Promise<{ since: number; lacks: boolean }> {
		if (!there) return { since: 0, lacks: true };
		if (here.genesis !== there.genesis) throw refusal("exists", `session exists: another session is called ${JSON.stringify(there.id)} there`);
		const rest = { since: here.revision, lacks: here.rest !== there.rest };
		if (here.revision === there.revision && here.commit === there.commit) return rest;
		if (there.revision < here.revision && here.at?.[0] === there.commit) return { since: there.revision, lacks: true };
		if (there.revision > here.revision && there.at?.[0] === here.commit) return rest;
		const common = await this.#common(here, there);
		if (common.revision === there.revision) return { since: there.revision, lacks: true }; // It was committed to since it was asked.
		if (common.revision === here.revision) return rest;
		const point = ({ revision, commit }: { revision: number; commit: string }) => ({ revision, commit });
		throw ofProblem({
			type: "#diverged",
			matches: ["diverged"],
			detail: `session has diverged: ${JSON.stringify(there.id)} is at revision ${there.revision} here and at ${here.revision} there, and the last common one is ${common.revision}`,
			diverged: { session: there.id, here: point(there), there: point(here), common },
		});
	}

	/** Returns the last commit that both stores have of a session. */
	async #common(here: Standing, there: Standing): Promise<{ revision: number; commit: string }> {
		let low = { revision: 0, commit: "" }; // It is common, and high + 1 is not.
		let high = Math.min(here.revision, there.revision);
		while (low.revision < high) {
			const begin = low.revision;
			const n = Math.min(asked, high - begin);
			const at = Array.from({ length: n }, (_, i) => begin + Math.floor(((high - begin) * (i + 1)) / n));
			const [ours] = await this.#from.standings([{ id: here.id, at }]);
			const [theirs] = await this.#to.standings([{ id: there.id, at }]);
			if (!ours || !theirs) throw refusal("session-deleted", `session was deleted: ${JSON.stringify(here.id)}`);
			for (const [i, revision] of at.entries()) {
				const commit = ours.at?.[i] ?? "";
				if (commit !== theirs.at?.[i]) {
					high = revision - 1;
					break;
				}
				low = { revision, commit };
			}
		}
		return low;
	}
}

/** Returns a time so that its text is in the order of time. */
function bare(time: string): string {
	return time
		.replace("Z", "")
		.replace(/(\.\d*?)0*$/, "$1")
		.replace(/\.$/, "");
}

function refusal(kind: string, detail: string): TurnstoneError {
	return ofProblem({ type: `#${kind}`, matches: [kind], detail });
}
