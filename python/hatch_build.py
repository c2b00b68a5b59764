"""Builds the command for the machine that the wheel is built on, and puts it into the wheel."""

import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return  # The tests, and a developer, have the command in TURNSTONE_COMMAND or on the path.
        module = Path(self.root).parent
        if not (module / "go.mod").exists():
            raise RuntimeError("the command is built from the Go module that this directory is in")
        out = Path(self.root) / "build" / ("turnstone.exe" if os.name == "nt" else "turnstone")
        subprocess.run(
            ["go", "build", "-ldflags=-s -w", "-o", str(out), "./cmd/turnstone"],
            cwd=module,
            check=True,
            env={"CGO_ENABLED": "0", "GOFLAGS": "-trimpath", **os.environ},
        )
        build_data["force_include"][str(out)] = f"turnstonedb/bin/{out.name}"
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
