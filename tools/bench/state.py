# SPDX-License-Identifier: Apache-2.0
"""Measures a reservation that is written so that no crash of gpushared loses it."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from gpushare.daemon.core.loop import boot_id
from gpushare.daemon.store.ledger import Ledger
from gpushare.daemon.store.record import CardAllocation, TenantRecord

from .result import Result
from .turns import Times, take

TENANTS = 50  # that have entries already
WRITES = 100
ROUNDS = 7
CARD = "GPU-00000000-0000-4000-8000-000000000000"


def measure() -> Iterator[Result]:
    """Compare with a file of the same length, written and renamed: the least that is safe."""
    # On the kind of file system that /run is.
    with tempfile.TemporaryDirectory(prefix="gpushare-bench-", dir="/dev/shm") as folder:
        ledger = Ledger(Path(folder) / "ledger", boot_id())
        for number in range(TENANTS):
            ledger.add(_entry(number))
        series = take(
            {
                "file": lambda: _timed(lambda number: _rename(Path(folder), number)),
                "ledger": lambda: _timed(lambda number: _promise(ledger, number)),
            },
            ROUNDS,
        )
        ledger.close()
    name = f"one write to the ledger of {TENANTS} tenants"
    yield series.compare("write", "ledger", "file", name=name)


def _timed(write: Callable[[int], None]) -> Times:
    begun = time.monotonic_ns()
    for number in range(WRITES):
        write(TENANTS + number)
    return {"write": (time.monotonic_ns() - begun) / WRITES / 1e6}


def _promise(ledger: Ledger, number: int) -> None:
    """Write twice, so that half of it counts: the reservation is released again."""
    entry = _entry(number)
    if entry.key in ledger.entries:
        ledger.release(entry.key)
    else:
        ledger.add(entry)


def _rename(folder: Path, number: int) -> None:
    draft = folder / f".{number}"
    draft.write_bytes(bytes(1024))
    draft.replace(folder / str(number))


def _entry(number: int) -> TenantRecord:
    made = TenantRecord(
        key=f"{number:016x}",
        state="reserved",
        id=f"container-{number}",
        name=f"tenant-{number}",
        engine="docker",
        bundle=f"/run/containerd/io.containerd.runtime.v2.task/moby/{number:064x}",
        uid=os.getuid(),
    )
    return replace(made, allocations=(CardAllocation(CARD, 1 << 30),))
