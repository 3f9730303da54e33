# SPDX-License-Identifier: Apache-2.0
"""The client of the control socket: what the daemon refuses, and when there is none."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest

from gpushare import protocol, wait_policy
from gpushare.client import Client, DaemonUnreachable
from tests.c.runtime.fake_daemon import ACK, Packet, ReceivedRequest, ScriptedDaemon
from tests.unit.cli.fake_daemon import AnsweringDaemon


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "control.sock"


def test_only_a_start_waits_for_a_daemon_that_was_killed(path: Path) -> None:
    """It leaves its socket and its lock's file. A command reports it at once."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left_over:
        left_over.bind(str(path))
    path.with_name(wait_policy.LOCK).touch()
    waited: list[str] = []
    killed = Client(path, start_seconds=1.5, waits=lambda: waited.append("waited"))
    with pytest.raises(DaemonUnreachable, match="nothing listens"):
        killed.cards()
    assert not waited
    with pytest.raises(DaemonUnreachable, match="nothing listens"):
        killed.open({}, name="x", rootless=True)
    assert waited


def test_a_daemon_that_does_not_acknowledge(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "ACK_SECONDS", 0.05)
    silent = AnsweringDaemon(path, {}, acknowledge=False)
    with silent.running(), pytest.raises(DaemonUnreachable, match="not responding"):
        Client(silent.path).cards()


def test_a_daemon_that_serves_other_clients_is_waited_for(path: Path) -> None:
    with ScriptedDaemon(path, [ACK, b'{"ok": true}']) as daemon:
        daemon.serve_others_first()
        assert Client(path).cards() == []


def test_a_locked_socket_without_a_daemon_means_a_starting_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "ACK_SECONDS", 0.05)
    waited = threading.Event()

    def start(_: ReceivedRequest) -> None:
        assert waited.wait(60)
        daemon.take_lock()

    daemon = ScriptedDaemon(path, [ACK, b'{"ok": true}'], alive=False, act=start)
    with daemon:
        Client(path, waits=waited.set).status()
    assert len(daemon.asked) == 1


def test_a_daemon_that_takes_too_long_to_start_is_given_up(path: Path) -> None:
    starting = ScriptedDaemon(path, [b'{"starting": true}'], silent=True)
    with starting, pytest.raises(DaemonUnreachable, match=r"not ready on .* after 0.3 s"):
        Client(path, start_seconds=0.3).cards()


def test_a_request_in_the_daemons_queue_is_waited_for(path: Path) -> None:
    """Each acknowledgement gives the answer its whole time."""
    seconds = 1.0

    def wait() -> None:
        time.sleep(0.6 * seconds)

    packets: list[Packet] = [ACK, wait, ACK, wait, ACK, b'{"ok": true}']
    with ScriptedDaemon(path, packets) as daemon:
        Client(path, seconds=seconds).status()
    assert len(daemon.asked) == 1


def test_an_acknowledged_request_is_not_sent_again(path: Path) -> None:
    with (
        ScriptedDaemon(path, [ACK]) as daemon,
        pytest.raises(DaemonUnreachable, match="closed the connection"),
    ):
        Client(path).status()
    assert len(daemon.asked) == 1


def seen(lock: Path) -> tuple[bool, bool]:
    """Return whether it is free to a user that may open it, and listed to every user."""
    return wait_policy.is_lock_free(lock), wait_policy._is_listed(lock)


def test_every_user_may_know_whether_a_daemon_runs(tmp_path: Path) -> None:
    """Only root may open the lock: another user could keep the daemon from starting."""
    lock = tmp_path / "lock"
    assert wait_policy.is_lock_free(lock)
    with lock.open("w") as held:
        lock.chmod(0o600)
        assert seen(lock) == (True, False)
        wait_policy.take_lock(held.fileno())
        assert seen(lock) == (False, True)
        with lock.open("w") as other, pytest.raises(BlockingIOError):
            wait_policy.take_lock(other.fileno())
    assert seen(lock) == (True, False)
