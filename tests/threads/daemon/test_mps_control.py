# SPDX-License-Identifier: Apache-2.0
"""The client of an MPS control daemon, against that of the simulated driver."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from gpushare import simulator
from gpushare.daemon.mps import supervisor as module
from gpushare.daemon.mps.control import (
    ControlProgram,
    MpsControl,
    MpsError,
    TenantLimits,
)
from gpushare.daemon.mps.runner import ControlProcess
from gpushare.daemon.mps.supervisor import MpsSupervisor
from gpushare.simulator import Simulator, device_file
from tests.c.simulator.conftest import ClientProcess, SimulatorMachine
from tests.system.waiting import wait_until
from tests.unit.daemon import fakes
from tests.unit.daemon.fakes import FakeDaemon, FakeDriver
from tests.unit.daemon.test_mps_card import MODE
from tests.unit.daemon.test_mps_placement import configured

MIB, GIB = 1 << 20, 1 << 30
TERMINATED = 810
LIMITS = TenantLimits(2 * GIB, 25)


@dataclasses.dataclass(frozen=True)
class MpsCard:
    """A card with a control daemon, and programs on it."""

    simulator: Simulator
    control: MpsControl
    process: subprocess.Popen[bytes]

    @property
    def uuid(self) -> str:
        """The card's UUID."""
        return self.simulator.uuids[0]

    def started(self, limits: TenantLimits) -> AbstractContextManager[ClientProcess]:
        """Start a program of a container."""
        pipes = str(self.control.program.pipe_folder)
        found = {"CUDA_MPS_PIPE_DIRECTORY": pipes, **limits.variables}
        machine = SimulatorMachine(self.simulator, device_file.libraries())
        words = ["env", *(f"{name}={value}" for name, value in found.items())]
        return machine.started("tenant.py", under=words)

    @contextmanager
    def program(self, limits: TenantLimits) -> Iterator[ClientProcess]:
        """Start a program that has a context."""
        with self.started(limits) as started:
            assert started.ask("init") == 0
            assert started.ask("context") == 0
            yield started


@pytest.fixture
def card() -> Iterator[MpsCard]:
    """A card with a control daemon, as gpushared starts it; its sockets have short paths."""
    with tempfile.TemporaryDirectory(prefix="mps-") as name:
        folder = Path(name)
        made = simulator.create(folder / "cards")
        pipes, logs = folder / "pipe", folder / "log"
        for part in (pipes, logs):
            part.mkdir()
        program = ControlProgram(made.mps_control, pipes, logs, made.uuids[0], env=made.env)
        process = subprocess.Popen(program.arguments(), env=program.environment())
        control = MpsControl(program)
        try:
            wait_until(control.is_ready)
            yield MpsCard(made, control, process)
        finally:
            process.kill()
            process.wait()


def test_a_client_is_terminated_alone(card: MpsCard) -> None:
    with card.program(LIMITS) as one, card.program(LIMITS) as two:
        (server,) = card.control.servers()
        card.control.terminate(one.process.pid, server)
        wait_until(lambda: one.ask("sync") == TERMINATED)
        assert two.ask("sync") == 0
        one.kill()
        wait_until(lambda: len(card.control.clients()) == 1)
        card.control.terminate(one.process.pid, server)  # which has ended


def test_the_servers_limits_are_those_of_the_largest_container(card: MpsCard) -> None:
    control, two = card.control, TenantLimits(4 * GIB + 1, 10)
    control.enforce([LIMITS, two])
    with card.program(two):
        (server,) = control.servers()

        def said(command: str) -> str:
            return control.program.run(command)

        assert said(f"get_active_thread_percentage {server}") == "25.0"
        assert said(f"get_device_pinned_mem_limit {server} 0") == "4G"
        assert control.enforce([LIMITS]) == "25.0, 4G, 25.0, 4G"
        assert said(f"get_device_pinned_mem_limit {server} 0") == "2G"
        said(f"set_active_thread_percentage {server} 100")
        assert control.enforce([LIMITS], [server]) == "25.0, 2G, 100.0, 2G"
        assert control.enforce([LIMITS]) == ""


@pytest.fixture
def scripted(tmp_path: Path) -> Callable[..., MpsControl]:
    """Return a maker of clients of a program that is a shell script."""

    def make(script: str) -> MpsControl:
        program = tmp_path / "nvidia-cuda-mps-control"
        program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        program.chmod(0o755)
        return MpsControl(ControlProgram(program, tmp_path, tmp_path, "GPU-1234"))

    return make


def test_a_program_that_ends_before_it_is_looked_at_is_waited_for() -> None:
    child = subprocess.Popen(["false"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    process = ControlProcess(child.pid, 0, child)
    assert process.has_ended()
    assert child.returncode == 1
    process.close()


def test_a_setting_without_effect_is_an_error(scripted: Callable[..., MpsControl]) -> None:
    for answer in ("100.0", "Unknown command"):
        control = scripted(f"read -r line; test $line = get_server_list || echo {answer}")
        with pytest.raises(MpsError, match=f"set_default(.|\\n)* has no effect: {answer}"):
            control.enforce([LIMITS])
    assert not control.is_ready()


@pytest.mark.parametrize(
    ("script", "ask", "error"),
    [
        ("echo no such thing >&2; exit 1", MpsControl.servers, "no such thing"),
        (
            "exec sleep 1000",
            lambda control: control.program.run("get_server_list", 0.1),
            r"get_server_list: no answer within 0\.1 s",
        ),
        ("echo one two three four five six", MpsControl.servers, "get_server_list: one two"),
        ("echo one two three four five six", MpsControl.clients, "ps: one two"),
    ],
)
def test_what_fails_or_cannot_be_read_is_an_error_in_its_own_words(
    scripted: Callable[..., MpsControl],
    script: str,
    ask: Callable[[MpsControl], object],
    error: str,
) -> None:
    with pytest.raises(MpsError, match=error):
        ask(scripted(script))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeDaemon]:
    """A node of one card in MPS mode, whose control daemons are never started."""
    config = configured(MODE, tmp_path)
    with fakes.node(tmp_path, FakeDriver(fakes.card(0)), config) as made:
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
    assert "does not run: it does not answer: no device" in node.node.mps.fault_of(
        fakes.card(0).uuid
    )


def test_without_the_hosts_processes_no_server_is_started(
    node: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_program", lambda _: tmp_path / "none")
    monkeypatch.setattr("gpushare.daemon.identity.processes.sees_host", lambda: False)
    supervisor = MpsSupervisor(node)
    node.decide.run(supervisor.check)
    supervisor.close()
    assert "not in the host's PID namespace" in node.node.mps.fault_of(fakes.card(0).uuid)
