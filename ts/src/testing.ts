/**
 * Compares a store of ours with a framework's own, by random calls: a helper for tests of adapters.
 *
 * @module
 */

import { isDeepStrictEqual } from "node:util";

/** Returns an integer from 0, below a number. */
export type Random = (below: number) => number;

/** Makes one call of a store, with arguments that it chooses by the numbers, and returns what is to be the same for all stores. */
export type Call<S> = (store: S, r: Random) => Promise<unknown>;

/**
 * Makes random calls of several stores, and throws an Error at the first one of which they don't return the same: equal results, or errors. If one of them has
 * failed, its error is the cause. Each store gets the same arguments. A call that is to be made more often than others is given more than once.
 */
export async function alike<S>(stores: S[], calls: Call<S>[], { steps = 200, seed = 0 }: { steps?: number; seed?: number } = {}): Promise<void> {
	for (let step = 0; step < steps; step++) {
		const call = calls[numbers(seed * 1e6 + 2 * step)(calls.length)] as Call<S>;
		const results: unknown[] = [];
		const errors: unknown[] = [];
		for (const store of stores) {
			try {
				results.push({ returns: await call(store, numbers(seed * 1e6 + 2 * step + 1)) });
			} catch (e) {
				results.push("an error");
				errors.push(e);
			}
		}
		for (const result of results.slice(1)) {
			if (!isDeepStrictEqual(results[0], result)) {
				const text = `seed ${seed}, step ${step}: ${call.name} returns\n${JSON.stringify(results[0])}\nand\n${JSON.stringify(result)}`;
				throw new Error(text, { cause: errors[0] });
			}
		}
	}
}

/** Returns numbers that look random, and are the same each time for a seed (mulberry32). */
function numbers(seed: number): Random {
	let state = Math.imul(seed + 1, 0x9e3779b1);
	return (below) => {
		state = (state + 0x6d2b79f5) | 0;
		let t = Math.imul(state ^ (state >>> 15), 1 | state);
		t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
		return Math.floor((((t ^ (t >>> 14)) >>> 0) / 2 ** 32) * below);
	};
}
