# SPDX-License-Identifier: Apache-2.0
"""The control socket, spoken to by hand: what it takes, what it refuses, and what it survives."""

from __future__ import annotations

import array
import contextlib
import errno
import json
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare import client, protocol
from gpushare.client import Client
from gpushare.daemon.cards.driver_client import ProcessUse
from gpushare.daemon.core.log import Allowances
from gpushare.daemon.core.loop import Worker
from gpushare.daemon.core.users import HostUsers
from gpushare.daemon.identity import processes
from gpushare.daemon.observed import AuditFinding, ComputeUsage, UsageView
from gpushare.daemon.service import control_server, systemd
from gpushare.daemon.service.control_server import (
    BoundOperation,
    ControlReply,
    ControlRequest,
    ControlServer,
    Peer,
    caller_origin,
)
from gpushare.daemon.service.systemd import StartingSocket
from gpushare.daemon.state import DaemonState
from gpushare.errors import ErrorCode
from gpushare.protocol import operations as table
from tests.descriptors import open_count
from tests.system.waiting import wait_until
from tests.unit.daemon import fakes
from tests.unit.daemon.fake_process import FakeProcess
from tests.unit.daemon.fakes import GIB, FakeDaemon, entry

UNPRIVILEGED = Peer(pid=os.getpid(), uid=12345)
KEY = b"0" * 16
BIND = b'{"op": "bind", "key": "%s", "id": "%s", "pid": %s}'

OPERATIONS: dict[str, BoundOperation] = {}  # of the daemon that runs


@pytest.fixture
def readers() -> Iterator[Worker]:
    worker = Worker("read")
    yield worker
    worker.finish(5)


@pytest.fixture
def running(node: FakeDaemon, readers: Worker) -> Iterator[ControlServer]:
    OPERATIONS.update(node.operations)
    listening = ControlServer(
        StartingSocket(node.node.config.socket, None), node, readers, OPERATIONS
    )
    thread = threading.Thread(target=node.loop.run)
    thread.start()
    yield listening
    node.loop.stop()
    thread.join()
    listening.close()


@pytest.fixture
def path(running: ControlServer, node: DaemonState) -> Path:
    del running
    return node.node.config.socket


class Caller:
    """One connection."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(20)
        self.socket.connect(str(path))

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()

    def send(self, packet: bytes, fds: tuple[int, ...] = ()) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.socket.sendmsg([packet], rights)

    def receive(self) -> dict[str, Any] | None:
        """Return the next packet, None when the other end has closed."""
        try:
            packet = self.socket.recv(protocol.MAX_REPLY_BYTES)
        except ConnectionError:
            return None
        return json.loads(packet) if packet else None

    def ask(self, request: Mapping[str, Any], fds: tuple[int, ...] = ()) -> dict[str, Any]:
        """Return the final packet."""
        self.send(json.dumps(request).encode(), fds)
        while True:
            reply = self.receive()
            assert reply is not None
            if "ok" in reply:
                return reply


def ask(path: Path, request: Mapping[str, Any], fds: tuple[int, ...] = ()) -> dict[str, Any]:
    with Caller(path) as caller:
        return caller.ask(request, fds)


@contextlib.contextmanager
def operation(name: str, run: Any, *, changes: bool = False) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        row = table.OPERATIONS["reload" if changes else "status"]
        patch.setitem(OPERATIONS, name, BoundOperation(row._replace(name=name), run))
        yield


def recording(seen: list[ControlRequest]) -> Any:
    def note(request: ControlRequest) -> ControlReply:
        seen.append(request)
        return iter(()), {}

    return note


def waiting_operation(go_on: threading.Event) -> contextlib.AbstractContextManager[None]:
    def slow(_request: ControlRequest) -> ControlReply:
        assert go_on.wait(20)
        return iter(()), {}

    return operation("slow", slow)


def test_a_client_that_waits_sees_by_the_sockets_time_that_others_are_served(path: Path) -> None:
    os.utime(path, (0, 0))
    assert ask(path, {"op": "hello"}) == {"ok": True}
    assert path.stat().st_mtime > 0


def test_a_request_in_a_queue_is_acknowledged_again_and_again(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long those before it take, its client knows that it is not forgotten."""
    monkeypatch.setattr(control_server, "_QUEUED_SECONDS", 0.02)
    go_on = threading.Event()
    with waiting_operation(go_on), Caller(path) as first, Caller(path) as second:
        first.send(b'{"op": "slow"}')
        assert first.receive() == {"ack": True}
        second.send(b'{"op": "slow"}')
        for _ in range(3):
            assert second.receive() == {"ack": True}
        go_on.set()
        for caller in (first, second):
            replies = iter(caller.receive, None)
            assert next(reply for reply in replies if reply != {"ack": True}) == {"ok": True}


@pytest.mark.parametrize(
    ("packet", "error"),
    [
        (b"not json", "not a JSON object"),
        (b'{"op": "cards", "op": "status"}', 'the key "op" is a duplicate'),
        (b'{"op": "cards", "x": {"a": 1, "a": 2}}', 'the key "a" is a duplicate'),
        (b'{"op": "cards", "x": NaN}', "NaN is not a number"),
        (b'{"op": "cards", "x": ' + b"[" * 2000 + b"]" * 2000 + b"}", "not a JSON object"),
        (b'{"op": "rm"}', "op is not one of hello, create, checkpoint, bind"),
        (b'{"op": "\xff"}', "not a JSON object"),
        (b'{"op": "status", "x": [{"a": "b\\ud800"}]}', "half of a surrogate pair"),
        (b'{"op": "status", "x": "\xed\xa0\x80"}', "not UTF-8 at byte"),
        (BIND % (b"../../etc", b"x", b"1"), 'key "../../etc" does not match'),
        (BIND % (KEY, b"-x", b"1"), 'id "-x" does not match'),
        (BIND % (KEY, b"x\\n", b"1"), "does not match"),
        (b'{"op": "open", "quota": {"memory": 4}}', "quota is not an object of strings"),
        (b'{"op": "create", "id": "x", "bundle": "/", "marker": "strong"}', "two descriptors"),
    ],
)
def test_a_bad_request_is_refused_and_the_daemon_goes_on(
    path: Path, packet: bytes, error: str
) -> None:
    with Caller(path) as caller:
        caller.send(packet)
        reply = caller.receive()
        if reply == {"ack": True}:
            reply = caller.receive()
        assert reply is not None
        assert (reply["ok"], reply["code"]) == (False, ErrorCode.USAGE.text)
        assert error in reply["error"]
    assert ask(path, {"op": "status"})["ok"]


def test_a_request_of_the_most_bytes_is_taken_and_one_byte_more_is_not(path: Path) -> None:
    most = protocol.MAX_REQUEST_BYTES if os.geteuid() else protocol.MAX_ROOT_REQUEST_BYTES

    def padded(size: int) -> bytes:
        empty = b'{"op": "status", "x": ""}'
        return empty[:-2] + b"x" * (size - len(empty)) + empty[-2:]

    with Caller(path) as caller:
        caller.send(padded(most))
        assert caller.receive() == {"ack": True}
    with Caller(path) as caller:
        caller.send(padded(most + 1))
        reply = caller.receive()
        assert reply is not None
        assert f"at most {most} bytes" in reply["error"]
        assert caller.receive() is None


def test_a_second_request_before_the_answer_ends_the_connection(path: Path) -> None:
    go_on = threading.Event()
    with waiting_operation(go_on), Caller(path) as caller:
        caller.send(b'{"op": "slow"}')
        assert caller.receive() == {"ack": True}
        caller.send(b'{"op": "slow"}')
        assert caller.receive() is None
        go_on.set()
    assert ask(path, {"op": "status"})["ok"]


def test_descriptors_that_are_too_many_or_unrequested_are_closed(path: Path) -> None:
    before = open_count()
    with Caller(path) as caller:
        assert "2 descriptors" in caller.ask({"op": "status"}, (0,) * 50)["error"]
    for _ in range(20):
        assert ask(path, {"op": "status"}, (0, 1))["ok"]
        assert not ask(path, {"op": "rm"}, (0, 1))["ok"]
    wait_until(lambda: open_count() <= before)


def test_a_user_without_rights_cannot_send_descriptors(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[ControlRequest] = []

    monkeypatch.setattr(control_server, "Peer", lambda *_: UNPRIVILEGED)
    before = open_count()
    with operation("look", recording(seen)):
        assert ask(path, {"op": "look"}, (0,) * 100)["ok"]
    assert seen[0].fds == ()
    wait_until(lambda: open_count() <= before)


def test_the_socket_is_open_to_all_users_or_to_a_group(node: DaemonState, readers: Worker) -> None:
    for gid, mode in ((None, 0o666), (os.getgid(), 0o660)):
        listening = ControlServer(
            StartingSocket(node.node.config.socket, gid), node, readers, OPERATIONS
        )
        found = node.node.config.socket.stat()
        assert found.st_mode & 0o777 == mode
        assert gid in {None, found.st_gid}
        listening.close()
        assert not node.node.config.socket.exists()


def test_a_fault_of_ours_is_an_answer_and_no_end(path: Path) -> None:
    def fail(_request: ControlRequest) -> ControlReply:
        raise ZeroDivisionError

    with operation("fail", fail):
        reply = ask(path, {"op": "fail"})
    assert (reply["ok"], reply["code"]) == (False, ErrorCode.INTERNAL.text)
    assert "ZeroDivisionError" in reply["error"]
    assert ask(path, {"op": "status"})["ok"]


def test_a_client_that_does_not_read_delays_no_other(path: Path) -> None:
    def much(_request: ControlRequest) -> ControlReply:
        return ({"text": "x" * 60000} for _ in range(500)), {}

    with operation("much", much), Caller(path) as lazy:
        lazy.send(b'{"op": "much"}')
        assert lazy.receive() == {"ack": True}
        assert ask(path, {"op": "status"})["ok"]
        rows = 0
        while (reply := lazy.receive()) is not None and "row" in reply:
            rows += 1
        assert (rows, reply) == (500, {"ok": True})


def test_a_client_that_is_gone_gets_nothing_done(path: Path, node: DaemonState) -> None:
    """A request in the queue of a launcher that gave up would be a reservation for nothing."""
    block, done = threading.Event(), list[ControlRequest]()

    node.decide.submit(lambda: block.wait(20))
    with operation("note", recording(done), changes=True):
        with Caller(path) as caller:
            caller.send(b'{"op": "note"}')
            assert caller.receive() == {"ack": True}
        ask(path, {"op": "status"})
        block.set()
        last = threading.Event()
        node.decide.submit(last.set)
        assert last.wait(20)
    assert not done


def test_without_descriptors_it_rests_and_then_goes_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EMFILE on accept leaves the listener readable: a loop that goes on at once would spin."""
    exhausted: list[str] = []
    monkeypatch.setattr(control_server, "log", lambda event, *_, **__: exhausted.append(event))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    callers = [socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(8)]
    highest = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    holes = [os.open("/dev/null", os.O_RDONLY) for _ in range(highest + 2 - open_count())]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(holes) + 1, limits[1]))
    try:
        for caller in callers:
            caller.connect(str(path))
        wait_until(lambda: len(exhausted) >= 2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in holes:
            os.close(fd)
    assert ask(path, {"op": "status"})["ok"]
    assert set(exhausted) == {"descriptors-exhausted"}
    assert len(exhausted) <= len(callers)
    for caller in callers:
        caller.close()


def test_a_deleted_socket_is_bound_again(
    path: Path, running: ControlServer, node: DaemonState
) -> None:
    path.unlink()
    bound = threading.Event()
    node.loop.call(running.rebind_if_lost)
    node.loop.call(bound.set)  # a socket has a name before it listens
    assert bound.wait(20)
    assert ask(path, {"op": "status"})["ok"]


def test_too_many_changes_of_a_user_are_refused_and_no_one_elses(
    path: Path, running: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of a request above the allowance reaches the thread that decides."""
    monkeypatch.setattr(running, "_changes", Allowances(8.0, 0.0))
    done: list[ControlRequest] = []

    with operation("note", recording(done), changes=True):
        monkeypatch.setattr(control_server, "Peer", lambda *_: UNPRIVILEGED)
        answers = [ask(path, {"op": "note"}) for _ in range(12)]
        assert [reply["ok"] for reply in answers] == [True] * 8 + [False] * 4
        assert answers[-1]["code"] == ErrorCode.REFUSED.text
        assert "user 12345 has sent too many requests" in answers[-1]["error"]
        assert ask(path, {"op": "status"})["ok"]
        monkeypatch.setattr(control_server, "Peer", lambda *_: Peer(os.getpid(), 0))
        assert all(ask(path, {"op": "note"})["ok"] for _ in range(12))
    assert [request.peer.uid for request in done] == [12345] * 8 + [0] * 12


def test_reads_of_a_user_have_an_allowance_of_their_own(
    path: Path, running: ControlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "_reads", Allowances(3.0, 0.0))
    monkeypatch.setattr(control_server, "Peer", lambda *_: UNPRIVILEGED)
    assert [ask(path, {"op": "status"})["ok"] for _ in range(5)] == [True] * 3 + [False] * 2
    with operation("note", lambda *_: (iter(()), {}), changes=True):
        assert ask(path, {"op": "note"})["ok"]
    monkeypatch.setattr(control_server, "Peer", lambda *_: Peer(os.getpid(), 0))
    assert all(ask(path, {"op": "status"})["ok"] for _ in range(5))


def test_a_tenant_with_the_longest_row_keeps_no_other_from_being_shown(
    path: Path, node: DaemonState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine of 16 cards: long names, 192 processes of control characters, over quota."""
    letters = [chr(1)] * 15
    members = [processes.Process(10**6 + number, 1, 1, number) for number in range(400)]
    monkeypatch.setattr(processes, "members", lambda *_: members)
    monkeypatch.setattr(processes, "name_of", lambda _: "".join(letters))
    name = "/".join(("n" * 63, "p" * 253, "c" * 63))
    cards = tuple(fakes.card(index) for index in range(16))
    node.node.driver = replace(node.node.loaded(), cards=cards)
    part = entry().allocations[0]
    long = replace(
        entry(),
        id="long",
        name=name,
        state="bound",
        notes=("x" * 400,) * 16,
        allocations=tuple(replace(part, uuid=card.uuid) for card in cards),
    )
    node.ledger.add(long)
    node.ledger.add(replace(entry("1" * 16), id="short", name="short"))
    uses = tuple((card.uuid, ProcessUse(one.pid, GIB)) for one in members for card in cards)
    seen = {(long.key, card.uuid): ComputeUsage(is_hung=True, gate_bypassed=True) for card in cards}
    over = AuditFinding("frozen", "freeze", 100 * GIB, 4 * GIB, 0.0)
    node.observed.usage = UsageView(processes={long.key: uses})
    node.observed.compute = seen
    node.observed.findings = dict.fromkeys(seen, over)
    rows = client.Client(path).tenants()
    assert [row["id"] for row in rows] == ["long", "short"]
    assert rows[0]["processes"] or rows[0]["warnings"]
    assert len(rows[0]["cards"]) == 16
    assert ask(path, {"op": "tenant", "name": "long"})["ok"]
    assert ask(path, {"op": "why", "name": "long"})["ok"]


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
    monkeypatch.setattr(control_server, "_SO_PEERPIDFD", 9999)  # an older kernel
    ended = FakeProcess()
    ended.kill()
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
                pytest.skip("kernel: SO_PEERPIDFD needs Linux 6.5")
            assert caller_origin(accepted, os.getpid(), {}) == "gone"


def knows_peers(connection: socket.socket) -> bool:
    try:
        os.close(connection.getsockopt(socket.SOL_SOCKET, control_server._SO_PEERPIDFD))
    except OSError as error:
        return error.errno != errno.ENOPROTOOPT
    return True


STARTING = protocol.encode({"starting": True})


@pytest.fixture
def starting(node: FakeDaemon) -> Iterator[StartingSocket]:
    made = StartingSocket(node.node.config.socket, None)
    yield made
    made.close()


def connect(starting: StartingSocket) -> socket.socket:
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    caller.settimeout(60)
    caller.connect(str(starting.path))
    return caller


def test_an_early_client_gets_a_message_at_once_and_an_answer_later(
    node: FakeDaemon, starting: StartingSocket, readers: Worker
) -> None:
    with connect(starting) as told:
        assert told.recv(100) == STARTING
    waits, answers = threading.Event(), list[object]()
    client = Client(starting.path, waits=waits.set)
    asking = threading.Thread(target=lambda: answers.append(client.status()))
    asking.start()
    assert waits.wait(60)
    server = ControlServer(starting, node, readers, node.operations)
    serving = threading.Thread(target=node.loop.run)
    serving.start()
    asking.join(60)
    assert len(answers) == 1
    Client(starting.path).status()  # and whoever comes now
    node.loop.stop()
    serving.join()
    server.close()


def test_users_leave_room_for_root_while_the_daemon_starts(
    starting: StartingSocket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines start containers as root, and wait on the same socket."""
    (tmp_path / "subuid").write_text("1000:100000:65536\n")
    users = HostUsers(tmp_path, lambda uid, _: frozenset({str(uid)}), lambda job: job())
    monkeypatch.setattr(starting, "_host_users", users)
    uids = iter([1000, 100_000, 100_001, 100_002] + [1001] * 4 + [0] * 4)
    monkeypatch.setattr(systemd, "credentials", lambda _: (1, next(uids)))
    monkeypatch.setattr(systemd, "_MOST_OF_ONE_USER", 3)
    monkeypatch.setattr(systemd, "_MOST_OF_USERS", 6)
    received = []
    for _ in range(12):
        with connect(starting) as client:
            received.append(client.recv(100) == STARTING)
    assert received[:4] == [True, True, True, False]
    assert received[4:8] == [True, True, False, False]
    assert received[8:] == [True] * 4
