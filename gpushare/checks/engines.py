# SPDX-License-Identifier: Apache-2.0
"""The engines: who has the runtime, and whether the running one knows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpushare.checks import gpus
from gpushare.checks.check import Check, Level
from gpushare.engines import status
from gpushare.engines.engine import ENGINES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def of_machine(launcher: Path | None) -> Iterator[Check]:
    """Yield how the engines stand; where one has the runtime, another need not have it."""
    present = [engine for engine in ENGINES.values() if engine.present()]
    found = [status.look(engine, launcher) for engine in present]
    anywhere = any(one.launcher is not None for one in found)
    for one in found:
        if not (anywhere and one.word in {"unregistered", "refused"}):
            yield from _engine(one)
        if one.engine == "docker" and one.launcher is not None:
            yield gpus.of_docker()
    if not present:
        text = f"no {', no '.join(ENGINES)}: only `gpushare run` works"
        yield Check("warn", text, "install docker")


def _engine(one: status.Status) -> Iterator[Check]:
    level: Level = "ok" if one.well else "fail" if one.launcher is not None else "warn"
    where = f" ({one.file})" if one.file else ""
    yield Check(level, f"{one.engine}: {one.text}{where}", one.fix)
    yield from (Check("warn", f"{one.engine}: {remark}") for remark in one.remarks)
