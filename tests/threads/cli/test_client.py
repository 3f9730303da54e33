# SPDX-License-Identifier: Apache-2.0
"""The client of the control socket: what the daemon refuses, and when there is none."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from gpushare import protocol, wait_policy
from gpushare.client import Client, DaemonError, DaemonUnreachable
from tests.c.runtime.fake_daemon import ACK, Packet, ReceivedRequest, ScriptedDaemon
from tests.unit.cli.conftest import CARD, tenant
from tests.unit.cli.fake_daemon import AnsweringDaemon, refusal, rows


def test_rows_of_more_than_one_packet_arrive_in_order(daemon: AnsweringDaemon) -> None:
    many = [{**CARD, "index": number} for number in range(300)]
    daemon.answers["cards"] = rows(*many)
    assert [card["index"] for card in Client(daemon.path).cards()] == list(range(300))


def test_set_sends_no_more_than_was_typed_and_shows_the_warnings(
    daemon: AnsweringDaemon, cli: Callable[..., Result]
) -> None:
    over = "train uses 3.9 GiB of 1 GiB on card 0: allocations fail until it frees 2.9 GiB"
    daemon.answers["set"] = [{"ok": True, "tenant": tenant("train", 3.9, 1, warnings=[over])}]
    shown = cli("set", "train", "--memory-limit", "1GiB").output
    assert shown == f"train: card 0: 3.9/1.0 GiB over quota\n{over}\n"
    assert daemon.requests[-1] == {"op": "set", "name": "train", "memory_limit": "1GiB"}


def test_a_setting_of_a_node_label_is_sent_with_its_key(daemon: AnsweringDaemon) -> None:
    daemon.answers["node-setting"] = [{"ok": True}]
    Client(daemon.path).set_node_setting("defaults.policy", {"value": "v", "source": "s"})
    asked = {"op": "node-setting", "key": "defaults.policy", "value": "v", "source": "s"}
    assert daemon.requests == [asked]


def test_set_shows_the_previous_request(
    daemon: AnsweringDaemon, cli: Callable[..., Result]
) -> None:
    now = tenant("train", 3.9, 6)
    now["quota"] = {"memory": "6GiB operator", "policy": "burst-share operator"}
    daemon.answers["set"] = [{"ok": True, "tenant": now}]
    assert cli("set", "train", "--memory", "6GiB").output == (
        "train: cores - (was 30, env)\n"
        "train: memory 6GiB (was 4GiB, env)\n"
        "train: policy burst-share (was not set)\n"
        "train: card 0: 3.9/6.0 GiB\n"
    )


def test_set_is_taken_back(daemon: AnsweringDaemon, cli: Callable[..., Result]) -> None:
    for words, keys in ((["--reset"], "all"), (["--reset", "memory"], "memory")):
        shown = cli("set", "train", *words)
        assert shown.exit_code == 0, shown.output
        assert daemon.requests[-1] == {"op": "set", "name": "train", "reset": keys}
        assert "3.9/6.0 GiB, fixed-share" in shown.output


def test_set_needs_a_value_or_a_reset_and_not_both(
    daemon: AnsweringDaemon, cli: Callable[..., Result]
) -> None:
    assert cli("set", "train", "--memory", "6GiB", "--reset").exit_code == 2
    result = cli("set", "train")
    assert result.exit_code == 2
    assert "nothing to change. Use, for example, --memory 6GiB or --cores 40." in result.stderr
    assert not daemon.requests


def test_only_a_start_waits_for_a_daemon_that_was_killed(tmp_path: Path) -> None:
    """It leaves its socket and its lock's file. A command reports it at once."""
    path = tmp_path / "control.sock"
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


def test_a_daemon_that_does_not_acknowledge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "ACK_SECONDS", 0.05)
    silent = AnsweringDaemon(tmp_path / "control.sock", {}, acknowledge=False)
    with silent.running(), pytest.raises(DaemonUnreachable, match="not responding"):
        Client(silent.path).cards()


def test_a_daemon_that_serves_other_clients_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with ScriptedDaemon(path, [ACK, b'{"ok": true}']) as daemon:
        daemon.serve_others_first()
        assert Client(path).cards() == []


def test_a_starting_daemon_is_waited_for_with_a_message(
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


def test_a_locked_socket_without_a_daemon_means_a_starting_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "ACK_SECONDS", 0.05)
    waited = threading.Event()

    def start(_: ReceivedRequest) -> None:
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
    with starting, pytest.raises(DaemonUnreachable, match=r"not ready on .* after 0.3 s"):
        Client(path, start_seconds=0.3).cards()


def test_a_request_in_the_daemons_queue_is_waited_for(tmp_path: Path) -> None:
    """Each acknowledgement gives the answer its whole time."""
    path, seconds = tmp_path / "control.sock", 1.0

    def wait() -> None:
        time.sleep(0.6 * seconds)

    packets: list[Packet] = [ACK, wait, ACK, wait, ACK, b'{"ok": true}']
    with ScriptedDaemon(path, packets) as daemon:
        Client(path, seconds=seconds).status()
    assert len(daemon.asked) == 1


def test_a_request_without_acknowledgement_is_sent_again(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    with ScriptedDaemon(path, [ACK, b'{"ok": true}'], first=[b'{"starting": true}']) as daemon:
        Client(path).status()
    assert len(daemon.asked) == 2


def test_an_acknowledged_request_is_not_sent_again(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
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


def test_a_code_of_a_newer_daemon_is_an_error(daemon: AnsweringDaemon) -> None:
    daemon.answers["cards"] = [{"row": CARD}, *refusal("new", "something else")]
    with pytest.raises(DaemonError, match="something else"):
        Client(daemon.path).cards()
