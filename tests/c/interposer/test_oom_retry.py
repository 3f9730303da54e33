# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F403, F405 - a program in the words of client.py
"""An allocation within quota that the card cannot satisfy is retried while that can help.

test_allocation_paths.py has each path retry.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from gpushare import abi
from tests.system.waiting import wait_until

from .client import *
from .container import ProgramContainer
from .rank import Rank

WITHOUT_END = 1 << 30
PRIMARY = "made('cuDevicePrimaryCtxRetain', 0)"
others: list[threading.Thread] = []
results: list[int] = []


def beside(work: Callable[[], object]) -> None:
    """Do it in another thread, with the same context."""
    handle = current()

    def run() -> None:
        call("cuCtxSetCurrent", handle)
        results.append(result_of(work))

    others.append(threading.Thread(target=run))
    others[-1].start()


def join() -> list[int]:
    """What the other threads' calls answered, once all have ended."""
    for thread in others:
        thread.join()
    return results


@pytest.fixture
def rank(simulated: ProgramContainer) -> Iterator[Rank]:
    """A process of a tenant with 100 MiB of a card that can be made to have no memory."""
    made = Rank(simulated, words=globals())
    yield made
    made.end()


def fill(rank: Rank, times: int = WITHOUT_END, error: int = OUT_OF_MEMORY) -> None:
    """Let the next `times` calls that take memory fail."""
    rank.container.fail(times, error)


def failed(rank: Rank) -> int:
    """Return how many have failed of a card that is full without end."""
    return rank.container.failed(WITHOUT_END)


@pytest.fixture
def listener(simulated: ProgramContainer) -> Iterator[socket.socket]:
    """Be the daemon; to be asked for before `rank`."""
    with simulated.tenant.listen() as listening:
        yield listening


def lacks(connection: socket.socket) -> list[tuple[int, int]]:
    """Return card and bytes of each shortfall that was reported so far."""
    connection.setblocking(False)
    found: list[tuple[int, int]] = []
    while True:
        try:
            packet = connection.recv(2000)
        except BlockingIOError:
            return found
        kind, card, _, rest = abi.MESSAGE_HEADER.unpack_from(packet)
        if kind == abi.MESSAGE_SHORTFALL:
            assert rest == len(packet) - abi.MESSAGE_TEXT
            found.append((card, abi.SHORTFALL.unpack(packet)[4]))


@pytest.mark.parametrize("what", ["alloc(4 * MIB)", "alloc_async(MIB)", "create(MIB * 2)", PRIMARY])
def test_the_drivers_answer_is_returned_in_the_end(what: str, rank: Rank) -> None:
    fill(rank)
    assert rank.ask(f"result_of(lambda: {what})") == OUT_OF_MEMORY
    assert failed(rank) > 1
    fill(rank, 0)
    assert rank.container.tenant.used()[0] == 0
    assert rank.ask("result_of(alloc, 100 * MIB)") == 0


@pytest.mark.usefixtures("listener")
def test_the_room_stays_reserved_meanwhile(rank: Rank) -> None:
    """Of 100 MiB 60 are waited for: for others 40 are left. A forked child does not wait."""
    fill(rank)
    rank.ask("beside(lambda: alloc(60 * MIB))")
    wait_until(lambda: rank.container.tenant.used()[0] == 60 * MIB)
    assert rank.ask("memory()[0]") == 40 * MIB
    assert rank.ask("in_child(lambda: os._exit(cu.cuInit(0) == 0))") == 0
    fill(rank, 0)
    assert rank.ask("join()") == [0]


@pytest.mark.parametrize(
    ("mib", "limit", "error", "asked"),
    [
        (1, 100, LAUNCH_FAILED, 1),  # another error is not retried
        (101, 100, OUT_OF_MEMORY, 0),  # above the quota, the driver is not called
        (101, 200, OUT_OF_MEMORY, 1),  # burst memory is not retried
    ],
)
def test_what_is_not_retried(mib: int, limit: int, error: int, asked: int, rank: Rank) -> None:
    tenant = rank.container.tenant
    tenant.set_u64(0, abi.GRANT_CARD_LIMIT_BYTES, limit * MIB)
    fill(rank, error=error)
    assert rank.ask(f"result_of(alloc, {mib} * MIB)") == error
    assert failed(rank) == asked


def test_the_daemon_gets_one_report(listener: socket.socket, rank: Rank) -> None:
    fill(rank, 5)
    assert rank.ask("result_of(alloc, 4 * MIB)") == 0
    connection, _ = listener.accept()
    with connection:
        assert lacks(connection) == [(0, 4 * MIB)]


@pytest.mark.usefixtures("listener")
@pytest.mark.parametrize("waits", ["alloc(MIB)", PRIMARY])
def test_a_free_of_another_thread_does_not_wait(waits: str, rank: Rank) -> None:
    rank.ask("alloc(2 * MIB)", "pointer")
    fill(rank)
    rank.ask(f"beside(lambda: {waits})")
    wait_until(lambda: failed(rank) > 1)
    rank.ask("free(pointer)")
    assert rank.ask("result_of(call, 'cuDevicePrimaryCtxRelease_v2', 0)") != 0
    assert rank.ask("result_of(call, 'cuDevicePrimaryCtxReset_v2', 0)") == 0
    assert rank.ask("others[0].is_alive()")
    fill(rank, 0)
    assert rank.ask("join()") == [0]
