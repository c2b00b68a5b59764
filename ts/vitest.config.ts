import { defineConfig } from "vitest/config";

export default defineConfig({
	test: {
		include: [process.env.MUTANT ? "test/mutant.ts" : "test/*.test.ts"],
		globals: true,
		globalSetup: "test/command.ts",
		testTimeout: 30_000,
		hookTimeout: 30_000,
	},
});
