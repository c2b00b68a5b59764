// Values as JSON, without a silent loss.

import { isPlain } from "./values.ts";

const bytesKey = "$bytes";

/**
 * Returns a value as JSON. Bytes are in it as base64, and fields that are undefined are not; what JSON would lose or change otherwise is refused with
 * TypeError. Dates are text, if they are allowed.
 */
export function toJSON(value: unknown, { dates = false }: { dates?: boolean } = {}): string {
	return JSON.stringify(value, function (this: { [key: string]: unknown }, key: string, v: unknown) {
		const raw = this[key]; // v may be what its toJSON has made of it
		if (raw instanceof Uint8Array) return { [bytesKey]: Buffer.from(raw).toString("base64") };
		const lost =
			typeof raw === "function" ||
			typeof raw === "symbol" ||
			(typeof raw === "number" && !Number.isFinite(raw)) ||
			(raw === undefined && Array.isArray(this)) ||
			(typeof raw === "object" && raw !== null && (Object.hasOwn(raw, bytesKey) || !(isPlain(raw) || (dates && raw instanceof Date))));
		if (lost) throw new TypeError(`${JSON.stringify(key)} is not a value that JSON has`);
		return v;
	});
}

/** Returns the value of what `toJSON` has made. */
export function fromJSON(text: Buffer): unknown {
	return JSON.parse(text.toString(), (_, v) => {
		const bytes: unknown = typeof v === "object" && v !== null ? v[bytesKey] : undefined;
		return typeof bytes === "string" ? new Uint8Array(Buffer.from(bytes, "base64")) : v;
	});
}

/** Returns a JSON value with the names of its objects in order, so that equal values have equal texts. */
export function inOrder(value: unknown): unknown {
	if (Array.isArray(value)) return value.map(inOrder);
	if (typeof value !== "object" || value === null) return value;
	const entries = Object.entries(value).map(([k, v]) => [k, inOrder(v)] as const);
	return Object.fromEntries(entries.sort(([a], [b]) => (a < b ? -1 : 1)));
}
