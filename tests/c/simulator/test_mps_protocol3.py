# SPDX-License-Identifier: Apache-2.0
"""Protocol 3 of the simulated MPS control daemon, as programs and its commands see it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from .conftest import SECONDS, SimulatorMachine, wait_until
from .mps_daemon import UID, USER, MpsDaemon, mps_daemon

GIB = 1 << 30
LAUNCH_FAILED, NOT_PERMITTED, RPC_FAILURE, NOT_READY, TERMINATED = 719, 800, 806, 807, 810
WITHOUT_PARTITION = 915
CSV = "--format=csv,noheader"

Simulate = Callable[..., SimulatorMachine]


def new_machine(simulate: Simulate, **options: int) -> SimulatorMachine:
    """Return a machine whose driver has protocol 3."""
    return simulate(driver_version="615.71.09", cuda_version="13.4", **options)


@pytest.fixture
def control(simulate: Simulate) -> Iterator[MpsDaemon]:
    """A control daemon of protocol 3, with the server `s` for all users."""
    with mps_daemon(new_machine(simulate), "-p", "3", "-m") as running:
        create_server(running, "s")
        yield running


def create_server(control: MpsDaemon, name: str, *options: str) -> None:
    control.must("server", "create", name, *options)
    wait_until(lambda: control.must("server", "get", name, "status") == "Ready")


def create_namespace(control: MpsDaemon, name: str, *limits: str) -> None:
    control.must("namespace", "create", name, "--server=s")
    if limits:
        control.must("namespace", "set", name, "--server=s", *limits)


def client(control: MpsDaemon, *route: str, **env: str) -> SimulatorMachine:
    """Return the machine as a client sees it that has the folder of a route."""
    folder = control.folder.joinpath("pipe", *route)
    return control.client(CUDA_MPS_PIPE_DIRECTORY=str(folder), **env)


def test_a_namespace_has_its_own_limits(control: MpsDaemon) -> None:
    create_namespace(control, "a", "--pinned-memory-limit=2G", "--active-thread-percentage=25")
    create_namespace(control, "b", "--pinned-memory-limit=1024M", "--client-priority=1")
    with (
        client(control, "s", "a").started("tenant.py") as one,
        client(control, "s", "b").started("tenant.py") as other,
    ):
        for tenant in (one, other):
            assert tenant.ask("init") == 0
            assert tenant.ask("context") == 0
            assert tenant.ask("in_mps") == 1
        assert (one.ask("multiprocessors"), other.ask("multiprocessors")) == (32, 132)
        assert GIB < one.ask("info")[0] < 2 * GIB
        assert other.ask("info")[0] < GIB
        pid = one.ask("pid")
        rows = control.must("client", "list", CSV).splitlines()
        assert any(row.startswith(f"{pid},s,0,a,") for row in rows)
        assert control.must("client", "get", str(pid), "maws-ns") == "a"


def test_a_servers_limits_bind_its_default_namespace_only(control: MpsDaemon) -> None:
    create_namespace(control, "a")
    control.must("server", "set", "s", "--active-thread-percentage=50", "--pinned-memory-limit=1G")
    for route, multiprocessors, limited in (
        (("s",), 66, True),
        (("s", "default"), 66, True),
        (("s", "a"), 132, False),
    ):
        with client(control, *route).started("tenant.py") as tenant:
            assert tenant.ask("init") == 0
            assert tenant.ask("context") == 0
            assert tenant.ask("multiprocessors") == multiprocessors
            assert (tenant.ask("info")[0] < GIB) is limited


@pytest.mark.parametrize(("percentage", "multiprocessors"), [("100", 32), ("10", 12)])
def test_a_program_can_only_lower_the_limits_of_its_namespace(
    control: MpsDaemon, percentage: str, multiprocessors: int
) -> None:
    create_namespace(control, "a", "--active-thread-percentage=25")
    machine = client(control, "s", "a", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=percentage)
    with machine.started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        assert tenant.ask("multiprocessors") == multiprocessors


def test_one_wrong_entry_drops_the_memory_limit_of_the_namespace(control: MpsDaemon) -> None:
    create_namespace(control, "a", "--pinned-memory-limit=1G")
    machine = client(control, "s", "a", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="7=512M")
    with machine.started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        assert tenant.ask("context") == 0
        assert tenant.ask("info")[0] > 100 * GIB


def test_a_namespace_with_clients_is_not_changed_or_deleted(control: MpsDaemon) -> None:
    create_namespace(control, "a", "--active-thread-percentage=25")
    with client(control, "s", "a").started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        for command in (
            ("set", "a", "--server=s", "--active-thread-percentage=100"),
            ("delete", "a", "--server=s"),
        ):
            status, printed = control.run("namespace", *command)
            assert (status, "active clients" in printed) == (1, True)
        tenant.kill()
        wait_until(lambda: control.run("namespace", "delete", "a", "--server=s")[0] == 0)
    assert not (control.folder / "pipe" / "s" / "a").exists()
    with client(control, "s", "a").started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        assert tenant.ask("in_mps") == 0


def test_the_folder_of_the_daemon_leads_to_the_server_of_the_user(simulate: Simulate) -> None:
    with (
        mps_daemon(new_machine(simulate), "-p", "3") as control,
        client(control).started("tenant.py") as root,
        client(control).started("tenant.py", under=USER) as user,
    ):
        assert root.ask("init") == 0
        assert user.ask("init") == 0
        listed = control.must("server", "list", CSV).splitlines()
        assert [row.split(",")[:2] for row in listed] == [
            ["uid_0", "0"],
            [f"uid_{UID}", str(UID)],
        ]


@pytest.mark.parametrize(("owner", "under"), [(0, USER), (UID, ())])
def test_a_server_is_for_its_owner_even_towards_root(
    simulate: Simulate, owner: int, under: tuple[str, ...]
) -> None:
    with mps_daemon(new_machine(simulate), "-p", "3") as control:
        create_server(control, "s", f"--uid={owner}")
        with client(control, "s").started("tenant.py", under=under) as tenant:
            assert tenant.ask("init") == NOT_PERMITTED


def test_another_user_reads_and_changes_nothing(control: MpsDaemon) -> None:
    create_namespace(control, "a", "--active-thread-percentage=25")
    for command in (
        ("namespace", "set", "a", "--server=s", "--active-thread-percentage=100"),
        ("server", "delete", "s"),
        ("-q",),
    ):
        status, printed = control.run(*command, under=USER)
        assert (status, f"Insufficient privileges for UID {UID}" in printed) == (1, True)
    assert control.run("namespace", "list", under=USER)[0] == 0


def test_commands_reach_the_daemon_through_the_folder_of_a_namespace(control: MpsDaemon) -> None:
    """So the root of a container, if it is the host's, can change its own limits."""
    create_namespace(control, "a", "--active-thread-percentage=25")
    done = subprocess.run(
        [
            str(control.machine.simulator.mps_control),
            "namespace",
            "set",
            "a",
            "--server=s",
            "--active-thread-percentage=100",
        ],
        env=client(control, "s", "a").env,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0
    assert control.must("namespace", "get", "a", "s", "active-thread-percentage") == "100.00"


def test_a_server_of_a_card_that_is_not_there_leaves_its_clients_without_limits(
    control: MpsDaemon,
) -> None:
    control.must("server", "create", "t", "--allowed-devices=GPU-1234")
    wait_until(lambda: "t," not in control.must("server", "list", CSV))
    with client(control, "t").started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        assert tenant.ask("in_mps") == 0
        assert tenant.ask("multiprocessors") == 132


def test_a_fault_is_of_one_server(control: MpsDaemon) -> None:
    create_server(control, "t")
    with ExitStack() as stack:
        culprit, beside, other = (
            stack.enter_context(client(control, name).started("tenant.py"))
            for name in ("s", "s", "t")
        )
        for tenant in (culprit, beside, other):
            assert tenant.ask("init") == 0
            assert tenant.ask("context") == 0
        assert culprit.ask("trap")[1] == LAUNCH_FAILED
        wait_until(lambda: beside.ask("sync") == LAUNCH_FAILED)
        assert other.ask("sync") == 0
        assert control.must("server", "get", "s", "status") == "Fault"
        late = stack.enter_context(client(control, "s").started("tenant.py"))
        assert late.ask("init") == NOT_READY
    log = (control.folder / "log" / "s" / "server.log").read_text(encoding="utf-8")
    assert "has caused a fatal fault" in log


def test_the_next_client_starts_a_killed_server_with_its_limits(control: MpsDaemon) -> None:
    create_namespace(control, "a", "--active-thread-percentage=25")
    with (
        client(control, "s", "a").started("tenant.py") as one,
        client(control, "s", "a").started("tenant.py") as two,
    ):
        assert one.ask("init") == 0
        assert one.ask("context") == 0
        os.kill(int(control.must("server", "get", "s", "pid")), signal.SIGKILL)
        wait_until(lambda: one.ask("sync") == RPC_FAILURE)
        assert two.ask("init") == 0
        assert two.ask("multiprocessors") == 32


def test_a_client_is_terminated_alone(control: MpsDaemon) -> None:
    with (
        client(control, "s").started("tenant.py") as one,
        client(control, "s").started("tenant.py") as two,
    ):
        for tenant in (one, two):
            assert tenant.ask("init") == 0
            assert tenant.ask("context") == 0
        control.must("client", "terminate", str(one.ask("pid")))
        wait_until(lambda: one.ask("sync") == TERMINATED)
        assert two.ask("sync") == 0


def test_a_partition_is_chosen_by_the_program_whatever_its_namespace_allows(
    control: MpsDaemon,
) -> None:
    create_namespace(control, "a", "--active-thread-percentage=10")
    printed = control.must("sm-partition", "create", "p", "--server=s", "--device=0", "--chunks=4")
    variable = printed.partition("CUDA_MPS_SM_PARTITION=")[2]
    assert "(sm-count=32)" in printed
    with (
        client(control, "s", "a", CUDA_MPS_SM_PARTITION=variable).started("tenant.py") as one,
        client(control, "s", "a").started("tenant.py") as two,
    ):
        assert one.ask("init") == 0
        assert one.ask("context") == 0
        assert one.ask("multiprocessors") == 32
        assert two.ask("init") == 0
        assert two.ask("context") == WITHOUT_PARTITION


def test_partitions_change_while_the_card_has_no_clients(control: MpsDaemon) -> None:
    where = ("--server=s", "--device=0")
    control.must("sm-partition", "create", "p", *where, "--chunks=4")
    rows = control.must("sm-partition", "list", "--all", CSV).splitlines()
    uuid = control.machine.simulator.uuids[0]
    assert rows[0].startswith(f"s,{uuid},p,4,32,false,created,")
    assert rows[1] == f"-,{uuid},-,12,100,-,unallocated,-"
    with client(control, "s").started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        for command in (("create", "q", *where, "--chunks=1"), ("delete", "p", *where)):
            status, printed = control.run("sm-partition", *command)
            assert (status, "active clients" in printed) == (1, True)
    wait_until(lambda: control.run("sm-partition", "delete", "p", *where)[0] == 0)
    status, printed = control.run("sm-partition", "create", "q", *where, "--chunks=17")
    assert (status, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION" in printed) == (1, True)


def test_the_remainder_goes_to_the_partition_that_asks_for_it(control: MpsDaemon) -> None:
    printed = control.must(
        "sm-partition",
        "create",
        "p",
        "--server=s",
        "--device=0",
        "--chunks=2",
        "--include-remainder=true",
    )
    assert "(sm-count=20)" in printed


def test_lists_are_tables_that_shorten_or_csv(control: MpsDaemon) -> None:
    table = control.must("device", "list").splitlines()
    assert table[0].startswith("ORDINAL")
    assert control.machine.simulator.uuids[0] not in table[1]
    header, row = control.must("device", "list", "--format=csv").splitlines()
    assert header.split(",")[5:7] == ["TOTAL SMS", "TOTAL CHUNKS"]
    assert row.split(",")[5:7] == ["132", "16"]


def test_features_are_switched_and_described(control: MpsDaemon) -> None:
    control.must("feature", "disable", "memacct")
    control.must("memacct", "set", "audit_log=true")
    assert "memacct,disabled,memacct,-" in control.must("feature", "describe", CSV)
    assert control.must("memacct", "describe", CSV) == "audit_log,true"


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("nonsense list", "Unknown command"),
        ("server create S", "lowercase"),
        ("server create s", "already exists"),
        ("server create t --uid=5", "multiuser"),
        ("server create t --nonsense=1", "unknown option"),
        ("server create t --locality-domains=true", "not supported"),
        ("server get s nonsense", "no such field"),
        ("server delete t", "not found"),
        ("namespace create a", "--server is missing"),
        ("namespace create default --server=s", "already exists"),
        ("namespace delete default --server=s", "cannot be deleted"),
        ("namespace set default --server=s", "at least one"),
        ("namespace set default --server=s --pinned-memory-limit=5", "not an integer"),
        ("namespace set default --server=s --active-thread-percentage=0", "not between"),
        ("namespace set default --server=s --client-priority=2", "not 0 or 1"),
        ("namespace list --format=xml", "not table or csv"),
        ("client terminate 1", "not found"),
        ("sm-partition create p --server=s --device=9 --chunks=1", "Device 9 not found"),
        ("feature enable nonsense", "no such feature"),
        ("memacct set audit_log=2", "not true or false"),
    ],
)
def test_wrong_commands_fail(control: MpsDaemon, command: str, answer: str) -> None:
    status, printed = control.run(*command.split())
    assert status == 1
    assert answer in printed


def test_a_daemon_speaks_the_protocol_with_which_it_was_started(simulate: Simulate) -> None:
    machine = new_machine(simulate)
    with mps_daemon(machine) as control:
        assert control.run("-p", "3", "server", "list")[0] == 1
        assert control.command("get_server_list") == []
    with mps_daemon(machine, CUDA_MPS_PROTOCOL_VERSION="3") as control:
        assert control.must("server", "list") == ""
        control.must("-q")
        assert control.process.wait(SECONDS) == 0


CONFIGURATION = """
schema_version = "1.0"
[servers.s]
active_thread_percentage = "50"
uid = 0
[servers.s.namespaces.a]
pinned_memory_limit = "1G"
active_thread_percentage = "25"
[[servers.s.devices]]
uuid = "{uuid}"
[[servers.s.devices.sm_partitions]]
name = "large"
chunks = 4
[features.memacct]
enabled = false
"""


def test_a_configuration_is_applied_at_the_start(simulate: Simulate, tmp_path: Path) -> None:
    machine = new_machine(simulate)
    file = tmp_path / "mps.toml"
    file.write_text(CONFIGURATION.format(uuid=machine.simulator.uuids[0]), encoding="utf-8")
    with mps_daemon(machine, "-p", "3", "-a", str(file)) as control:
        rows = control.must("namespace", "list", CSV).splitlines()
        assert [row.split(",")[0:1] + row.split(",")[3:6] for row in rows] == [
            ["default", "-", "50.00", "0"],
            ["a", "1G", "25.00", "0"],
        ]
        assert "large,4,32" in control.must("sm-partition", "list", "--server=s", CSV)
        assert "memacct,disabled" in control.must("feature", "describe", CSV)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("nonsense = 1", "nonsense: unknown key"),
        ('schema_version = "2.0"', "schema_version"),
        ('schema_version = "1.0"\n[servers.s]\nmemory = "1G"', "servers.s.memory: unknown key"),
        (
            'schema_version = "1.0"\n[servers.s.namespaces.a]\nuid = 5',
            "servers.s.namespaces.a.uid: unknown key",
        ),
    ],
)
def test_a_wrong_configuration_is_an_error(
    simulate: Simulate, tmp_path: Path, text: str, answer: str
) -> None:
    machine = new_machine(simulate)
    file = tmp_path / "mps.toml"
    file.write_text(text, encoding="utf-8")
    folders = {
        "CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(tmp_path / "log"),
    }
    done = subprocess.run(
        [str(machine.simulator.mps_control), "-f", "-p", "3", "-a", str(file)],
        env={**machine.env, **folders},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert (done.returncode, answer in done.stderr) == (1, True), done.stderr
