# SPDX-License-Identifier: Apache-2.0
"""Static partitions and priorities of protocol 2, as programs and the control daemon see them."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from .conftest import SECONDS, SimulatorMachine, wait_until
from .mps_daemon import MpsDaemon, mps_daemon

LAUNCH_FAILED, WITHOUT_PARTITION = 719, 915


def partition(control: MpsDaemon, chunks: int) -> str:
    """Create a partition; return the value of CUDA_MPS_SM_PARTITION."""
    uuid = control.machine.simulator.uuids[0]
    (printed,) = control.command(f"sm_partition add {uuid} {chunks}")
    _, name, created = printed.split()
    assert created == "created"
    return name


@pytest.fixture
def control(simulate: Callable[..., SimulatorMachine]) -> Iterator[MpsDaemon]:
    """A control daemon with static partitions, of an H200 with driver 610."""
    machine = simulate(driver_version="610.43.02", cuda_version="13.3")
    with mps_daemon(machine, "-S") as running:
        yield running


def test_a_program_sees_the_multiprocessors_of_its_partition(control: MpsDaemon) -> None:
    large, small = partition(control, 12), partition(control, 4)
    for name, multiprocessors in ((large, 96), (small, 36)):  # the last chunk with the remainder
        with control.client(
            CUDA_MPS_SM_PARTITION=name, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="10"
        ).started("tenant.py") as tenant:
            assert tenant.ask("init") == 0
            assert tenant.ask("context") == 0
            assert tenant.ask("multiprocessors") == multiprocessors


@pytest.mark.parametrize("name", ["", "GPU-0000/A", "{uuid}/unknown"])
def test_a_program_without_a_partition_gets_no_context(control: MpsDaemon, name: str) -> None:
    partition(control, 4)
    named = name.format(uuid=control.machine.simulator.uuids[0])
    with control.client(CUDA_MPS_SM_PARTITION=named).started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        assert tenant.ask("context") == WITHOUT_PARTITION


def test_lspart_has_free_and_used_chunks(control: MpsDaemon) -> None:
    name = partition(control, 3)
    short = control.machine.simulator.uuids[0][:12]
    with control.client(CUDA_MPS_SM_PARTITION=name).started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        rows = [line.split() for line in control.command("lspart")]
        assert rows[2:] == [
            [short, "-", "13", "3", "108", "24", "-"],
            [short, name.partition("/")[2], "-", "3", "-", "24", "Yes"],
        ]


def test_chunks_are_given_once(control: MpsDaemon) -> None:
    partition(control, 12)
    uuid = control.machine.simulator.uuids[0]
    (printed,) = control.command(f"sm_partition add {uuid} 5")
    assert "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION" in printed


def test_a_partition_with_clients_is_not_removed(control: MpsDaemon) -> None:
    name = partition(control, 4)
    uuid, _, word = name.partition("/")
    with control.client(CUDA_MPS_SM_PARTITION=name).started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        assert "has clients" in control.command(f"sm_partition rm {uuid} {word}")[0]
        tenant.kill()
        wait_until(lambda: control.command(f"sm_partition rm {uuid} {word}") == [])
    assert len(control.command("lspart")) == 3


def test_from_driver_610_on_a_fault_stays_in_its_partition(control: MpsDaemon) -> None:
    first, second = partition(control, 4), partition(control, 4)
    with ExitStack() as stack:
        culprit, beside, other = (
            stack.enter_context(control.client(CUDA_MPS_SM_PARTITION=name).started("tenant.py"))
            for name in (first, first, second)
        )
        for tenant in (culprit, beside, other):
            assert tenant.ask("init") == 0
            assert tenant.ask("context") == 0
        assert culprit.ask("trap")[1] == LAUNCH_FAILED
        wait_until(lambda: beside.ask("sync") == LAUNCH_FAILED)
        assert other.ask("sync") == 0
        (server,) = control.command("get_server_list")
        assert control.command(f"get_server_status {server}") == ["ACTIVE"]


def test_before_driver_610_a_fault_leaves_its_partition(
    simulate: Callable[..., SimulatorMachine],
) -> None:
    machine = simulate(driver_version="590.44.01", cuda_version="13.1")
    with mps_daemon(machine, "-S") as control, ExitStack() as stack:
        names = partition(control, 4), partition(control, 4)
        culprit, other = (
            stack.enter_context(control.client(CUDA_MPS_SM_PARTITION=name).started("tenant.py"))
            for name in names
        )
        for tenant in (culprit, other):
            assert tenant.ask("init") == 0
            assert tenant.ask("context") == 0
        assert culprit.ask("trap")[1] == LAUNCH_FAILED
        wait_until(lambda: other.ask("sync") == LAUNCH_FAILED)


def test_the_size_of_a_chunk_is_the_architectures(
    simulate: Callable[..., SimulatorMachine],
) -> None:
    machine = simulate("a100-40gb", driver_version="590.44.01", cuda_version="13.1")
    with mps_daemon(machine, "-S") as control:
        row = control.command("lspart")[2].split()
        assert row[2:6] == ["27", "0", "108", "0"]
    machine = simulate("t4", driver_version="590.44.01", cuda_version="13.1")
    with mps_daemon(machine, "-S") as control:
        uuid = control.machine.simulator.uuids[0]
        assert "CUDA_ERROR" in control.command(f"sm_partition add {uuid} 1")[0]


@pytest.mark.parametrize(
    ("versions", "option", "known"),
    [
        (("580.65.06", "13.0"), "-S", False),
        (("590.44.01", "13.1"), "-S", True),
        (("590.44.01", "13.1"), "--static-partitioning", True),
        (("610.43.02", "13.3"), "--protocol", False),
        (("580.65.06", "13.0"), "-M", True),
        (("580.65.06", "13.0"), "--multiuser", True),
    ],
)
def test_a_driver_has_the_options_of_its_version(
    simulate: Callable[..., SimulatorMachine], versions: tuple[str, str], option: str, known: bool
) -> None:
    driver, cuda = versions
    machine = simulate(driver_version=driver, cuda_version=cuda)
    done = subprocess.run(
        [str(machine.simulator.mps_control), option],
        env=machine.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ("unknown option" in done.stderr, done.returncode) == (not known, int(not known))


def test_priorities_are_0_and_1(control: MpsDaemon) -> None:
    assert control.command("get_default_client_priority", "set_default_client_priority 1") == [
        "0",
        "1",
    ]
    assert "Invalid arguments" in control.command("set_default_client_priority 2")[0]


def test_devices_and_their_clients_are_listed(control: MpsDaemon) -> None:
    uuid, name = control.machine.simulator.uuids[0], partition(control, 4)
    with control.client(CUDA_MPS_SM_PARTITION=name).started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        assert control.command("get_device_client_list") == [f"{uuid} {tenant.ask('pid')}"]
        header, row = control.command("device_query --csv")
        assert header.split(",")[3] == "Device UUID"
        assert row.split(",")[3] == uuid


def test_partitions_need_the_mode(machine: SimulatorMachine) -> None:
    with mps_daemon(machine) as control:
        assert "not enabled" in control.command("lspart")[0]


def test_commands_of_protocol_2_have_a_socket_for_the_daemons_user(control: MpsDaemon) -> None:
    """Clients of any user reach another one."""
    sockets = {name: control.folder / "pipe" / name for name in ("control", "control_privileged")}
    modes = {name: stat.S_IMODE(path.stat().st_mode) for name, path in sockets.items()}
    assert modes == {"control": 0o666, "control_privileged": 0o755}
    assert control.run(lines="get_server_list") == (0, "")
    sockets["control_privileged"].unlink()
    assert control.run(lines="get_server_list")[0] == 1
