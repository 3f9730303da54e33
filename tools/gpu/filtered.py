# SPDX-License-Identifier: Apache-2.0
"""The filter libraries over the real driver: what a tenant sees, and whether its quota holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gpushare.host.driver import CUDA
from gpushare.quota.size import format_size

from . import built, overhead
from .driver import DriverPaths
from .process import Child, ask, child
from .report import NotMeasured, ReportRow
from .tenancy import Tenancy

GIB = 1 << 30
GRANULE = 2 << 20


def quota(driver: DriverPaths) -> int:
    """Return a quota that fits the card several times: 4 GiB, or a quarter of a small card.

    It is at most half of what is free: more managed memory than that is not refused by a driver.
    """
    most = min(4 * GIB, driver.total_bytes // 4, driver.free_bytes // 2)
    return most // GRANULE * GRANULE


def tenancy(driver: DriverPaths) -> Tenancy:
    """Return a tenant as the daemon would make it, with a context's size if NVML reports it."""
    try:
        context_bytes = overhead.context_bytes(driver)
    except NotMeasured:
        context_bytes = 0
    return Tenancy(driver, built.libraries() / "host", quota(driver), context_bytes)


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    filters = built.libraries() / "host"
    with tenancy(driver) as tenant:
        told = tenant.grant.context_bytes(0)
        yield ReportRow(
            "quota", tenant.memory_bytes, "bytes", f"of it {told} bytes for each context"
        )
        yield from _loaded(tenant, filters)
        argv = tenant.command([built.probe()])
        with Child("tenant", argv, tenant.environment) as process:
            yield ReportRow.claim("cuInit succeeds", not (said := process.start())["code"], said)
            yield from _view(process, tenant)
            copied = process.ask(f"copy {64 << 20}")
            yield ReportRow.claim(
                "64 MiB copied there and back are the same", copied["same"], copied
            )
            ran = process.ask("spin 100000 10")
            yield ReportRow.claim("a kernel runs", not ran["code"], ran)
            yield ReportRow("allocations refused", tenant.denied)
        yield ReportRow("said to the daemon", len(tenant.messages), detail=tuple(tenant.messages))


def _loaded(tenant: Tenancy, filters: Path) -> Iterator[ReportRow]:
    seen = ask(tenant.command(child("mapped", "libcuda.so.1")), tenant.environment)
    if "error" in seen:
        raise NotMeasured(f"the tenant cannot load libcuda.so.1: {seen['error']}")
    wanted = {(filters / CUDA).stat().st_ino, tenant.driver.cuda.stat().st_ino}
    yield ReportRow.claim(
        'dlopen("libcuda.so.1") maps the filter and, by it, the real driver, and nothing else',
        set(seen["mapped"].values()) == wanted,
        f"{seen['mapped']}, the two are inodes {wanted}",
    )


def _view(process: Child, tenant: Tenancy) -> Iterator[ReportRow]:
    info = process.ask("info")
    shown = info["total"] == info["device_total"] == tenant.memory_bytes
    name = f"cuMemGetInfo and cuDeviceTotalMem show {format_size(tenant.memory_bytes)}"
    yield ReportRow.claim(name, shown, info)
    yield ReportRow("free with a context and nothing else", info["free"], "bytes")
    if not shown:
        raise NotMeasured("the quota is not in force, and nothing is to take the whole card")
