# SPDX-License-Identifier: Apache-2.0
"""The stand-in for NVIDIA's MPS control daemon, as programs and its commands see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from gpushare import simulator
from tests.c.real_driver.mps_program import transcript
from tests.system.waiting import wait_until

from .conftest import ClientProcess, SimulatorMachine
from .mps_daemon import MpsDaemon, mps_daemon

MIB = 1 << 20
LAUNCH_FAILED, RPC_FAILURE, NOT_READY, TERMINATED = 719, 806, 807, 810
DEVICE_UNAVAILABLE = 46


@contextmanager
def started(*machines: SimulatorMachine) -> Iterator[list[ClientProcess]]:
    """Start a program on each machine, which makes a context."""
    with ExitStack() as stack:
        tenants = [stack.enter_context(machine.started("tenant.py")) for machine in machines]
        for tenant in tenants:
            assert (tenant.ask("init"), tenant.ask("context")) == (0, 0)
        yield tenants


@pytest.fixture
def control(machine: SimulatorMachine) -> Iterator[MpsDaemon]:
    """A control daemon for a machine with one card."""
    with mps_daemon(machine) as running:
        yield running


@pytest.mark.parametrize("release", ["535", "550", "555"])
def test_it_answers_as_nvidias_own(simulate: Callable[..., SimulatorMachine], release: str) -> None:
    with mps_daemon(simulate(driver_version=f"{release}.10")) as control:
        for command, printed in transcript(release):
            assert (control.command(command) or [""])[0] == printed, command


def test_a_program_starts_a_server_and_is_its_client(control: MpsDaemon) -> None:
    with started(control.client()) as (tenant,):
        pid = str(tenant.ask("pid"))
        (server,) = control.command("get_server_list")
        assert control.command(f"get_server_status {server}") == ["ACTIVE"]
        assert control.command("ps")[1].split()[:3] == [pid, "0", server]
        assert sorted(tenant.ask("listed")) == sorted([int(pid), int(server)])
        assert tenant.ask("listed MPS") == [int(pid)]
        assert tenant.ask("in_mps") == 1
        tenant.kill()
        wait_until(lambda: len(control.command("ps")) == 1)


def test_a_card_for_one_process_takes_the_server_and_its_clients(control: MpsDaemon) -> None:
    """Without MPS, a program then gets an error rather than the card without limits."""
    simulator.fail(control.machine.simulator.device, compute_mode=3)
    client = control.client()
    with started(client, client), control.machine.started("tenant.py") as other:
        assert other.ask("init") == 0
        assert other.ask("context") == DEVICE_UNAVAILABLE


def test_a_wrong_pipe_directory_means_the_whole_card_without_a_word(control: MpsDaemon) -> None:
    with control.client(CUDA_MPS_PIPE_DIRECTORY="/nowhere").started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        assert tenant.ask("listed MPS") == []
        assert tenant.ask("in_mps") == 0
    assert control.command("get_server_list") == []


def test_a_fault_ends_every_client_and_names_its_cause(control: MpsDaemon) -> None:
    client = control.client()
    with (
        started(client, client, control.machine) as (one, two, other),
        client.started("tenant.py") as late,
    ):
        (server,) = control.command("get_server_list")
        assert one.ask("trap") == [0, LAUNCH_FAILED]
        wait_until(lambda: two.ask("sync") == LAUNCH_FAILED)
        assert two.ask(f"alloc {MIB}")[0] == LAUNCH_FAILED
        assert other.ask(f"alloc {MIB}")[0] == 0
        assert control.command(f"get_server_status {server}") == ["FAULT"]
        assert f"Client process {one.ask('pid')} encountered a fatal" in control.log()
        assert late.ask("init") == NOT_READY
        for tenant in (one, two):
            tenant.kill()
        wait_until(lambda: control.command(f"get_server_status {server}") == ["ACTIVE"])
        assert late.ask("init") == 0


def test_without_mps_a_fault_is_the_programs_own(machine: SimulatorMachine) -> None:
    with started(machine, machine) as (one, two):
        assert one.ask("trap") == [0, LAUNCH_FAILED]
        assert one.ask(f"alloc {MIB}")[0] == LAUNCH_FAILED
        assert two.ask(f"alloc {MIB}")[0] == 0


def test_a_client_is_terminated_alone_and_all_end_with_the_server(control: MpsDaemon) -> None:
    with started(control.client(), control.client()) as (one, two):
        (server,) = control.command("get_server_list")
        assert control.command(f"terminate_client {server} {one.ask('pid')}") == ["0"]
        wait_until(lambda: one.ask("sync") == TERMINATED)
        assert two.ask("sync") == 0
        control.process.kill()
        wait_until(lambda: two.ask("sync") == RPC_FAILURE)
