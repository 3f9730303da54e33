# SPDX-License-Identifier: Apache-2.0
"""Applications of others as tenants: whatever of them this machine has.

Each starts without gpushare, and as a tenant, which fills its quota besides.
"""

from __future__ import annotations

from collections.abc import Iterator

from . import programs
from .child.application import APPLICATIONS
from .driver import DriverPaths
from .filtered import tenancy
from .process import ask, child, environment
from .report import NotMeasured, ReportRow

SECONDS = 180.0
#: A C program that has the runtime library of CUDA linked in, as nvcc makes them by default.
CUDART = "static cudart"
#: The card is not ours alone: by default these take most of it.
MODEST = {
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # what fills the quota is the server's process
}


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    for name in (*APPLICATIONS, CUDART):
        try:
            yield from _application(driver, name)
        except NotMeasured as error:
            yield ReportRow(name, missing=str(error))


def _argv(name: str, *words: str) -> list[str]:
    if name == CUDART:
        return [str(programs.program("cudart")), *words]
    return child("application", name, *words)


def _application(driver: DriverPaths, name: str) -> Iterator[ReportRow]:
    bare = ask(_argv(name), environment(driver.env, MODEST), SECONDS)
    if "missing" in bare:
        raise NotMeasured(bare["missing"])
    with tenancy(driver) as tenant:
        argv = tenant.command(_argv(name, "fill"))
        try:
            seen = ask(argv, {**tenant.environment, **MODEST}, SECONDS)
        except NotMeasured as error:
            seen = {"missing": str(error)}
    yield ReportRow.claim(f"{name} starts", "missing" not in seen, seen)
    if "result" in seen:
        same = seen["result"] == bare["result"]
        yield ReportRow.claim(f"{name}: the result is that without gpushare", same, (seen, bare))
    if "total" in seen:
        fits = 0 < seen["total"] <= tenant.memory_bytes
        yield ReportRow.claim(f"{name} sees its quota", fits, seen["total"])
    if "refused" in seen:
        refused = any(words in seen["refused"].lower() for words in ("memory", "exhausted"))
        yield ReportRow.claim(f"{name}: out of memory at the quota", refused, seen["refused"])
