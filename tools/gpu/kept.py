# SPDX-License-Identifier: Apache-2.0
"""What pools and graphs take of the card, what they keep of it, and when it is given back.

libhook/cuda charges both by what the driver says that they hold: whether that is what they take is
measured here.
"""

from __future__ import annotations

from collections.abc import Iterator

from .driver import DriverPaths
from .report import ReportRow, quantity
from .scale import Weighed
from .takes import alone

MIB = 1 << 20
SIZES = (512, MIB, 32 * MIB, 33 * MIB, 200 * MIB)
GRAPH = 128 * MIB


def rows(driver: DriverPaths) -> Iterator[ReportRow]:
    for part in (pool, graphs):
        yield from alone(driver, part)


def pool(process: Weighed) -> Iterator[ReportRow]:
    """What the default pool takes and says it holds, at each step."""
    for size in SIZES:
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


def graphs(process: Weighed) -> Iterator[ReportRow]:
    name = f"a graph that allocates {GRAPH // MIB} MiB"
    yield from process.steps(
        (
            (f"{name}: instantiated", f"graph {GRAPH}"),
            (f"{name}: uploaded", "graph_upload"),
            (f"{name}: launched", "graph_launch"),
            ("a second one like it: instantiated", f"graph {GRAPH}"),
            ("a second one like it: launched after the first", "graph_launch"),
            ("one that allocates 1 byte: instantiated", "graph 1"),
            ("one that allocates 1 byte: launched", "graph_launch"),
            ("graphs destroyed", "graph_free"),
            ("graphs trimmed", "graph_trim"),
        )
    )
