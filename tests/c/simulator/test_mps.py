# SPDX-License-Identifier: Apache-2.0
"""The MPS control daemon of the simulated driver, as programs and its commands see it."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpushare import simulator

from .conftest import SECONDS, SimulatorMachine, wait_until
from .mps_daemon import UID, USER, MpsDaemon, mps_daemon

MIB = 1 << 20
GIB = 1 << 30
LAUNCH_FAILED, CONNECTION_FAILED, RPC_FAILURE, NOT_READY, MAX_CLIENTS = 719, 805, 806, 807, 808
TERMINATED = 810
DEVICE_UNAVAILABLE = 46


@pytest.fixture
def control(machine: SimulatorMachine) -> Iterator[MpsDaemon]:
    """A control daemon of a machine with one H200."""
    with mps_daemon(machine) as running:
        yield running


def test_a_program_starts_a_server_and_is_its_client(control: MpsDaemon) -> None:
    assert control.command("get_server_list") == []
    with control.client().started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        assert tenant.ask("context") == 0
        pid = str(tenant.ask("pid"))
        (server,) = control.command("get_server_list")
        assert control.command(f"get_server_status {server}") == ["ACTIVE"]
        assert control.command(f"get_client_list {server}") == [pid]
        row = control.command("ps")[1].split(maxsplit=5)
        assert row[:3] == [pid, "0", server]
        assert control.machine.simulator.uuids[0].startswith(row[3])
        assert row[4] == str(Path("/proc/self/ns/pid").readlink()).strip("pid:[]")
        assert "tenant.py" in row[5]
        assert sorted(tenant.ask("listed")) == sorted([int(pid), int(server)])
        assert tenant.ask("listed MPS") == [int(pid)]
        assert tenant.ask("in_mps") == 1
        tenant.kill()
        wait_until(lambda: control.command(f"get_client_list {server}") == [])


def test_a_card_for_one_process_takes_the_server_and_its_clients(control: MpsDaemon) -> None:
    """Without MPS, a program then gets an error rather than the card without limits."""
    simulator.fail(control.machine.simulator.device, compute_mode=3)
    client = control.client()
    with (
        client.started("tenant.py") as one,
        client.started("tenant.py") as two,
        control.machine.started("tenant.py") as other,
    ):
        for tenant in (one, two):
            assert tenant.ask("init") == 0
            assert tenant.ask("context") == 0
        assert other.ask("init") == 0
        assert other.ask("context") == DEVICE_UNAVAILABLE


def test_a_wrong_pipe_directory_means_the_whole_card_without_a_word(control: MpsDaemon) -> None:
    control.command("set_default_active_thread_percentage 50")
    with control.client(CUDA_MPS_PIPE_DIRECTORY="/nowhere").started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        assert tenant.ask("multiprocessors") == 132
        assert tenant.ask("listed MPS") == []
        assert tenant.ask("in_mps") == 0
    assert control.command("get_server_list") == []


@pytest.mark.parametrize(
    ("percentage", "multiprocessors"),
    [("", 66), ("25", 32), ("80", 66), ("nonsense", 66), ("0.1", 2)],
)
def test_a_program_can_only_lower_its_percentage(
    control: MpsDaemon, percentage: str, multiprocessors: int
) -> None:
    assert control.command(
        "get_default_active_thread_percentage", "set_default_active_thread_percentage 50"
    ) == ["100.0", "50.0"]
    client = control.client(CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=percentage)
    with client.started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        assert tenant.ask("multiprocessors") == multiprocessors


def test_a_default_is_the_next_servers_and_a_servers_limit_its_next_clients(
    control: MpsDaemon,
) -> None:
    with control.client().started("tenant.py") as one, control.client().started("tenant.py") as two:
        assert one.ask("init") == 0
        (server,) = control.command("get_server_list")
        control.command("set_default_active_thread_percentage 10")
        assert control.command(f"get_active_thread_percentage {server}") == ["100.0"]
        control.command(f"set_active_thread_percentage {server} 50")
        assert one.ask("multiprocessors") == 132
        assert two.ask("init") == 0
        assert two.ask("multiprocessors") == 66


def test_the_memory_limit_holds_for_each_process(control: MpsDaemon) -> None:
    control.command("set_default_device_pinned_mem_limit 0 2G")
    assert control.command("get_default_device_pinned_mem_limit 0") == ["2G"]
    with control.client().started("tenant.py") as one, control.client().started("tenant.py") as two:
        for tenant in (one, two):
            assert tenant.ask("init") == 0
            assert tenant.ask("context") == 0
            free, total = tenant.ask("info")
            assert free < 2 * GIB < 100 * GIB < total
            assert tenant.ask(f"alloc {free + 2 * MIB}")[0] == 2
            assert tenant.ask(f"alloc {free}")[0] == 0
            assert tenant.ask("info")[0] == 0


@pytest.mark.parametrize(
    ("variable", "limited"),
    [
        ("0=1G", True),
        ("{uuid}=1024M", True),
        ("0=4G", False),  # only lowers it
        ("0=1G,7=1G", None),  # one entry of a device that is not there: no limit at all
    ],
)
def test_the_memory_limit_of_the_environment(
    control: MpsDaemon, variable: str, limited: bool | None
) -> None:
    control.command("set_default_device_pinned_mem_limit 0 2G")
    uuid = control.machine.simulator.uuids[0]
    client = control.client(CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=variable.format(uuid=uuid))
    with client.started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        assert tenant.ask("context") == 0
        free = tenant.ask("info")[0]
    limits = {True: (0, GIB), False: (GIB, 2 * GIB), None: (100 * GIB, 200 * GIB)}
    least, most = limits[limited]
    assert least < free < most


def test_a_limit_for_a_device_that_is_not_there_is_taken_without_a_word(control: MpsDaemon) -> None:
    assert control.command("set_default_device_pinned_mem_limit 5 1G") == ["1G"]
    with control.client().started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        assert tenant.ask("context") == 0
        assert tenant.ask("info")[0] > 100 * GIB


def test_a_daemon_offers_its_own_cards_in_its_order(
    simulate: Callable[..., SimulatorMachine],
) -> None:
    machine = simulate("t4", cards=3)
    first, second, third = machine.simulator.uuids
    with mps_daemon(machine, CUDA_VISIBLE_DEVICES=f"{third},{first}") as control:
        for env, seen in (
            ({}, [third, first]),
            ({"CUDA_VISIBLE_DEVICES": "1"}, [first]),
            ({"CUDA_VISIBLE_DEVICES": third}, [third]),
            ({"CUDA_VISIBLE_DEVICES": f"0,{second}"}, [third]),
        ):
            with control.client(**env).started("tenant.py") as tenant:
                assert tenant.ask("init") == 0
                assert tenant.ask("uuids") == seen
        with control.client(CUDA_VISIBLE_DEVICES=second).started("tenant.py") as tenant:
            assert tenant.ask("init") == 100


def test_a_fault_ends_every_client_and_names_its_cause_in_the_log(control: MpsDaemon) -> None:
    with ExitStack() as stack:
        client = control.client()
        one, two = (stack.enter_context(client.started("tenant.py")) for _ in range(2))
        other = stack.enter_context(control.machine.started("tenant.py"))
        for tenant in (one, two, other):
            assert tenant.ask("init") == 0
            assert tenant.ask("context") == 0
        (server,) = control.command("get_server_list")
        assert one.ask("trap") == [0, LAUNCH_FAILED]
        wait_until(lambda: two.ask("sync") == LAUNCH_FAILED)
        assert two.ask(f"alloc {MIB}")[0] == LAUNCH_FAILED
        assert other.ask(f"alloc {MIB}")[0] == 0
        assert control.command(f"get_server_status {server}") == ["FAULT"]
        assert f"Client {one.ask('pid')} has caused a fatal fault" in control.log()
        late = stack.enter_context(client.started("tenant.py"))
        assert late.ask("init") == NOT_READY
        one.kill()
        assert control.command(f"get_server_status {server}") == ["FAULT"]
        two.kill()
        wait_until(lambda: control.command(f"get_server_status {server}") == ["ACTIVE"])
        assert late.ask("init") == 0


def test_without_mps_a_fault_is_the_programs_own(machine: SimulatorMachine) -> None:
    with machine.started("tenant.py") as one, machine.started("tenant.py") as two:
        for tenant in (one, two):
            assert tenant.ask("init") == 0
            assert tenant.ask("context") == 0
        assert one.ask("trap") == [0, LAUNCH_FAILED]
        assert one.ask(f"alloc {MIB}")[0] == LAUNCH_FAILED
        assert two.ask(f"alloc {MIB}")[0] == 0


def test_the_clients_of_a_killed_server_lose_it_and_the_next_starts_another(
    control: MpsDaemon,
) -> None:
    client = control.client()
    with client.started("tenant.py") as one, client.started("tenant.py") as two:
        assert one.ask("init") == 0
        assert one.ask("context") == 0
        (server,) = control.command("get_server_list")
        os.kill(int(server), signal.SIGKILL)
        wait_until(lambda: one.ask("sync") == RPC_FAILURE)
        assert two.ask("init") == 0
        (another,) = control.command("get_server_list")
        assert another != server


def test_a_client_is_terminated_alone(control: MpsDaemon) -> None:
    client = control.client()
    with client.started("tenant.py") as one, client.started("tenant.py") as two:
        for tenant in (one, two):
            assert tenant.ask("init") == 0
            assert tenant.ask("context") == 0
        (server,) = control.command("get_server_list")
        assert control.command(f"terminate_client {server} {one.ask('pid')}") == ["0"]
        wait_until(lambda: one.ask("sync") == TERMINATED)
        assert two.ask("sync") == 0


def test_another_user_waits_until_the_clients_of_the_first_are_gone(control: MpsDaemon) -> None:
    client = control.client()
    with client.started("tenant.py") as root, client.started("tenant.py", under=USER) as user:
        assert root.ask("init") == 0
        (server,) = control.command("get_server_list")
        assert user.process.stdin is not None
        user.process.stdin.write("init\n")
        user.process.stdin.flush()
        log = control.folder / "log" / "control.log"
        wait_until(lambda: f"User {UID}, client process {user.process.pid}" in log.read_text())
        assert control.command("get_server_list") == [server]
        root.kill()
        assert user.process.stdout is not None
        assert user.process.stdout.readline() == "0\n"
        (another,) = control.command("get_server_list")
        assert another != server


@pytest.mark.parametrize("option", ["-multiuser-server", "-M", "--multiuser"])
def test_a_multi_user_server_takes_clients_of_any_user(
    machine: SimulatorMachine, option: str
) -> None:
    with mps_daemon(machine, option) as control:
        client = control.client()
        with client.started("tenant.py") as root, client.started("tenant.py", under=USER) as user:
            assert root.ask("init") == 0
            assert user.ask("init") == 0
            (server,) = control.command("get_server_list")
            assert len(control.command(f"get_client_list {server}")) == 2


def test_the_clients_of_a_server_are_limited_by_the_release(control: MpsDaemon) -> None:
    with ExitStack() as stack:
        client = control.client()
        tenants = [stack.enter_context(client.started("tenant.py")) for _ in range(49)]
        assert [tenant.ask("init") for tenant in tenants] == [0] * 48 + [MAX_CLIENTS]


def test_quit_waits_for_the_clients_and_refuses_new_ones(control: MpsDaemon) -> None:
    client = control.client()
    with client.started("tenant.py") as one, client.started("tenant.py") as two:
        assert one.ask("init") == 0
        assert control.command("quit") == []
        assert two.ask("init") == NOT_READY
        assert control.process.poll() is None
        one.kill()
        assert control.process.wait(SECONDS) == 0
        assert not (control.folder / "pipe" / "control").exists()


def test_quit_with_a_time_ends_the_server(control: MpsDaemon) -> None:
    with control.client().started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        assert tenant.ask("context") == 0
        assert control.command("quit -t 0") == []
        assert control.process.wait(SECONDS) == 0
        assert tenant.ask("sync") == RPC_FAILURE


def test_one_daemon_a_pipe_directory(control: MpsDaemon) -> None:
    done = subprocess.run(
        [str(control.machine.simulator.mps_control), "-d"],
        env={**control.machine.env, **control.env},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert "already running" in done.stderr
    assert control.command("get_default_active_thread_percentage") == ["100.0"]


def test_an_option_of_another_protocol_is_unknown(machine: SimulatorMachine) -> None:
    done = subprocess.run(
        [str(machine.simulator.mps_control), "-f", "-p", "3"],
        env=machine.env,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "-p: unknown option\n")


def test_priorities_are_0_and_1(control: MpsDaemon) -> None:
    assert control.command("get_default_client_priority", "set_default_client_priority 1") == [
        "0",
        "1",
    ]
    assert "Invalid arguments" in control.command("set_default_client_priority 2")[0]


def test_devices_and_their_clients_are_listed(control: MpsDaemon) -> None:
    uuid = control.machine.simulator.uuids[0]
    with control.client().started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        assert control.command("get_device_client_list") == [f"{uuid} {tenant.ask('pid')}"]
        header, row = control.command("device_query --csv")
        assert header.split(",")[3] == "Device UUID"
        assert row.split(",")[3] == uuid


def test_commands_have_a_socket_for_the_daemons_user(control: MpsDaemon) -> None:
    """Clients of any user reach another one."""
    sockets = {name: control.folder / "pipe" / name for name in ("control", "control_privileged")}
    modes = {name: stat.S_IMODE(path.stat().st_mode) for name, path in sockets.items()}
    assert modes == {"control": 0o666, "control_privileged": 0o755}
    assert control.command("get_server_list") == []
    sockets["control_privileged"].unlink()
    with pytest.raises(subprocess.CalledProcessError):
        control.command("get_server_list")


def test_commands_need_a_daemon(machine: SimulatorMachine, tmp_path: Path) -> None:
    done = subprocess.run(
        [str(machine.simulator.mps_control)],
        input="get_server_list\n",
        env={**machine.env, "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert "Cannot find MPS control daemon process" in done.stderr


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("nonsense", "Unrecognized command"),
        ("get_server_status 1", "Server 1 not found"),
        ("set_default_device_pinned_mem_limit 0 1.5G", "Invalid arguments"),
        ("set_default_active_thread_percentage 120", "Invalid arguments"),
    ],
)
def test_wrong_commands_are_answered(control: MpsDaemon, line: str, answer: str) -> None:
    (printed,) = control.command(line)
    assert answer in printed
