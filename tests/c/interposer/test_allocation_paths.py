# SPDX-License-Identifier: Apache-2.0
"""No allocation path exceeds the quota: each function that is charged.

What is special about pools, graphs, managed and shared memory is in files of their own.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpushare import abi
from libhook.table import coverage

from . import client
from .client import LAUNCH_FAILED, OUT_OF_MEMORY
from .conftest import FAKE_UUIDS, FakeContainer, SimulatedContainer
from .container import ProgramContainer
from .paths import FAILS, PATHS, REACHES, RETRIES, STEP
from .rank import Rank

REFUSED = {"refused": OUT_OF_MEMORY}
FAILED = {"refused": LAUNCH_FAILED}


def test_every_function_that_is_charged_has_a_path() -> None:
    lines = coverage.assign(coverage.read(coverage.SOURCE.read_text()), coverage.exported())
    assert sorted(PATHS) == sorted(
        symbol
        for symbol, entry in lines.items()
        if entry.kind == "mediated" and "charged: " in entry.reason
    )


class Taker:
    """A process that takes memory through one path, and an observer of its container."""

    def __init__(self, container: ProgramContainer, symbol: str) -> None:
        self.container, self.tenant, self.path = container, container.tenant, PATHS[symbol]
        self.symbol, self.card = symbol, self.path.card
        self.rank = self._start()
        self.other = Rank(container, lambda: client.start(self.card))
        self._price()

    def _start(self) -> Rank:
        return Rank(self.container, words={"PATHS": PATHS})

    def _price(self) -> None:
        if self.path.kind == abi.KIND_CONTEXT:
            self.tenant.set_context_bytes(self.path.price)

    def begin_again(self) -> None:
        """Let the process end by itself, and start another one."""
        self.rank.end()
        self.tenant.set_context_bytes(0)
        self.rank = self._start()
        self._price()

    def take(self) -> object:
        return self.rank.ask(f"PATHS[{self.symbol!r}].take()", "held")

    def give(self) -> None:
        assert self.rank.ask(f"PATHS[{self.symbol!r}].give(held)") is None

    def reaches(self) -> int:
        """What the driver has given."""
        return int(self.other.ask("taken()"))

    def used(self) -> int:
        return self.tenant.used(self.card)[0]

    def free(self) -> set[int]:
        """What programs are told is free of the card, by cuMemGetInfo."""
        viewers = [self.other] if self.card else [self.other, self.rank]
        return {viewer.ask("memory()[0]") for viewer in viewers}

    def let_driver_fail(self, *, fails: bool) -> None:
        if self.path.driver == "fake":
            change = "update(FAKE_CUDA_FAIL='1')" if fails else "pop('FAKE_CUDA_FAIL')"
            self.rank.ask(f"os.environ.{change}")
        else:
            self.container.fail(100 if fails else 0, LAUNCH_FAILED)

    def end(self) -> None:
        self.rank.end()
        self.other.end()


@pytest.fixture(params=PATHS)
def taker(
    request: pytest.FixtureRequest,
    simulated_container: SimulatedContainer,
    fake_container: FakeContainer,
) -> Iterator[Taker]:
    if PATHS[request.param].driver == "fake":
        container = fake_container(FAKE_UUIDS, 4 * STEP)
    else:
        container = simulated_container(2, [0, 1], cuda_version="13.5")
        container.tenant.set_memory(4 * STEP)
    made = Taker(container, request.param)
    yield made
    made.end()


def test_a_path_takes_the_last_byte_of_the_quota_and_gives_it_back(taker: Taker) -> None:
    path, before = taker.path, taker.reaches()
    assert taker.used() == 0

    # One byte less than it takes: refused, and the driver is not asked.
    taker.tenant.set_memory(STEP - 1, taker.card)
    taker.let_driver_fail(fails=bool(path.traits & FAILS))
    assert taker.take() == REFUSED
    assert taker.used() == 0
    assert taker.free() == {STEP - 1}
    assert taker.reaches() == before

    # The driver is asked, and fails: nothing is left.
    taker.tenant.set_memory(STEP, taker.card)
    if path.traits & FAILS:
        assert taker.take() == FAILED
        assert taker.used() == 0
        taker.let_driver_fail(fails=False)

    # It succeeds once a card that was full has room, and all processes of the container see it.
    if path.traits & RETRIES and path.driver == "simulated":
        taker.container.fail(2)
    assert taker.take() != REFUSED
    if path.driver == "simulated":
        assert taker.container.failed(0) == 0
    assert taker.used() == STEP
    if path.kind not in (abi.KIND_BUFFER, abi.KIND_CONTEXT):  # noted as the rest, and apart
        assert taker.tenant.kind(path.kind, taker.card) == STEP
    assert taker.free() == {0}
    assert taker.other.ask("result_of(alloc, 1)") == OUT_OF_MEMORY
    if path.driver == "simulated" and path.traits & REACHES:
        assert taker.reaches() - before == STEP

    taker.give()
    assert taker.used() == 0
    assert taker.free() == {STEP}
    assert taker.reaches() == before

    # So does the end of its context, and the end of its process.
    if path.ends_with_context:
        taker.rank.ask("context()")
        assert taker.take() != REFUSED
        assert taker.rank.ask("call('cuCtxDestroy_v2', current())") is None
        assert (taker.used(), taker.reaches()) == (0, before)
    taker.begin_again()
    assert taker.take() != REFUSED
    assert taker.used() == STEP
    taker.rank.kill()
    assert taker.other.ask(f"result_of(alloc, {STEP})") == 0
