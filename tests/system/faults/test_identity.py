# SPDX-License-Identifier: Apache-2.0
"""Numbers that come again, and a machine that does: a pid, a boot."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.system.hostile.container import GIB, RuntimeContainer, RuntimeNamespace
from tests.system.waiting import wait_until

from .conftest import events, in_own_mounts
from .neighbour import QUOTA_BYTES, working

IDLE = ("/bin/busybox", "sleep", "1000")
_LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
_TRIES = 500  # others start processes too


@contextmanager
def process_numbered(pid: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run an innocent that has the number `pid`."""
    for _ in range(_TRIES):
        _LAST_PID.write_text(str(pid - 1))
        found = subprocess.Popen(["sleep", "1000"])
        try:
            if found.pid == pid:
                yield found
                return
        finally:
            found.kill()
            found.wait()
    raise AssertionError(f"{pid} was never given again")


def test_a_process_with_a_reused_pid_is_not_taken_for_the_tenant(place: RuntimeNamespace) -> None:
    """It ended while no daemon ran; the next one neither keeps its part nor touches the other."""
    container = RuntimeContainer(place, "runc", quota={"memory": "4GiB"}, args=IDLE)
    with working(place) as neighbour:
        assert container.create() == 0
        row = container.row()
        assert row is not None
        place.stack.end_daemon()
        os.kill(row["pid"], signal.SIGKILL)
        container.remove()
        wait_until(lambda: not Path(f"/proc/{row['pid']}").exists())
        with process_numbered(row["pid"]) as innocent:
            place.stack.start_daemon()
            wait_until(lambda: place.allocated() == QUOTA_BYTES)
            assert innocent.poll() is None
            released = [line["id"] for line in events(place, "tenant-released")]
            assert released == [container.id]
        neighbour.assert_undisturbed()
    place.assert_empty()


@pytest.mark.gate
def test_after_a_reboot_nothing_earlier_is_reserved_or_mounted(place: RuntimeNamespace) -> None:
    """The folders stay, as on a disk; the boot's id is another, and no earlier process or mount."""
    container = RuntimeContainer(place, "runc", quota={"memory": "4GiB"}, args=IDLE)
    assert container.create() == 0
    assert place.allocated() == 4 * GIB
    pid = container.pid()
    place.stack.end_daemon()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())
    for mount in place.mounts():
        subprocess.run([*container.through.program[:-1], "umount", "--lazy", mount], check=True)
    boot_id = place.stack.root / "boot_id"
    boot_id.write_text(f"{uuid.uuid4()}\n")
    place.stack.start_daemon(
        in_own_mounts(f"mount --bind {boot_id} /proc/sys/kernel/random/boot_id")
    )
    place.assert_empty()
    assert events(place, "ledger-discarded")[-1]["tenants"] == 1
    assert place.client.status()["generation"] == 1
    container.remove()
    assert container.create() == 0
    container.remove()
    place.assert_empty()
