# SPDX-License-Identifier: Apache-2.0
"""The control socket while the daemon is starting."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare import protocol
from gpushare.client import Client, DaemonUnreachable
from gpushare.daemon.core.loop import Worker
from gpushare.daemon.service import systemd
from gpushare.daemon.service.control_server import ControlServer
from gpushare.daemon.service.systemd import StartingSocket
from tests.unit.daemon import fakes
from tests.unit.daemon.fakes import FakeDaemon

STARTING = protocol.encode({"starting": True})


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path) as made:
        yield made


@pytest.fixture
def starting(node: FakeDaemon) -> Iterator[StartingSocket]:
    made = StartingSocket(node.config.socket, None)
    yield made
    made.close()


def connect(starting: StartingSocket) -> socket.socket:
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    caller.settimeout(60)
    caller.connect(str(starting.path))
    return caller


def test_an_early_client_gets_a_message_at_once_and_an_answer_later(
    node: FakeDaemon, starting: StartingSocket
) -> None:
    waiting: list[threading.Event] = []
    answers: list[object] = []
    threads = []
    for _ in range(3):
        with connect(starting) as told:
            assert told.recv(100) == STARTING
        waits = threading.Event()
        waiting.append(waits)
        client = Client(starting.path, waits=waits.set)
        asking = threading.Thread(target=lambda client=client: answers.append(client.status()))
        asking.start()
        threads.append(asking)
    assert all(each.wait(60) for each in waiting)
    readers = Worker("read")
    server = ControlServer(starting, node, readers, node.operations)
    serving = threading.Thread(target=node.loop.run)
    serving.start()
    for asking in threads:
        asking.join(60)
    assert len(answers) == 3
    Client(starting.path).status()  # and whoever comes now
    node.loop.stop()
    serving.join()
    readers.finish(5)
    server.close()


def test_clients_beyond_the_backlog_get_no_message_and_are_not_lost(
    starting: StartingSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(systemd, "_MOST_WAITING", 1)
    with connect(starting) as first, connect(starting) as second:
        assert first.recv(100) == STARTING
        (waiting,) = starting.open()
        waiting.close()
        accepted, _ = starting.listener.accept()
        accepted.close()
        assert second.recv(100) == b""


def test_if_the_start_fails_no_client_keeps_waiting(starting: StartingSocket) -> None:
    with connect(starting) as client:
        assert client.recv(100) == STARTING
        starting.close()
        assert client.recv(100) == b""
    with pytest.raises(DaemonUnreachable, match="is not running"):
        Client(starting.path).status()


def test_users_leave_room_for_root_while_the_daemon_starts(
    starting: StartingSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines start containers as root, and wait on the same socket."""
    uids = iter([1000] * 4 + [1001] * 4 + [0] * 4)
    monkeypatch.setattr(systemd, "peer_uid", lambda _: next(uids))
    monkeypatch.setattr(systemd, "_MOST_OF_ONE_USER", 3)
    monkeypatch.setattr(systemd, "_MOST_OF_USERS", 6)
    received = []
    for _ in range(12):
        with connect(starting) as client:
            received.append(client.recv(100) == STARTING)
    assert received[:4] == [True, True, True, False]
    assert received[4:8] == [True, True, False, False]
    assert received[8:] == [True] * 4
