# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: F403, F405 - a program in the words of client.py
"""Calls of an evicted tenant ask for the restore and wait, by every way into the library."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpushare import abi
from tests.system.waiting import wait_until

from .client import *
from .container import ProgramContainer
from .eviction import EvictingDaemon, WrittenEviction
from .gate import WrittenGate
from .rank import Rank

PTX = HEAD.encode() + KERNEL.encode()


def prepare() -> dict[str, object]:
    """What the calls below need, but for a context."""
    made_module = module(image(0, more=KERNEL))
    function = made("cuModuleGetFunction", made_module, b"empty")
    pointer = alloc(MIB)
    call("cuMemcpyHtoD_v2", c_uint64(pointer), b"x" * MIB, c_size_t(MIB))
    stream, graph = stream_new(), c_void_p()
    call("cuStreamBeginCapture_v2", stream, 2)
    start_empty(function, stream)
    call("cuStreamEndCapture", stream, byref(graph))
    _, found, _ = proc_address("cuCtxSynchronize", 12000)
    linking = c_void_p()
    call("cuLinkCreate_v2", 0, None, None, byref(linking))
    return {
        "function": function,
        "pointer": pointer,
        "stream": stream,
        "executable": instance(graph),
        "linking": linking,
        "found": ctypes.CFUNCTYPE(c_int)(found or 0),
    }


def start_empty(function: c_void_p, stream: c_void_p | None = None) -> int:
    return int(cu.cuLaunchKernel(function, *[c_uint(1)] * 6, 0, stream, None, None))


def copied(pointer: int) -> bool:
    kept = ctypes.create_string_buffer(MIB)
    call("cuMemcpyDtoH_v2", kept, c_uint64(pointer), c_size_t(MIB))
    return bool(kept.raw == b"x" * MIB)


def linked(linking: c_void_p) -> None:
    size = c_size_t(len(PTX) + 1)
    call("cuLinkAddData_v2", linking, 1, PTX, size, b"n", 0, None, None)


#: One of each kind of entry point, and what it returns.
KINDS: dict[str, object] = {
    "call('cuCtxGetFlags', byref(c_uint()))": None,  # a trampoline
    "linked(linking)": None,  # one with arguments on the stack
    "alloc(MIB) > 0": True,  # mediated
    "memory()[1]": 100 * MIB,  # a view
    "start_empty(function)": 0,
    "launch_graph(executable, stream)": None,
    "copied(pointer)": True,
    "found()": 0,  # by cuGetProcAddress
}
LAUNCH = "start_empty(function)"


@pytest.fixture
def eviction(simulated: ProgramContainer) -> WrittenEviction:
    return WrittenEviction(simulated.tenant)


@pytest.fixture
def daemon(simulated: ProgramContainer) -> Iterator[EvictingDaemon]:
    made = EvictingDaemon(simulated.tenant)
    yield made
    made.close()


def prepared(container: ProgramContainer) -> Rank:
    made = Rank(container, words=globals())
    assert made.ask("globals().update(prepare())") is None
    return made


@pytest.fixture
def caller(simulated: ProgramContainer, daemon: EvictingDaemon) -> Iterator[Rank]:  # noqa: ARG001
    """A program that has made all that the calls need, and the daemon that it speaks to."""
    made = prepared(simulated)
    yield made
    made.end()


def waits(rank: Rank) -> bool:
    """Whether its main thread sleeps on a futex."""
    return "futex" in Path(f"/proc/{rank.process.pid}/wchan").read_text(encoding="ascii")


@pytest.mark.parametrize("mode", [abi.GATE_OPEN, abi.GATE_METERED, abi.GATE_WINDOW])
def test_each_call_asks_for_the_restore_and_waits(
    mode: int, eviction: WrittenEviction, daemon: EvictingDaemon, caller: Rank
) -> None:
    WrittenGate(caller.container.tenant).set(mode)
    for kind, answer in KINDS.items():
        eviction.set(1)
        caller.tell(kind)
        assert daemon.next_request() == caller.process.pid, kind
        wait_until(lambda: waits(caller))
        eviction.set(0)
        assert caller.heard() == answer, kind


def test_a_refused_call_nvml_and_a_forked_child_do_not_wait(
    eviction: WrittenEviction, caller: Rank
) -> None:
    """The child neither asks: it is not initialized."""
    nvml = "libnvidia-ml.so.1"
    caller.ask(f"ctypes.CDLL(str(Path(os.environ['LIBCUDA']).with_name({nvml!r})))", "nvml")
    eviction.set(1)
    assert caller.ask("cu.cuMemMapArrayAsync()") == 801
    assert caller.ask("cu.cuCheckpointProcessLock(os.getpid(), None)") == 801
    assert caller.ask("[nvml.nvmlInit_v2(), nvml.nvmlShutdown()]") == [0, 0]
    assert caller.ask("in_child(lambda: os._exit(cu.cuCtxSynchronize()))") == 3 << 8


def test_the_start_of_a_process_waits(
    simulated: ProgramContainer, eviction: WrittenEviction, daemon: EvictingDaemon
) -> None:
    eviction.set(1)
    starting = Rank(simulated, lambda: None)
    starting.tell("start()")
    assert daemon.next_request() == starting.process.pid
    wait_until(lambda: waits(starting))
    assert simulated.tenant.processes() == []
    eviction.set(0)
    starting.heard()
    starting.end()


def test_a_launch_that_has_waited_at_the_gate_looks_again(
    eviction: WrittenEviction, daemon: EvictingDaemon, caller: Rank
) -> None:
    gate = WrittenGate(caller.container.tenant)
    gate.set(abi.GATE_CLOSED)
    caller.tell(LAUNCH)
    gate.until(lambda work: work.waiting == 1)
    eviction.set(1)
    gate.set(abi.GATE_METERED)
    assert daemon.next_request() == caller.process.pid
    eviction.set(0)
    assert caller.heard() == 0


def test_the_request_is_repeated_and_survives_a_restart_of_the_daemon(
    simulated: ProgramContainer, eviction: WrittenEviction
) -> None:
    daemon = EvictingDaemon(simulated.tenant)
    caller = prepared(simulated)
    eviction.set(1)
    caller.tell("alloc(MIB) > 0")
    for _ in range(2):
        assert daemon.next_request() == caller.process.pid
    daemon.close()
    daemon = EvictingDaemon(simulated.tenant)
    assert daemon.next_request() == caller.process.pid
    eviction.set(0)
    assert caller.heard() is True
    caller.end()
    daemon.close()


def copy_for_ever(seed: str, rounds: list[int], handle: c_void_p) -> None:
    """Copy to the card and back, and count how often all was as it should be."""
    call("cuCtxSetCurrent", handle)
    pointer, kept = c_uint64(alloc(MIB)), ctypes.create_string_buffer(MIB)
    while True:
        text = (seed + str(len(rounds)).zfill(15)).encode() * (MIB // 16)
        call("cuMemcpyHtoD_v2", pointer, text, c_size_t(MIB))
        call("cuMemcpyDtoH_v2", kept, pointer, c_size_t(MIB))
        if kept.raw != text:
            os._exit(1)
        rounds.append(1)


def copy_in_two_threads() -> list[list[int]]:
    rounds: list[list[int]] = [[], []]
    for seed, done in zip("ab", rounds, strict=True):
        words = (seed, done, current())
        threading.Thread(target=copy_for_ever, args=words, daemon=True).start()
    return rounds


def test_an_eviction_under_load_changes_no_byte(
    eviction: WrittenEviction, daemon: EvictingDaemon, caller: Rank
) -> None:
    """The word, the lock and the checkpoint in the daemon's order, while threads copy."""
    worker = Rank(caller.container.bare(), lambda: call("cuInit", 0))
    pid = caller.process.pid
    caller.ask("copy_in_two_threads()", "rounds")
    done = [0, 0]
    for _ in range(5):
        goal = [each + 3 for each in done]
        wait_until(lambda: all(n > g for n, g in zip(counts(caller), goal, strict=True)))  # noqa: B023
        eviction.set(1)
        timeout = "byref((c_uint64 * 8)(30_000))"
        assert worker.ask(f"cu.cuCheckpointProcessLock({pid}, {timeout})") == 0
        assert worker.ask(f"cu.cuCheckpointProcessCheckpoint({pid}, None)") == 0
        assert daemon.next_request() == pid
        assert worker.ask(f"cu.cuCheckpointProcessRestore({pid}, None)") == 0
        assert worker.ask(f"cu.cuCheckpointProcessUnlock({pid}, None)") == 0
        eviction.set(0)
        done = counts(caller)
    worker.end()


def counts(caller: Rank) -> list[int]:
    return [int(count) for count in caller.ask("[len(each) for each in rounds]")]
