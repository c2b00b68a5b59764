import { randomBytes } from "node:crypto";
import { isDeepStrictEqual } from "node:util";
import {
	deleteFile,
	fileNames,
	fileVersions,
	findFile,
	inCommits,
	join,
	json,
	listed,
	loadFile,
	marshal,
	names,
	RawJSON,
	rawFields,
	recorded,
	type StateChange,
	States,
	saveFile,
	short,
	unmarshal,
	untilStands,
} from "../src/adapter.ts";
import { type Client, ConflictError, type Info, InvalidError, RecordConflictError } from "../src/index.ts";
import { open } from "./helpers.ts";

test("ids of names are those of Go and Python", () => {
	const id = short(join("r", "é".repeat(300)));
	expect(id.startsWith("r/éé")).toBe(true);
	expect(id.endsWith("~a2acea681c8e86884d62ce42c970c71ee74bc3a0177c6466fb73dec691b28762")).toBe(true);
	for (const of of [["a"], ["a/b"], ["a%2Fb", "%"], ["", ""]]) expect(names(join("root", ...of))).toEqual(of);
	for (let n = 240; n < 260; n++) {
		for (const c of ["a", "é", "€", "😀"]) {
			const long = short(join(c.repeat(n), "x"));
			expect(Buffer.byteLength(long)).toBeLessThanOrEqual(512);
			expect(long).not.toContain("\ufffd");
		}
	}
});

test("a list has all sessions of a group", async () => {
	const db = await open();
	for (let i = 0; i < 5; i++) await db.create(`s${i}`, { group: "g" });
	await db.create("other");
	expect((await listed(db, { group: "g" })).map((i) => i.id)).toEqual(["s4", "s3", "s2", "s1", "s0"]);
	// A server leaves out zeros at the end of a time.
	const times = ["40Z", "40.5Z", "40.51Z", "40.6Z"].map((s, i) => ({ id: `${i}`, updated: `2026-11-28T20:59:${s}` }));
	vi.spyOn(db, "list").mockResolvedValue({ sessions: times as Info[] });
	expect((await listed(db, {})).map((i) => i.id)).toEqual(["3", "2", "1", "0"]);
});

test("a list misses nothing that was there when it began, whatever is used meanwhile, and ends however many sessions are made", async () => {
	const cases: Record<string, (page: number) => string[]> = {
		"one that was not read, and then what was": (page) => (page === 0 ? ["0", "11", "10", "9"] : []),
		"one that was not read, twice": (page) => ({ 2: ["0", "11", "10", "9"], 4: ["0"] })[page] ?? [],
		"another one each time": (page) => [`${page % 12}`],
		"new ones each time": (page) => ["a", "b", "c", "d"].map((c) => c + page),
	};
	for (const [name, meanwhile] of Object.entries(cases)) {
		let [now, pages] = [Date.UTC(2026, 0, 1), 0];
		const all: Info[] = [];
		const update = (id: string) => {
			now += 1000;
			const at = all.findIndex((i) => i.id === id);
			const created = at < 0 ? new Date(now).toISOString() : (all.splice(at, 1)[0] as Info).created;
			all.unshift({ id, created, updated: new Date(now).toISOString() } as Info);
		};
		for (let i = 0; i < 12; i++, now += 3_600_000) update(`${i}`);
		const list = async ({ after }: { after?: string }) => {
			const sessions = all.filter((i) => !after || i.updated < after).slice(0, 3);
			const last = sessions.at(-1)?.updated as string;
			const next = all.some((i) => i.updated < last) ? last : undefined;
			for (const id of meanwhile(pages)) update(id);
			expect(pages++, `${name}: the list does not end`).toBeLessThan(200);
			return { sessions, next };
		};
		const found = new Set((await listed({ list } as unknown as Client, {})).map((i) => i.id));
		for (let i = 0; i < 12; i++) expect(found, name).toContain(`${i}`);
	}
});

test("a list of pages of which none has a session that is wanted is empty", async () => {
	const list = async ({ after }: { after?: string }) => ({ sessions: [], ...(after ? {} : { next: "more" }) });
	expect(await listed({ list } as unknown as Client, {})).toEqual([]);
});

test("records of a prefix are those of all sessions, and a change is made again until nobody has come between", async () => {
	const db = await open();
	const keys = Array.from({ length: 1001 }, (_, i) => `k/${String(i).padStart(4, "0")}`);
	for (const [i, id] of ["a", "b", "c", "d", "e"].entries()) {
		const { session } = await db.create(id);
		const some = keys.filter((_, n) => n % 5 === i);
		await session.changeRecords([...some, `other${i}`].map((key) => ({ key, action: "set", value: "0" })));
	}
	expect((await recorded(db, "k/")).map((r) => r.key)).toEqual(keys);
	const session = await db.session("a");
	const add = () =>
		untilStands(async () => {
			const r = await session.record("k/0000");
			const value = String(Number(r?.value.toString()) + 1);
			await session.changeRecords([{ key: "k/0000", action: "set", value, expect: r?.version as string }]);
		});
	await Promise.all(Array.from({ length: 10 }, add));
	expect((await session.record("k/0000"))?.value.toString()).toBe("10");
});

test("a change is not made again after a conflict that leaves open whether it stands", async () => {
	for (const kind of [ConflictError, RecordConflictError]) {
		let calls = 0;
		const conflict = (...matches: string[]) => new kind("somebody else was first", { type: "#conflict", matches: ["conflict", ...matches] });
		const change = untilStands(async () => {
			calls++;
			throw calls === 1 ? conflict() : calls === 2 ? conflict("unknown-outcome") : new Error("it was called again");
		});
		await expect(change).rejects.toThrow("somebody else was first");
		expect(calls).toBe(2);
	}
});

test("values keep their types, or are refused", () => {
	for (const value of [null, true, -0, 1, 1.5, 1e300, "é\u2028", [], {}, [[{ $type: "int64", value: [{ $type: 1 }] }]], { $type: { value: 1 } }]) {
		expect(unmarshal(marshal(value))).toStrictEqual(value);
	}
	expect(marshal({ b: [undefined].length, a: undefined, $type: "x" })).toBe('{"$type":"map[string]interface {}","value":{"$type":"x","b":1}}');
	expect(unmarshal('{"a":{"$type":"[]int8","value":[1]},"b":{"$type":"time.Time","value":"x","more":1}}')).toEqual({
		a: [1],
		b: { $type: "time.Time", value: "x", more: 1 },
	});
	class Own {
		x = 1;
	}
	for (const value of [Number.NaN, 1n, () => 1, "\udc00", { "\udc00": 1 }, [undefined], new Map(), new Uint8Array(1)]) {
		expect(() => marshal([value])).toThrow(TypeError);
		expect(() => json([value])).toThrow(TypeError);
	}
	for (const value of [new Own(), new Date(0)]) expect(() => marshal(value)).toThrow(TypeError);
	expect(json({ b: new Own(), a: new Date(0), raw: new RawJSON("2.0") })).toBe('{"a":"1970-01-01T00:00:00.000Z","b":{"x":1},"raw":2.0}');
	expect(() => marshal(Array.from({ length: 202 }).reduce((v) => [v], 1))).toThrow("deeper");
	const raw = rawFields(' { "a" : 1.0 ,"b":{"x":[1,{"]":"}"}]}, "\\"," : "\\\\\\"{" , "":[] } ');
	expect([...raw].map(([k, v]) => [k, v.text])).toEqual([
		["a", "1.0"],
		["b", '{"x":[1,{"]":"}"}]}'],
		['",', '"\\\\\\"{"'],
		["", "[]"],
	]);
	expect(rawFields("{}").size).toBe(0);
	for (const text of ["[]", "null", '{"a":', ""]) expect(() => rawFields(text)).toThrow(SyntaxError);
});

test("the fields of JSON are found, however long its texts are", { timeout: 60_000 }, () => {
	for (const c of ["\n", '"', "\\", '\\"', "a"]) {
		const long = marshal(c.repeat(10_000_000 / c.length));
		expect(rawFields(`{"a":[${long}],"b":1}`).get("a")?.text === `[${long}]`).toBe(true);
	}
});

test("the state of a user is whole, whoever changes it and however large it is", { timeout: 60_000 }, async () => {
	const db = await open();
	const both = [new States(db, "g"), new States(db, "g")] as const;
	const want = new Map<string, Buffer>();
	const sizes = [0, 10, 65_536, 65_537, 300_000];
	for (let step = 0; step < 60; step++) {
		const change: StateChange = new Map();
		for (const key of [`k${step % 4}`, `k${(step * 7) % 5}`]) {
			const value = step % 9 === 4 ? null : randomBytes(sizes[(step * 3 + key.charCodeAt(1)) % sizes.length] as number);
			change.set(key, value);
			if (value) want.set(key, value);
			else want.delete(key);
		}
		await both[step % 2]?.commit(new Map([["s", change]]), []);
		expect(isDeepStrictEqual(await both[(step >> 1) % 2]?.read("s"), want), `step ${step}`).toBe(true);
	}
	await both[0].commit(new Map([["s", new Map([...want.keys()].map((k) => [k, null]))]]), []);
	const left = await (await db.session("s")).records();
	expect(left.records.map((r) => [r.key, r.value.toString()])).toEqual([["state-large", "{}"]]); // What was replaced leaves nothing behind.
	expect((await db.list({ group: "g" })).sessions[0]?.retention).toBe("all");
	// All change it at once, and a reader sees whole values.
	await Promise.all(
		Array.from({ length: 10 }, async (_, n) => {
			await both[n % 2]?.commit(
				new Map([
					[
						"s",
						new Map([
							["k", n % 3 ? "x".repeat(70_000 + n) : "small"],
							[`own ${n}`, `${n}`],
						]),
					],
				]),
				[],
			);
			const { k, ...own } = Object.fromEntries(await (both[n % 2] as States).read("s"));
			expect(k?.toString()).toMatch(/^(small|x{70000,70009})$/);
			expect(own[`own ${n}`]?.toString()).toBe(`${n}`);
		}),
	);
	// Who does not know that a value has become large replaces it all the same.
	for (const [by, value] of [
		[0, "small"],
		[1, "x".repeat(70_000)],
		[0, "small again"],
	] as const)
		await both[by].commit(new Map([["other", new Map([["k", value]])]]), []);
	expect(await both[1].read("other")).toEqual(new Map([["k", Buffer.from("small again")]]));
	// Somebody deletes the state, and it begins anew.
	await db.delete("s");
	await both[0].commit(new Map([["s", new Map([["k", "1"]])]]), []);
	expect(await both[1].read("s")).toEqual(new Map([["k", Buffer.from("1")]]));
	const many = new Map(Array.from({ length: 300 }, (_, n) => [`${n}`, "1"] as const));
	for (const [k, v] of [
		["x".repeat(507), "1"],
		["k", "x".repeat((200 << 16) + 1)],
	] as const) {
		await expect(both[0].commit(new Map([["new", new Map([[k, v]])]]), [])).rejects.toThrow(InvalidError);
	}
	await expect(both[0].commit(new Map([["new", many]]), [])).rejects.toThrow("at most 256");
	expect(await both[0].read("new")).toEqual(new Map());
});

test("a version of a file is given once, and deleted versions leave nothing behind", { timeout: 60_000 }, async () => {
	const db = await open();
	const { session } = await db.create("files");
	const saved = await Promise.all(Array.from({ length: 5 }, (_, n) => saveFile(session, "a/b", "text/plain", Buffer.from(`${n}`), { n })));
	expect(saved.map((f) => f.version).sort()).toEqual([1, 2, 3, 4, 5]);
	await saveFile(session, "a", "", Buffer.alloc(0), null);
	for (const { version, about } of saved) {
		const loaded = await loadFile(session, "a/b", version);
		expect([loaded?.bytes.toString(), loaded?.file]).toEqual([`${about.n}`, saved.find((f) => f.version === version)]);
	}
	expect((await findFile(session, "a/b"))?.version).toBe(5);
	for (const none of [0, -1, 6, 1.5]) expect(await findFile(session, "a/b", none)).toBeUndefined();
	expect(await fileNames(session)).toEqual(["a", "a/b"]);
	expect((await fileVersions(session, "a/b")).map((f) => f.version)).toEqual([1, 2, 3, 4, 5]);
	const before = (await session.info()).revision;
	await expect(saveFile(session, "a/b", "", Buffer.from("x"), { n: 1n })).rejects.toThrow(TypeError);
	expect((await session.info()).revision).toBe(before);
	for (let n = 0; n < 250; n++) await saveFile(session, "many", "", Buffer.from("x"), n);
	const beside = saveFile(session, "a/b", "", Buffer.from("new"), { n: 9 });
	await Promise.all([deleteFile(session, "many"), deleteFile(session, "a/b"), deleteFile(session, "a"), deleteFile(session, "none"), beside]);
	await deleteFile(session, "a/b");
	expect(await fileNames(session)).toEqual([]);
	expect((await session.records()).records).toEqual([]);
	expect((await session.load({ full: true })).nodes).toEqual([]);
	expect((await saveFile(session, "a/b", "", Buffer.from("x"), null)).version).toBe(1);
});

test("a list of records ends while others write steadily", async () => {
	let n = 0;
	const records = async (_: string, { after }: { after?: string }) => ({
		records: [{ session: `s${n++}`, key: "k" }],
		...(after ? {} : { next: "page 2" }),
	});
	const found = await recorded({ records } as unknown as Client, "k");
	expect(found.length).toBe(n);
	expect(n).toBeLessThan(20);
});

test("events are committed in groups of so many, and of so many bytes", () => {
	const events = [1, 4, 3 << 20, 1 << 20, 9 << 20, 1];
	expect(inCommits(events, (e) => e, 3)).toEqual([[1, 4, 3 << 20], [1 << 20], [9 << 20], [1]]);
	expect(inCommits([1, 2, 3], (e) => e, 2)).toEqual([[1, 2], [3]]);
	expect(inCommits([], () => 1)).toEqual([]);
});
