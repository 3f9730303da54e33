# SPDX-License-Identifier: Apache-2.0
"""Tenants that talk without end do not keep the daemon from anything else."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gpushare import abi
from gpushare.daemon.core.log import Allowance
from gpushare.daemon.core.loop import Loop
from gpushare.daemon.pages import process_watch as module
from gpushare.daemon.pages.process_watch import ProcessWatch, TenantSocket

KEY = "0" * 16
LOG = abi.MESSAGE_HEADER.pack(abi.MESSAGE_LOG, 4, 7, 5) + b"again"


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(module, "log", lambda *_, **__: None)


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def tenant(tmp_path: Path, loop: Loop) -> Iterator[TenantSocket]:
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

    loop.every(0.001, look)
    watchdog = threading.Timer(20.0, loop.stop)
    watchdog.start()
    loop.run()
    watchdog.cancel()
    assert condition()


def test_a_flooding_connection_is_paused_and_read_again(
    loop: Loop, tenant: TenantSocket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant.allowance = Allowance(3.0, 20.0)
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
            return tenant.allowance.dropped >= 4

        run_until(loop, floods)
        [connection] = tenant.connections
        assert left_alone.count(connection.fileno()) >= 4


def test_arrivals_without_end_wait(loop: Loop, tenant: TenantSocket, tmp_path: Path) -> None:
    tenant.arrivals = Allowance(2.0, 20.0)
    callers = [call(tmp_path) for _ in range(3)]
    run_until(loop, lambda: tenant.arrivals.dropped > 0)
    assert len(tenant.connections) == 2
    for caller in callers:
        caller.close()


def test_an_ended_tenants_messages_are_not_logged(
    loop: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process elsewhere may still have its connection, with messages that wait in it."""
    logged: list[str] = []
    monkeypatch.setattr(module, "log", lambda event, *_, **__: logged.append(event))
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
