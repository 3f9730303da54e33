# SPDX-License-Identifier: Apache-2.0
"""Which caller may use what on the control socket: every operation by every kind of caller."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.daemon.identity import processes
from gpushare.daemon.service import control_request
from gpushare.daemon.service.control_request import caller_origin
from tests.unit.daemon import fakes
from tests.unit.daemon.fake_process import FakeProcess


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield one, other
    one.close()
    other.close()


@pytest.mark.parametrize(
    ("path", "engine", "place"),
    [
        ("/docker/a", "docker", "tenant"),
        ("/docker/a/nested", "docker", "tenant"),
        ("/docker/ab", "docker", "host"),
        ("/system.slice", "docker", "host"),
        ("/docker/a", "host", "host"),  # a command of `gpushare run`: root there is root
    ],
)
def test_a_tenants_process_is_one_by_its_cgroup(
    pair: tuple[socket.socket, socket.socket],
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    engine: str,
    place: str,
) -> None:
    monkeypatch.setattr(processes, "cgroups_of", lambda _: {"devices": path, "": "/"})
    entry = replace(fakes.entry(), engine=engine, cgroup="devices:/docker/a")
    assert caller_origin(pair[0], os.getpid(), {entry.key: entry}) == place


def test_a_caller_that_exited_has_no_rights(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_request, "_SO_PEERPIDFD", 9999)  # an older kernel
    ended = FakeProcess()
    ended.kill()
    ended.wait()
    assert caller_origin(pair[0], ended.pid, {}) == "gone"


def test_a_caller_with_a_reused_pid_has_no_rights(tmp_path: Path) -> None:
    """It connects and exits; the kernel still has its credentials, and its PID has a new owner."""
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen()
        code = (
            f"import socket; socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect({path!r})"
        )
        subprocess.run([sys.executable, "-c", code], check=True)
        accepted, _ = listener.accept()
        with accepted:
            if not knows_peers(accepted):
                pytest.skip("kernel: SO_PEERPIDFD needs Linux 6.5")
            assert caller_origin(accepted, os.getpid(), {}) == "gone"


def knows_peers(connection: socket.socket) -> bool:
    try:
        os.close(connection.getsockopt(socket.SOL_SOCKET, control_request._SO_PEERPIDFD))
    except OSError as error:
        return error.errno != errno.ENOPROTOOPT
    return True


def test_a_process_of_another_pid_namespace_is_the_hosts(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    assert caller_origin(pair[0], 0, {}) == "host"
