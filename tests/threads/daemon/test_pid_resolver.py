# SPDX-License-Identifier: Apache-2.0
"""Which process a PID in the driver's list is: never the one that reuses it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator

import pytest

from gpushare.daemon.identity import pid_resolver, processes
from gpushare.daemon.identity.pid_resolver import PidResolver
from tests.unit.daemon.test_pid_resolver import end, keys


@pytest.fixture
def sightings() -> Iterator[PidResolver]:
    made = PidResolver()
    yield made
    made.close()


#: A program whose first thread has no descriptor, and another thread has a table of its own.
THREAD = """
import ctypes, os, threading, time
libc = ctypes.CDLL(None)
def work():
    assert libc.unshare(0x400) == 0  # CLONE_FILES
    os.open("/dev/null", os.O_RDONLY)
    ready.set()
    time.sleep(600)
ready = threading.Event()
threading.Thread(target=work).start()
ready.wait()
os.write(1, b"ready")
{then}
"""
#: syscall(SYS_exit): the thread, and not its process.
EXIT = {"x86_64": "libc.syscall(60, 0)", "aarch64": "libc.syscall(93, 0)"}[platform.machine()]


@pytest.fixture(params=("time.sleep(600)", EXIT), ids=("unshared", "first thread ended"))
def threaded(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-c", THREAD.replace("{then}", request.param)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.read(5) == b"ready"
        yield program
        program.kill()


def test_a_descriptor_that_only_another_thread_has_is_the_processs(
    threaded: subprocess.Popen[bytes],
) -> None:
    assert pid_resolver.has_open(threaded.pid, {1})  # /dev/null, as nvidia's would be
    assert not pid_resolver.has_open(threaded.pid, {195})


def test_the_cgroups_of_a_process_are_known_when_its_first_thread_has_ended(
    threaded: subprocess.Popen[bytes],
) -> None:
    assert processes.cgroups_of(threaded.pid) == processes.cgroups_of(os.getpid())


def test_memory_of_an_ended_process_belongs_to_its_tenant(
    sightings: PidResolver, program: subprocess.Popen[bytes]
) -> None:
    """It was listed with its tenant, and is listed still: another has its descriptor."""
    sightings.look([program.pid], keys, 1)
    end(program)
    for _ in range(3):
        assert sightings.look([program.pid], keys, 1)[program.pid].key == "a" * 16
    sightings.look([], keys, 1)
    assert sightings.look([program.pid], keys, 1)[program.pid].key is None
