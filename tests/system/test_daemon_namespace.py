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


@pytest.fixture
def hardened() -> Iterator[Stack]:
    with Stack() as stack:
        stack.configure(runtime_mount_namespace=f"/proc/{os.getpid()}/ns/mnt")
        shell = ("sh", "-c", HARDENED, "sh", str(stack.root))
        stack.start_daemon((find("unshare"), "--mount", "--propagation", "slave", *shell))
        yield stack


def namespace_of(task: Path) -> Path | None:
    """Return the mount namespace of a thread, None if it has ended: the daemon's come and go."""
    try:
        return (task / "ns/mnt").readlink()
    except FileNotFoundError:
        return None


def test_containers_get_their_pages_by_one_thread_that_is_where_the_runtime_is(
    hardened: Stack,
) -> None:
    assert hardened.daemon is not None
    process = Path(f"/proc/{hardened.daemon.process.pid}")
    here = Path("/proc/self/ns/mnt").readlink()
    assert (process / "ns/mnt").readlink() != here
    mounts = [line.split() for line in (process / "mountinfo").read_text().splitlines()]
    [root] = [fields[5] for fields in mounts if fields[4] == "/"]
    assert "ro" in root.split(",")
    assert sum(namespace_of(task) == here for task in process.glob("task/*")) == 1
    bundle = Bundle(hardened, quota={"memory": "4GiB"})
    with bundle.started() as tenant:
        assert tenant.ask("info")["total"] == 4 * GIB
        hardened.client.set(bundle.id, memory="5GiB")
        assert tenant.ask("info")["total"] == 5 * GIB
    wait_until(lambda: hardened.client.tenants() == [])
    assert "library-tree-failed" not in (hardened.root / "gpushared.log").read_text()
    left = (path.name for path in (hardened.root / "run" / "tenants").iterdir())
    assert [name for name in left if not name.startswith(".")] == []
