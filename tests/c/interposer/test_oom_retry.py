# SPDX-License-Identifier: Apache-2.0
"""An allocation within quota that the card cannot satisfy is retried while that can help."""

from __future__ import annotations

import ctypes
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpushare import abi, simulator
from gpushare.simulator import device_file

from .conftest import ProgramContainer
from .rank import Rank, ranks
from .tenant import MIB

OUT_OF_MEMORY = 2
LAUNCH_FAILED = 719
WITHOUT_END = 1 << 30
ALLOCATE = (
    *("alloc", "alloc_pitch", "alloc_managed", "alloc_async", "alloc_async_ptsz"),
    *("alloc_from_pool", "alloc_from_pool_ptsz", "create"),
)
IMAGE = (
    b".version 7.0\\n.target sm_75\\n.address_size 64\\n"
    b".visible .global .align 4 .b8 table[4096];\\n\\0"
)
#: Calls that are charged beside those, as expressions; each takes memory of the card once.
OTHERS = {
    "context": "call('cuCtxCreate_v2', byref(c_void_p()), 0, 0)",
    "primary": "call('cuDevicePrimaryCtxRetain', byref(c_void_p()), 0)",
    "array": "call('cuArrayCreate_v2', byref(c_void_p()), (c_uint64 * 3)(1024, 64, 0x100000020))",
    "module": f"call('cuModuleLoadData', byref(c_void_p()), {IMAGE!r})".replace("\\\\", "\\"),
}


#: Threads that have the context of the first.
THREADS = """
current, threads, results = c_void_p(), [], []
call('cuCtxGetCurrent', byref(current))

def run(work):
    call('cuCtxSetCurrent', current)
    results.append(result_of(work))

def meanwhile(work):
    threads.append(threading.Thread(target=run, args=(work,)))
    threads[-1].start()

def join():
    for thread in threads:
        thread.join()
    return results

everything = []

def fill_card():
    # Around the library under test, as a neighbour would.
    free, total, pointer = c_size_t(), c_size_t(), c_uint64()
    assert behind.cuMemGetInfo_v2(byref(free), byref(total)) == 0
    for size in (free.value - 64 * MIB, 32 * MIB, 16 * MIB, *[2 * MIB] * 8):
        if behind.cuMemAlloc_v2(byref(pointer), c_size_t(size)) == 0:
            everything.append(pointer.value)

def empty_card():
    for pointer in everything:
        assert behind.cuMemFree_v2(c_uint64(pointer)) == 0
"""


@dataclass
class FullCard:
    """A process of a tenant with 100 MiB of a card that can be made to have no memory."""

    container: ProgramContainer
    rank: Rank

    @property
    def device(self) -> Path:
        return Path(self.container.env[simulator.DEVICE_ENV])

    def fill(self, times: int = WITHOUT_END, error: int = OUT_OF_MEMORY) -> None:
        """Let the next `times` calls that take memory fail."""
        simulator.fail(self.device, allocations=times, error=error)

    def failed(self, times: int = WITHOUT_END) -> int:
        """Return how many of `times` calls have failed."""
        with self.device.open("rb") as file:
            file.seek(device_file.FAULTS_OFFSET)
            faults = device_file.Faults.from_buffer_copy(
                file.read(ctypes.sizeof(device_file.Faults))
            )
        return times - int(faults.allocations)

    def meanwhile(self, expression: str) -> None:
        """Evaluate it in another thread of the process."""
        self.rank.ask(f"meanwhile(lambda: {expression})")

    def results(self) -> list[int]:
        """Return what the other threads' calls answered, once all have ended."""
        return list(self.rank.ask("join()"))

    def held(self) -> int:
        return self.container.tenant.used()[0]


@pytest.fixture
def machine(simulated: ProgramContainer) -> Iterator[FullCard]:
    with ranks(simulated, 1) as started:
        driver = simulated.libraries.parent / "driver" / "libcuda.so.1"
        program = f"behind = ctypes.CDLL({str(driver)!r})\n{THREADS}"
        started[0].ask(f"exec({program!r}, globals())")
        yield FullCard(simulated, started[0])


@pytest.fixture
def listener(simulated: ProgramContainer) -> Iterator[socket.socket]:
    """Be the daemon; to be asked for before `machine`."""
    with simulated.tenant.listen() as listening:
        yield listening


@pytest.fixture
def heard(listener: socket.socket, machine: FullCard) -> Iterator[socket.socket]:  # noqa: ARG001
    """The connection of the process, after its hello."""
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(20)
        assert abi.MESSAGE_HEADER.unpack_from(connection.recv(2000))[0] == abi.MESSAGE_HELLO
        yield connection


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread of the process is about to do."""
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.001)


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


@pytest.mark.parametrize("allocate", ALLOCATE)
def test_an_allocation_succeeds_once_the_card_has_room(allocate: str, machine: FullCard) -> None:
    machine.fill(3)
    assert machine.rank.ask(f"result_of({allocate}, 32 * MIB)") == 0
    assert machine.failed(3) == 3
    assert machine.rank.ask("memory()[0]") == 68 * MIB


@pytest.mark.parametrize("what", OTHERS)
def test_other_charged_calls_succeed_too(what: str, machine: FullCard) -> None:
    machine.fill(3)
    assert machine.rank.ask(f"result_of(lambda: {OTHERS[what]})") == 0
    assert machine.failed(3) == 3


@pytest.mark.parametrize("allocate", ALLOCATE)
def test_the_drivers_answer_is_returned_in_the_end(allocate: str, machine: FullCard) -> None:
    machine.fill()
    assert machine.rank.ask(f"result_of({allocate}, 4 * MIB)") == OUT_OF_MEMORY
    assert machine.failed() > 1
    machine.fill(0)
    assert machine.held() == 0
    assert machine.rank.ask("result_of(alloc, 100 * MIB)") == 0


@pytest.mark.parametrize("what", [*OTHERS])
def test_reservations_of_other_calls_are_released_in_the_end(what: str, machine: FullCard) -> None:
    machine.fill()
    assert machine.rank.ask(f"result_of(lambda: {OTHERS[what]})") == OUT_OF_MEMORY
    machine.fill(0)
    assert machine.held() == 0
    assert machine.rank.ask("result_of(alloc, 100 * MIB)") == 0


@pytest.mark.usefixtures("heard")
def test_the_room_stays_reserved_meanwhile(machine: FullCard) -> None:
    """Of 100 MiB 60 are waited for: for others 40 are left."""
    machine.fill()
    machine.meanwhile("alloc(60 * MIB)")
    wait_until(lambda: machine.held() == 60 * MIB)
    assert machine.rank.ask("memory()[0]") == 40 * MIB
    machine.fill(0)
    assert machine.results() == [0]


def test_another_error_is_not_retried(machine: FullCard) -> None:
    machine.fill(error=LAUNCH_FAILED)
    assert machine.rank.ask("result_of(alloc, MIB)") == LAUNCH_FAILED
    assert machine.failed() == 1


def test_over_the_quota_the_driver_is_not_called(machine: FullCard) -> None:
    machine.fill()
    assert machine.rank.ask("result_of(alloc, 101 * MIB)") == OUT_OF_MEMORY
    assert machine.failed() == 0


def test_burst_memory_is_not_retried(machine: FullCard) -> None:
    tenant = machine.container.tenant
    tenant.set_u64(0, abi.GRANT_CARD_CURRENT_LIMIT_BYTES, 200 * MIB)
    machine.fill()
    assert machine.rank.ask("result_of(alloc, 101 * MIB)") == OUT_OF_MEMORY
    assert machine.failed() == 1


def test_nothing_waits_while_a_stream_is_captured(machine: FullCard) -> None:
    machine.rank.ask(
        "(call('cuStreamCreate', byref(stream := c_void_p()), 1), stream.value)[1]", "stream"
    )
    machine.rank.ask("call('cuStreamBeginCapture_v2', c_void_p(stream), 2)")
    machine.fill()
    assert machine.rank.ask("result_of(alloc, MIB)") == OUT_OF_MEMORY
    assert machine.failed() == 1
    machine.rank.ask("call('cuStreamEndCapture', c_void_p(stream), byref(c_void_p()))")
    machine.fill(2)
    assert machine.rank.ask("result_of(alloc, MIB)") == 0


def test_the_daemon_gets_one_report(heard: socket.socket, machine: FullCard) -> None:
    machine.fill(5)
    assert machine.rank.ask("result_of(alloc, 4 * MIB)") == 0
    assert lacks(heard) == [(0, 4 * MIB)]


def test_of_many_threads_one_speaks(heard: socket.socket, machine: FullCard) -> None:
    machine.fill(24)
    for _ in range(8):
        machine.meanwhile("alloc(2 * MIB)")
    assert machine.results() == [0] * 8
    assert len(lacks(heard)) == 1


def test_with_a_daemon_it_is_waited_for_longer_than_without(
    heard: socket.socket, machine: FullCard
) -> None:
    machine.fill()
    assert machine.rank.ask("result_of(alloc, 4 * MIB)") == OUT_OF_MEMORY
    asked = machine.failed()
    heard.close()
    # The daemon is dead, and the last wait was in vain: the next one is short.
    machine.fill()
    assert machine.rank.ask("result_of(alloc, 4 * MIB)") == OUT_OF_MEMORY
    assert 1 < machine.failed() < asked


@pytest.mark.usefixtures("heard")
def test_a_child_is_forked_while_another_thread_waits(machine: FullCard) -> None:
    machine.fill()
    machine.meanwhile("alloc(60 * MIB)")
    wait_until(lambda: machine.held() == 60 * MIB)
    child = "(pid := os.fork()) or os._exit(cu.cuInit(0) == 0)"
    assert machine.rank.ask(f"({child}, os.waitpid(pid, 0)[1])[1]") == 0
    machine.fill(0)
    assert machine.results() == [0]


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize("waits", ["alloc(MIB)", OTHERS["primary"]], ids=["alloc", "primary"])
def test_a_free_of_another_thread_does_not_wait(waits: str, machine: FullCard) -> None:
    pointer = machine.rank.ask("alloc(2 * MIB)")
    machine.fill()
    machine.meanwhile(waits)
    wait_until(lambda: machine.failed() > 1)
    machine.rank.ask(f"free({pointer})")
    assert machine.rank.ask("result_of(call, 'cuDevicePrimaryCtxRelease_v2', 0)") != 0
    assert machine.rank.ask("result_of(call, 'cuDevicePrimaryCtxReset_v2', 0)") == 0
    assert machine.rank.ask("threads[0].is_alive()")
    machine.fill(0)
    assert machine.results() == [0]


def test_memory_that_a_neighbour_releases_is_allocated(
    heard: socket.socket, machine: FullCard
) -> None:
    """The whole card is taken, around us; a graph's memory too is waited for."""
    machine.rank.ask("fill_card()")
    machine.meanwhile("call('cuGraphLaunch', instance(graph_of(4 * MIB)), None)")
    machine.meanwhile("alloc(4 * MIB)")
    wait_until(lambda: bool(lacks(heard)))
    machine.rank.ask("empty_card()")
    assert machine.results() == [0, 0]
