/**
 * What the stores of several frameworks share: ids that are joined of names, lists that miss nothing, values that keep
 * their types in JSON, state that belongs to a user or an app, and files with versions. docs/adapters.md tells how to
 * write an adapter with it. Package adapter is the same for Go, and turnstonedb.adapter for Python: each reads what the
 * others have written.
 *
 * @module
 */

export * from "./files.ts";
export * from "./sessions.ts";
export * from "./states.ts";
export { json, marshal, RawJSON, rawFields, unmarshal, untyped } from "./values.ts";
