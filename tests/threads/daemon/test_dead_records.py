# SPDX-License-Identifier: Apache-2.0
"""Which records count as dead: real processes that map the status file, lock it, and change."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare.daemon.identity import processes
from gpushare.daemon.identity.processes import Cgroups, Process
from gpushare.daemon.lifecycle.bind import bind
from gpushare.daemon.observe import dead_records
from gpushare.daemon.observe.dead_records import DeadRecords, free_dead_records
from gpushare.daemon.state import DaemonState
from gpushare.protocol import HostProcessGrant
from tests.system.waiting import wait_until
from tests.unit.daemon import registered
from tests.unit.daemon.fakes import GIB
from tests.unit.daemon.operations import entry_of, opened

# Maps the file, as our library does, and does what it is told: go on, or become another program.
PROGRAM = """
import mmap, os, sys
file = open(sys.argv[1], "r+b")
pages = mmap.mmap(file.fileno(), 4096)
file.close()
print("mapped", flush=True)
for word in sys.stdin:
    os.execvp("sleep", ["sleep", "1000"])
"""


@pytest.fixture
def tenant(node: DaemonState) -> HostProcessGrant:
    return opened(node, memory="4GiB")


@pytest.fixture
def user(node: DaemonState, tenant: HostProcessGrant) -> Iterator[subprocess.Popen[str]]:
    """The tenant's process; it maps the status file and holds no lock."""
    status = node.mounts.path(tenant["key"]) / "status"
    started = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(status)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "mapped\n"
    process = processes.find_process(started.pid)
    assert process is not None
    bind(tenant["key"], tenant["id"], started.pid, os.getpid(), node)
    fd = node.tenants.pages[tenant["key"]].status.fd
    registered.register(fd, 0, started.pid, process.starttime)
    registered.hold(fd, 0, GIB)
    yield started
    started.kill()
    started.communicate()


@pytest.fixture
def charged(node: DaemonState, tenant: HostProcessGrant) -> Callable[[], int]:
    """Free dead records, and return what is still charged."""

    def reaped() -> int:
        pages = node.tenants.pages[tenant["key"]]
        free_dead_records(entry_of(node, tenant), pages)
        return pages.accounts()[0].held_bytes

    return reaped


def becomes_another(user: subprocess.Popen[str]) -> None:
    assert user.stdin is not None
    user.stdin.write("go\n")
    user.stdin.flush()
    wait_until(lambda: processes.name_of(user.pid) == "sleep")


def test_a_program_that_closed_our_descriptor_keeps_its_memory(
    user: subprocess.Popen[str], charged: Callable[[], int]
) -> None:
    del user
    assert charged() == GIB


def test_a_process_that_became_a_program_without_cuda_holds_nothing(
    user: subprocess.Popen[str], charged: Callable[[], int]
) -> None:
    becomes_another(user)
    assert user.poll() is None
    assert charged() == 0


def test_a_life_sign_outweighs_the_process_maps(
    node: DaemonState,
    tenant: HostProcessGrant,
    user: subprocess.Popen[str],
    charged: Callable[[], int],
) -> None:
    """One sign alone is not enough."""
    becomes_another(user)
    with registered.life(node.tenants.pages[tenant["key"]].status.fd, 0):
        assert charged() == GIB
    assert charged() == 0


def test_an_unreadable_process_counts_as_alive(
    user: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, charged: Callable[[], int]
) -> None:
    becomes_another(user)
    read = processes._read

    def refused(pid: int, name: str) -> bytes:
        if name == "maps":
            raise PermissionError
        return read(pid, name)

    monkeypatch.setattr(processes, "_read", refused)
    assert charged() == GIB


def test_maps_of_more_than_is_read_may_have_the_file(
    user: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Path(__file__).stat().st_ino
    assert not processes.may_map(user.pid, other)
    monkeypatch.setattr(processes, "_MOST_BYTES", 1000)
    assert processes.may_map(user.pid, other)


@pytest.mark.usefixtures("user")
def test_a_crowd_of_processes_is_looked_at_over_several_passes(
    node: DaemonState, tenant: HostProcessGrant
) -> None:
    """Twenty thousand processes, and a record that none of them has: it is freed in the end."""
    looked: list[int] = []
    others = opened(node, memory="4GiB")
    bind(others["key"], others["id"], os.getpid(), 0, node)
    crowd = [*range(10**6, 10**6 + 20_000)]
    pages = node.tenants.pages
    for key in (tenant["key"], others["key"]):
        registered.register(pages[key].status.fd, 0, 77, 1)
        registered.hold(pages[key].status.fd, 0, GIB)

    def find(pid: int) -> Process:
        looked.append(pid)
        return Process(pid, 1, 1, pid)

    def pids_of(_cgroup: str, pid: int, _cgroups: Cgroups) -> Iterator[int]:
        return iter([pid] if pid == os.getpid() else crowd)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(processes, "find_process", find)
        patched.setattr(processes, "pids_of", pids_of)
        patched.setattr(dead_records, "TENANT_SECONDS", 0.002)
        dead = DeadRecords()
        passes = 0
        while pages[tenant["key"]].accounts()[0].held_bytes:
            before = len(looked)
            dead.look(node.ledger.entries, pages)
            assert len(looked) - before < len(crowd)
            passes += 1
        assert passes > 1
        assert pages[others["key"]].accounts()[0].held_bytes == 0  # it did not wait for that
    assert looked.count(crowd[0]) == 1  # each pass goes on where the one before stopped
