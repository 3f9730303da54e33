# SPDX-License-Identifier: Apache-2.0
"""Runs gpushare-undo, the program that setup has left, for `gpushare setup --undo`.

There is no other implementation: whatever works here also works without gpushare.
"""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpushare.client import RequestRefused
from gpushare.engines.config_files import under_root
from gpushare.errors import UserError
from gpushare.setup import UNDO, InstallRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

_IN_USE: Final = 3  # its exit status
_WORDS: Final = ("do", "would", "ok", "next", "keep")


class UndoError(UserError):
    """gpushare-undo has failed; the message has the step and the reason."""


@dataclass
class UndoStep:
    """One line of gpushare-undo: its first word, the rest, and the lines of a diff after it."""

    word: str
    text: str
    diff: list[str] = field(default_factory=list)


def undo(root: Path, *, dry_run: bool) -> Iterator[UndoStep]:
    """Run gpushare-undo under `root`, and yield each of its steps when it has been performed.

    Yields nothing if gpushare is not set up. RequestRefused if containers still use gpushare;
    UndoError if a step fails.
    """
    program = under_root(root, UNDO)
    if not program.exists():
        return
    words = ["--dry-run"] if dry_run else []
    with tempfile.TemporaryDirectory() as folder:
        if root != Path("/"):
            # The image may be anybody's: its record is data, and its program is not executed.
            program = Path(folder) / UNDO.name
            program.write_text(InstallRecord.read(root).undo_program(), encoding="utf-8")
            words += ["--root", str(root)]
        argv = ["sh", str(program), *words]
        with subprocess.Popen(
            argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            yield from _steps(iter(process.stdout))
            message = process.stderr.read().strip()
    if process.returncode:
        lines = [line.removeprefix("gpushare: ") for line in message.splitlines()]
        error = RequestRefused if process.returncode == _IN_USE else UndoError
        raise error("; ".join(lines) or f"{program} ended with status {process.returncode}")


def _steps(lines: Iterator[str]) -> Iterator[UndoStep]:
    step: UndoStep | None = None
    for line in lines:
        word, _, text = line.rstrip("\n").partition(" ")
        if word in _WORDS:
            if step is not None:
                yield step
            step = UndoStep(word, text.lstrip())
        elif step is not None:
            step.diff.append(line.rstrip("\n"))
    if step is not None:
        yield step
