# SPDX-License-Identifier: Apache-2.0
"""runc alone as an engine of gpushare.verify: a bundle per tenant, run through the launcher."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpushare.verify import image
from gpushare.verify.runners import environment

CAPABILITIES = ("CAP_KILL", "CAP_NET_BIND_SERVICE")
NAMESPACES = ("pid", "ipc", "uts", "mount", "network")
MOUNTS = (
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {
        "destination": "/dev",
        "type": "tmpfs",
        "source": "tmpfs",
        "options": ["nosuid", "strictatime", "mode=755", "size=65536k"],
    },
)


@dataclass
class Runc:
    """`launcher` is gpushare-runtime; bundles and the runtime's state lie in `folder`."""

    launcher: Path
    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    name: str = "runc"

    @property
    def command(self) -> list[str]:
        return [str(self.launcher), "--root", str(self.folder / "state")]

    def prepare(self, probe: Path) -> None:
        image.unpack(self.folder / "image", probe)

    def run(self, name: str, quota: Mapping[str, str], *command: str) -> list[str]:
        """Return the command that runs tenant `name`; its bundle is made here."""
        bundle = self.folder / name
        shutil.rmtree(bundle, ignore_errors=True)
        shutil.copytree(self.folder / "image", bundle / "rootfs", symlinks=True)
        spec = json.dumps(config(quota, [image.PROGRAM, *command]), indent=1)
        (bundle / "config.json").write_text(spec)
        return [*self.command, "run", "--bundle", str(bundle), name]

    def kill(self, name: str) -> list[str]:
        return [*self.command, "kill", name, "KILL"]

    def remove(self, name: str) -> None:
        subprocess.run(
            [*self.command, "delete", "--force", name],
            check=False,
            capture_output=True,
            env=environment(self),
        )
        shutil.rmtree(self.folder / name, ignore_errors=True)

    def finish(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def config(quota: Mapping[str, str], argv: list[str]) -> dict[str, Any]:
    """Return an OCI spec (config.md) of a container that asks for `quota` by annotations."""
    sets = ("bounding", "effective", "permitted")
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": argv,
            "env": ["PATH=/usr/bin"],
            "cwd": "/",
            "capabilities": {name: list(CAPABILITIES) for name in sets},
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": False},
        "hostname": "tenant",
        "mounts": list(MOUNTS),
        "annotations": {f"gpushare.io/{key}": value for key, value in quota.items()},
        "linux": {
            "namespaces": [{"type": kind} for kind in NAMESPACES],
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
        },
    }
