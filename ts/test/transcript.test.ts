import { setTimeout as sleep } from "node:timers/promises";
import { vi } from "vitest";
import { type Client, ConflictError, type Message, OutcomeUnknownError, type Saved } from "../src/index.ts";
import { Saver } from "../src/transcript.ts";
import { open } from "./helpers.ts";

const said = (...texts: string[]): Message[] => texts.map((payload) => ({ kind: "user", payload }));

async function texts(db: Client, id: string): Promise<string[] | undefined> {
	return (await db.history(id))?.messages.map((m) => m.payload.toString());
}

test("a whole history is saved and read", async () => {
	const db = await open();
	expect(await db.history("s")).toBeUndefined();
	expect(await db.save("s", [], { name: "n", custom: { a: [1] } })).toEqual({ revision: 0, kept: 0, added: 0 });
	const large = "x".repeat(5000);
	const usage = [{ model: "m", input: 3 }];
	const state = { prompt: "be kind", b: Buffer.from([0, 255]) };
	expect(await db.save("s", said("one", large), { state, usage, turn: "t" })).toEqual({ revision: 1, kept: 0, added: 2 });
	expect(await db.save("s", said("one", large), { usage, turn: "t" })).toEqual({ revision: 1, kept: 2, added: 0 });
	let h = await db.history("s");
	expect(h?.messages.map((m) => [m.kind, m.payload.toString()])).toEqual([
		["user", "one"],
		["user", large],
	]);
	expect(h?.state).toEqual(new Map(Object.entries({ b: Buffer.from([0, 255]), prompt: Buffer.from("be kind") })));
	expect(h?.info).toMatchObject({ name: "n", custom: { a: [1] }, usage: [{ model: "m", input: 3 }] });
	expect(await db.save("s", said("one", large, "three"))).toEqual({ revision: 2, kept: 2, added: 1 });
	expect(await db.save("s", said("one", "two"), { state: new Map(), empty: ["name"] })).toEqual({ revision: 3, kept: 1, added: 1 });
	h = await db.history("s");
	expect([await texts(db, "s"), h?.state.size, h?.info.name, h?.info.nodes]).toEqual([["one", "two"], 0, undefined, 4]);
	await expect(db.save("s", said("x"), { base: 1 })).rejects.toThrow(ConflictError);
	expect(await db.save("child", said("one", "mine"), { parent: "s", forkNode: h?.messages[0]?.id as string })).toEqual({
		revision: 1,
		kept: 1,
		added: 1,
	});
	expect(await texts(db, "child")).toEqual(["one", "mine"]);
});

test("a saver saves what came last", async () => {
	const db = await open();
	const done: Saved[] = [];
	const saver = new Saver(db, "", { delay: 30, report: ({ saved }) => saved && done.push(saved) });
	for (let i = 0; i < 20; i++) {
		const all = Array.from({ length: i + 1 }, (_, n) => String(n));
		saver.save(said(...all), {
			usage: [
				{ model: "m", input: 1 },
				{ model: `m${i % 2}`, output: 2 },
			],
			labels: { [i % 3]: String(i) },
		});
	}
	await vi.waitFor(() => expect(done.length).toBeGreaterThan(0), 30_000);
	await saver.flush();
	const h = await db.history(saver.id);
	expect(h?.messages.length).toBe(20);
	expect(h?.info.labels).toEqual({ 0: "18", 1: "19", 2: "17" });
	expect(h?.info.usage).toEqual([
		{ model: "m", input: 20 },
		{ model: "m0", output: 20 },
		{ model: "m1", output: 20 },
	]);
	expect(done.reduce((n, s) => n + s.added, 0)).toBe(20);
	expect(done.length).toBeLessThan(20);
	const other = new Saver(db, "other", { delay: 3_600_000 });
	other.save(said("one"), { state: { a: "1" }, name: "first", cwd: "/" });
	other.save(said("one", "two"), { empty: ["cwd"], model: "m" });
	await other.flush();
	const o = await db.history("other");
	expect(await texts(db, "other")).toEqual(["one", "two"]);
	expect(o?.state.get("a")?.toString()).toBe("1");
	expect([o?.info.name, o?.info.cwd, o?.info.model]).toEqual(["first", undefined, "m"]);
	const base = o?.info.revision as number;
	const builds = new Saver(db, "other", { delay: 3_600_000, base });
	builds.save(said("one", "two", "three"));
	await builds.flush();
	builds.save(said("one", "two", "three", "four"));
	await builds.flush();
	await (await db.session("other")).commit({ nodes: [{ kind: "user", payload: "by another" }], expected: "any" });
	builds.save(said("mine"));
	await expect(builds.flush()).rejects.toThrow(ConflictError);
});

test("a save that failed is made again", async () => {
	const db = await open();
	const real = db.save.bind(db);
	const failures: Error[] = [
		new OutcomeUnknownError("lost", { type: "#unknown-outcome", matches: ["unknown-outcome"] }),
		new ConflictError("no", { type: "#conflict", matches: ["conflict"] }),
	];
	vi.spyOn(db, "save").mockImplementation(async (...args) => {
		const failure = failures.pop();
		if (!failure || failure instanceof OutcomeUnknownError) {
			const saved = await real(...args); // It stands, also if the answer is lost.
			if (!failure) return saved;
		}
		throw failure;
	});
	const usage = [{ model: "m", input: 1 }];
	const saver = new Saver(db, "s", { delay: 3_600_000 });
	saver.save(said("one"), { usage });
	await expect(saver.flush()).rejects.toThrow(ConflictError);
	saver.save(said("one", "two"), { usage });
	await expect(saver.flush()).rejects.toThrow(OutcomeUnknownError);
	saver.save(said("one", "two", "three"), { usage });
	await Promise.all([saver.flush(), saver.flush()]);
	expect(await texts(db, "s")).toEqual(["one", "two", "three"]);
	expect((await db.history("s"))?.info.usage).toEqual([{ model: "m", input: 3 }]);
	const bad = new Saver(db, "bad", { delay: 3_600_000 });
	bad.save(said("one"), { parent: "s", forkAt: "zero", name: "n" });
	expect(() => bad.save(said("bad"), { custom: 1n })).toThrow(TypeError);
	bad.save(said("one", "two"), { empty: ["all"], model: "m" });
	await bad.flush(); // One that can't be sent holds up no later one.
	expect((await db.history("bad"))?.info).toMatchObject({ parent: "s", model: "m", messages: 2 });
	expect((await db.history("bad"))?.info.name).toBeUndefined();
	failures.push(new ConflictError("no", { type: "#conflict", matches: ["conflict"] }));
	let done = 0;
	const again = new Saver(db, "s", { delay: 10, report: ({ saved }) => saved && done++ });
	again.save(said("one"));
	while (failures.length > 0) await sleep(5);
	again.save(said("one", "other"));
	await vi.waitFor(() => expect(done).toBe(1), 30_000);
	expect(await texts(db, "s")).toEqual(["one", "other"]);
});
