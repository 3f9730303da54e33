# SPDX-License-Identifier: Apache-2.0
"""Who is taken for dead: real processes that map the status file, lock it, and become others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare.daemon.audit.reap import reap
from gpushare.daemon.identity import processes
from gpushare.daemon.identity.processes import Cgroups
from gpushare.daemon.life.bind import bind
from gpushare.daemon.node import Node
from gpushare.protocol import Opened

from . import registered
from .fakes import GIB, wait_until
from .operations import entry_of, opened

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
def tenant(node: Node) -> Opened:
    return opened(node, memory="4GiB")


@pytest.fixture
def user(node: Node, tenant: Opened) -> Iterator[subprocess.Popen[str]]:
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
    process = processes.look(started.pid)
    assert process is not None
    bind(tenant["key"], tenant["id"], started.pid, os.getpid(), node)
    fd = node.tenants.pages[tenant["key"]].status.fd
    registered.register(fd, 0, started.pid, process.starttime)
    registered.hold(fd, 0, GIB)
    yield started
    started.kill()
    started.communicate()


@pytest.fixture
def charged(node: Node, tenant: Opened) -> Callable[[], int]:
    """Reap, and tell what is still charged."""

    def reaped() -> int:
        pages = node.tenants.pages[tenant["key"]]
        reap(entry_of(node, tenant), pages, Cgroups.mounted())
        return pages.accounts()[0].held_bytes

    return reaped


def becomes_another(user: subprocess.Popen[str]) -> None:
    assert user.stdin is not None
    user.stdin.write("go\n")
    user.stdin.flush()
    wait_until(lambda: processes.name_of(user.pid) == "sleep")


def test_a_program_that_closed_our_descriptor_keeps_what_it_has(
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


def test_a_life_sign_outweighs_what_the_process_maps(
    node: Node, tenant: Opened, user: subprocess.Popen[str], charged: Callable[[], int]
) -> None:
    """One sign alone is not enough."""
    becomes_another(user)
    with registered.life(node.tenants.pages[tenant["key"]].status.fd, 0):
        assert charged() == GIB
    assert charged() == 0


def test_what_cannot_be_looked_into_is_taken_for_alive(
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
