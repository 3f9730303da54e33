# SPDX-License-Identifier: Apache-2.0
"""What CuPy's answers prove, and that its checks distinguish a quota from none."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tools.gpu import cupy_view
from tools.gpu.child import arrays
from tools.gpu.process import environment
from tools.gpu.report import NotMeasured, ReportRow

GIB = 1 << 30
QUOTA = 4 * GIB
CONTEXT = GIB // 2


class OutOfMemoryError(MemoryError):
    pass


class FakeArray:
    def __init__(self, size: int) -> None:
        self.size = size

    def __getitem__(self, part: slice) -> FakeArray:
        return FakeArray(part.stop)

    def sum(self) -> int:
        return self.size


class FakeCupy:
    """As much of cupy as child/arrays.py calls, on a card that gives `room` bytes."""

    uint8 = None

    def __init__(self, room: int) -> None:
        self.room, self.used = room, CONTEXT
        self.malloc = None
        self.cuda = SimpleNamespace(
            MemoryPool=lambda: self,
            MemoryAsyncPool=lambda: self,
            using_allocator=lambda _: self,
            runtime=SimpleNamespace(memGetInfo=lambda: (self.room - self.used, self.room)),
            memory=SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            Device=lambda: SimpleNamespace(synchronize=lambda: None),
        )

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def zeros(self, size: int, **_: object) -> FakeArray:
        if self.used + size > self.room:
            raise OutOfMemoryError(f"Out of memory allocating {size} bytes")
        self.used += size
        return FakeArray(size)

    ones = zeros

    def total_bytes(self) -> int:
        return self.used - CONTEXT

    def free_all_blocks(self) -> None:
        self.used = CONTEXT


def seen(room: int) -> dict[str, Any]:
    return {"errors": {}, "pool": arrays.pool(FakeCupy(room))}


def lost(rows: list[ReportRow]) -> list[str]:
    return [row.name for row in rows if row.held is False]


def test_under_its_quota_all_claims_hold() -> None:
    rows = [*cupy_view.judged(seen(QUOTA), "pool", QUOTA)]
    assert lost(rows) == []
    assert sum(row.held is True for row in rows) == 5


def test_with_the_whole_card_the_quota_is_seen_not_to_hold() -> None:
    assert lost([*cupy_view.judged(seen(2 * QUOTA), "pool", QUOTA)]) == [
        "CuPy's pool: memGetInfo shows the quota",
        "CuPy's pool: never more than the quota",
    ]


def test_a_check_that_failed_is_a_claim_lost() -> None:
    answer = {"errors": {"async": "CUDARuntimeError: cudaErrorNotSupported"}}
    (row,) = cupy_view.judged(answer, "async", QUOTA)
    assert (row.held, row.note) == (False, "CUDARuntimeError: cudaErrorNotSupported")


def test_a_cupy_that_cannot_be_imported_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cupy.py").write_text("raise ImportError('libcudart.so.13: no such file')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(NotMeasured, match=r"libcudart\.so\.13: no such file"):
        cupy_view.importable(environment())
