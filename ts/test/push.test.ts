import { Client, DivergedError, NotFoundError, PushError, type Session } from "../src/index.ts";
import { Cutter } from "./cutter.ts";
import { all, open } from "./helpers.ts";

async function fill(db: Client): Promise<Session> {
	const { session } = await db.create("trip", { name: "Trip", group: "work/trips" });
	const attachment = await session.putAttachment(Buffer.alloc(9000, "x"), { name: "a.txt" });
	const { nodes } = await session.commit({
		nodes: [{ kind: "user", payload: "hello", attachments: [attachment] }],
		turn: "1",
		checkpoint: { part: "one" },
		records: [{ key: "r", action: "set", value: "v" }],
	});
	await session.commit({ nodes: [{ kind: "assistant", payload: "hi" }], expected: 1, checkpoint: { part: "two" } });
	await db.create("fork", { parent: "trip", forkNode: nodes?.[0] as string });
	return session;
}

async function expectSame(a: Client, b: Client, id: string): Promise<void> {
	const read = async (db: Client) => {
		const s = await db.session(id);
		const nodes = await all(s.nodes({ full: true }));
		return [await s.log(), await s.checkpoint(), nodes.map((n) => n.id), (await s.records()).records.map((r) => [r.key, r.value.toString()])];
	};
	expect(await read(b)).toEqual(await read(a));
}

test("sessions go to another store and back", async () => {
	const [db, other] = [await open(), await open()];
	const s = await fill(db);
	const { sessions } = await db.push(other, { all: true });
	expect(new Map(sessions.map((i) => [i.id, [i.created, i.from, i.to]]))).toEqual(
		new Map([
			["trip", [true, 0, 2]],
			["fork", [true, 0, 0]],
		]),
	);
	expect((await (await other.session("fork")).info()).parent).toBe("trip");
	await expectSame(db, other, "trip");
	expect(await db.push(other, { sessions: ["trip", "fork"] })).toEqual({ sessions: [], same: 2 });
	await s.saveMetadata({ model: "m" });
	expect(await db.push(other, { group: "work", changedSince: new Date(Date.now() - 3_600_000) })).toMatchObject({
		sessions: [{ id: "trip", from: 2, to: 2 }],
	});
	expect((await (await other.session("trip")).info()).model).toBe("m");
	await (await other.session("trip")).commit({ nodes: [{ kind: "user", payload: "more" }], expected: 2 });
	expect((await other.push(db, { all: true })).sessions[0]?.to).toBe(3);
	await expectSame(db, other, "trip");
	await other.verify();
	expect(await db.push(other, { all: true, changedSince: new Date(Date.now() + 3_600_000) })).toEqual({ sessions: [], same: 0 });
	const missing = await db.push(other, { sessions: ["nobody", "trip"], as: "" }).catch((e) => e);
	expect(missing.refused[0]).toBeInstanceOf(NotFoundError);
	expect(missing.report.same).toBe(1);
	await db.create("later fork", { parent: "trip" });
	expect((await db.push(other, { all: true })).same).toBe(2);
	expect((await (await other.session("later fork")).info()).parent).toBe("trip");
	for (const wrong of [{}, { all: true, group: "g" }]) await expect(db.push(other, wrong)).rejects.toThrow("name sessions");
});

test("what has diverged is told, and both are kept", async () => {
	const [db, other] = [await open(), await open()];
	await fill(db);
	await db.create("second");
	await db.push(other, { sessions: ["trip"] });
	for (const [n, client] of [
		[1, db],
		[2, other],
	] as const) {
		const s = await client.session("trip");
		for (let i = 0; i < n; i++) await s.commit({ nodes: [{ kind: "user", payload: `of ${n}` }], expected: 2 + i, checkpoint: { part: `of ${n}` } });
	}
	const error = await db.push(other, { all: true }).catch((e) => e);
	expect(error).toBeInstanceOf(PushError);
	const [diverged] = (error as PushError).refused;
	expect(diverged).toBeInstanceOf(DivergedError);
	expect(diverged).toMatchObject({ session: "trip", here: 4, there: 3, common: 2 });
	expect(new Set((error as PushError).report.sessions.map((i) => i.id))).toEqual(new Set(["second", "fork"]));
	const { sessions } = await db.push(other, { sessions: ["trip"], branch: "laptop" });
	expect(sessions).toEqual([{ id: "trip", from: 4, to: 7, branch: 6, changed: true }]);
	const there = await other.session("trip");
	expect((await there.checkpoint()).get("part")?.toString()).toBe("of 2");
	expect((await there.checkpoint(6)).get("part")?.toString()).toBe("of 1");
	expect(new Set((await all(there.nodes({ full: true }))).map((n) => n.payload.toString()))).toEqual(new Set(["hello", "hi", "of 1", "of 2"]));
	await db.push(other, { sessions: ["trip"], as: "trip/laptop" });
	expect(await (await other.session("trip/laptop")).log()).toEqual(await (await db.session("trip")).log());
});

test("a bundle is bytes that any store reads", async () => {
	const [db, other] = [await open(), await open()];
	const s = await fill(db);
	const whole = Buffer.concat(await all(db.bundle([{ id: "trip" }, { id: "fork" }])));
	expect((await other.unbundle(whole)).map((i) => i.id)).toEqual(["trip", "fork"]);
	await s.commit({ nodes: [{ kind: "user", payload: "more" }], expected: 2 });
	expect(await other.unbundle(db.bundle([{ id: "trip", since: 2 }]))).toEqual([{ id: "trip", from: 2, to: 3, changed: true }]);
	await expectSame(db, other, "trip");
	await expect(other.unbundle(whole.subarray(0, -10))).rejects.toMatchObject({ kind: "invalid-bundle" });
	await expect(all(db.bundle([{ id: "nobody" }]))).rejects.toBeInstanceOf(NotFoundError);
	await expect(other.unbundle(db.bundle([{ id: "nobody" }]))).rejects.toBeInstanceOf(NotFoundError);
});

test("a push goes on where it was cut off", async () => {
	const [near, far] = [await Cutter.start(), await Cutter.start()];
	const [db, other] = [new Client(near.address), new Client(far.address)];
	onTestFinished(() => {
		db.close();
		other.close();
	});
	await fill(db);
	const first =
		(cuts: { after: number }[]): Cutter["plan"] =>
		(q) =>
			q.url?.startsWith("/v1/bundle") ? cuts.shift() : undefined;
	near.plan = first([{ after: 700 }, { after: 100 }]);
	far.plan = first([{ after: 0 }]);
	await db.push(other, { all: true });
	const asked = (cutter: Cutter) => cutter.asked.filter((path) => path.startsWith("/v1/bundle") || path.startsWith("/v1/upload"));
	expect([asked(near).length, asked(far).length]).toEqual([3, 2]); // Of an upload whose answer was lost it asks what became of it.
	await expectSame(db, other, "trip");
});
