# SPDX-License-Identifier: Apache-2.0
"""The child that works as a tenant does, on a driver that keeps its kernels' time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from tools.gpu.child import tenant
from tools.gpu.cuda import Cuda
from tools.gpu.driver import DriverPaths
from tools.gpu.got import unit_ns
from tools.gpu.process import Child, child, environment
from tools.gpu.report import NotMeasured


@pytest.fixture
def worker(driver: DriverPaths) -> Iterator[Child]:
    with Child("tenant", child("tenant", str(driver.cuda)), environment(driver.env)) as made:
        made.start()
        yield made


@pytest.mark.parametrize(
    ("load", "units", "unit"),
    [
        ("kernels 100000 1", 10, 100_000),
        ("kernels 5000000 1", 1, 5_000_000),
        ("graphs 100000 1 20", 1, 2_000_000),
        ("contexts 100000 1 3", 30, 100_000),
    ],
)
def test_work_is_counted_batch_by_batch(worker: Child, load: str, units: int, unit: int) -> None:
    assert worker.ask(f"load {load}")["units"] == units
    log = worker.ask(f"work {time.monotonic_ns()} 0.2")["log"]
    assert [done for _, done in log] == list(range(units, units * (len(log) + 1), units))
    # However late the host is, the card is not faster; where it is late for the one that is
    # counted from, it seems to be.
    assert max(unit_ns(log[begin:]) for begin in range(len(log) // 2)) >= 0.99 * unit


def test_a_request_takes_no_less_than_its_kernels(worker: Child) -> None:
    worker.ask("load kernels 100000 1")
    took = worker.ask(f"serve {time.monotonic_ns()} 0.5 40 3")["took_ns"]
    assert took
    assert min(took) >= 3_000_000


def test_work_without_a_load_is_refused(worker: Child) -> None:
    with pytest.raises(NotMeasured, match="no load was made"):
        worker.ask("work 0 1")


class Torch:
    """As much of torch as training calls; `done` has the calls in their order."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.nn = self.optim = self.functional = self

    def Linear(self, *_: int) -> None: ...  # noqa: N802 - the name is torch's

    def ReLU(self) -> None: ...  # noqa: N802

    def Sequential(self, *_: object) -> Torch:  # noqa: N802
        return self

    def Adam(self, _: object) -> Torch:  # noqa: N802
        return self

    def randn(self, *_: int, device: str) -> str:
        return device

    def randint(self, *_: object, device: str) -> str:
        return device

    def cross_entropy(self, made: object, wanted: str) -> Torch:
        assert (made, wanted) == (self, "cuda")
        return self

    def __call__(self, given: str) -> Torch:
        assert given == "cuda"
        self.done.append("forward")
        return self

    def cuda(self) -> Torch:
        return self

    def parameters(self) -> list[object]:
        return []

    def __getattr__(self, name: str) -> Callable[[], None]:
        return lambda: self.done.append(name)


def test_a_unit_of_training_is_a_step_of_the_optimizer(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = Torch()
    monkeypatch.setattr(tenant, "import_module", lambda _: torch)
    tenant.Training(Cuda.__new__(Cuda)).queue()
    assert torch.done == ["zero_grad", "forward", "backward", "step"]
