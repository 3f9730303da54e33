# SPDX-License-Identifier: Apache-2.0
"""CuPy as a tenant: both its pools to the limit, one step past it, and emptied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .driver import DriverPaths
from .filtered import tenancy
from .process import ask, child, environment
from .report import NotMeasured, ReportRow
from .torch_view import CHUNK_BYTES, SECONDS, full

POOLS = {"pool": "CuPy's pool", "async": "CuPy's pool of cudaMallocAsync"}


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    importable(environment(driver.env))
    with tenancy(driver) as tenant:
        for pool, name in POOLS.items():
            argv = tenant.command(child("arrays", pool))
            try:
                seen = ask(argv, tenant.environment, SECONDS)
                yield from judged(seen, pool, tenant.memory_bytes)
            except NotMeasured as error:
                yield ReportRow(name, missing=str(error))


def importable(env: Mapping[str, str]) -> None:
    """NotMeasured unless CuPy is there."""
    errors = ask(child("arrays", "version"), env, SECONDS)["errors"]
    if errors:
        raise NotMeasured("; ".join(errors.values()))


def judged(seen: Mapping[str, Any], pool: str, quota_bytes: int) -> Iterator[ReportRow]:
    """Return what `seen` (child/arrays.py) says of one of POOLS under a quota."""
    name = POOLS[pool]
    for error in seen["errors"].values():
        yield ReportRow.claim(f"{name}: it runs", False, error)
    if taken := seen.get(pool):
        total = taken["total"]
        yield ReportRow.claim(f"{name}: memGetInfo shows the quota", total == quota_bytes, total)
        yield from full(taken, quota_bytes, f"{name}: ", "cupy's OutOfMemoryError", CHUNK_BYTES)
        yield ReportRow.claim(f"{name}: emptied, it allocates again", bool(taken["again"]), taken)
