// Fields are declared once: what the server reads and tells, as its OpenAPI document says, is in the types of this package.

import { readFileSync } from "node:fs";
import { join } from "node:path";

const read = (...path: string[]) => readFileSync(join(import.meta.dirname, "..", ...path), "utf8");
const schemas: Record<string, { properties: Record<string, unknown> }> = JSON.parse(read("..", "server", "openapi.json")).components.schemas;
const source = read("src", "types.ts");

/** Returns the members of a type, those that it extends included. */
function members(name: string): string[] {
	const [, base, body] = new RegExp(`export (?:interface|type) ${name}(?: extends (\\w+))?(?: =)?([^]*?)\n(?:}|\n)`).exec(source) ?? [];
	if (body === undefined) throw new Error(`there is no type ${name}`);
	return [...(base ? members(base) : []), ...[...body.matchAll(/(?:^\t|[{;] )(\w+)\??:/gm)].map((m) => m[1] as string)];
}

// Of the session that a request is about, of the document, or an argument of the method beside the type.
const elsewhere: Record<string, string[]> = { Create: ["id"], Metadata: ["empty"] };
const target = ["session", "incarnation", "follow"];

test.each([
	["Info", "turnstone.Info"],
	["Page", "turnstone.Page"],
	["Result", "turnstone.Result"],
	["LogEntry", "turnstone.LogEntry"],
	["Change", "turnstone.Change"],
	["Feed", "turnstone.Feed"],
	["Node", "wire.Node"],
	["StoredRecord", "wire.Record"],
	["RecordPage", "wire.RecordPage"],
	["State", "wire.State"],
	["Part", "head.Part"],
	["Usage", "head.Usage"],
	["Attachment", "blob.Attachment"],
	["Create", "turnstone.Request"],
	["ListOptions", "turnstone.ListOptions"],
	["Commit", "wire.CommitRequest"],
	["NewNode", "wire.NewNode"],
	["RecordChange", "wire.RecordChange"],
	["Metadata", "wire.SaveMetadata"],
	["LoadOptions", "wire.Load"],
])("%s has every field of %s", (name, schema) => {
	const properties = Object.keys(schemas[schema]?.properties ?? {});
	expect(properties.length).toBeGreaterThan(0);
	const told = ["Info", "Change", "StoredRecord"].includes(name);
	const wanted = properties.filter((p) => (told ? p !== "follow" : !target.includes(p)) && !elsewhere[name]?.includes(p));
	expect(wanted.filter((p) => !members(name).includes(p))).toEqual([]);
});
