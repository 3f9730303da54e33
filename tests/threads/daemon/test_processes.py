# SPDX-License-Identifier: Apache-2.0
"""Processes, pidfds and cgroups."""

from __future__ import annotations

import os
import platform
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpushare.daemon.identity import pid_resolver, processes
from gpushare.daemon.identity.pid_resolver import PidResolver
from gpushare.daemon.identity.processes import Cgroups, own_cgroup
from tests.system.waiting import wait_until
from tests.unit.daemon.test_pid_resolver import end, keys, sightings

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


@pytest.mark.parametrize("has_files", [True, False])
def test_a_process_family_is_found_despite_missing_kernel_data(
    monkeypatch: pytest.MonkeyPatch, has_files: bool
) -> None:
    """Children of any of its threads, and theirs."""
    if not has_files:
        monkeypatch.setattr(processes, "_has_children_files", lambda: False)
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


def test_a_process_knows_its_own_number_in_its_namespace() -> None:
    if os.geteuid() != 0:
        pytest.skip("makes a pid namespace: needs root")
    program = subprocess.Popen(["unshare", "--pid", "--fork", "sleep", "1000"])

    def inner() -> list[processes.Process]:
        found = [processes.find_process(pid) for pid in processes.descendants(program.pid)[1:]]
        return [process for process in found if process is not None]

    try:
        wait_until(lambda: bool(inner()))
        assert [process.namespaced_pid for process in inner()] == [1]
    finally:
        for process in inner():
            os.kill(process.pid, 9)
        program.wait()


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


@pytest.mark.parametrize(
    "path",
    [
        # A kubelet with systemd, and with cgroupfs; one with systemd before a containerd without,
        # whose runc takes three words for one name; podman with systemd.
        "/kubepods.slice/kubepods-pod4f1c.slice/cri-containerd-ab12.scope",
        "/kubepods/burstable/pod4f1c/ab12",
        "/kubepods-burstable-pod4f1c.slice:cri-containerd:ab12",
        "/machine.slice/libpod-ab12.scope/container",
    ],
)
def test_whatever_it_is_called_a_cgroup_is_found_again(
    monkeypatch: pytest.MonkeyPatch, cgroups: Cgroups, tmp_path: Path, path: str
) -> None:
    lines = f"1:devices:{path}\n0::{path}\n"
    monkeypatch.setattr(processes, "_read", lambda _pid, _name: lines.encode())
    for hierarchy, file, said in (
        ("", "v2", ("cgroup.events", "populated 1\n")),
        ("devices", "v1", ("cgroup.procs", "12\n")),
    ):
        found = own_cgroup(7, {"devices": "/", "": "/" if hierarchy == "" else path})
        assert found == f"{hierarchy}:{path}"
        assert not cgroups.is_populated(found)
        folder = tmp_path / file / path.lstrip("/")
        folder.mkdir(parents=True)
        (folder / said[0]).write_text(said[1])
        assert cgroups.is_populated(found)


@contextmanager
def waiting(
    folder: Path, name: str, *, executes: bool, deleted: bool = True, writes: bool = False
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


def test_a_process_that_waits_on_a_deleted_fifo_can_never_start(tmp_path: Path) -> None:
    with waiting(tmp_path, "exec.fifo", executes=False) as pid:
        assert processes.is_stranded(pid)


def test_a_process_that_can_still_start_is_not_abandoned(tmp_path: Path) -> None:
    with waiting(tmp_path, "exec.fifo", executes=False, deleted=False) as pid:
        assert not processes.is_stranded(pid)
    with waiting(tmp_path, "other", executes=False) as pid:
        assert not processes.is_stranded(pid)


def test_a_process_that_is_being_started_is_not_stranded(tmp_path: Path) -> None:
    """runc deletes the pipe while the process is about to execute its program, or runs hooks."""
    with waiting(tmp_path, "exec.fifo", executes=False, writes=True) as pid:
        assert not processes.is_stranded(pid)


def test_a_program_cannot_appear_never_to_have_run(tmp_path: Path) -> None:
    with waiting(tmp_path, "exec.fifo", executes=True) as pid:
        assert not processes.is_stranded(pid)


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
def threaded(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    words = [sys.executable, "-c", THREAD.replace("{then}", request.param)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        assert program.stdout.read(5) == b"ready"
        yield program
        program.kill()


def test_a_descriptor_that_only_another_thread_has_is_the_processs(
    threaded: subprocess.Popen[bytes],
) -> None:
    assert pid_resolver.has_open(threaded.pid, {1})  # /dev/null, as nvidia's would be
    assert not pid_resolver.has_open(threaded.pid, {195})


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


def test_the_cgroups_of_a_process_are_known_when_its_first_thread_has_ended(
    threaded: subprocess.Popen[bytes],
) -> None:
    assert processes.cgroups_of(threaded.pid) == processes.cgroups_of(os.getpid())
    assert processes.find_process(threaded.pid) is not None, "it goes on"


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
