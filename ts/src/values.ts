// Values as JSON that the adapters in all three languages read. Package adapter has the same for Go, and
// turnstonedb.adapter for Python.

/** JSON that was written already: `json` and `marshal` take it over as it is. */
export class RawJSON {
	readonly text: string;

	constructor(text: string) {
		this.text = text;
	}
}

/** How deep a value may be, as in Python. */
const maxDepth = 200;

// The object that stands for a value whose type JSON does not show, and the type that Go has for a map of any values.
const typeField = "$type";
const valueField = "value";
const mapType = "map[string]interface {}";

/**
 * Returns a value of state as JSON: null, a boolean, a number, text, and arrays and plain objects of them. `unmarshal`
 * returns the same value from that. A field that is undefined is left out. A value of another type is refused with a
 * TypeError, and so is what JSON has no text for. Go and Python take a number without a fraction for an integer.
 */
export function marshal(value: unknown): string {
	return textOf(value, true, 0);
}

/**
 * Is JSON.stringify, but refuses with a TypeError what that would drop or change: numbers that are not finite, bytes,
 * maps, functions, undefined in an array, and text with a surrogate alone. The names in an object are in order, so that
 * equal values have equal texts.
 */
export function json(value: unknown): string {
	return textOf(value, false, 0);
}

function textOf(value: unknown, state: boolean, depth: number): string {
	if (depth > maxDepth) throw new TypeError(`the value is deeper than ${maxDepth} levels, or has itself as a part`);
	if (value === null || typeof value === "boolean") return String(value);
	if (typeof value === "string") {
		if (!value.isWellFormed()) throw new TypeError(`the text ${JSON.stringify(value.slice(0, 80))} has a surrogate without its other half`);
		return JSON.stringify(value);
	}
	if (typeof value === "number") {
		if (!Number.isFinite(value)) throw new TypeError(`JSON has no number ${value}`);
		return Object.is(value, -0) ? "-0.0" : JSON.stringify(value);
	}
	if (value instanceof RawJSON) return value.text;
	if (Array.isArray(value)) return `[${Array.from(value, (v) => textOf(v, state, depth + 1)).join(",")}]`;
	if (typeof value !== "object" || value instanceof Uint8Array) throw new TypeError(`a value of type ${nameOf(value)} is not kept by JSON`);
	if (!state && "toJSON" in value && typeof value.toJSON === "function") return textOf(value.toJSON(), state, depth + 1);
	const kept = state ? isPlain(value) : Object.prototype.toString.call(value) === "[object Object]";
	if (!kept) throw new TypeError(`a value of type ${nameOf(value)} is not kept by JSON`);
	const fields = Object.entries(value).filter(([, v]) => v !== undefined);
	const text = fields.sort(([a], [b]) => (a < b ? -1 : 1)).map(([k, v]) => `${textOf(k, state, depth)}:${textOf(v, state, depth + 1)}`);
	const object = `{${text.join(",")}}`;
	return state && Object.hasOwn(value, typeField) ? `{"${typeField}":"${mapType}","${valueField}":${object}}` : object;
}

function nameOf(value: unknown): string {
	return typeof value === "object" && value !== null ? (value.constructor?.name ?? "object") : typeof value;
}

/** Whether an object is an array, or has fields alone. */
export function isPlain(o: object): boolean {
	const prototype: unknown = Object.getPrototypeOf(o);
	return Array.isArray(o) || prototype === Object.prototype || prototype === null;
}

/**
 * Returns the value that `marshal` was given, or any that JSON has. What Go has of another type, for example a time, is
 * what stands for it in JSON. An integer beyond 2^53 is the nearest number.
 */
export function unmarshal(text: string | Uint8Array): unknown {
	return untyped(JSON.parse(typeof text === "string" ? text : Buffer.from(text).toString()));
}

/** Returns the value that `marshal` was given, from what JSON.parse has made of its text. */
export function untyped(value: unknown): unknown {
	if (Array.isArray(value)) return value.map(untyped);
	if (typeof value !== "object" || value === null) return value;
	const fields = Object.entries(value);
	const { [typeField]: type, [valueField]: inner } = value as Record<string, unknown>;
	if (fields.length === 2 && typeof type === "string" && Object.hasOwn(value, valueField)) {
		const isMap = typeof inner === "object" && inner !== null && !Array.isArray(inner);
		return isMap ? Object.fromEntries(Object.entries(inner).map(([k, v]) => [k, untyped(v)])) : untyped(inner);
	}
	return Object.fromEntries(fields.map(([k, v]) => [k, untyped(v)]));
}

/**
 * Returns the fields of a JSON object as they are written: numbers keep what JavaScript's would lose. Throws a
 * SyntaxError for what is no JSON object.
 */
export function rawFields(text: string): Map<string, RawJSON> {
	const value: unknown = JSON.parse(text);
	if (typeof value !== "object" || value === null || Array.isArray(value)) throw new SyntaxError("the JSON is no object");
	const out = new Map<string, RawJSON>();
	let depth = 0;
	let name = "";
	let begin = -1; // of the field's value
	for (let at = 0; at < text.length; at++) {
		const token = text[at];
		if (token === '"') {
			const end = endOf(text, at);
			if (begin < 0) name = JSON.parse(text.slice(at, end + 1));
			at = end;
		}
		if (token === "}" || token === "]") depth--;
		if (begin < 0 && token === ":") begin = at + 1;
		if (begin >= 0 && ((depth === 1 && token === ",") || depth === 0)) {
			out.set(name, new RawJSON(text.slice(begin, at).trim()));
			begin = -1;
		}
		if (token === "{" || token === "[") depth++;
	}
	return out;
}

/** Returns where the string of JSON ends that begins at a place: the place of its last quotation mark. */
function endOf(text: string, begin: number): number {
	for (let at = begin + 1; ; at++) {
		at = text.indexOf('"', at);
		let slashes = 0;
		while (text[at - 1 - slashes] === "\\") slashes++;
		if (slashes % 2 === 0) return at;
	}
}
