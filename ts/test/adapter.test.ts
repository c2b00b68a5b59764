import { join, listed, names, recorded, short, untilStands } from "../src/adapter.ts";
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
