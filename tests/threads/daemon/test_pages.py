# SPDX-License-Identifier: Apache-2.0
"""The pages that daemon and tenant share: layout, waking, and tenants that lie."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare import abi
from gpushare.daemon.pages.grant_page import CardGrant, GrantPage
from tests.system.waiting import wait_until
from tests.unit.daemon.fakes import GIB


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def test_a_waiter_on_a_read_only_mapping_is_woken(directory: int, tmp_path: Path) -> None:
    grant = GrantPage.make(directory, "0" * 16, [CardGrant("GPU-a", 4 * GIB, 0, 0)])
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.syscall.restype = ctypes.c_long
    fd = os.open(tmp_path / "grant", os.O_RDONLY)
    address = libc.mmap(None, ctypes.c_size_t(4096), mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    os.close(fd)
    woken = []
    waiting = []

    def wait() -> None:
        waiting.append(threading.get_native_id())
        word = ctypes.c_void_p(address + abi.GRANT_HEADER_GENERATION)
        futex = 202 if os.uname().machine == "x86_64" else 98
        woken.append(libc.syscall(ctypes.c_long(futex), word, 0, 1, None, None, 0))

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: bool(waiting) and _sleeps(waiting[0]))
    grant.publish()
    thread.join(20)
    assert woken == [0]


def _sleeps(thread: int) -> bool:
    return (
        "futex" in Path(f"/proc/self/task/{thread}/wchan").read_text()
        or Path(f"/proc/self/task/{thread}/stat").read_text().rpartition(")")[2].split()[0] == "S"
    )
