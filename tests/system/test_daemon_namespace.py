# SPDX-License-Identifier: Apache-2.0
"""A daemon as a hardened unit has it: a slave mount namespace, and a / that it cannot write."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.stack.program import find

from .waiting import wait_until

GIB = 1 << 30

#: Only the stack's own folder stays writable, as ReadWritePaths= does it. A sandbox may forbid to
#: look at the first process's namespace, so the runtime's is named: that of these tests.
HARDENED = """
mount --bind "$1" "$1" && mount -o remount,bind,ro / && shift && exec "$@"
"""


@pytest.fixture(scope="module")
def hardened() -> Iterator[Stack]:
    with Stack() as stack:
        stack.configure(runtime_mount_namespace=f"/proc/{os.getpid()}/ns/mnt")
        shell = ("sh", "-c", HARDENED, "sh", str(stack.root))
        stack.start_daemon((find("unshare"), "--mount", "--propagation", "slave", *shell))
        yield stack


def test_the_daemon_is_apart_from_the_runtime(hardened: Stack) -> None:
    assert hardened.daemon is not None
    pid = hardened.daemon.process.pid
    assert Path(f"/proc/{pid}/ns/mnt").readlink() != Path("/proc/self/ns/mnt").readlink()
    mounts = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    [root] = [line.split()[5] for line in mounts if line.split()[4] == "/"]
    assert "ro" in root.split(",")


def test_one_thread_and_no_other_is_where_the_runtime_is(hardened: Stack) -> None:
    assert hardened.daemon is not None
    tasks = Path(f"/proc/{hardened.daemon.process.pid}/task")
    here = Path("/proc/self/ns/mnt").readlink()
    names = [
        (task / "comm").read_text().strip()
        for task in tasks.iterdir()
        if (task / "ns/mnt").readlink() == here
    ]
    assert len(names) == 1


def test_containers_get_their_pages(hardened: Stack) -> None:
    bundle = Bundle(hardened, quota={"memory": "4GiB"})
    with bundle.started() as tenant:
        assert tenant.ask("info")["total"] == 4 * GIB
        hardened.client.set(bundle.id, memory="5GiB")
        assert tenant.ask("info")["total"] == 5 * GIB
        assert tenant.ask(f"alloc {5 * GIB}")["result"] == "CUDA_ERROR_OUT_OF_MEMORY"
    wait_until(lambda: hardened.client.tenants() == [])
    assert "library-tree-failed" not in (hardened.root / "gpushared.log").read_text()
    left = (path.name for path in (hardened.root / "run" / "tenants").iterdir())
    assert [name for name in left if not name.startswith(".")] == []
