# SPDX-License-Identifier: Apache-2.0
"""The main thread's loop, and what systemd says to it."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpushare.daemon.core.loop import Loop
from gpushare.daemon.service import systemd


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


def test_calls_of_other_threads_come_in_order(loop: Loop) -> None:
    seen: list[int] = []

    def call() -> None:
        for number in range(1000):
            loop.call(lambda number=number: seen.append(number))  # type: ignore[misc]
        loop.call(loop.stop)

    thread = threading.Thread(target=call)
    thread.start()
    loop.run()
    thread.join()
    assert seen == list(range(1000))


def test_an_answer_is_sent_before_queued_jobs_run(loop: Loop) -> None:
    seen: list[str] = []
    loop.soon(lambda: seen.append("what follows"))
    loop.call(loop.stop)
    loop.first(lambda: seen.append("the answer"))
    loop.run()
    assert seen == ["the answer", "what follows"]


def test_timers_come_by_time(loop: Loop) -> None:
    seen: list[str] = []
    loop.later(0.03, loop.stop)
    loop.later(0.02, lambda: seen.append("second"))
    loop.later(0.01, lambda: seen.append("first"))
    loop.run()
    assert seen == ["first", "second"]


def test_a_repeated_call_is_repeated(loop: Loop) -> None:
    seen: list[int] = []

    def again() -> None:
        seen.append(1)
        if len(seen) == 3:
            loop.stop()

    loop.every(0.001, again)
    loop.run()
    assert len(seen) == 3


def test_a_callback_that_fails_is_logged_and_the_next_one_runs(
    loop: Loop, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    loop.call(fail)
    loop.call(loop.stop)
    loop.run()
    line = capfd.readouterr().err
    assert '"event":"callback-failed"' in line
    assert "ZeroDivisionError" in line
    assert line.count("\n") == 1


def test_a_descriptor_that_was_closed_in_this_round_is_not_read(loop: Loop) -> None:
    """Two ready descriptors, and the first one's callback closes the other."""
    pairs = [socket.socketpair(), socket.socketpair()]
    seen: list[int] = []

    def read(mine: int, other: int) -> None:
        seen.append(mine)
        loop.forget(pairs[mine][0].fileno())
        loop.forget(pairs[other][0].fileno())
        loop.stop()

    for mine, other in ((0, 1), (1, 0)):
        pairs[mine][1].send(b"x")
        loop.read(pairs[mine][0].fileno(), lambda mine=mine, other=other: read(mine, other))  # type: ignore[misc]
    loop.run()
    assert len(seen) == 1
    for pair in pairs:
        for end in pair:
            end.close()


def test_a_signal_wakes_it(loop: Loop) -> None:
    before = signal.signal(signal.SIGUSR1, lambda *_: loop.stop())
    old = signal.set_wakeup_fd(loop.signal_fd)
    try:
        loop.later(0.01, lambda: os.kill(os.getpid(), signal.SIGUSR1))
        loop.run()
    finally:
        signal.set_wakeup_fd(old)
        signal.signal(signal.SIGUSR1, before)


def test_systemd_is_notified_on_its_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        systemd.notify("READY=1")
        assert listener.recv(100) == b"READY=1"
    monkeypatch.delenv("NOTIFY_SOCKET")
    systemd.notify("READY=1")


@pytest.mark.parametrize(
    ("period", "pid", "expected"),
    [("60000000", None, 60.0), ("60000000", "1", None), ("", None, None), ("x", None, None)],
)
def test_the_watchdogs_time_is_systemds_for_this_process(
    monkeypatch: pytest.MonkeyPatch, period: str, pid: str | None, expected: float | None
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", period)
    monkeypatch.setenv("WATCHDOG_PID", pid or str(os.getpid()))
    assert systemd.watchdog_seconds() == expected


def test_the_socket_that_systemd_made_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as made:
        made.bind(str(path))
        made.listen()
        monkeypatch.setattr(systemd, "_FIRST_FD", made.fileno())
        monkeypatch.setenv("LISTEN_FDS", "1")
        monkeypatch.setenv("LISTEN_PID", "1")
        assert systemd.inherited_listener(path) is None
        monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
        assert systemd.inherited_listener(tmp_path / "other.sock") is None
        taken = systemd.inherited_listener(path)
        assert taken is not None
        assert taken.getsockname() == str(path)
        taken.detach()
