// Events of ADK as the adapters for Go, Python and JavaScript store them. In JavaScript a time is a number of
// milliseconds, and bytes are text in base64; in JSON of the store a time is text, and bytes are in base64 with "+" and
// "/".

import { type BaseArtifactService, createEvent, type Event } from "@google/adk";
import { json, type RawJSON, untyped } from "./adapter.ts";
import type { Usage } from "./types.ts";

/** A part of a content: that of @google/genai, which @google/adk brings along. */
export type Part = NonNullable<Awaited<ReturnType<BaseArtifactService["loadArtifact"]>>>;

/** Values of a state as JSON, by their keys; null is one that is removed. */
export type Values = Map<string, RawJSON | null>;

const maxModel = 128; // bytes of the name of a model

/** An event as it is stored. */
interface Stored extends Omit<Event, "timestamp" | "actions"> {
	timestamp: string;
	actions?: Partial<Event["actions"]> & { route?: Event["route"] };
	/** What Go calls `route`. */
	routes?: string[];
}

/** Returns an event as it is stored, with a state delta. */
export function payloadOf(event: Event, delta: Values): string {
	const { content, route } = event;
	const stateDelta = Object.fromEntries([...delta].filter(([, v]) => v !== null));
	const routes = route === undefined ? {} : { route, routes: [route].flat().map(String) };
	return json({
		...event,
		...routes,
		timestamp: moment(event.timestamp),
		...(content && { content: { ...content, ...(content.parts && { parts: content.parts.map(standard) }) } }),
		actions: { ...event.actions, ...(route !== undefined && { route }), stateDelta },
	});
}

/** Returns an event that an adapter has stored. */
export function eventOf(payload: Buffer): Event {
	const { routes, ...stored } = JSON.parse(payload.toString()) as Stored;
	const { route: named, ...actions } = stored.actions ?? {};
	const route = stored.route ?? named ?? (routes?.length === 1 ? routes[0] : routes);
	const stateDelta = untyped(actions.stateDelta ?? {}) as Record<string, unknown>;
	return createEvent({
		...stored,
		...(route !== undefined && { route }),
		timestamp: milliseconds(stored.timestamp),
		actions: { ...actions, stateDelta },
	});
}

/** Returns a part with its bytes in the base64 that Go reads. */
export function standard(part: Part): Part {
	const { thoughtSignature, inlineData, functionResponse } = part;
	return {
		...part,
		...(thoughtSignature !== undefined && { thoughtSignature: base64(thoughtSignature) }),
		...(inlineData?.data !== undefined && { inlineData: { ...inlineData, data: base64(inlineData.data) } }),
		...(functionResponse?.parts && { functionResponse: { ...functionResponse, parts: functionResponse.parts.map((p) => standard(p as Part)) } }),
	};
}

function base64(text: string): string {
	const bare = text.replace(/[\r\n]|=+$/g, "");
	if (/[^\w+/-]/.test(bare) || bare.length % 4 === 1) throw new TypeError(`${JSON.stringify(text.slice(0, 80))} is no base64`);
	return Buffer.from(bare, "base64").toString("base64");
}

/** Returns a time as text (RFC 3339), with the digits that the number has. */
export function moment(milliseconds: number): string {
	const text = new Date(Math.floor(milliseconds)).toISOString(); // A number that is no time is a RangeError.
	if (text.length !== 24) throw new RangeError(`the time ${milliseconds} has no year of four digits`);
	const fraction = /\.(\d{1,6})/.exec(String(milliseconds))?.[1] ?? "";
	return `${`${text.slice(0, -1)}${fraction}`.replace(/\.?0+$/, "")}Z`;
}

/** Returns the milliseconds of a time that is text. */
export function milliseconds(text: string): number {
	const [, whole, fraction, zone] = /^([^.]+?)(\.\d+)?(Z|[+-]\d\d:\d\d)$/.exec(text) ?? [];
	const seconds = Date.parse(`${whole}${zone}`);
	if (Number.isNaN(seconds)) throw new RangeError(`${JSON.stringify(text)} is no time`);
	return seconds + Number(`0${fraction ?? ""}`) * 1000;
}

/** Returns the kind of an event's node. */
export function kindOf(event: Event): string {
	if (event.author === "user") return "user";
	return event.content?.parts?.some((p) => p.functionResponse) ? "tool" : "model";
}

/** Returns the tokens that the model has counted. */
export function usageOf(event: Event): Usage[] {
	const u = event.usageMetadata;
	if (!u) return [];
	const n = (count?: number) => Math.max(0, count ?? 0);
	const model = event.modelVersion && Buffer.byteLength(event.modelVersion) <= maxModel ? event.modelVersion : "unknown";
	const reasoning = n(u.thoughtsTokenCount);
	const input = n(u.promptTokenCount) + n(u.toolUsePromptTokenCount); // what tools of the model itself have given it
	return [{ model, input, output: n(u.candidatesTokenCount) + reasoning, cachedInput: n(u.cachedContentTokenCount), reasoning }];
}
