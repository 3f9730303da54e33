# SPDX-License-Identifier: Apache-2.0
"""The low-level runtime that the launcher becomes: runc or crun, by its absolute path."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

from gpushare.engines.engine import beneath
from gpushare.errors import UserError

PROGRAMS: Final = ("runc", "crun")
FOLDERS: Final = ("/usr/bin", "/usr/sbin", "/usr/local/sbin", "/usr/local/bin")
_ANSWER_SECONDS: Final = 10


class NoRuntime(UserError):
    """No low-level runtime is on this machine, or it does not work."""


def find(root: Path = Path("/")) -> Path:
    """Return the first of PROGRAMS beneath `root`; NoRuntime says what to install."""
    for name in PROGRAMS:
        for folder in FOLDERS:
            path = Path(folder) / name
            if os.access(beneath(root, path), os.X_OK):
                return path
    raise NoRuntime(f"there is no {' or '.join(PROGRAMS)} in {', '.join(FOLDERS)}; install runc")


def version(path: Path) -> str:
    """Return what the runtime says of itself ("runc version 1.1.5"); NoRuntime if it is none."""
    try:
        said = subprocess.run(
            [str(path), "--version"],
            capture_output=True,
            text=True,
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoRuntime(f"{path} --version: {error}") from error
    first = said.stdout.partition("\n")[0]
    if said.returncode or "version" not in first:
        raise NoRuntime(f"{path} --version says {first or said.stderr.strip()!r}: not a runtime")
    return first
