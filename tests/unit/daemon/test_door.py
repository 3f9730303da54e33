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
from gpushare.daemon.node import Node
from gpushare.daemon.service import door as doors
from gpushare.daemon.service.door import Door
from gpushare.daemon.service.server import Server
from gpushare.daemon.service.worker import Worker

from . import fakes

STARTING = protocol.encode({"starting": True})


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    with fakes.node(tmp_path) as made:
        yield made


@pytest.fixture
def door(node: Node) -> Iterator[Door]:
    made = Door(node.config.socket, None)
    yield made
    made.close()


def connect(door: Door) -> socket.socket:
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    caller.settimeout(60)
    caller.connect(str(door.path))
    return caller


def test_who_comes_is_told_at_once_and_answered_when_the_daemon_is_ready(
    node: Node, door: Door
) -> None:
    waiting: list[threading.Event] = []
    answers: list[object] = []
    threads = []
    for _ in range(3):
        with connect(door) as told:
            assert told.recv(100) == STARTING
        waits = threading.Event()
        waiting.append(waits)
        client = Client(door.path, waits=waits.set)
        asking = threading.Thread(target=lambda client=client: answers.append(client.status()))
        asking.start()
        threads.append(asking)
    assert all(each.wait(60) for each in waiting)
    readers = Worker("read")
    server = Server(door, node, readers)
    serving = threading.Thread(target=node.loop.run)
    serving.start()
    for asking in threads:
        asking.join(60)
    assert len(answers) == 3
    Client(door.path).status()  # and whoever comes now
    node.loop.stop()
    serving.join()
    readers.finish(5)
    server.close()


def test_more_than_can_wait_are_told_nothing_and_are_not_lost(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "_MOST_WAITING", 1)
    with connect(door) as first, connect(door) as second:
        assert first.recv(100) == STARTING
        (waiting,) = door.open()
        waiting.close()
        accepted, _ = door.listener.accept()
        accepted.close()
        assert second.recv(100) == b""


def test_a_daemon_that_does_not_get_ready_leaves_nobody_waiting(door: Door) -> None:
    with connect(door) as told:
        assert told.recv(100) == STARTING
        door.close()
        assert told.recv(100) == b""
    with pytest.raises(DaemonUnreachable, match="is not running"):
        Client(door.path).status()
