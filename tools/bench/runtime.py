# SPDX-License-Identifier: Apache-2.0
"""The verbs of a container that asks for no GPU: all that the launcher adds is itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gpushare.install import install
from tests import leftovers
from tests.stack.program import find
from tests.system.low_level import write_bundle

from .container import Lives
from .native import FLOOR, exec_only
from .result import Result
from .turns import take

VERBS = ("start", "state", "kill", "delete", "exec")
ROUNDS = 60
BUDGET_MS = 1.0


def measure() -> Iterator[Result]:
    """Compare runc alone, behind the launcher, and behind a program that only execs it."""
    runc = Path(find("runc"))
    with leftovers.folder("gpushare-bench-") as folder:
        bundle = write_bundle(folder / "bundle", "/bin/busybox", "sleep", "1000")
        nobody = folder / "nobody-listens"
        launcher = install(folder / "lib", runtime=runc, socket=nobody).launcher
        programs = {"runc": runc, "gpushare": launcher, FLOOR: exec_only(runc, folder)}
        series = take(
            {
                variant: Lives(program, bundle, folder, os.environ).whole
                for variant, program in programs.items()
            },
            ROUNDS,
        )
    for verb in VERBS:
        yield series.compare(verb, "gpushare", "runc", name=verb, budget=BUDGET_MS, floor=FLOOR)
