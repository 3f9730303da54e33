# SPDX-License-Identifier: Apache-2.0
"""PyTorch as a tenant: its view of memory, its out-of-memory error, graphs, each allocator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpushare.quota.size import format_size
from gpushare.verify.runners import ProbeFailed

from .driver import DriverPaths
from .filtered import tenancy
from .process import ask, child, environment
from .report import NotMeasured, ReportRow

#: How PyTorch takes memory, by the name of it in the report: its own cache of cudaMalloc's memory,
#: the one that maps it piecewise (cuMemCreate), the driver's pools.
ALLOCATORS = {
    "caching": "",
    "expandable_segments": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
}
#: The first is the variable's name before 2.9.
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
CHECKS = ("view", "matmul", "graph", "full", "retry", "captured")
CHUNK_BYTES = 64 << 20
PRECISION = 1e-2  # TF32's is 3e-4
SECONDS = 180.0


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    importable(environment(driver.env))
    with tenancy(driver) as tenant:
        for name, setting in ALLOCATORS.items():
            argv = tenant.command(child("pytorch", *CHECKS))
            env = {**tenant.environment, **(dict.fromkeys(VARIABLES, setting) if setting else {})}
            try:
                for row in judged(ask(argv, env, SECONDS), tenant.memory_bytes):
                    yield renamed(row, f"{name}: ")
            except (NotMeasured, ProbeFailed) as error:
                yield ReportRow(name, missing=str(error))


def importable(env: Mapping[str, str]) -> None:
    """NotMeasured unless PyTorch is there; importing it touches no card."""
    done = ask(child("pytorch", "version"), env, SECONDS)
    if "torch" in done["errors"]:
        raise NotMeasured(done["errors"]["torch"])


def judged(seen: Mapping[str, Any], quota_bytes: int) -> Iterator[ReportRow]:
    """Return what `seen` (child/pytorch.py) says under a quota of `quota_bytes`."""
    errors = seen["errors"]
    if "torch" in errors:
        raise NotMeasured(errors["torch"])
    for name, error in errors.items():
        yield ReportRow.claim(f"PyTorch {seen['torch']}: {name}", False, error)
    if view := seen.get("view"):
        yield from _view(view, quota_bytes)
    if "matmul" in seen:
        good = seen["matmul"] < PRECISION
        yield ReportRow.claim("a matrix product is right", good, f"relative error {seen['matmul']}")
    if "graph" in seen:
        yield ReportRow.claim("a CUDA graph replays", seen["graph"], "other numbers came out")
    if taken := seen.get("full"):
        yield from _full(taken, quota_bytes)
    if retry := seen.get("retry"):
        yield from _retry(retry)
    if captured := seen.get("captured"):
        yield from _captured(captured, quota_bytes)


def _view(view: Mapping[str, Any], quota_bytes: int) -> Iterator[ReportRow]:
    yield ReportRow.claim(
        f"torch.cuda.mem_get_info and total_memory say {format_size(quota_bytes)}",
        view["total"] == view["total_memory"] == quota_bytes and view["free"] <= quota_bytes,
        view,
    )
    yield ReportRow("torch.cuda.mem_get_info: free", view["free"], "bytes")
    if backend := view.get("backend"):
        yield ReportRow("the allocator's backend", backend)


def _full(taken: Mapping[str, Any], quota_bytes: int) -> Iterator[ReportRow]:
    """Return what the allocator did at the quota."""
    said = f"{taken['error'] or 'no error'} {taken['message']}"
    refused = bool(taken.get("is_out_of_memory"))
    yield ReportRow.claim("at the quota it raises torch.cuda.OutOfMemoryError", refused, said)
    yield ReportRow.claim(
        "never more than the quota",
        0 < taken["reserved"] <= quota_bytes and taken["free"] < CHUNK_BYTES,
        taken,
    )
    yield ReportRow("given until then", taken["given"], "bytes", taken["message"])
    yield ReportRow("free then", taken["free"], "bytes", "as the program sees it")
    yield ReportRow.claim(
        "emptied, its memory is free again",
        taken["free_after"] >= taken["free"] + taken["given"] - CHUNK_BYTES,
        taken,
    )


def _retry(retry: Mapping[str, Any]) -> Iterator[ReportRow]:
    """The allocator was refused one large piece, freed what it had cached, and asked again."""
    yield ReportRow.claim("refused, it frees its cache and gets it", retry["given"], retry)
    yield ReportRow(
        "asked for in one piece", retry["asked"], "bytes", f"{retry['cached']} were cached"
    )
    yield ReportRow.claim("after a refusal one that fits is given", retry["after"], retry)


def _captured(captured: Mapping[str, Any], quota_bytes: int) -> Iterator[ReportRow]:
    """What graphs that allocate hold; one more step is refused, and the process goes on."""
    yield ReportRow.claim(
        "graphs that allocate stop at the quota",
        captured["is_out_of_memory"] and captured["reserved"] <= quota_bytes,
        captured,
    )
    yield ReportRow(
        "held by graphs", captured["held"], "bytes", f"{captured['graphs']} graphs, then refused"
    )
    yield ReportRow.claim("the graphs before it still replay", captured["replays"], captured)
    yield ReportRow.claim("deleted, their memory is free again", captured["recovers"], captured)


def renamed(row: ReportRow, prefix: str) -> ReportRow:
    return replace(row, name=prefix + row.name)
