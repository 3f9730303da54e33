# SPDX-License-Identifier: Apache-2.0
"""What PyTorch's answers prove, and that its checks distinguish a quota from none."""

from __future__ import annotations

import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tools.gpu import torch_view
from tools.gpu.child import pytorch
from tools.gpu.driver import DriverPaths
from tools.gpu.filtered import tenancy
from tools.gpu.process import environment
from tools.gpu.report import NotMeasured, ReportRow
from tools.gpu.torch_view import importable, judged

GIB = 1 << 30
QUOTA = 4 * GIB
CONTEXT = GIB // 2


class OutOfMemory(RuntimeError):
    pass


class FakeTorch:
    """As much of torch as child/pytorch.py calls, on a card that gives `room` bytes."""

    uint8 = None
    OutOfMemoryError = OutOfMemory

    def __init__(self, room: int) -> None:
        self.room = room
        self.held: list[int] = []
        self.cuda = self

    @property
    def used(self) -> int:
        return CONTEXT + sum(self.held)

    def empty(self, size: int, **_: object) -> SimpleNamespace:
        if self.used + size > self.room:
            raise OutOfMemory("CUDA out of memory. Tried to allocate 64.00 MiB.\nAnd so on.")
        self.held.append(size)
        return SimpleNamespace(fill_=lambda _: None)

    def mem_get_info(self) -> tuple[int, int]:
        return self.room - self.used, self.room

    def memory_reserved(self) -> int:
        return sum(self.held)

    def empty_cache(self) -> None:
        self.held.clear()

    def synchronize(self) -> None:
        pass


class Tensor:
    """Memory of a Caching card; what is no longer used is cached."""

    def fill_(self, _: int) -> None:
        pass


class Caching(FakeTorch):
    """A FakeTorch whose allocator caches what is freed, and frees its cache before it gives up."""

    def __init__(self, room: int, *, frees_its_cache: bool = True) -> None:
        super().__init__(room)
        self.frees_its_cache = frees_its_cache
        self.cached = 0
        self.live: dict[int, int] = {}

    @property
    def used(self) -> int:
        return CONTEXT + sum(self.live.values()) + self.cached

    def empty(self, size: int, **_: object) -> Any:
        if self.used + size > self.room and self.frees_its_cache:
            self.cached = 0
        if self.used + size > self.room:
            raise OutOfMemory("CUDA out of memory.")
        made = Tensor()
        self.live[id(made)] = size
        weakref.finalize(made, self.free, id(made))
        return made

    def free(self, key: int) -> None:
        self.cached += self.live.pop(key)

    def memory_reserved(self) -> int:
        return self.used - CONTEXT

    def empty_cache(self) -> None:
        self.cached = 0


def test_an_allocator_that_frees_its_cache_gets_the_large_piece() -> None:
    torch = Caching(QUOTA)
    rows = [*judged({"torch": "2", "errors": {}, "retry": pytorch.retry(torch)}, QUOTA)]
    assert lost(rows) == []
    assert sum(row.held is True for row in rows) == 2
    assert torch.used == CONTEXT


def test_one_that_does_not_is_a_claim_lost() -> None:
    torch = Caching(QUOTA, frees_its_cache=False)
    rows = [*judged({"torch": "2", "errors": {}, "retry": pytorch.retry(torch)}, QUOTA)]
    assert lost(rows) == ["refused, it frees its cache and gets it"]


CAPTURED = {
    "is_out_of_memory": True,
    "error": "CUDA out of memory",
    "graphs": 7,
    "reserved": 3 * GIB,
    "held": 3 * GIB,
    "replays": True,
    "recovers": True,
}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, []),
        ({"is_out_of_memory": False}, ["graphs that allocate stop at the quota"]),
        ({"reserved": 5 * GIB}, ["graphs that allocate stop at the quota"]),
        ({"replays": False}, ["the graphs before it still replay"]),
        ({"recovers": False}, ["deleted, their memory is free again"]),
    ],
)
def test_graphs_that_allocate_are_charged_to_the_quota(
    change: dict[str, object], expected: list[str]
) -> None:
    answer = {"torch": "2", "errors": {}, "captured": {**CAPTURED, **change}}
    assert lost([*judged(answer, QUOTA)]) == expected


def seen(room: int) -> dict[str, Any]:
    """What the child answers on a card of `room` bytes."""
    torch = FakeTorch(room)
    free, total = torch.mem_get_info()
    return {
        "torch": "2.11.0",
        "errors": {},
        "view": {"free": free, "total": total, "total_memory": total},
        "matmul": 1e-7,
        "graph": True,
        "full": pytorch.full(torch),
    }


def lost(rows: list[ReportRow]) -> list[str]:
    return [row.name for row in rows if row.held is False]


def test_under_its_quota_all_claims_hold() -> None:
    rows = [*judged(seen(QUOTA), QUOTA)]
    assert lost(rows) == []
    assert sum(row.held is True for row in rows) == 6
    given = next(row for row in rows if row.name == "given until then")
    assert given.shown == "3.5 GiB"
    assert given.note == "CUDA out of memory. Tried to allocate 64.00 MiB."


def test_with_the_whole_card_the_quota_is_seen_not_to_hold() -> None:
    assert lost([*judged(seen(2 * QUOTA), QUOTA)]) == [
        "torch.cuda.mem_get_info and total_memory say 4 GiB",
        "never more than the quota",
    ]


def test_an_error_of_another_kind_is_no_out_of_memory() -> None:
    answer = seen(QUOTA)
    answer["full"] |= {"is_out_of_memory": False, "error": "AcceleratorError", "message": "999"}
    rows = [*judged(answer, QUOTA)]
    assert lost(rows) == ["at the quota it raises torch.cuda.OutOfMemoryError"]
    assert [row.note for row in rows if row.held is False] == ["AcceleratorError 999"]


def test_a_failed_check_is_a_lost_claim_and_the_others_continue() -> None:
    answer = seen(QUOTA)
    del answer["graph"]
    answer["errors"] = {"graph": "RuntimeError: operation not permitted when stream is capturing"}
    rows = [*judged(answer, QUOTA)]
    assert lost(rows) == ["PyTorch 2.11.0: graph"]
    assert rows[0].note.endswith("capturing")
    assert len(rows) > 5


def test_without_pytorch_there_is_nothing_to_judge() -> None:
    with pytest.raises(NotMeasured, match="No module named 'torch'"):
        [*judged({"errors": {"torch": "No module named 'torch'"}}, QUOTA)]


def test_a_pytorch_that_cannot_be_imported_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.13: no such file')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(NotMeasured, match=r"libcudart\.so\.13: no such file"):
        importable(environment())


#: As much of torch as `hold` calls, by the driver itself.
STAND_IN = """
from types import SimpleNamespace
from tools.gpu.cuda import Cuda
card = Cuda()
card.use_context()
class Tensor:
    def __init__(self, size):
        self.address = card.allocate(size)
    def __matmul__(self, other):
        return Tensor(64 << 20)
__version__ = "2"
uint8 = None
cuda = SimpleNamespace(synchronize=card.synchronize)
def ones(shape, **_):
    return Tensor(shape if isinstance(shape, int) else 4 * shape[0] * shape[1])
"""


@pytest.mark.usefixtures("namespaces")
def test_the_drift_is_the_use_that_nvml_reports_above_the_charge(
    driver: DriverPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(tmp_path))
    with tenancy(driver) as tenant:
        told = tenant.grant.context_bytes(0)
        charged, drift = torch_view._drift(driver, tenant, "caching", tenant.environment)
        assert charged.value == told + GIB + 2 * (64 << 20)
        assert charged.note.startswith("1 contexts; bytes: buffer 1207959552, context 5")
        assert drift.value == 0

        tenant.grant.set_context(0, told - (100 << 20))
        _, drift = torch_view._drift(driver, tenant, "caching", tenant.environment)
        assert drift.value == 100 << 20
