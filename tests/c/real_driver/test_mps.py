# SPDX-License-Identifier: Apache-2.0
"""The client of an MPS control daemon, against NVIDIA's own, which runs without a card."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare.daemon.core.loop import credentials
from gpushare.daemon.mps.control import ControlProgram, MpsControl, TenantLimits
from tests.real_driver import RealDriver

from .mps_program import control_program, running, transcript

MIB, GIB = 1 << 20, 1 << 30
UID = 1000


@pytest.fixture
def program(real_driver: RealDriver) -> Iterator[ControlProgram]:
    """The program, with folders whose sockets have short paths."""
    if not real_driver.program("nvidia-cuda-mps-control").exists():
        pytest.skip(f"{real_driver.release} has no MPS")
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


def test_any_size_is_a_limit_and_is_lowered_again(control: MpsControl) -> None:
    sizes = {"a": 4608 * MIB, "b": 2000 * MIB, "c": GIB + 1, "d": 100 * MIB + 1, "e": 1023 * MIB}
    for name, size in sizes.items():
        control.add(name, TenantLimits(size, 30), UID)
    control.add("a", TenantLimits(1536 * MIB, 40), UID)
    control.remove("b")
    control.remove("a")
    shown = control.program.run("get_default_device_pinned_mem_limit 0")
    assert shown == "1G"
    for name in "cde":
        control.remove(name)


def test_without_a_server_nothing_is_listed(control: MpsControl) -> None:
    assert control.clients() == ()
    assert control.servers() == ()
    assert control.enforce([]) == ""


def test_limits_that_somebody_else_has_changed_are_set_again(control: MpsControl) -> None:
    control.add("a", TenantLimits(4608 * MIB, 30), UID)
    assert control.enforce([]) == ""
    control.program.run("set_default_active_thread_percentage 100")
    assert control.enforce([]) == "100.0, 4G"
    control.program.run("set_default_device_pinned_mem_limit 0 abc")
    assert control.enforce([]) == "30.0"
    assert control.enforce([]) == ""


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


@pytest.mark.thorough  # it takes 10 s
def test_a_command_that_idle_connections_delay_names_them(
    control: MpsControl, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each costs the same again, and clients wait as well."""
    slow = MpsControl(replace(control.program, pid=_listener(control)))
    with ExitStack() as stack:
        for _ in range(2):
            idle = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            idle.connect(str(control.program.pipe_folder / "control"))
        slow.is_ready()
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    (event,) = [line for line in lines if line["event"] == "mps-command-slow"]
    assert event["command"] == "get_default_active_thread_percentage"
    assert event["peers"] == [os.getpid()]


def _listener(control: MpsControl) -> int:
    """Return the process behind the socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(control.program.pipe_folder / "control"))
        return credentials(connection)[0]
