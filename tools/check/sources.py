# SPDX-License-Identifier: Apache-2.0
"""Which files the checks are about."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from .command import ROOT

NOT_SOURCE = {".git", ".venv", "build", "__pycache__"}


def files() -> Iterator[Path]:
    """Yield every file of the repository, without what is built."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = sorted(set(folders) - NOT_SOURCE)
        for name in sorted(names):
            yield Path(folder, name).relative_to(ROOT)


def c_files() -> list[Path]:
    """Return the C sources and headers."""
    return [path for path in files() if path.suffix in {".c", ".h"}]


def shell_scripts() -> list[Path]:
    """Return the files that /bin/sh or bash would run."""
    found = []
    for path in files():
        if path.suffix in {"", ".sh"}:
            with (ROOT / path).open("rb") as file:
                first = file.readline(80)
            if first.startswith(b"#!") and first.split()[-1].endswith(b"sh"):
                found.append(path)
    return found
