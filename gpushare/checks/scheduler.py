# SPDX-License-Identifier: Apache-2.0
"""The scheduler without gpushared: it goes on, and shares hold as they were."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpushare.checks.check import Check

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NAME = "scheduler.sock"


def left_alone(run_dir: Path, listeners: Path) -> Iterator[Check]:
    """Yield a line where the scheduler of `run_dir` listens; `listeners` is /proc/net/unix."""
    try:
        lines = listeners.read_text(errors="replace").splitlines()
    except OSError:
        return
    if any(line.endswith(f" {run_dir / _NAME}") for line in lines):
        yield Check(
            "ok",
            "scheduler: it goes on without gpushared; shares of compute hold as they were",
        )
