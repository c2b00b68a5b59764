import { spawn } from "node:child_process";
import { join } from "node:path";
import { postgresIsInstalled } from "./servers.ts";
import { suite } from "./suite.ts";

suite("badger");
suite("pebble");
if (postgresIsInstalled) suite("postgres");
else test.skip("postgres: it is not installed", () => {});

test.each(["LosesWrites", "ListsInNoOrder", "ForgetsTheParent"])(
	"the suite finds a saver that %s",
	async (mutant) => {
		const vitest = join(import.meta.dirname, "../node_modules/vitest/vitest.mjs");
		const child = spawn(process.execPath, [vitest, "run", "--reporter=json"], {
			env: { ...process.env, MUTANT: mutant },
			stdio: ["ignore", "pipe", "ignore"],
		});
		let text = "";
		for await (const piece of child.stdout) text += piece;
		const { numPassedTests, numFailedTests } = JSON.parse(text.slice(text.indexOf("{")));
		expect(numPassedTests).toBeGreaterThan(100);
		expect(numFailedTests).toBeGreaterThan(0);
	},
	120_000,
);
