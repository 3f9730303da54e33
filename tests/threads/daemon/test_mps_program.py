# SPDX-License-Identifier: Apache-2.0
"""Commands to an MPS control daemon that fail, and what it prints."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpushare.daemon.mps import supervisor as module
from gpushare.daemon.mps.control import MpsControl, control_of
from gpushare.daemon.mps.model import MpsError, TenantLimits
from gpushare.daemon.mps.process import ControlProcess
from gpushare.daemon.mps.program import ControlProgram, Protocol, has_static_partitions, protocol_of
from gpushare.daemon.mps.supervisor import MpsSupervisor
from tests.unit.daemon import fakes
from tests.unit.daemon.fakes import FakeDaemon, FakeDriver, card
from tests.unit.daemon.test_mps_placement import configured
from tests.unit.daemon.test_mps_supervisor import MODE

GIB = 1 << 30
LIMITS = TenantLimits(2 * GIB, 25)


@pytest.mark.parametrize(
    ("limits", "key"),
    [
        ((0, 25), "memory_bytes"),
        ((GIB, 0), "cores_percent"),
        ((GIB, 101), "cores_percent"),
        ((GIB, 25, 2), "priority"),
        ((GIB, 25, 0, 0), "chunks"),
    ],
)
def test_impossible_limits_are_refused(limits: tuple[int, ...], key: str) -> None:
    with pytest.raises(ValueError, match=key):
        TenantLimits(*limits)


@pytest.fixture
def scripted(tmp_path: Path) -> Callable[..., MpsControl]:
    """Return a maker of clients of a program that is a shell script."""

    def make(script: str, protocol: Protocol = 2, folder: str = "pipe") -> MpsControl:
        program = tmp_path / "nvidia-cuda-mps-control"
        program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        program.chmod(0o755)
        return control_of(
            ControlProgram(program, tmp_path / folder, tmp_path / "log", "GPU-1234", protocol)
        )

    return make


def test_a_program_that_ends_before_it_is_looked_at_is_waited_for() -> None:
    child = subprocess.Popen(["false"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    process = ControlProcess(child.pid, 0, child)
    assert process.has_ended()
    assert child.returncode == 1
    process.close()


def test_a_setting_without_effect_is_an_error(scripted: Callable[..., MpsControl]) -> None:
    control = scripted("echo 100.0")
    with pytest.raises(MpsError, match="set_default_active_thread_percentage 25: has no effect"):
        control.add("one", LIMITS, 0)
    control = scripted("echo Unknown command")
    with pytest.raises(MpsError, match="Unknown command"):
        control.add("one", LIMITS, 0)
    assert not control.is_ready()


def test_a_failed_command_is_told_in_its_own_words(scripted: Callable[..., MpsControl]) -> None:
    for protocol in (2, 3):
        control = scripted("echo no such thing >&2; exit 1", protocol)
        with pytest.raises(MpsError, match="no such thing"):
            control.servers()
        with pytest.raises(MpsError, match="no such thing"):
            control.quit(0)


def test_a_command_that_does_not_end_is_an_error(scripted: Callable[..., MpsControl]) -> None:
    control = scripted("exec sleep 1000")
    with pytest.raises(MpsError, match=r"get_server_list: no answer within 0\.1 s"):
        control.program.run(commands="get_server_list", seconds=0.1)


def test_a_program_that_is_not_there_is_an_error(scripted: Callable[..., MpsControl]) -> None:
    control = scripted("true")
    control.program.program.unlink()
    with pytest.raises(MpsError, match="No such file"):
        control.servers()


@pytest.mark.parametrize(
    ("answer", "call"),
    [
        ("nonsense", "servers"),
        ("1 2 3", "clients"),
        ("GPU-1234 - x 1 1 1 -", "partitions"),
        ("GPU-99 - 1 1 1 1 -", "partitions"),
    ],
)
def test_lists_that_cannot_be_read_are_an_error(
    scripted: Callable[..., MpsControl], answer: str, call: str
) -> None:
    control = scripted(f"echo '{answer}'")
    if call == "clients":
        control = scripted("echo one two three four five six")
    with pytest.raises(MpsError):
        getattr(control, call)()


def test_the_forms_of_lspart(scripted: Callable[..., MpsControl]) -> None:
    """The manual's has a hyphen for what does not apply, and drivers print nothing there."""
    manual = (
        "GPU Partition free used free used clients\n chunk chunk SM SM\n"
        "GPU-1234 - 3 7 24 56 -\nGPU-1234 Dx4A/A - 7 - 56 Yes"
    )
    driver = manual.replace(" - 7 - 56", " 7 56").replace("1234 - 3 7 24 56 -", "1234 3 7 24 56")
    for text in (manual, driver):
        found = scripted(f"echo '{text}'").partitions()
        assert (found.free_chunks, found.total_chunks) == (3, 10)
        assert (found.free_multiprocessors, found.total_multiprocessors) == (24, 80)
        (part,) = found.partitions
        assert (part.id, part.chunks, part.multiprocessors) == ("Dx4A/A", 7, 56)
        assert part.in_use


def test_a_folder_with_too_long_a_path_is_refused(scripted: Callable[..., MpsControl]) -> None:
    for protocol in (2, 3):
        control = scripted("echo", protocol, "x" * 100)
        with pytest.raises(MpsError, match="at most 107 bytes"):
            control.add("one", LIMITS, 0)


def test_arguments_and_environment(tmp_path: Path) -> None:
    program = ControlProgram(tmp_path / "p", tmp_path / "pipe", tmp_path / "log", "GPU-1")
    assert program.arguments()[1:] == ["-f"]
    static = dataclasses.replace(program, static=True, multiuser=True)
    assert static.arguments()[1:] == ["-f", "-S", "-multiuser-server"]
    third = dataclasses.replace(program, protocol=3, multiuser=True)
    assert third.arguments()[1:] == ["-f", "-p", "3", "-m"]
    env = third.environment()
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert env["CUDA_MPS_PROTOCOL_VERSION"] == "3"
    assert env["CUDA_MPS_PIPE_DIRECTORY"] == str(tmp_path / "pipe")


def test_the_features_of_a_driver() -> None:
    assert [protocol_of(text) for text in ("580.65.06", "615.71.09", "620", "")] == [2, 3, 3, 2]
    assert [has_static_partitions(version) for version in (12080, 13000, 13010)] == [
        False,
        False,
        True,
    ]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeDaemon]:
    """A node of one card in MPS mode, whose control daemons are never started."""
    config = configured(MODE, tmp_path)
    with fakes.node(tmp_path, FakeDriver(card(0)), config) as made:
        yield made


def test_a_program_that_does_not_start_is_a_fault_of_the_card(
    node: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text("#!/bin/sh\necho no device >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(module, "find_program", lambda _: program)
    monkeypatch.setattr("gpushare.daemon.identity.processes.sees_host", lambda: True)
    supervisor = MpsSupervisor(node)
    node.decide.run(supervisor.check)
    supervisor.close()  # once the first look is done
    assert "does not run: it does not answer: no device" in node.mps.fault_of(card(0).uuid)


def test_without_the_hosts_processes_no_server_is_started(
    node: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_program", lambda _: tmp_path / "none")
    monkeypatch.setattr("gpushare.daemon.identity.processes.sees_host", lambda: False)
    supervisor = MpsSupervisor(node)
    node.decide.run(supervisor.check)
    supervisor.close()
    assert "not in the host's PID namespace" in node.mps.fault_of(card(0).uuid)


def test_partitions_need_a_driver_that_has_them(
    node: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.config = configured('cards: {"0": {backend: mps, mps_partitions: true}}', tmp_path)
    monkeypatch.setattr(module, "find_program", lambda _: tmp_path / "none")
    monkeypatch.setattr("gpushare.daemon.identity.processes.sees_host", lambda: True)
    supervisor = MpsSupervisor(node)
    node.decide.run(supervisor.check)
    supervisor.close()
    assert "mps_partitions needs a driver of CUDA 13.1" in node.mps.fault_of(card(0).uuid)
