# SPDX-License-Identifier: Apache-2.0
"""PyTorch as a tenant: its view of memory, its out-of-memory error, graphs, its other allocator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpushare.quota.size import format_size

from .driver import Driver
from .filtered import tenancy
from .process import ask, child, environment
from .report import NotMeasured, Row

#: The allocator that maps memory piecewise (cuMemCreate); the variable's name changed in 2.9.
EXPANDABLE = {
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "PYTORCH_ALLOC_CONF": "expandable_segments:True",
}
CHUNK_BYTES = 64 << 20
PRECISION = 1e-2  # TF32's is 3e-4
SECONDS = 180.0


def rows(driver: Driver) -> Iterator[Row]:
    importable(environment(driver.env))
    with tenancy(driver) as tenant:
        argv = tenant.command(child("pytorch"))
        yield from judged(ask(argv, tenant.environment, SECONDS), tenant.memory_bytes)
        argv = tenant.command(child("pytorch", "view", "full"))
        env = {**tenant.environment, **EXPANDABLE}
        for row in judged(ask(argv, env, SECONDS), tenant.memory_bytes):
            yield renamed(row, "expandable_segments: ")


def importable(env: Mapping[str, str]) -> None:
    """NotMeasured unless PyTorch is there; importing it touches no card."""
    done = ask(child("pytorch", "version"), env, SECONDS)
    if "torch" in done["errors"]:
        raise NotMeasured(done["errors"]["torch"])


def judged(seen: Mapping[str, Any], quota_bytes: int) -> Iterator[Row]:
    """Return what `seen` (child/pytorch.py) says under a quota of `quota_bytes`."""
    errors = seen["errors"]
    if "torch" in errors:
        raise NotMeasured(errors["torch"])
    for name, error in errors.items():
        yield Row.claim(f"PyTorch {seen['torch']}: {name}", False, error)
    if view := seen.get("view"):
        yield Row.claim(
            f"torch.cuda.mem_get_info and total_memory say {format_size(quota_bytes)}",
            view["total"] == view["total_memory"] == quota_bytes and view["free"] <= quota_bytes,
            view,
        )
        yield Row("torch.cuda.mem_get_info: free", view["free"], "bytes")
    if "matmul" in seen:
        good = seen["matmul"] < PRECISION
        yield Row.claim("a matrix product is right", good, f"relative error {seen['matmul']}")
    if "graph" in seen:
        yield Row.claim("a CUDA graph replays", seen["graph"], "other numbers came out")
    if full := seen.get("full"):
        yield from _full(full, quota_bytes)


def _full(full: Mapping[str, Any], quota_bytes: int) -> Iterator[Row]:
    yield Row.claim(
        "at the quota it raises torch.cuda.OutOfMemoryError",
        bool(full.get("is_out_of_memory")),
        f"{full['error'] or 'no error'} {full['message']}",
    )
    yield Row.claim(
        "never more than the quota",
        0 < full["reserved"] <= quota_bytes and full["free"] < CHUNK_BYTES,
        full,
    )
    yield Row("given until then", full["given"], "bytes", full["message"])
    yield Row.claim(
        "emptied, its memory is free again",
        full["free_after"] >= full["free"] + full["given"] - CHUNK_BYTES,
        full,
    )


def renamed(row: Row, prefix: str) -> Row:
    return replace(row, name=prefix + row.name)
