# SPDX-License-Identifier: Apache-2.0
"""Calls of an evicted tenant ask for the restore and wait, by every way into the library."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gpushare import abi

from .conftest import ROOT, ProgramContainer, SimulatedContainer
from .eviction import EvictingDaemon, WrittenEviction, running, wait_until
from .gate import WrittenGate
from .tenant import MIB

SECONDS = 60
CLIENTS = ROOT / "tests" / "unit" / "simulator" / "clients"

#: What a test's program begins with: a context, a kernel, and memory with contents.
PREPARED = """
PTX = b'''.version 8.0
.target sm_75
.address_size 64
.visible .entry empty() { ret; }
'''
start()
module, function = c_void_p(), c_void_p()
call("cuModuleLoadData", byref(module), PTX)
call("cuModuleGetFunction", byref(function), module, b"empty")
ONE = (c_uint(1),) * 6
call("cuLaunchKernel", function, *ONE, 0, None, None, None)
call("cuCtxSynchronize")
pointer = alloc(MIB)
call("cuMemcpyHtoD_v2", c_uint64(pointer), b"x" * MIB, c_size_t(MIB))
linking = c_void_p()
call("cuLinkCreate_v2", 0, None, None, byref(linking))
stream, graph, instance = c_void_p(), c_void_p(), c_void_p()
call("cuStreamCreate", byref(stream), 1)
call("cuStreamBeginCapture_v2", stream, 2)
call("cuLaunchKernel", function, *ONE, 0, stream, None, None)
call("cuStreamEndCapture", stream, byref(graph))
call("cuGraphInstantiateWithFlags", byref(instance), graph, c_uint64(0))
say("ready")
sys.stdin.readline()
"""

#: One of each kind of entry point: its line, and what it says.
KINDS: dict[str, tuple[str, list[object]]] = {
    "trampoline": ("flags = c_uint(7); call('cuCtxGetFlags', byref(flags)); say(flags.value)", [0]),
    "trampoline with arguments on the stack": (
        (
            "call('cuLinkAddData_v2', linking, 1, PTX, c_size_t(len(PTX) + 1), b'n', 0, None, None)"
            "; image, size = c_void_p(), c_size_t()"
            "; call('cuLinkComplete', linking, byref(image), byref(size)); say(size.value > 0)"
        ),
        [True],
    ),
    "mediated": ("say(alloc(MIB) > 0)", [True]),
    "view": ("say(memory()[1])", [100 * MIB]),
    "launch": ("say(cu.cuLaunchKernel(function, *ONE, 0, None, None, None))", [0]),
    "graph launch": ("say(cu.cuGraphLaunch(instance, stream))", [0]),
    "copy": (
        (
            "kept = ctypes.create_string_buffer(MIB)"
            "; call('cuMemcpyDtoH_v2', kept, c_uint64(pointer), c_size_t(MIB))"
            "; say(kept.raw == b'x' * MIB)"
        ),
        [True],
    ),
    "by cuGetProcAddress": (
        "call_it = ctypes.CFUNCTYPE(c_int)(asked); say(call_it())",
        [0],
    ),
}


@pytest.fixture
def eviction(simulated: ProgramContainer) -> WrittenEviction:
    return WrittenEviction(simulated.tenant)


@pytest.fixture
def daemon(simulated: ProgramContainer) -> Iterator[EvictingDaemon]:
    made = EvictingDaemon(simulated.tenant)
    yield made
    made.close()


@pytest.mark.parametrize("mode", [abi.GATE_OPEN, abi.GATE_METERED, abi.GATE_WINDOW])
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_asks_for_the_restore_and_waits(
    simulated: ProgramContainer,
    eviction: WrittenEviction,
    daemon: EvictingDaemon,
    kind: str,
    mode: int,
) -> None:
    line, expected = KINDS[kind]
    WrittenGate(simulated.tenant).set(mode)
    asked = "_, asked, _ = proc_address('cuCtxSynchronize', 12000)"
    with running(simulated, PREPARED.replace("say(", asked + "\nsay(", 1), line) as caller:
        assert caller.says() == ["ready"]
        eviction.set(1)
        caller.go_on()
        assert daemon.next_request() == caller.process.pid
        wait_until(caller.waits)
        eviction.set(0)
        assert caller.says() == expected


@pytest.mark.usefixtures("daemon")
def test_a_refused_call_does_not_wait(
    simulated: ProgramContainer, eviction: WrittenEviction
) -> None:
    refused = "say(cu.cuMemMapArrayAsync(), cu.cuCheckpointProcessLock(os.getpid(), None))"
    with running(simulated, PREPARED, refused) as caller:
        assert caller.says() == ["ready"]
        eviction.set(1)
        caller.go_on()
        assert caller.says() == [801, 801]


@pytest.mark.usefixtures("daemon")
def test_nvml_does_not_wait(simulated: ProgramContainer, eviction: WrittenEviction) -> None:
    lines = (
        "import pynvml; pynvml.nvmlInit(); handle = pynvml.nvmlDeviceGetHandleByIndex(0)",
        "info = pynvml.nvmlDeviceGetMemoryInfo(handle)",
        "say(info.total, info.used >= MIB)",
    )
    with running(simulated, PREPARED, *lines) as caller:
        assert caller.says() == ["ready"]
        eviction.set(1)
        caller.go_on()
        assert caller.says() == [100 * MIB, True]


def test_the_start_of_a_process_waits(
    simulated: ProgramContainer, eviction: WrittenEviction, daemon: EvictingDaemon
) -> None:
    eviction.set(1)
    with running(simulated, PREPARED) as starting:
        assert daemon.next_request() == starting.process.pid
        wait_until(starting.waits)
        assert simulated.tenant.processes() == []
        eviction.set(0)
        assert starting.says() == ["ready"]


def test_a_launch_of_several_cards_waits(simulated_container: SimulatedContainer) -> None:
    container = simulated_container(2, [0, 1])
    eviction, daemon = WrittenEviction(container.tenant), EvictingDaemon(container.tenant)
    with running(container, PREPARED, KINDS["launch"][0]) as caller:
        assert caller.says() == ["ready"]
        eviction.set(1)
        caller.go_on()
        assert daemon.next_request() == caller.process.pid
        eviction.set(0)
        assert caller.says() == [0]
    daemon.close()


def test_a_launch_that_has_waited_at_the_gate_looks_again(
    simulated: ProgramContainer, eviction: WrittenEviction, daemon: EvictingDaemon
) -> None:
    gate = WrittenGate(simulated.tenant)
    gate.set(abi.GATE_METERED)
    with running(simulated, PREPARED, KINDS["launch"][0]) as caller:
        assert caller.says() == ["ready"]
        gate.set(abi.GATE_CLOSED)
        caller.go_on()
        wait_until(lambda: gate.work().waiting == 1)
        eviction.set(1)
        gate.set(abi.GATE_METERED)
        assert daemon.next_request() == caller.process.pid
        eviction.set(0)
        assert caller.says() == [0]


def test_the_request_is_repeated_and_survives_a_restart_of_the_daemon(
    simulated: ProgramContainer, eviction: WrittenEviction
) -> None:
    daemon = EvictingDaemon(simulated.tenant)
    with running(simulated, PREPARED, KINDS["mediated"][0]) as caller:
        assert caller.says() == ["ready"]
        eviction.set(1)
        caller.go_on()
        for _ in range(2):
            assert daemon.next_request() == caller.process.pid
        daemon.close()
        daemon = EvictingDaemon(simulated.tenant)
        assert daemon.next_request() == caller.process.pid
        eviction.set(0)
        assert caller.says() == [True]
    daemon.close()


def test_a_second_eviction_is_asked_about_again(
    simulated: ProgramContainer, eviction: WrittenEviction, daemon: EvictingDaemon
) -> None:
    again = ("say('again')", "sys.stdin.readline()", KINDS["trampoline"][0])
    with running(simulated, PREPARED, KINDS["mediated"][0], *again) as caller:
        assert caller.says() == ["ready"]
        for expected in ([True], [0]):
            eviction.set(1)
            caller.go_on()
            assert daemon.next_request() == caller.process.pid
            eviction.set(0)
            assert caller.says() == expected
            if expected == [True]:
                assert caller.says() == ["again"]


def test_signals_do_not_end_the_wait(
    simulated: ProgramContainer, eviction: WrittenEviction, daemon: EvictingDaemon
) -> None:
    handler = "import signal; signal.signal(signal.SIGUSR1, lambda *_: say('handled'))\n"
    with running(simulated, handler + PREPARED, KINDS["trampoline"][0]) as caller:
        assert caller.says() == ["ready"]
        eviction.set(1)
        caller.go_on()
        assert daemon.next_request() == caller.process.pid
        for _ in range(20):
            os.kill(caller.process.pid, signal.SIGUSR1)
            wait_until(caller.waits)
        eviction.set(0)
        # Python's handler runs behind the call.
        assert caller.says() == ["handled"]
        assert caller.says() == [0]


@pytest.mark.usefixtures("daemon")
def test_a_forked_child_neither_waits_nor_asks(
    simulated: ProgramContainer, eviction: WrittenEviction
) -> None:
    lines = (
        "child = os.fork()",
        "if child == 0: os._exit(cu.cuCtxSynchronize())",
        "say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))",
    )
    with running(simulated, PREPARED, *lines) as caller:
        assert caller.says() == ["ready"]
        eviction.set(1)
        caller.go_on()
        assert caller.says() == [3]  # not initialized


def test_the_librarys_own_thread_asks_for_nothing(
    simulated: ProgramContainer, eviction: WrittenEviction, daemon: EvictingDaemon
) -> None:
    WrittenGate(simulated.tenant).set(abi.GATE_METERED)
    slow = "call('cuLaunchKernel', function, *ONE, 0, None, None, None)\n"
    with running(simulated, PREPARED.replace("say(", slow + "say(", 1), "pass") as idle:
        assert idle.says() == ["ready"]
        eviction.set(1)
        assert not daemon.has_request_within(1.5)


def test_the_library_says_that_it_looks(simulated: ProgramContainer) -> None:
    def abilities() -> int:
        (value,) = struct.unpack_from(
            "<I", simulated.tenant.status.read_bytes(), abi.STATUS_HEADER_ABILITIES
        )
        return int(value)

    assert abilities() == 0
    simulated.says("start()", "say(1)")
    assert abilities() == abi.ABILITY_EVICT


def test_an_eviction_under_load_changes_no_byte(
    simulated: ProgramContainer, eviction: WrittenEviction, daemon: EvictingDaemon
) -> None:
    """The word, the lock and the checkpoint in the daemon's order, while threads copy."""
    threads = """
def copies(seed):
    call("cuCtxSetCurrent", current)
    mine = alloc(MIB)
    for number in range(1 << 60):
        text = (seed + str(number).zfill(15)).encode() * (MIB // 16)
        call("cuMemcpyHtoD_v2", c_uint64(mine), text, c_size_t(MIB))
        kept = ctypes.create_string_buffer(MIB)
        call("cuMemcpyDtoH_v2", kept, c_uint64(mine), c_size_t(MIB))
        if kept.raw != text:
            say("differs")
            os._exit(1)
        say(number)

current = c_void_p()
call("cuCtxGetCurrent", byref(current))
for seed in "ab":
    threading.Thread(target=copies, args=(seed,)).start()
"""
    env = {
        **simulated.env,
        "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": str(simulated.libraries / "simulator"),
    }
    with (
        running(simulated, PREPARED, threads) as busy,
        subprocess.Popen(
            [sys.executable, str(CLIENTS / "checkpoint.py")],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as worker,
    ):

        def ask(line: str) -> Any:
            assert worker.stdin is not None
            assert worker.stdout is not None
            worker.stdin.write(line + "\n")
            worker.stdin.flush()
            return json.loads(worker.stdout.readline())

        assert ask("init") == 0
        assert busy.says() == ["ready"]
        busy.go_on()
        for _ in range(5):
            for _ in range(10):
                assert busy.says() != ["differs"]
            eviction.set(1)
            assert ask(f"lock {busy.process.pid} 30000") == 0
            assert ask(f"checkpoint {busy.process.pid}") == 0
            assert daemon.next_request() == busy.process.pid
            assert ask(f"back {busy.process.pid}") == [0, 0]
            eviction.set(0)
        worker.kill()
