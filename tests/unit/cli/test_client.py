# SPDX-License-Identifier: Apache-2.0
"""The client of the control socket: what the daemon refuses, and when there is none."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import pytest

from gpushare import patience, protocol
from gpushare.client import BadRequest, Client, DaemonError, DaemonUnreachable, Refused
from tests.unit.runtime.fake_daemon import ACK, Asked, Packet
from tests.unit.runtime.fake_daemon import FakeDaemon as ScriptedDaemon

from .conftest import CARD, tenant
from .fake_daemon import FakeDaemon, refusal, rows

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result


def test_rows_of_more_than_one_packet_arrive_in_order(daemon: FakeDaemon) -> None:
    many = [{**CARD, "index": number} for number in range(300)]
    daemon.answers["cards"] = rows(*many)
    assert [card["index"] for card in Client(daemon.path).cards()] == list(range(300))


@pytest.mark.parametrize(
    ("code", "error", "status"),
    [
        (protocol.CODE_REFUSED, Refused, 3),
        (protocol.CODE_FORBIDDEN, Refused, 3),
        (protocol.CODE_USAGE, BadRequest, 2),
        (protocol.CODE_ERROR, DaemonError, 1),
    ],
)
def test_each_refusal_has_its_exception_and_exit_status(
    daemon: FakeDaemon,
    cli: Callable[..., Result],
    code: str,
    error: type[Exception],
    status: int,
) -> None:
    daemon.answers["set"] = refusal(code, "gpushare: no card has room for 200 GiB")
    with pytest.raises(error, match="no card has room"):
        Client(daemon.path).set("train", memory="200GiB")
    result = cli("set", "train", "--memory", "200GiB")
    assert (result.exit_code, result.stderr) == (status, "gpushare: no card has room for 200 GiB\n")


def test_set_sends_what_was_typed_and_shows_what_holds_now(
    daemon: FakeDaemon, cli: Callable[..., Result]
) -> None:
    assert cli("set", "train", "--memory", "6GiB").output == "train: card 0: 3.9/6.0 GiB\n"
    assert daemon.requests[-1] == {"op": "set", "name": "train", "memory": "6GiB"}


def test_set_sends_no_more_than_was_typed_and_shows_the_warnings(
    daemon: FakeDaemon, cli: Callable[..., Result]
) -> None:
    over = "train uses 3.9 GiB of 1 GiB on card 0: it gets nothing more until it frees 2.9 GiB"
    daemon.answers["set"] = [{"ok": True, "tenant": tenant("train", 3.9, 1, warnings=[over])}]
    shown = cli("set", "train", "--memory-limit", "1GiB").output
    assert shown == f"train: card 0: 3.9/1.0 GiB over\n{over}\n"
    assert daemon.requests[-1] == {"op": "set", "name": "train", "memory_limit": "1GiB"}


def test_set_shows_what_was_asked_before(daemon: FakeDaemon, cli: Callable[..., Result]) -> None:
    now = tenant("train", 3.9, 6)
    now["quota"] = {"memory": "6GiB operator", "policy": "burst-share operator"}
    daemon.answers["set"] = [{"ok": True, "tenant": now}]
    assert cli("set", "train", "--memory", "6GiB").output == (
        "train: cores - (was 30, env)\n"
        "train: memory 6GiB (was 4GiB, env)\n"
        "train: policy burst-share (was not asked)\n"
        "train: card 0: 3.9/6.0 GiB\n"
    )


@pytest.mark.parametrize(
    ("words", "keys"),
    [
        (("--reset",), "all"),
        (("--reset", "memory"), "memory"),
        (("--reset=cores,class",), "cores,class"),
    ],
)
def test_set_is_taken_back(
    daemon: FakeDaemon, cli: Callable[..., Result], words: tuple[str, ...], keys: str
) -> None:
    shown = cli("set", "train", *words)
    assert shown.exit_code == 0, shown.output
    assert daemon.requests[-1] == {"op": "set", "name": "train", "reset": keys}
    assert "3.9/6.0 GiB, fixed-share" in shown.output


def test_what_is_taken_back_is_not_set_at_once(
    daemon: FakeDaemon, cli: Callable[..., Result]
) -> None:
    assert cli("set", "train", "--memory", "6GiB", "--reset").exit_code == 2
    assert not daemon.requests


def test_set_needs_something_to_set(cli: Callable[..., Result]) -> None:
    result = cli("set", "train")
    assert result.exit_code == 2
    assert "say what to change, e.g. --memory 6GiB or --cores 40" in result.stderr


def test_no_socket_says_how_to_start_the_daemon(tmp_path: Path, cli: Callable[..., Result]) -> None:
    result = cli("ls")
    assert result.exit_code == 1
    assert f"there is no {tmp_path}/control.sock" in result.stderr
    assert "systemctl start gpushared" in result.stderr


def test_a_socket_that_nobody_listens_on(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left:
        left.bind(str(path))
    with pytest.raises(DaemonUnreachable, match="nobody listens"):
        Client(path).cards()


def test_a_daemon_that_does_not_acknowledge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "ACK_SECONDS", 0.05)
    silent = FakeDaemon(tmp_path / "control.sock", {}, acknowledge=False)
    with silent.running(), pytest.raises(DaemonUnreachable, match="does not answer"):
        Client(silent.path).cards()


def test_a_daemon_that_is_starting_is_waited_for_and_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "ACK_SECONDS", 0.05)
    said: list[str] = []
    waited = threading.Event()

    def waits() -> None:
        said.append("starting")
        waited.set()

    def until_it_is_said() -> None:
        assert waited.wait(60)

    path = tmp_path / "control.sock"
    packets: list[Packet] = [b'{"starting": true}', until_it_is_said, ACK, b'{"ok": true}']
    with ScriptedDaemon(path, packets):
        assert Client(path, waits=waits).cards() == []
    assert said == ["starting"]


def test_who_holds_the_socket_without_a_daemon_is_about_to_start_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "ACK_SECONDS", 0.05)
    waited = threading.Event()

    def start(_: Asked) -> None:
        assert waited.wait(60)
        daemon.take_lock()

    path = tmp_path / "control.sock"
    daemon = ScriptedDaemon(path, [ACK, b'{"ok": true}'], alive=False, act=start)
    with daemon:
        Client(path, waits=waited.set).status()
    assert len(daemon.asked) == 1


def test_a_daemon_that_takes_too_long_to_start_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    starting = ScriptedDaemon(path, [b'{"starting": true}'], silent=True)
    with starting, pytest.raises(DaemonUnreachable, match=r"is not ready on .* after 0.3 s"):
        Client(path, start_seconds=0.3).cards()


def test_what_was_not_acknowledged_is_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with ScriptedDaemon(path, [ACK, b'{"ok": true}'], first=[b'{"starting": true}']) as daemon:
        Client(path).status()
    assert len(daemon.asked) == 2


def test_what_was_acknowledged_is_not_asked_again(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with ScriptedDaemon(path, [ACK]) as daemon, pytest.raises(DaemonUnreachable, match="ended"):
        Client(path).status()
    assert len(daemon.asked) == 1


def seen(lock: Path) -> tuple[bool, bool]:
    """Return whether it is free to who may open it, and listed to everybody."""
    return patience.is_free(lock), patience._is_listed(lock)


def test_everybody_may_know_whether_a_daemon_lives(tmp_path: Path) -> None:
    """Only root may open the lock: whoever could lock it could keep the daemon from starting."""
    lock = tmp_path / "lock"
    assert patience.is_free(lock)
    with lock.open("w") as held:
        lock.chmod(0o600)
        assert seen(lock) == (True, False)
        patience.take(held.fileno())
        assert seen(lock) == (False, True)
        with lock.open("w") as other, pytest.raises(BlockingIOError):
            patience.take(other.fileno())
    assert seen(lock) == (True, False)


def test_an_answer_that_breaks_off(daemon: FakeDaemon) -> None:
    daemon.answers["cards"] = [{"row": CARD}]
    with pytest.raises(DaemonUnreachable, match="ended the connection"):
        Client(daemon.path).cards()


def test_a_request_over_the_limit_is_not_sent(daemon: FakeDaemon) -> None:
    with pytest.raises(BadRequest, match="over the limit"):
        Client(daemon.path).tenant("x" * protocol.MAX_REQUEST_BYTES)
    assert daemon.requests == []


def test_a_code_of_a_newer_daemon_is_an_error(daemon: FakeDaemon) -> None:
    daemon.answers["cards"] = [{"row": CARD}, *refusal("new", "something else")]
    with pytest.raises(DaemonError, match="something else"):
        Client(daemon.path).cards()
