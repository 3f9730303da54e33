# SPDX-License-Identifier: Apache-2.0
"""The programs and libraries that `gpushare setup` copied."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

import gpushare
from gpushare import install
from gpushare.checks.check import SETUP, Check
from gpushare.setup import lowlevel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpushare.protocol import Status


def used(status: Status | None) -> install.Installation | None:
    """Return the installation that the daemon uses, or the active one."""
    if status is not None:
        named = install.Installation(Path(status["libraries"]).parent)
        if named.launcher.exists():
            return named
    return install.current()


def of_copies(installation: install.Installation | None) -> Iterator[Check]:
    """Yield what is found of the copies, and of the runtime that the launcher becomes."""
    if installation is None:
        yield Check("warn", f"no programs in {install.PREFIX}", SETUP)
        return
    real = installation.root.resolve()
    if real.name.partition("-")[0] != gpushare.__version__:
        yield Check("warn", f"installed is {real.name}, this is {gpushare.__version__}", SETUP)
    for path in (installation.launcher, installation.hook, installation.libraries):
        yield from _writable_by_others(path)
    runtime = lowlevel.wrapped(installation.launcher)
    try:
        yield Check("ok", f"{real}, around {runtime} ({lowlevel.version(runtime)})")
    except lowlevel.NoRuntime as error:
        yield Check("fail", str(error), f"install runc, then {SETUP}")


def _writable_by_others(path: Path) -> Iterator[Check]:
    try:
        status = path.stat()
    except FileNotFoundError:
        yield Check("fail", f"{path} is missing", SETUP)
        return
    if status.st_uid not in {0, os.geteuid()} or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        yield Check("fail", f"{path} can be changed by others than root", f"chmod go-w {path}")
