# SPDX-License-Identifier: Apache-2.0
"""A tenant's own socket: what is read, and what a hostile tenant can do with it."""

from __future__ import annotations

import array
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpushare import abi
from gpushare.daemon.core import loop as core_loop
from gpushare.daemon.core.log import Allowance
from gpushare.daemon.core.loop import Loop
from gpushare.daemon.pages import process_watch
from gpushare.daemon.pages.process_watch import ProcessWatch, TenantSocket
from tests.descriptors import open_count

KEY = "0" * 16
Logged = list[tuple[str, str, dict[str, Any]]]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Logged:
    lines: Logged = []
    monkeypatch.setattr(
        process_watch, "log", lambda event, level, **fields: lines.append((event, level, fields))
    )
    return lines


class Listener:
    """A tenant's socket, read at the times that the test says."""

    def __init__(self, directory: int, loop: Loop) -> None:
        self.now = 0.0
        self.watch = ProcessWatch(loop, lambda: self.now)
        self.socket = TenantSocket.listen(KEY, directory)
        self.watch.listen(self.socket)

    def hear(self, now: float = 0.0) -> bool:
        """Read one message on the only connection; return whether it continues."""
        self.now = now
        if not self.socket.connections:
            self.watch._accept(self.socket)
        [connection] = self.socket.connections
        self.watch._receive(self.socket, connection)
        return connection in self.socket.connections


@pytest.fixture
def tenant(tmp_path: Path, loop: Loop) -> Iterator[Listener]:
    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    listening = Listener(directory, loop)
    yield listening
    listening.watch.close()
    os.close(directory)


@pytest.fixture
def caller(tenant: Listener, tmp_path: Path) -> Iterator[socket.socket]:
    del tenant
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as made:
        made.connect(str(tmp_path / "socket"))
        yield made


def message(kind: int, level: int, pid: int, text: bytes = b"") -> bytes:
    return abi.MESSAGE_HEADER.pack(kind, level, pid, len(text)) + text


def test_a_log_line_is_one_field_of_one_line(
    tenant: Listener, caller: socket.socket, heard: Logged
) -> None:
    caller.send(message(abi.MESSAGE_LOG, 4, 7, b'quota\n{"event": "forged"}\xff'))
    assert tenant.hear()
    [(event, level, fields)] = heard
    assert (event, level) == ("tenant-log-received", "warning")
    assert fields["text"] == 'quota\n{"event": "forged"}\ufffd'
    assert fields["tenant"] == KEY


@pytest.mark.parametrize(
    "packet",
    [
        b"x",
        message(9, 4, 7, b"unknown type"),
        message(abi.MESSAGE_LOG, 99, 7, b"unknown level"),
        message(abi.MESSAGE_SHORTFALL, 0, 7, b"less"),
        message(abi.MESSAGE_SHORTFALL, 0, 7, b"more than 8"),
        abi.MESSAGE_HEADER.pack(abi.MESSAGE_LOG, 4, 7, 5) + b"longer than said",
        abi.MESSAGE_HEADER.pack(abi.MESSAGE_LOG, 4, 7, 0xFFFFFFFF),
        message(abi.MESSAGE_LOG, 4, 7, b"x" * (abi.MESSAGE_TEXT_BYTES + 1)),
        bytes(1 << 16),
    ],
)
def test_a_message_that_no_library_of_ours_sends_ends_the_connection(
    tenant: Listener, caller: socket.socket, heard: Logged, packet: bytes
) -> None:
    caller.send(packet)
    assert not tenant.hear()
    assert not tenant.socket.connections
    assert not heard


def test_descriptors_never_arrive(tenant: Listener, caller: socket.socket) -> None:
    before = open_count()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 200))]
    caller.sendmsg([message(abi.MESSAGE_LOG, 4, 7)], rights)
    assert tenant.hear()
    assert open_count() == before + 1  # the accepted connection


def test_the_allowance_comes_back_and_is_not_hoarded() -> None:
    allowance = Allowance(200.0, 20.0)
    assert sum(allowance.take(1000.0) for _ in range(500)) == 200
    assert sum(allowance.take(1001.0) for _ in range(500)) == 20
    assert sum(allowance.take(9999.0) for _ in range(500)) == 200
    assert not allowance.take(0.0), "a clock that goes back gives nothing"


LOG = abi.MESSAGE_HEADER.pack(abi.MESSAGE_LOG, 4, 7, 5) + b"again"


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_loop, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(process_watch, "log", lambda *_, **__: None)


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def watched(tmp_path: Path, loop: Loop) -> Iterator[TenantSocket]:
    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    watch = ProcessWatch(loop)
    listening = TenantSocket.listen(KEY, directory)
    watch.listen(listening)
    yield listening
    watch.close()
    os.close(directory)


def call(tmp_path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.connect(str(tmp_path / abi.SOCKET_NAME))
    return made


def run_until(loop: Loop, condition: Callable[[], bool]) -> None:
    """Run the loop until `condition`; the test fails when that never comes."""

    def look() -> None:
        if condition():
            loop.stop()

    loop.every(lambda: 0.001, look)
    watchdog = threading.Timer(20.0, loop.stop)
    watchdog.start()
    loop.run()
    watchdog.cancel()
    assert condition()


def test_a_flooding_connection_is_paused_and_read_again(
    loop: Loop, watched: TenantSocket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.allowance = Allowance(3.0, 20.0)
    left_alone: list[int] = []
    forget = loop.forget

    def note(fd: int) -> None:
        left_alone.append(fd)
        forget(fd)

    monkeypatch.setattr(loop, "forget", note)
    with call(tmp_path) as caller:

        def floods() -> bool:
            """However slow the machine is: it sends more than the allowance can grow by."""
            with suppress(BlockingIOError):
                for _ in range(8):
                    caller.send(LOG, socket.MSG_DONTWAIT)
            return watched.allowance.dropped >= 4

        run_until(loop, floods)
        [connection] = watched.connections
        assert left_alone.count(connection.fileno()) >= 4


def test_arrivals_without_end_wait(loop: Loop, watched: TenantSocket, tmp_path: Path) -> None:
    watched.arrivals = Allowance(2.0, 20.0)
    callers = [call(tmp_path) for _ in range(3)]
    run_until(loop, lambda: watched.arrivals.dropped > 0)
    assert len(watched.connections) == 2
    for caller in callers:
        caller.close()


def test_an_ended_tenants_messages_are_not_logged(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process elsewhere may still have its connection, with messages that wait in it."""
    logged: list[str] = []
    monkeypatch.setattr(process_watch, "log", lambda event, *_, **__: logged.append(event))
    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    tenant, watch = TenantSocket.listen(KEY, directory), ProcessWatch(loop)
    os.close(directory)
    watch.listen(tenant)
    with call(tmp_path) as caller:
        run_until(loop, lambda: len(tenant.connections) == 1)
        for _ in range(50):
            caller.send(LOG)
        watch.forget(KEY)
        with pytest.raises(ConnectionError):
            caller.send(LOG)
        other = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other, pytest.raises(ConnectionRefusedError):
            other.connect(str(tmp_path / abi.SOCKET_NAME))
    loop._run_due()
    assert logged == []


def lack(card: int, size: int) -> bytes:
    return abi.SHORTFALL.pack(abi.MESSAGE_SHORTFALL, card, 7, 8, size)


def test_shortfall_reports_are_limited_to_four_a_second(
    tenant: Listener, caller: socket.socket
) -> None:
    told: list[tuple[str, int, int]] = []
    tenant.watch.shortfall.listeners.append(lambda *shortfall: told.append(shortfall))
    for _ in range(50):
        caller.send(lack(3, 1 << 40))
        assert tenant.hear()
    assert told == [(KEY, 3, 1 << 40)] * 8
    for second in range(1, 11):
        for _ in range(5):
            caller.send(lack(0, 1))
            assert tenant.hear(float(second))
    assert len(told) == 8 + 40
