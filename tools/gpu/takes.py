# SPDX-License-Identifier: Apache-2.0
"""What the driver takes of the card for what a program asks for, by each kind of allocation.

libhook/cuda/memory.c charges linear memory by what is measured here, and arrays and managed memory
are charged with these figures in mind.
"""

from __future__ import annotations

from collections.abc import Iterator

from .driver import DriverPaths
from .report import NotMeasured, ReportRow, quantity
from .scale import Weighed, measured

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SIZES = (
    1,
    512,
    513,
    4 * KIB,
    64 * KIB,
    512 * KIB,
    MIB,
    MIB + 1,
    2 * MIB,
    2 * MIB + 1,
    3 * MIB,
    32 * MIB + 1,
    GIB + 1,
)
TOGETHER = 64 * MIB
MOST = 2048
#: Width, height, depth of arrays of floats, and their mipmap levels.
SHAPES = (
    (1, 0, 0, 1),
    (1024, 0, 0, 1),
    (1, 1, 0, 1),
    (64, 64, 0, 1),
    (1000, 1000, 0, 1),
    (1024, 1024, 0, 1),
    (1025, 1025, 0, 1),
    (4096, 4096, 0, 1),
    (100, 100, 100, 1),
    (1024, 1024, 0, 11),
)
MANAGED = 256 * MIB
POOL_SIZES = (512, MIB, 32 * MIB, 33 * MIB, 200 * MIB)


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    for part in (linear, arrays, managed):
        yield from measured(driver, f"the rest of {part.__name__}", part)


def linear(process: Weighed) -> Iterator[ReportRow]:
    """What one allocation takes and, where it comes from blocks, what each of many does."""
    for size in SIZES:
        name = f"cuMemAlloc of {_exact(size)}"
        yield from process.step(f"{name}: the first", f"linear {size}")
        count = max(1, min(MOST, TOGETHER // size))
        yield _each(process, name, size, count)
        yield from process.step(f"{name}: freed", "free")


def _each(process: Weighed, name: str, size: int, count: int) -> ReportRow:
    try:
        grown, answer = process.grown(f"linear {size} {count}")
    except NotMeasured as error:
        return ReportRow(f"{name}: each", missing=str(error))
    note = f"mean of {count} more, which lie {answer['least_step']} bytes apart at least"
    return ReportRow(f"{name}: each", grown.taken / count, "bytes", note)


def _exact(size: int) -> str:
    """Return a size that may be a byte more than a round one: 1 MiB + 1."""
    return f"{quantity(size - 1, 'bytes')} + 1" if size % 2 else quantity(size, "bytes")


def arrays(process: Weighed) -> Iterator[ReportRow]:
    for width, height, depth, levels in SHAPES:
        texels = width * max(1, height) * max(1, depth)
        what = " x ".join(str(side) for side in (width, height, depth) if side)
        kind = f"mipmapped array of {levels} levels" if levels > 1 else "array"
        command = f"array {width} {height} {depth} {levels}"
        note = f"its floats are {quantity(4 * texels, 'bytes')}"
        yield from process.step(f"{kind}, {what}", command, note)
        yield from process.step(f"{kind}, {what}: destroyed", "array_free")


def managed(process: Weighed) -> Iterator[ReportRow]:
    """When managed memory takes of the card, and whether NVML counts it for the process."""
    size = f"{MANAGED}"
    yield from process.steps(
        (
            (f"cuMemAllocManaged of {MANAGED // MIB} MiB", f"managed {size}"),
            ("managed: touched by the host", f"touch_host {size}"),
            ("managed: touched by the card", f"touch_card {size}"),
            ("managed: touched by the host again", f"touch_host {size}"),
            ("managed: prefetched to the card", f"prefetch {size} card"),
            ("managed: prefetched to the host", f"prefetch {size} host"),
            ("managed: to the card once more", f"prefetch {size} card"),
            ("managed: freed", "free"),
        )
    )


def kept(driver: DriverPaths) -> Iterator[ReportRow]:
    """What pools take of the card and keep of it; of graphs, the contract has it."""
    yield from measured(driver, "the rest of pool", pool)


def pool(process: Weighed) -> Iterator[ReportRow]:
    """What the default pool takes and says it holds, at each step."""
    for size in POOL_SIZES:
        name = f"cuMemAllocAsync of {quantity(size, 'bytes')}"
        yield from process.steps(
            (
                (name, f"stream {size}"),
                (f"{name}: waited for", "synchronize"),
                (f"{name}: freed", "stream_free"),
                (f"{name}: freed and waited for", "synchronize"),
                (f"{name}: then", "pool"),
            )
        )
