# SPDX-License-Identifier: Apache-2.0
"""Sockets that are removed, and a daemon that runs and does nothing."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.system.hostile.container import GIB, RuntimeContainer, RuntimeNamespace
from tests.system.waiting import wait_until

from .neighbour import QUOTA_BYTES, working


@contextmanager
def mounted_root(
    container: RuntimeContainer,
) -> Iterator[Callable[[], subprocess.CompletedProcess[bytes]]]:
    """Have the root filesystem be a mount, as an engine's is; yield what unmounts it."""
    inside, root = container.through.program[:-1], str(container.rootfs)
    subprocess.run([*inside, "mount", "--bind", root, root], check=True)
    try:
        yield lambda: subprocess.run([*inside, "umount", root], check=False)
    finally:
        subprocess.run([*inside, "umount", "--lazy", root], check=False, capture_output=True)


@pytest.mark.gate
def test_a_stopped_daemon_delays_only_gpu_requests_and_briefly(
    place: RuntimeNamespace,
) -> None:
    """The launcher gives up by itself: the daemon continues only afterwards."""
    asking = RuntimeContainer(place, "runc", quota={"memory": "1GiB"})
    plain = RuntimeContainer(place, "runc", quota={}, args=("/bin/busybox", "true"))
    with working(place) as neighbour:
        assert place.stack.daemon is not None
        pid = place.stack.daemon.process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            assert plain.try_to_run() == ""
            with mounted_root(asking) as unmount:
                assert "gpushared" in asking.try_to_run()
                # The daemon's queue has no descriptor of it: the engine can remove it at once.
                assert unmount().returncode == 0
            neighbour.assert_undisturbed()
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: bool(place.rows()))
        assert place.allocated() == QUOTA_BYTES, "given to a launcher that had gone"
        neighbour.assert_undisturbed()
    plain.remove()
    place.assert_empty()


@pytest.mark.gate
def test_a_container_waits_for_a_daemon_that_was_killed(place: RuntimeNamespace) -> None:
    """As beside a service manager without a socket unit: it leaves its socket behind."""
    container = RuntimeContainer(place, "runc")
    place.stack.end_daemon()
    with container.run() as tenant:
        place.stack.start_daemon()
        assert tenant.start()["code"] == 0, tenant.errors
        assert tenant.ask("info")["total"] == GIB
    container.remove()
    place.assert_empty()
