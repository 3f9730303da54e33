# SPDX-License-Identifier: Apache-2.0
"""Folders of gpushared whose names say something, for engines to mount into containers."""

from __future__ import annotations

import os
from pathlib import Path


def run_folder(run_dir: Path, *names: str) -> Path:
    """Return a folder beneath `run_dir`, without links, as an engine writes a mount's source."""
    return Path(os.path.realpath(run_dir), *names)


def make_run_folder(run_dir: Path, *names: str) -> Path:
    """Return such a folder, which is created if it is missing; every user may enter it. OSError."""
    folder = run_folder(run_dir)
    for name in names:
        folder /= name
        folder.mkdir(mode=0o755, exist_ok=True)
        folder.chmod(0o755)  # independent of the umask
    return folder
