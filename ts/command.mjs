// Builds the command for the machine that the package is made on, and puts it into the package.

import { execFileSync } from "node:child_process";
import { join } from "node:path";

const flags = ["-trimpath", "-ldflags=-s -w", "-o", join(import.meta.dirname, "bin", "turnstone")];
execFileSync("go", ["build", ...flags, "./cmd/turnstone"], {
	cwd: join(import.meta.dirname, ".."),
	env: { CGO_ENABLED: "0", ...process.env },
	stdio: "inherit",
});
