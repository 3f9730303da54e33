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
from typing import Any

import pytest

from gpushare.daemon.identity import processes
from gpushare.daemon.service import control_request
from gpushare.daemon.service.control_request import ControlRequest, Forbidden, Peer, caller_origin
from gpushare.daemon.service.control_server import find_operation

from . import fakes
from .fakes import FakeDaemon

KEY = "a" * 16
USER = 12345
#: Of those that read_group lets to the socket; which of them that are, the socket's mode says.
CALLERS = {
    "root": Peer(1, 0),
    "a reader": Peer(2, USER),
    "root in a container": Peer(3, 0, "tenant"),
    "a user in a container": Peer(4, USER, "tenant"),
    "root that is gone": Peer(5, 0, "gone"),
}
#: What each takes to be asked at all, and who but root may.
FIELDS: dict[str, tuple[dict[str, Any], frozenset[str]]] = {
    "cards": ({}, frozenset({"a reader"})),
    "tenants": ({}, frozenset({"a reader"})),
    "tenant": ({"name": "train"}, frozenset({"a reader"})),
    "why": ({"name": "train"}, frozenset({"a reader"})),
    "status": ({}, frozenset({"a reader"})),
    "metrics": ({}, frozenset({"a reader"})),
    "history": ({}, frozenset({"a reader"})),
    "open": ({"quota": {"memory": "1GiB"}, "name": "x"}, frozenset({"a reader"})),
    "queue": ({}, frozenset({"a reader"})),
    "queue-take": ({"kind": "command", "wait_seconds": 0}, frozenset({"a reader"})),
    "queue-poll": ({"ticket": "0" * 8, "secret": "0" * 32}, frozenset({"a reader"})),
    "queue-cancel": ({"ticket": "0" * 8}, frozenset({"a reader"})),
    "create": ({"id": "x", "bundle": "/x", "marker": "strong"}, frozenset()),
    "checkpoint": ({"id": "x"}, frozenset()),
    "bind": ({"key": KEY, "id": "x", "pid": 1}, frozenset()),
    "release": ({"key": KEY, "id": "x"}, frozenset()),
    "set": ({"name": "train", "memory": "1GiB"}, frozenset()),
    "pause": ({"name": "train"}, frozenset()),
    "resume": ({"name": "train"}, frozenset()),
    "stop": ({"name": "train", "signal": "TERM", "timeout": 1}, frozenset()),
    "evict": ({"name": "train"}, frozenset()),
    "restore": ({"name": "train"}, frozenset()),
    "move": ({"name": "train", "card": "1"}, frozenset()),
    "reload": ({}, frozenset()),
    "node-setting": ({"key": "defaults.policy"}, frozenset()),
    "card-policy": ({"card": "0", "policy": "best-effort"}, frozenset()),
    "card-cordon": ({"card": "0", "reason": "fan"}, frozenset()),
    "card-uncordon": ({"card": "0"}, frozenset()),
    "mig-options": ({"requests": []}, frozenset({"a reader"})),
    "allocation": ({"card": "GPU-0000", "memory_bytes": 1 << 30}, frozenset()),
    "claim-prepare": ({"claim": "0a", "namespace": "a", "name": "b", "pods": []}, frozenset()),
    "claim-pods": ({"claim": "0a", "pods": []}, frozenset()),
    "claim-unprepare": ({"claim": "0a"}, frozenset()),
    "claims": ({}, frozenset({"a reader"})),
}


def test_the_table_has_every_operation(node: FakeDaemon) -> None:
    assert FIELDS.keys() == node.operations.keys()


@pytest.mark.parametrize("who", CALLERS)
@pytest.mark.parametrize("op", FIELDS)
def test_each_caller_gets_only_its_operations(node: FakeDaemon, op: str, who: str) -> None:
    """Whatever else is wrong: no other caller gets so far that its request is judged."""
    fields, others = FIELDS[op]
    request = ControlRequest({"op": op, **fields}, CALLERS[who])
    before = dict(node.ledger.entries)
    if who == "root" or who in others:
        assert not is_forbidden(request, node)
    else:
        assert is_forbidden(request, node)
        assert node.ledger.entries == before


def is_forbidden(request: ControlRequest, node: FakeDaemon) -> bool:
    try:
        rows, _ = find_operation(request, node.operations).run(request, node)
        list(rows)
    except Forbidden:
        return True
    except Exception:  # noqa: BLE001 - it was let through, and that is all we ask
        return False
    return False


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
    ended = subprocess.Popen(["true"])
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
                pytest.skip("SO_PEERPIDFD needs Linux 6.5")
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
