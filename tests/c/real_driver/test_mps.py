# SPDX-License-Identifier: Apache-2.0
"""The client of an MPS control daemon, against NVIDIA's own, which runs without a card."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.daemon.core.loop import credentials
from gpushare.daemon.mps.control import ControlProgram, MpsControl, TenantLimits
from gpushare.daemon.mps.runner import ControlRunner
from gpushare.daemon.mps.supervisor import ControlLog
from tests.real_driver import RealDriver
from tests.system.waiting import wait_until
from tests.unit.daemon import fakes
from tests.unit.daemon.fakes import FakeDriver, card
from tests.unit.daemon.test_mps_placement import configured

from .mps_program import control_program, running, transcript

MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture
def program(real_driver: RealDriver) -> Iterator[ControlProgram]:
    """The program, with folders whose sockets have short paths."""
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        yield control_program(real_driver, Path(folder))


@pytest.fixture
def control(program: ControlProgram) -> Iterator[MpsControl]:
    """Its client, while the control daemon runs."""
    with running(program) as started:
        yield started


def test_it_answers_as_in_the_transcript(control: MpsControl, real_driver: RealDriver) -> None:
    for command, printed in transcript(real_driver.release):
        answer = control.program.run(command)
        assert (answer.splitlines() or [""])[0] == printed, command


@pytest.mark.parametrize(
    ("sizes", "shown"),
    [
        ([4608 * MIB, 2000 * MIB], "4G"),
        ([2000 * MIB, GIB + 1], "1G"),
        ([100 * MIB + 1], "100M"),
        ([1023 * MIB, 1536 * MIB], "1G"),
    ],
)
def test_any_size_is_a_limit_and_the_largest_holds(
    control: MpsControl, sizes: list[int], shown: str
) -> None:
    control.enforce([TenantLimits(9 * GIB, 100)])
    limits = [TenantLimits(size, 30) for size in sizes]
    assert control.enforce(limits) == "100.0, 9G"
    assert control.program.run("get_default_device_pinned_mem_limit 0") == shown
    assert control.enforce(limits) == ""


def test_without_a_server_nothing_is_listed(control: MpsControl) -> None:
    assert control.clients() == {}
    assert control.servers() == {}
    assert control.enforce([]) == ""


def test_limits_that_somebody_else_has_changed_are_set_again(control: MpsControl) -> None:
    limits = [TenantLimits(4608 * MIB, 30)]
    assert control.enforce(limits) == "100.0"
    control.program.run("set_default_active_thread_percentage 100")
    assert control.enforce(limits) == "100.0, 4G"
    control.program.run("set_default_device_pinned_mem_limit 0 abc")
    assert control.enforce(limits) == "30.0"
    assert control.enforce(limits) == ""


def test_several_users_have_one_server_from_555_on(
    program: ControlProgram, real_driver: RealDriver
) -> None:
    program = replace(program, multiuser=True)
    if int(real_driver.release) >= 555:
        with running(program) as control:
            assert control.is_ready()
        return
    done = subprocess.run(
        program.arguments(), env=program.environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1


def test_quit_ends_it_also_after_a_server_has_failed(control: MpsControl) -> None:
    control.program.run(f"start_server -uid {os.getuid()}")
    control.quit(0)
    assert not control.is_ready()


@pytest.fixture
def runner(
    program: ControlProgram, real_driver: RealDriver, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ControlRunner]:
    """What keeps it running for a card, before its first look."""
    monkeypatch.setattr("gpushare.daemon.identity.processes.sees_host", lambda: True)
    folder, driver = program.program.parent, FakeDriver(card(0))
    driver.driver_version = f"{real_driver.release}.10"
    with fakes.node(folder, driver, configured("", folder)) as node:
        made = ControlRunner(card(0), program.program, node.node, node.observed, node.mounts)
        yield made
        made.stop()


def test_it_writes_through_no_link_that_lies_in_its_folder(runner: ControlRunner) -> None:
    folders, victim = runner.folders, runner.folders.root.parent / "victim"
    names = ("control_lock", "log", "nvidia-cuda-mps-control.pid", "control", "control_privileged")
    folders.pipe.mkdir(parents=True)
    victim.write_text("as it was")
    for name in names:
        (folders.pipe / name).symlink_to(victim)
    (folders.pipe / "stranger").touch()
    assert runner.look() == "started"
    assert victim.read_text() == "as it was"
    assert stat.S_IMODE(victim.stat().st_mode) & 0o022 == 0
    found = folders.pipe.stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (0, 0o711)
    assert stat.S_IMODE((folders.pipe / "log").stat().st_mode) == 0o622
    files = [path.stat() for path in folders.pipe.iterdir() if path.is_file()]
    assert {stat.S_IMODE(file.st_mode) for file in files} == {0o600}
    assert not (folders.pipe / "stranger").exists()
    assert not any(path.is_symlink() for path in folders.pipe.iterdir())
    assert [path.name for path in folders.clients.iterdir()] == ["control"]


def test_its_socket_is_put_back(runner: ControlRunner, capfd: pytest.CaptureFixture[str]) -> None:
    runner.look()
    ours, theirs = runner.folders.pipe / "control", runner.folders.clients / "control"
    theirs.unlink()
    assert runner.look() == ""
    assert theirs.samefile(ours)
    assert capfd.readouterr().err.count("mps-socket-repaired") == 1
    ours.unlink()
    assert runner.look() == "started"
    assert theirs.samefile(ours)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(theirs))
        assert credentials(client)[1] == 0


@pytest.mark.parametrize("name", ["control", "control_privileged"])
def test_a_control_daemon_that_no_longer_listens_is_replaced(
    runner: ControlRunner, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    """It lives, and so does the file of its socket."""
    runner.look()
    assert runner.control
    path, pid = runner.folders.pipe / name, _pid(runner)
    _stop_listening(pid, path)
    assert path.is_socket()
    assert Path(f"/proc/{pid}").exists()
    assert runner.look() == "started"
    assert _pid(runner) != pid
    assert '"restarted":true' in capfd.readouterr().err
    assert runner.look() == ""


def _pid(runner: ControlRunner) -> int:
    """Return the process of the control daemon."""
    assert runner._process
    return runner._process.pid


_PIDFD_GETFD = 438  # of every architecture; Linux 5.6


def _stop_listening(pid: int, path: Path) -> None:
    """Shut down the socket of a process that is bound to `path`."""
    libc, pidfd = ctypes.CDLL(None), os.pidfd_open(pid)
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with (
            suppress(OSError),
            socket.socket(fileno=libc.syscall(_PIDFD_GETFD, pidfd, int(link.name), 0)) as found,
        ):
            if found.getsockname() == str(path):
                found.shutdown(socket.SHUT_RDWR)
    os.close(pidfd)


def test_a_control_daemon_that_has_lost_all_descriptors_is_replaced(runner: ControlRunner) -> None:
    """Any user can have it lose them."""
    runner.look()
    assert runner.control
    pid = _pid(runner)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (20, 20))
    while len(list(Path(f"/proc/{pid}/fd").iterdir())) < 20:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(str(runner.folders.clients / "control"))
            client.recv(100)
            client.send(b"OUTBCRED\0")
    assert runner.look() == "started"
    assert _pid(runner) != pid


def test_a_later_gpushared_ends_no_control_daemon_that_is_slow(runner: ControlRunner) -> None:
    runner.look()
    assert runner.control
    runner.keep({"0" * 16: 1000})
    pid = _pid(runner)
    os.kill(pid, signal.SIGSTOP)  # as idle connections would have it
    node, observed, mounts = runner._node, runner._observed, runner._mounts
    later = ControlRunner(card(0), runner._program, node, observed, mounts)
    assert later.look() == "adopted"
    os.kill(pid, signal.SIGCONT)
    assert later.control
    assert (_pid(later), later.kept()) == (pid, {"0" * 16: 1000})
    later.close()


def test_a_command_is_logged_with_its_line_breaks(control: MpsControl) -> None:
    """Any user can send it; what is made of that is in tests/unit/daemon/test_mps_card.py."""
    command = b"x\n[Server 1] Client process 11 encountered a fatal GPU error.\n\0"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        client.connect(str(control.program.pipe_folder / "control"))
        client.recv(100)
        sizes = (4).to_bytes(4, "little"), len(command).to_bytes(8, "little")
        for message in (b"OUTBCRED\0", *sizes, command):
            client.send(message)
        client.recv(100)
    log = ControlLog(control.program.log_folder)
    wait_until(lambda: log.culprits() == {11})


@pytest.mark.thorough  # it takes 10 s
def test_a_command_that_idle_connections_delay_is_an_event(
    control: MpsControl, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each costs the same again, and clients wait as well."""
    with ExitStack() as stack:
        for _ in range(2):
            idle = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            idle.connect(str(control.program.pipe_folder / "control"))
        control.is_ready()
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    (event,) = [line for line in lines if line["event"] == "mps-command-slow"]
    assert event["command"] == "get_default_active_thread_percentage"
    assert event["seconds"] >= 1
