"""Builds the command, and puts it into the wheel: for this machine, or for what GOOS and GOARCH name, whose wheels TURNSTONE_PLATFORM names (.ci/dist)."""

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
        windows = os.environ.get("GOOS", "windows" if os.name == "nt" else "") == "windows"
        out = Path(self.root) / "build" / ("turnstone.exe" if windows else "turnstone")
        subprocess.run(
            ["go", "build", "-trimpath", "-ldflags=-s -w", "-o", str(out), "./cmd/turnstone"],
            cwd=module,
            check=True,
            env={"CGO_ENABLED": "0", **os.environ},
        )
        build_data["force_include"][str(out)] = f"turnstonedb/bin/{out.name}"
        build_data["pure_python"] = False
        platform = os.environ.get("TURNSTONE_PLATFORM") or sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
