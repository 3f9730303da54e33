# SPDX-License-Identifier: Apache-2.0
"""Snapshots of machines that do not exist."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpushare.cli.top.snapshot import (
    ProcessRow,
    TopCard,
    TopContainer,
    TopSnapshot,
    snapshot_of,
)
from tests.unit.cli.conftest import CARD, tenant
from tests.unit.rows import GIB

TAKEN = 1763700000.0


def machine() -> TopSnapshot:
    """Two cards; train and serve on the first, notebook with two processes on the second."""
    other: Any = {**CARD, "index": 1, "uuid": "GPU-1", "model": "NVIDIA A100", "utilization": None}
    train = tenant("train", 3.9, 4)
    serve = tenant("serve", 5.2, 8, cores=60, cores_got=41.0, policy="burst-share", throttled=0.0)
    serve |= {"key": "b" * 16, "id": "b" * 64}
    notebook = tenant("notebook", 1, 2, index=1, cores=0, cores_got=None, policy="best-effort")
    notebook |= {"key": "c" * 16, "id": "c" * 64, "class": "online"}
    notebook["cards"][0]["compute"] |= {"cores_source": "", "gate": "closed"}
    notebook["processes"] = [
        {
            "pid": 700 + number,
            "container_pid": 20 + number,
            "name": name,
            "bytes": number * GIB,
            "cards": [{"index": 1, "bytes": number * GIB, "utilization": 9 - number}],
        }
        for number, name in enumerate(("jupyter", "kernel"), start=1)
    ]
    return snapshot_of([CARD, other], [train, serve, notebook], TAKEN)


def container(
    name: str, card: int = 0, processes: tuple[ProcessRow, ...] = (), **more: Any
) -> TopContainer:
    """Return a container of this name; `more` replaces keys of its row."""
    row: Any = tenant(name, 3.9, 4, index=card, key=name, id=name * 3, **more)
    return TopContainer(row, row["cards"][0], processes=processes)


def process(pid: int, name: str = "python", **more: Any) -> ProcessRow:
    """Return a process that has 1 GiB."""
    return replace(ProcessRow(pid, pid - 1, name, GIB, 10), **more)


def card(index: int = 0, **more: Any) -> TopCard:
    """Return a card."""
    row: Any = {**CARD, "index": index, **more}
    return TopCard(row)
