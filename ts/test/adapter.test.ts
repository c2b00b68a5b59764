import { join, listed, names, short } from "../src/adapter.ts";
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
