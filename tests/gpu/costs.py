# SPDX-License-Identifier: Apache-2.0
"""What a launch, an allocation and a look at memory cost, through the filter and without it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from .driver import Driver
from .filtered import tenancy
from .process import Child, child, environment
from .report import Row

BATCH = 200
BATCHES = 50
CALLS = {
    "launch_ns": "launch of an empty kernel",
    "pair_ns": "allocation and free of 4 KiB",
    "info_ns": "cuMemGetInfo",
}


def rows(driver: Driver) -> Iterator[Row]:
    bare = timed(child("kernels", str(driver.cuda)), environment(driver.env))
    with tenancy(driver) as tenant:
        through = timed(tenant.command(child("kernels", "libcuda.so.1")), tenant.environment)
    yield Row(
        "an empty driver call, from Python", bare["empty_ns"], "ns", "part of all that follow"
    )
    for key, what in CALLS.items():
        yield Row(f"{what}: bare", bare[key], "ns")
        more = through[key] - bare[key]
        yield Row(f"{what}: the filter adds", more, "ns", f"{100 * more / bare[key]:.1f} %")


def timed(argv: Sequence[str], env: Mapping[str, str]) -> dict[str, float]:
    with Child("caller", argv, env) as process:
        process.start()
        seen = process.ask(f"calls {BATCH} {BATCHES}")
    return {key: float(seen[key]) for key in (*CALLS, "empty_ns")}
