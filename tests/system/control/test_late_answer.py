# SPDX-License-Identifier: Apache-2.0
"""An answer that waits for another thread holds up neither the deciding one nor other clients."""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpushare import protocol
from gpushare.daemon.core.loop import Worker
from gpushare.daemon.service.control_server import (
    BoundOperation,
    ControlReply,
    ControlRequest,
    ControlServer,
    reply,
)
from gpushare.daemon.service.systemd import StartingSocket
from gpushare.protocol.operations import OPERATIONS
from tests.unit.daemon import fakes
from tests.unit.daemon.fakes import FakeDaemon

LATE, PROMPT = OPERATIONS["bind"], OPERATIONS["reload"]  # both of the deciding thread

Begun = queue.SimpleQueue[Callable[[], None]]


@pytest.fixture
def begun() -> Begun:
    """What the late operation's other thread calls at its end."""
    return queue.SimpleQueue()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeDaemon]:
    with fakes.node(tmp_path, threaded=True) as made:
        yield made


@pytest.fixture
def path(node: FakeDaemon, begun: Begun) -> Iterator[Path]:
    def late(request: ControlRequest) -> ControlReply:
        request.before_answer.append(begun.put)
        return reply({"late": True})

    operations = {
        "bind": BoundOperation(LATE, late),
        "reload": BoundOperation(PROMPT, lambda _: reply()),
    }
    readers, place = Worker("read"), node.node.config.socket
    server = ControlServer(StartingSocket(place, None), node, readers, operations)
    thread = threading.Thread(target=node.loop.run, daemon=True)
    thread.start()
    yield place
    node.loop.stop()
    thread.join()
    server.close()
    readers.finish(5)


class OpenRequest:
    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(str(path))

    def begin(self, op: str) -> None:
        """Send a request, and read its acknowledgement."""
        self._socket.send(json.dumps({"op": op}).encode())
        assert self.receive() == {"ack": True}

    def receive(self) -> Any:
        return json.loads(self._socket.recv(protocol.MAX_REPLY_BYTES))

    def has_packet(self) -> bool:
        try:
            return bool(self._socket.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK))
        except BlockingIOError:
            return False

    def close(self) -> None:
        self._socket.close()


@pytest.mark.gate
def test_an_answer_waits_for_what_was_begun_and_is_sent_once(path: Path, begun: Begun) -> None:
    first, second = OpenRequest(path), OpenRequest(path)
    first.begin("bind")
    end = begun.get()
    second.begin("reload")
    assert second.receive() == {"ok": True}  # by the same threads, and after it
    assert not first.has_packet()
    end()
    assert first.receive() == {"ok": True, "late": True}
    first.begin("bind")
    end()  # as a deadline that is over after the answer
    second.begin("reload")
    assert second.receive() == {"ok": True}
    assert not first.has_packet()
    begun.get()()
    assert first.receive() == {"ok": True, "late": True}
    first.begin("bind")
    end = begun.get()  # before: a request that has not begun is left when its client goes
    first.close()
    end()  # nobody waits for it
    second.begin("reload")
    assert second.receive() == {"ok": True}
    second.close()
