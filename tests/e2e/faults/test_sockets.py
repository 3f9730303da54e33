# SPDX-License-Identifier: Apache-2.0
"""Sockets that somebody removes, and a daemon that is there and does nothing."""

from __future__ import annotations

import os
import signal

from gpushare import abi
from tests.e2e.hostile.container import Container, Place
from tests.e2e.waiting import wait_until

from .conftest import events
from .neighbour import QUOTA_BYTES, working


def test_a_tenants_socket_that_was_removed_is_made_again(place: Place) -> None:
    """Its folder is what is mounted: a new socket in it is where its processes look."""
    with working(place) as neighbour:
        [mount] = place.mounts()
        socket = place.inside(f"{mount}/{abi.SOCKET_NAME}")
        first = socket.stat().st_ino
        socket.unlink()
        wait_until(lambda: socket.exists() and socket.stat().st_ino != first)
        [row] = place.rows()
        assert [line.get("tenant") for line in events(place, "socket-lost")] == [row["key"]]
        greeted = len(events(place, "tenant-process"))
        container = neighbour.container
        probe = container.through.call("exec", container.id, "/usr/bin/gpushare-probe", "info")
        assert probe.status == 0, probe.stderr
        wait_until(lambda: len(events(place, "tenant-process")) > greeted)
        neighbour.assert_undisturbed()
    place.assert_empty()


def test_a_daemon_that_is_stopped_keeps_nobody_waiting_but_who_asks_for_a_gpu_a_moment(
    place: Place,
) -> None:
    """The launcher gives up by itself: nobody lets the daemon go on before it has."""
    asking = Container(place, "runc", quota={"memory": "1GiB"})
    plain = Container(place, "runc", quota={}, args=("/bin/busybox", "true"))
    with working(place) as neighbour:
        assert place.stack.daemon is not None
        pid = place.stack.daemon.process.pid
        os.kill(pid, signal.SIGSTOP)
        try:
            assert plain.try_to_run() == ""
            assert "gpushared" in asking.try_to_run()
            neighbour.assert_undisturbed()
        finally:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: bool(place.rows()))
        assert place.promised() == QUOTA_BYTES, "given to a launcher that had gone"
        neighbour.assert_undisturbed()
    plain.remove()
    place.assert_empty()
