// How sessions go from one store to another. It is what Push of the Go library does.

import { setTimeout as sleep } from "node:timers/promises";
import type { Client } from "./client.ts";
import { DivergedError, ofProblem, PushError, RefusedError, TurnstoneError } from "./errors.ts";
import type { Bundled, PushOptions, PushReport, Standing, Unbundled } from "./types.ts";

const together = 100; // sessions of a bundle
const attempts = 6; // in turn without a session that has come
const asked = 32; // commits that are compared at once
const page = 1000;

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
		if (as && sessions.length !== 1) throw new TypeError("as is for one session");
		this.#from = from;
		this.#to = to;
		this.#o = options;
	}

	async run(): Promise<PushReport> {
		const ids = this.#o.sessions?.length ? [...new Set(this.#o.sessions)] : await this.#listed();
		const refused: TurnstoneError[] = [];
		for (let i = 0; i < ids.length; i += together) refused.push(...(await this.#some(ids.slice(i, i + together))));
		if (refused.length > 0) throw new PushError(refused, this.#report);
		return this.#report;
	}

	/** Returns the ids of all sessions that are meant, parents before their forks. */
	async #listed(): Promise<string[]> {
		const found: { id: string; created: string }[] = [];
		const bare = (time: string) => time.replace("Z", ""); // So that the texts of times are in their order.
		const since = this.#o.changedSince ? bare(this.#o.changedSince.toISOString()) : "";
		for (let after: string | undefined = ""; after !== undefined; ) {
			const { sessions, next }: { sessions: { id: string; created: string; updated: string }[]; next?: string } = await this.#from.list({
				limit: page,
				...(after && { after }),
				...(this.#o.group && { group: this.#o.group }),
			});
			after = next || undefined;
			for (const s of sessions) {
				if (bare(s.updated) < since) {
					after = undefined; // The others were updated before.
					break;
				}
				found.push({ id: s.id, created: bare(s.created) });
			}
		}
		found.sort((a, b) => (a.created < b.created ? -1 : Number(a.created > b.created)));
		return found.map((f) => f.id);
	}

	#there(id: string): string {
		return this.#o.as ?? id;
	}

	/** Pushes some sessions, and returns the errors of those that can't be. */
	async #some(ids: string[]): Promise<TurnstoneError[]> {
		let last = "";
		let parents = true;
		for (let failed = 1; ; failed++) {
			let received = false;
			try {
				const lacking = await this.#compare(ids, parents);
				const now = JSON.stringify(lacking.of);
				if (now !== last) failed = 1;
				last = now;
				received = true;
				if (lacking.of.length > 0) await this.#send(lacking.of);
				for (const one of lacking.diverged) await this.#send([one], this.#o.branch);
				this.#report.same += lacking.same;
				return lacking.refused;
			} catch (e) {
				if (!(e instanceof TurnstoneError)) throw e;
				if (e.matches.has("invalid-bundle") && ids.length > 1) return this.#each(ids); // because of one of them
				const goesOn = ["unavailable", "unknown-outcome", "conflict", "diverged", "session-deleted"].some((kind) => e.matches.has(kind));
				if (failed === attempts || !goesOn) throw e;
				parents &&= !(received && e.matches.has("conflict"));
				await sleep(20 * failed * failed + 20 * Math.random());
			}
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
			if (before)
				this.#report.sessions.push({ ...s, ...before, to: s.to }); // An attempt before this one may have brought some.
			else if (s.created || s.to > s.from) this.#report.sessions.push(s); // not a parent that had all already
		}
	}

	/** Finds out what the other store lacks of sessions, and of the parents of those that are new there. */
	async #compare(ids: string[], parents: boolean): Promise<Lacking> {
		const out: Lacking = { of: [], diverged: [], same: 0, refused: [] };
		const missing = new Set<string>();
		for (const [id, pair] of await this.#pairs(ids)) {
			const { here, there } = pair;
			if (!here) {
				if (this.#o.sessions?.length) throw refusal("session-not-found", `session not found: ${JSON.stringify(id)}`);
				continue; // It was deleted since it was listed.
			}
			await this.#add(out, here, there);
			if (parents && !this.#o.as && !there && here.parent && !ids.includes(here.parent)) missing.add(here.parent);
		}
		for (const [id, { here, there }] of await this.#pairs([...missing])) {
			if (!here || !there) continue;
			try {
				out.of.push({ id, since: (await this.#lacks(here, there)).since });
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
					this.#report.sessions.push({ ...before, to: there?.revision ?? 0 }); // An attempt that failed in the end has brought it.
				else out.same++;
				return;
			}
			out.of.push({ id: here.id, since });
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
		const ask = async (of: Client, at: Map<string, Standing>): Promise<Map<string, Standing>> => {
			const name = (id: string) => (of === this.#to ? this.#there(id) : id);
			const found = await of.standings(ids.map((id) => ({ id: name(id), ...(at.has(id) && { at: [at.get(id)?.revision ?? 0] }) })));
			const by = new Map(found.map((s) => [s.id, s]));
			return new Map(ids.flatMap((id) => (by.has(name(id)) ? [[id, by.get(name(id)) as Standing]] : [])));
		};
		const there = await ask(this.#to, new Map());
		const here = await ask(this.#from, there);
		if ([...there].some(([id, s]) => s.revision > (here.get(id)?.revision ?? s.revision))) {
			for (const [id, now] of await ask(this.#to, here)) if (there.get(id)?.commit === now.commit) there.set(id, now);
		}
		return new Map(ids.map((id) => [id, { here: here.get(id), there: there.get(id) }]));
	}

	/** Returns since which revision the other store lacks what, and whether it lacks anything. */
	async #lacks(here: Standing, there: Standing | undefined): Promise<{ since: number; lacks: boolean }> {
		if (!there) return { since: 0, lacks: true };
		if (here.genesis !== there.genesis) throw refusal("exists", `session exists: another session is called ${JSON.stringify(there.id)} there`);
		const rest = { since: here.revision, lacks: here.rest !== there.rest };
		if (here.revision === there.revision && here.commit === there.commit) return rest;
		if (there.revision < here.revision && here.at?.[0] === last(there)) return { since: there.revision, lacks: true };
		if (there.revision > here.revision && there.at?.[0] === last(here)) return rest;
		const common = await this.#common(here, there);
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

/** Returns the last commit, or the genesis before the first one. */
function last(s: Standing): string {
	return s.revision > 0 ? s.commit : s.genesis;
}

function refusal(kind: string, detail: string): TurnstoneError {
	return ofProblem({ type: `#${kind}`, matches: [kind], detail });
}
