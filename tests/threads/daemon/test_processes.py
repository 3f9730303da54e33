# SPDX-License-Identifier: Apache-2.0
"""Processes, their cgroups and records, and what their containers are called."""

from __future__ import annotations

import json
import os
import platform
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpushare.daemon.identity import pid_resolver, processes
from gpushare.daemon.identity.pid_resolver import PidResolver
from gpushare.daemon.identity.processes import Cgroups, Process, own_cgroup
from gpushare.daemon.lifecycle import tenant_names
from gpushare.daemon.lifecycle.bind import bind
from gpushare.daemon.lifecycle.tenant_names import ContainerName
from gpushare.daemon.observe import sampler
from gpushare.daemon.observe.sampler import DeadRecords
from gpushare.protocol import HostProcessGrant
from tests.system.waiting import wait_until
from tests.unit.daemon import registered
from tests.unit.daemon.fakes import GIB, FakeDaemon
from tests.unit.daemon.operations import opened
from tests.unit.daemon.test_container_names import ID
from tests.unit.daemon.test_sampler import end, keys, sightings

__all__ = ["sightings"]


def test_a_process_is_read_whatever_it_calls_itself() -> None:
    code = "import ctypes; ctypes.CDLL(None).prctl(15, b') R 1 (x'); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        program.stdout.readline()
        found = processes.find_process(program.pid)
        assert found is not None
        assert (found.pid, found.parent) == (program.pid, os.getpid())
        assert processes.name_of(program.pid) == ") R 1 (x"
        assert program.pid in processes.descendants(os.getpid())
        program.communicate(b"\n")


def test_a_process_family_is_that_of_all_its_threads() -> None:
    """Children of any of its threads, and theirs."""
    code = (
        "import subprocess, threading\n"
        "def begin(): subprocess.Popen(['sh', '-c', 'sleep 1000 & echo $!; wait'])\n"
        "thread = threading.Thread(target=begin)\n"
        "thread.start(); thread.join(); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        grandchild = int(program.stdout.readline())
        found = processes.descendants(program.pid)
        os.kill(grandchild, signal.SIGKILL)
        program.communicate(b"\n")
    assert found[0] == program.pid
    assert found[-1] == grandchild
    assert len(found) == 3
    assert processes.descendants(program.pid) == [program.pid]


def test_a_zombie_has_ended() -> None:
    program = subprocess.Popen(["true"])
    os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
    assert processes.find_process(program.pid) is None
    program.wait()
    assert processes.find_process(program.pid) is None
    assert processes.cgroups_of(program.pid) == {}
    assert processes.owner_of(program.pid) is None


def ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 0)[0])


def test_a_pidfd_is_of_the_process_that_started_then() -> None:
    me = processes.find_process(os.getpid())
    assert me is not None
    assert processes.open_pidfd(me.pid, me.starttime + 1) is None
    fd = processes.open_pidfd(me.pid, me.starttime)
    assert fd is not None
    assert not ended(fd)
    os.close(fd)


@pytest.mark.parametrize(
    ("paths", "others", "expected"),
    [
        ({"": "/docker/a", "memory": "/docker/a"}, {}, ":/docker/a"),
        ({"": "/", "devices": "/a", "name=systemd": "/a"}, {}, "devices:/a"),
        ({"": "/", "zzz": "/a"}, {}, "zzz:/a"),
        ({"": "/user.slice", "devices": "/a"}, {"": "/user.slice"}, "devices:/a"),
        ({"": "/same"}, {"": "/same"}, ""),
        ({"": "/../other"}, {}, ""),
        ({}, {}, ""),
    ],
)
def test_a_tenants_cgroup_is_one_that_sets_it_apart(
    monkeypatch: pytest.MonkeyPatch, paths: dict[str, str], others: dict[str, str], expected: str
) -> None:
    monkeypatch.setattr(processes, "cgroups_of", lambda pid: paths)  # noqa: ARG005
    assert own_cgroup(7, others) == expected


@pytest.fixture
def cgroups(tmp_path: Path) -> Cgroups:
    (tmp_path / "v1/a/inner").mkdir(parents=True)
    (tmp_path / "v2/a").mkdir(parents=True)
    for folder in ("v1/a", "v1/a/inner"):
        (tmp_path / folder / "cgroup.procs").write_text("")
    return Cgroups(
        f"30 20 0:1 / {tmp_path}/v1 rw shared:1 - cgroup cgroup rw,devices\n"
        f"31 20 0:2 / {tmp_path}/v2 rw - cgroup2 cgroup2 rw\n"
        f"32 20 0:3 /part {tmp_path}/no rw - cgroup cgroup rw,memory\n"
        "33 20 0:4 / /proc rw - proc proc rw\n"
    )


def test_a_v1_cgroup_lives_as_long_as_a_process_is_in_it_or_beneath(
    cgroups: Cgroups, tmp_path: Path
) -> None:
    assert not cgroups.is_populated("devices:/a")
    (tmp_path / "v1/a/inner/cgroup.procs").write_text("12\n13\n")
    assert cgroups.is_populated("devices:/a")
    assert cgroups.processes("devices:/a") == [12, 13]


def test_a_v2_cgroup_says_itself_whether_it_is_populated(cgroups: Cgroups, tmp_path: Path) -> None:
    events = tmp_path / "v2/a/cgroup.events"
    events.write_text("populated 1\nfrozen 0\n")
    assert cgroups.is_populated(":/a")
    events.write_text("populated 0\nfrozen 0\n")
    assert not cgroups.is_populated(":/a")


def test_a_cgroup_that_is_gone_is_empty(cgroups: Cgroups) -> None:
    for cgroup in (":/gone", "devices:/gone", "memory:/a"):
        assert not cgroups.is_populated(cgroup)
        assert cgroups.processes(cgroup) == []


@contextmanager
def waiting(
    folder: Path, name: str, *, executes: bool = False, deleted: bool = True, writes: bool = False
) -> Iterator[int]:
    """Yield a child that holds a pipe open as a container's first process holds its runtime's.

    crun's reads it. runc's has only its name, and `writes` to it once the container is started.
    """
    os.mkfifo(folder / name)
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.open(folder / name, os.O_RDONLY | os.O_NONBLOCK)
        if writes:  # behind the sockets that the container is passed (LISTEN_FDS)
            end = os.open(folder / name, os.O_WRONLY)
            os.dup2(end, 200)
            os.close(end)
        os.write(tell, b"x")
        if executes:
            os.execv("/bin/sleep", ["sleep", "1000"])
        signal.pause()
    try:
        assert os.read(ready, 1) == b"x"
        if executes:
            wait_until(lambda: Path(f"/proc/{child}/comm").read_text() == "sleep\n")
        if deleted:
            (folder / name).unlink()
        yield child
    finally:
        os.close(ready)
        os.close(tell)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.parametrize(
    ("name", "how", "stranded"),
    [
        ("exec.fifo", {}, True),
        ("exec.fifo", {"deleted": False}, False),  # it can still start
        ("other", {}, False),
        # runc deletes the pipe while the process is about to execute its program, or runs hooks.
        ("exec.fifo", {"writes": True}, False),
        ("exec.fifo", {"executes": True}, False),  # a program cannot appear never to have run
    ],
)
def test_a_process_that_waits_on_a_deleted_fifo_can_never_start(
    tmp_path: Path, name: str, how: dict[str, bool], stranded: bool
) -> None:
    with waiting(tmp_path, name, **how) as pid:
        assert processes.is_stranded(pid) is stranded


#: A program whose first thread has no descriptor, and another thread has a table of its own.
THREAD = """
import ctypes, os, threading, time
libc = ctypes.CDLL(None)
def work():
    assert libc.unshare(0x400) == 0  # CLONE_FILES
    os.open("/dev/null", os.O_RDONLY)
    ready.set()
    time.sleep(600)
ready = threading.Event()
threading.Thread(target=work).start()
ready.wait()
os.write(1, b"ready")
{then}
"""

#: syscall(SYS_exit): the thread, and not its process.
EXIT = {"x86_64": "libc.syscall(60, 0)", "aarch64": "libc.syscall(93, 0)"}[platform.machine()]


@pytest.fixture(params=("time.sleep(600)", EXIT), ids=("unshared", "first thread ended"))
def two_threads(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-c", THREAD.replace("{then}", request.param)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.read(5) == b"ready"
        yield program
        program.kill()


def test_a_descriptor_that_only_another_thread_has_is_the_processs(
    two_threads: subprocess.Popen[bytes],
) -> None:
    assert pid_resolver.has_open(two_threads.pid, {1})  # /dev/null, as nvidia's would be
    assert not pid_resolver.has_open(two_threads.pid, {195})


def test_a_process_goes_on_without_its_first_thread() -> None:
    code = (
        "import ctypes, threading, time\n"
        "threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "ctypes.CDLL(None).pthread_exit(None)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as program:
        stat = Path(f"/proc/{program.pid}/stat")
        wait_until(lambda: stat.read_bytes().rpartition(b") ")[2].startswith(b"Z"))
        found = processes.find_process(program.pid)
        program.kill()
    assert found is not None


def test_memory_of_an_ended_process_belongs_to_its_tenant(
    sightings: PidResolver, program: subprocess.Popen[bytes]
) -> None:
    """It was listed with its tenant, and is listed still: another has its descriptor."""
    sightings.look([program.pid], keys, 1)
    end(program)
    for _ in range(3):
        assert sightings.look([program.pid], keys, 1)[program.pid].key == "a" * 16
    sightings.look([], keys, 1)
    assert sightings.look([program.pid], keys, 1)[program.pid].key is None


@contextmanager
def engine(path: Path, answer: bytes) -> Iterator[list[bytes]]:
    """Answer every request on `path` with `answer`; yield what was asked."""
    asked: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    asked.append(connection.recv(65536))
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield asked
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def http(document: object) -> bytes:
    body = json.dumps(document).encode()
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def test_the_name_is_read_from_docker(tmp_path: Path) -> None:
    with engine(tmp_path / "docker.sock", http({"Name": "/train"})) as asked:
        found = tenant_names.ask_engines(ID, [tmp_path / "none.sock", tmp_path / "docker.sock"], 5)
    assert found == ContainerName("docker", "train")
    assert asked[0].startswith(f"GET /containers/{ID}/json HTTP/1.1\r\n".encode())


# Maps the file, as our library does, and does what it is told: go on, or become another program.
PROGRAM = """
import mmap, os, sys
file = open(sys.argv[1], "r+b")
pages = mmap.mmap(file.fileno(), 4096)
file.close()
print("mapped", flush=True)
for word in sys.stdin:
    os.execvp("sleep", ["sleep", "1000"])
"""


@pytest.fixture
def tenant(node: FakeDaemon) -> HostProcessGrant:
    return opened(node, memory="4GiB")


@pytest.fixture
def user(node: FakeDaemon, tenant: HostProcessGrant) -> Iterator[subprocess.Popen[str]]:
    """The tenant's process; it maps the status file and holds no lock."""
    status = node.mounts.path(tenant["key"]) / "status"
    started = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(status)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "mapped\n"
    process = processes.find_process(started.pid)
    assert process is not None
    bind(tenant["key"], tenant["id"], started.pid, os.getpid(), node)
    fd = node.tenants.pages[tenant["key"]].status.fd
    registered.register(fd, 0, started.pid, process.starttime)
    registered.hold(fd, 0, GIB)
    yield started
    started.kill()
    started.communicate()


@pytest.fixture
def charged(node: FakeDaemon, tenant: HostProcessGrant) -> Callable[[], int]:
    """Free dead records, and return what is still charged."""

    def reaped() -> int:
        DeadRecords().look(node.ledger.entries, node.tenants.pages)
        return node.tenants.pages[tenant["key"]].accounts().sums[0].held_bytes

    return reaped


def becomes_another(user: subprocess.Popen[str]) -> None:
    assert user.stdin is not None
    user.stdin.write("go\n")
    user.stdin.flush()
    wait_until(lambda: processes.name_of(user.pid) == "sleep")


def test_a_process_that_became_a_program_without_cuda_holds_nothing(
    user: subprocess.Popen[str], charged: Callable[[], int]
) -> None:
    becomes_another(user)
    assert user.poll() is None
    assert charged() == 0


def test_an_unreadable_process_counts_as_alive(
    user: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch, charged: Callable[[], int]
) -> None:
    becomes_another(user)
    read = processes._read

    def refused(pid: int, name: str) -> bytes:
        if name == "maps":
            raise PermissionError
        return read(pid, name)

    monkeypatch.setattr(processes, "_read", refused)
    assert charged() == GIB


@pytest.mark.usefixtures("user")
def test_a_crowd_of_processes_is_looked_at_over_several_passes(
    node: FakeDaemon, tenant: HostProcessGrant
) -> None:
    """Twenty thousand processes, and a record that none of them has: it is freed in the end."""
    looked: list[int] = []
    others = opened(node, memory="4GiB")
    bind(others["key"], others["id"], os.getpid(), 0, node)
    crowd = [*range(10**6, 10**6 + 20_000)]
    pages = node.tenants.pages
    for key in (tenant["key"], others["key"]):
        registered.register(pages[key].status.fd, 0, 77, 1)
        registered.hold(pages[key].status.fd, 0, GIB)

    def find(pid: int) -> Process:
        looked.append(pid)
        return Process(pid, 1, 1, pid)

    def pids_of(_cgroup: str, pid: int, _cgroups: Cgroups) -> Iterator[int]:
        return iter([pid] if pid == os.getpid() else crowd)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(processes, "find_process", find)
        patched.setattr(processes, "pids_of", pids_of)
        patched.setattr(sampler, "TENANT_SECONDS", 0.002)
        dead = DeadRecords()
        passes = 0
        while pages[tenant["key"]].accounts().sums[0].held_bytes:
            before = len(looked)
            dead.look(node.ledger.entries, pages)
            assert len(looked) - before < len(crowd)
            passes += 1
        assert passes > 1
        assert pages[others["key"]].accounts().sums[0].held_bytes == 0  # it did not wait for that
    assert looked.count(crowd[0]) == 1  # each pass goes on where the one before stopped
