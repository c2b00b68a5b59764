/// <reference types="node" preserve="true" />
/// <reference lib="esnext.disposable" preserve="true" />
// What sessions have and take. The Go documentation of package turnstone says more of each field. Times are RFC 3339. What is empty may be absent.

import type { Bytes } from "./wire.ts";

/** How many commits a session had. "any" expects whatever the head is; "zero" is the state before the first commit. */
export type Revision = number | "any" | "zero";

/** A reference to a blob, as `putAttachment` returns it. */
export interface Attachment {
	id: string;
	size: number;
	mediaType?: string;
	name?: string;
}

/** Tokens of one model, and what they cost. `input` and `output` are all tokens there were; the next three say how many of them were of a sort. */
export interface Usage {
	model: string;
	input?: number;
	output?: number;
	cachedInput?: number;
	cacheWrite?: number;
	reasoning?: number;
	/** In billionths of a US dollar; 0 if the provider did not say. */
	cost?: number;
}

/** A node to append. */
export interface NewNode {
	/** 1 to 64 bytes. */
	kind: string;
	payload?: Bytes;
	/** A name by which the caller finds it: one node of a session has it. */
	key?: string;
	/** The id of a node, the index of one of the same commit, or "none"; without it, the node before. */
	parent?: string | number;
	attachments?: Attachment[];
}

/** A node as it is read. */
export interface Node {
	id: string;
	kind: string;
	/** It may share memory with what else was read at once. */
	payload: Buffer;
	revision: number;
	time: string;
	parent?: string;
	key?: string;
	attachments?: Attachment[];
	/** Whether it is the parent session's. */
	inherited?: boolean;
}

/** A part of a checkpoint, without its content. */
export interface Part {
	name: string;
	blob: string;
	size: number;
	/** The revision that set it. */
	set: number;
	/** The revision that set the nearest version before it that is stored whole. */
	whole: number;
}

/** What may be said of a session when it is made, and changed. */
export interface Metadata {
	/** For people. */
	name?: string;
	model?: string;
	/** Working directory. */
	cwd?: string;
	/** A path of names, by which sessions are listed. */
	group?: string;
	labels?: Record<string, string>;
	/** How many of the latest revisions can be read as they were. */
	retention?: number | "all";
	/** Any JSON value, up to 16 KiB. */
	custom?: unknown;
	/** When the host's own session was made, and changed: a time of RFC 3339. */
	hostCreated?: string;
	hostUpdated?: string;
}

/** How a session is made. */
export interface Create extends Metadata {
	summary?: boolean;
	/** The session that it is a fork of. */
	parent?: string;
	forkNode?: string;
	forkAt?: Revision;
	noCheckpoint?: boolean;
	detached?: boolean;
}

/** What is known of a session without reading its history. */
export interface Info extends Metadata {
	id: string;
	/** The session itself, whatever its id is. */
	incarnation: string;
	revision: number;
	created: string;
	updated: string;
	/** Nodes on the path to the leaf, inherited and tombstoned ones included. */
	messages: number;
	/** Nodes that the session itself added, tombstoned ones and those of other branches included. */
	nodes: number;
	bytes: number;
	summary?: boolean;
	parent?: string;
	forkNode?: string;
	detached?: boolean;
	leaf?: string;
	commit?: string;
	usage?: Usage[];
}

/** Which sessions to list. */
export interface ListOptions {
	after?: string;
	limit?: number;
	parent?: string;
	group?: string;
	labels?: Record<string, string>;
	summary?: boolean;
}

/** A part of a list of sessions. `next` is `after` of the next page, and absent on the last one. */
export interface Page {
	sessions: Info[];
	next?: string;
}

/** A record. Its version is "none" if there is none of the key. */
export interface StoredRecord {
	session: string;
	key: string;
	value: Buffer;
	version: string;
	time: string;
}

/** An attachment that a session has, with its first node and when that was committed, or until when it waits for a commit. */
export interface Attached extends Attachment {
	node?: string;
	revision?: number;
	inherited?: boolean;
	time?: string;
	expires?: string;
}

/** One entry of a whole history. */
export interface Message {
	kind: string;
	payload: Bytes;
	attachments?: Attachment[];
}

/** How to save a whole history. Metadata are merged, after those in `empty` were emptied; the rest of `Create` counts if the session is made. */
export interface SaveOptions extends Create {
	/** All of the host's settings. Without it, they stay as they are. */
	state?: Map<string, Bytes> | { [name: string]: Bytes };
	empty?: string[];
	/** Tokens since the last save. */
	usage?: Usage[];
	/** Makes the usage count once, however often it is saved. */
	turn?: string;
	/** The revision that the session must have. Without it, the last save wins. */
	base?: Revision;
	/** A save that changes nothing counts as an update. */
	touch?: boolean;
}

/** What a save did: so many messages were kept, and so many written. */
export interface Saved {
	/** The `base` of the next save. */
	revision: number;
	kept: number;
	added: number;
}

/** A whole history. The id of a message is the node that holds it. */
export interface History {
	info: Info;
	messages: (Message & { id: string; payload: Buffer })[];
	state: Map<string, Buffer>;
}

/** What a watch of records has seen: records that were set, as they stand now, and deleted ones, with the version "none". */
export interface RecordUpdate {
	records: StoredRecord[];
	/** The watch begins with this value, or had to begin again: what came before is void. */
	anew: boolean;
	/** The rest comes with the next value. */
	more: boolean;
}

/** A part of a list of records. `next` is `after` of the next page, and absent on the last one. */
export interface RecordPage {
	records: StoredRecord[];
	next?: string;
	revision: number;
}

/** A change of a record. `expect` is the version that it must have, "none" for one that must not exist, or absent for any. */
export type RecordChange =
	| { key: string; action: "set"; value: Bytes; expect?: string }
	| { key: string; action: "delete"; expect?: string }
	| { key: string; action: "check"; expect: string };

/** One turn: all of it is stored, or nothing. A node that it refers to is its id, the index of a new one, or "none". */
export interface Commit {
	/** The revision that the caller loaded; 0 without it. */
	expected?: Revision;
	nodes?: NewNode[];
	/** An id by which the turn is made once, however often it is asked for. */
	turn?: string;
	/** A node that must be on the active path. */
	onPath?: string;
	/** The end of the active path afterwards: the last new node without it. */
	leaf?: string | number;
	/** The parts that it sets. */
	checkpoint?: { [name: string]: Bytes } | Map<string, Bytes>;
	/** The parts that it sets to the content of an attachment that is stored already: its id, by the part. */
	stored?: { [name: string]: string };
	/** The parts that it removes. */
	drop?: string[];
	usage?: Usage[];
	labels?: { [name: string]: string };
	/** The nodes that it hides. */
	tombstone?: string[];
	/** A name to keep the new revision under. */
	keep?: string;
	records?: RecordChange[];
}

/** Where a commit stands. */
export interface Result {
	revision: number;
	commit?: string;
	leaf?: string;
	/** The ids of the new nodes. */
	nodes?: string[];
	/** The versions of the changed records. */
	records?: string[];
	/** Whether the turn stood already. */
	replayed?: boolean;
	/** Whether the session was made. */
	created?: boolean;
}

/** What to read of a history: the active path at the head, if nothing is said. */
export interface NodesOptions {
	at?: Revision;
	/** The end of another path. */
	leaf?: string;
	/** All nodes, and not one path. */
	full?: boolean;
	/** The last ones only. */
	last?: number;
	/** Those of later revisions only. */
	after?: number;
	/** The latest one first. */
	reverse?: boolean;
}

/** What to read of a session. */
export interface LoadOptions extends NodesOptions {
	/** The parts of the checkpoint whose contents to read. */
	parts?: string[];
	/** The keys of records to read. */
	records?: string[];
}

/** A session's history, or a part of it, at one revision. */
export interface State {
	revision: number;
	commit?: string;
	leaf?: string;
	time: string;
	nodes: Node[];
	parts: Part[];
	usage?: Usage[];
	contents: Map<string, Buffer>;
	records: Map<string, StoredRecord>;
}

/** One commit, as the log of its session tells of it. */
export interface LogEntry {
	revision: number;
	commit: string;
	time: string;
	turn?: string;
	leaf?: string;
	nodes?: number;
	parts?: Part[];
	usage?: Usage[];
	labels?: { [name: string]: string };
	/** Whether the revision can't be read any more. */
	pruned?: boolean;
}

/** A record that names a revision, the checkpoint parts of that, and the records beside it. */
export interface Ref {
	record: StoredRecord;
	/** Absent if the caller knows them. */
	parts?: Map<string, Buffer>;
	beside: StoredRecord[];
}

/** One change of a session, as the feed tells of it. */
export interface Change {
	kind: string;
	session?: string;
	incarnation: string;
	/** Where the feed goes on after it. */
	cursor: string;
	time: string;
	revision?: number;
	/** Of a rename: the new id. */
	to?: string;
	/** Of a change of a record: its key. */
	record?: string;
}

/** What the feed of changes has. */
export interface Feed {
	begin: string;
	end: string;
	keepNanoseconds: number;
	/** It has the changes of records, too. */
	records?: boolean;
	/** How often it was turned on or off, or told of more. */
	switches: number;
}

/** Asks where a session stands, and for its commits at some revisions; 0 is that before the first commit. */
export interface StandingQuery {
	id: string;
	at?: number[];
}

/** Where a session stands, to compare it with where it does in another store. */
export interface Standing {
	id: string;
	/** The session itself, another one in each store. */
	incarnation: string;
	/** The same in all stores that the session was brought to. */
	genesis: string;
	revision: number;
	/** Before the first one, the genesis. */
	commit: string;
	/** Of a fork: the id of its parent. */
	parent?: string;
	/** Stands for metadata, records, tombstones and kept revisions: where they are the same, it is. */
	rest: string;
	/** The commits at the revisions that were asked for; empty beyond the head. */
	at?: string[];
}

/** A session to write to a bundle: all of it, or what came since a revision that the other store has. */
export interface Bundled {
	id: string;
	/** "zero" is before the first revision; 0 is all of it. */
	since?: number | "zero";
}

/** A session that came in a bundle: where it stood before, and where it stands. */
export interface Unbundled {
	id: string;
	created?: boolean;
	from: number;
	to: number;
	/** It was made, or something of it has changed. */
	changed?: boolean;
	/** The revision that is kept for what has diverged, if `branch` was said. */
	branch?: number;
}

/** Which sessions to push: those that are named, those of a group and of the groups below it, or all. */
export interface PushOptions {
	sessions?: string[];
	group?: string;
	all?: boolean;
	/** Of a group or all, those that were updated then or later. */
	changedSince?: Date;
	/** The id that the session gets there, if it is one. */
	as?: string;
	/** If a session has diverged, what comes becomes a branch of it there, whose end is kept under this name. */
	branch?: string;
}

/** What a push did: the sessions that came, and how many had all already. */
export interface PushReport {
	sessions: Unbundled[];
	same: number;
}

/** What a collection or a vacuum did: the numbers that the server tells, by name. */
export type Report = { [name: string]: unknown };

/** What to prune. Times are in seconds. */
export interface PruneOptions {
	/** Only the sessions of this group are pruned, and of the groups below it. */
	group?: string;
	/** How many of its last revisions a session retains that has no number of its own. */
	revisions?: number;
	/** Revisions that are older go. */
	age?: number;
	/** Sessions that nobody has used for so long are deleted. */
	inactive?: number;
	/** The least recently updated sessions are deleted, so that all others have at most so many bytes. */
	bytes?: number;
	dryRun?: boolean;
}
