import { existsSync, mkdirSync, mkdtempSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { removeStore } from "./helpers.ts";

test("the directory of a store is removed, also while a server still writes to it", async () => {
	const directory = mkdtempSync(join(tmpdir(), "ts-"));
	const store = join(directory, "s");
	mkdirSync(store);
	let written = 0;
	const end = Date.now() + 2500;
	const write = () => {
		if (Date.now() > end || !existsSync(store)) return;
		for (let i = 0; i < 20; i++) writeFileSync(join(store, String(written++)), "");
		setImmediate(write);
	};
	write();
	await removeStore(directory);
	expect(existsSync(directory)).toBe(false);
	expect(written).toBeGreaterThan(20);
});
