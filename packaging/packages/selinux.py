# SPDX-License-Identifier: Apache-2.0
"""The SELinux policy module of the rpm, compiled from `packaging/selinux`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from .workspace import Workspace, run

#: The version of the format: checkmodule's newest one is too new for older distributions.
MODULE_VERSION: Final = "19"


def compile_module(workspace: Workspace, place: Path) -> None:
    """Compile the module to `place`, for policies with categories (MCS)."""
    source = workspace.root / "packaging/selinux"
    compiled = workspace.scratch("selinux") / "gpushare.mod"
    for folder in (compiled.parent, place.parent):
        folder.mkdir(parents=True, exist_ok=True)
    compiler: list[str | Path] = ["checkmodule", "-M", "-m", "-c", MODULE_VERSION]
    packer: list[str | Path] = ["semodule_package", "-m", compiled, "-f", source / "gpushare.fc"]
    environment = workspace.environment()
    run([*compiler, "-o", compiled, source / "gpushare.te"], cwd=source, env=environment)
    run([*packer, "-o", place], cwd=source, env=environment)
