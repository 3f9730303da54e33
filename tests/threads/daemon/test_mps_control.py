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
from gpushare.daemon.mps.control import MpsControl, control_of
from gpushare.daemon.mps.program import (
    ClientRoute,
    ControlProgram,
    MpsError,
    Protocol,
    TenantLimits,
    has_static_partitions,
    protocol_of,
)
from gpushare.daemon.mps.protocol3 import namespace_of
from gpushare.daemon.mps.runner import ControlProcess
from gpushare.daemon.mps.supervisor import MpsSupervisor
from gpushare.simulator import Simulator, device_file
from tests.c.simulator.conftest import ClientProcess, SimulatorMachine
from tests.system.waiting import wait_until
from tests.unit.daemon import fakes
from tests.unit.daemon.fakes import FakeDaemon, FakeDriver
from tests.unit.daemon.test_mps_placement import configured
from tests.unit.daemon.test_mps_supervisor import MODE

MIB, GIB = 1 << 20, 1 << 30
SECONDS = 60
TERMINATED, WITHOUT_PARTITION = 810, 915
LIMITS = TenantLimits(2 * GIB, 25)
NEW = ("615.71.09", "13.4")


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

    def started(self, route: ClientRoute, **env: str) -> AbstractContextManager[ClientProcess]:
        """Start a program of a container."""
        found = {"CUDA_MPS_PIPE_DIRECTORY": str(route.pipe_folder), **route.env, **env}
        machine = SimulatorMachine(self.simulator, device_file.libraries())
        words = ["env", *(f"{name}={value}" for name, value in found.items())]
        return machine.started("tenant.py", under=words)

    @contextmanager
    def program(self, route: ClientRoute, **env: str) -> Iterator[ClientProcess]:
        """Start a program that has a context."""
        with self.started(route, **env) as started:
            assert started.ask("init") == 0
            assert started.ask("context") == 0
            yield started


@contextmanager
def running(
    protocol: Protocol,
    versions: tuple[str, str] = NEW,
    *,
    static: bool = False,
    multiuser: bool = False,
    uuid: str = "",
) -> Iterator[MpsCard]:
    """Start a control daemon for a card, as gpushared does; its sockets have short paths."""
    with tempfile.TemporaryDirectory(prefix="mps-") as name:
        folder, (driver, cuda) = Path(name), versions
        made = simulator.create(folder / "cards", driver_version=driver, cuda_version=cuda)
        pipes, logs = folder / "pipe", folder / "log"
        for part in (pipes, logs):
            part.mkdir()
        program = ControlProgram(
            made.mps_control,
            pipes,
            logs,
            uuid or made.uuids[0],
            protocol,
            static=static,
            multiuser=multiuser,
            env=made.env,
        )
        process = subprocess.Popen(program.arguments(), env=program.environment())
        control = control_of(program)
        try:
            wait_until(control.is_ready)
            yield MpsCard(made, control, process)
        finally:
            process.kill()
            process.wait()


@pytest.fixture(params=[2, 3])
def card(request: pytest.FixtureRequest) -> Iterator[MpsCard]:
    """A card of each protocol, with one server for all users."""
    with running(request.param, multiuser=True) as made:
        yield made


@pytest.fixture
def card3() -> Iterator[MpsCard]:
    """A card of protocol 3."""
    with running(3, multiuser=True) as made:
        yield made


def free(program: ClientProcess) -> int:
    return int(program.ask("info")[0])


def test_containers_have_their_own_limits(card: MpsCard) -> None:
    one = card.control.add("one", LIMITS, 0)
    two = card.control.add("two", TenantLimits(4 * GIB, 50, priority=1), 1000)
    with card.program(one) as first, card.program(two) as second:
        assert (first.ask("multiprocessors"), second.ask("multiprocessors")) == (32, 66)
        assert GIB < free(first) < 2 * GIB < free(second) < 4 * GIB
        assert (first.ask("in_mps"), second.ask("in_mps")) == (1, 1)


def test_processes_that_start_after_a_change_have_the_new_limits(card: MpsCard) -> None:
    card.control.add("one", LIMITS, 0)
    route = card.control.change("one", TenantLimits(GIB, 50))
    with card.program(route) as program:
        assert program.ask("multiprocessors") == 66
        assert free(program) < GIB


def test_an_unknown_container_is_not_changed_and_not_missed(card: MpsCard) -> None:
    with pytest.raises(KeyError):
        card.control.change("one", LIMITS)
    card.control.remove("one")


def test_adding_a_container_again_is_no_error(card: MpsCard) -> None:
    before = card.control.add("one", LIMITS, 0)
    with card.program(before):
        again = control_of(card.control.program)
        assert again.add("one", LIMITS, 0, before) == before
        assert again.add("one", LIMITS, 0) == before


def test_servers_and_clients_are_listed(card: MpsCard) -> None:
    route = card.control.add("one", LIMITS, 0)
    with card.program(route) as program:
        (server,) = card.control.servers()
        assert server.takes_clients
        assert server.pid > 0
        (client,) = card.control.clients()
        assert (client.pid, client.server_pid) == (program.process.pid, server.pid)
        assert client.tenant == ("one" if card.control.program.protocol == 3 else None)
        assert "tenant.py" in client.command
        program.kill()
        wait_until(lambda: card.control.clients() == ())


def test_a_client_is_terminated_alone(card: MpsCard) -> None:
    route = card.control.add("one", LIMITS, 0)
    with card.program(route) as one, card.program(route) as two:
        client = next(c for c in card.control.clients() if c.pid == one.process.pid)
        card.control.terminate(client)
        wait_until(lambda: one.ask("sync") == TERMINATED)
        assert two.ask("sync") == 0
        one.kill()
        wait_until(lambda: len(card.control.clients()) == 1)
        card.control.terminate(client)  # which has ended


def test_a_control_daemon_that_was_started_again_gets_all_limits_again(card: MpsCard) -> None:
    card.control.add("one", LIMITS, 0)
    card.process.kill()
    card.process.wait()
    assert not card.control.is_ready()
    program = card.control.program
    process = subprocess.Popen(program.arguments(), env=program.environment())
    try:
        wait_until(card.control.is_ready)
        route = control_of(program).add("one", LIMITS, 0)
        with card.program(route) as client:
            assert client.ask("multiprocessors") == 32
            assert free(client) < 2 * GIB
    finally:
        process.kill()
        process.wait()


def test_quit_ends_it(card: MpsCard) -> None:
    card.control.quit(0)
    assert card.process.wait(SECONDS) == 0
    with pytest.raises(MpsError, match="Cannot find MPS control daemon process"):
        card.control.servers()


def test_the_servers_limits_are_those_of_the_largest_container() -> None:
    with running(2, ("580.65.06", "13.0")) as card:
        control = card.control
        control.add("one", LIMITS, 0)
        with card.program(control.add("two", TenantLimits(4 * GIB + 1, 10), 0)):
            (server,) = control.servers()

            def said(command: str) -> str:
                return control.program.run(commands=command)

            assert said(f"get_active_thread_percentage {server.pid}") == "25.0"
            assert said(f"get_device_pinned_mem_limit {server.pid} 0") == "4097M"
            control.add("three", TenantLimits(GIB, 80), 0)
            assert said(f"get_active_thread_percentage {server.pid}") == "80.0"
            control.remove("two")
            assert said(f"get_device_pinned_mem_limit {server.pid} 0") == "2048M"
            assert said("get_default_device_pinned_mem_limit 0") == "2048M"


def test_without_the_multi_user_server_a_second_user_is_refused() -> None:
    with running(2, ("580.65.06", "13.0")) as card:
        card.control.add("one", LIMITS, 1000)
        with pytest.raises(MpsError, match=r"user 2000: .* serves user 1000"):
            card.control.add("two", LIMITS, 2000)
        card.control.remove("one")
        card.control.add("two", LIMITS, 2000)


def test_static_partitions_of_protocol_2() -> None:
    with running(2, ("590.44.01", "13.1"), static=True) as card:
        control = card.control
        one = control.add("one", TenantLimits(2 * GIB, 25, chunks=4), 0)
        two = control.add("two", TenantLimits(2 * GIB, 75, chunks=12), 0)
        with card.program(one) as first, card.program(two) as second:
            assert (first.ask("multiprocessors"), second.ask("multiprocessors")) == (32, 100)
            found = control.partitions()
            assert (found.free_chunks, found.total_chunks) == (0, 16)
            assert (found.free_multiprocessors, found.total_multiprocessors) == (0, 132)
            assert {part.multiprocessors for part in found.partitions} == {32, 100}
            assert all(part.in_use for part in found.partitions)
            with pytest.raises(MpsError, match="INVALID_RESOURCE_CONFIGURATION"):
                control.add("three", TenantLimits(2 * GIB, 25, chunks=1), 0)
            with pytest.raises(MpsError, match="without one"):
                control.add("three", LIMITS, 0)
        wait_until(lambda: not control.clients())
        control.remove("one")
        assert control.partitions().free_chunks == 4
        changed = control.change("two", TenantLimits(2 * GIB, 25, chunks=2))
        assert changed.env["CUDA_MPS_SM_PARTITION"] != two.env["CUDA_MPS_SM_PARTITION"]
        assert control.partitions().free_chunks == 14
        again = control_of(control.program)
        assert again.add("two", TenantLimits(2 * GIB, 25, chunks=2), 0, changed) == changed


def test_partitions_need_the_option() -> None:
    with running(2) as card:
        with pytest.raises(MpsError, match="started without static partitions"):
            card.control.add("one", TenantLimits(GIB, 25, chunks=1), 0)
        with pytest.raises(MpsError, match="not enabled"):
            card.control.partitions()


def test_only_the_folder_of_the_namespace_is_the_containers(card3: MpsCard) -> None:
    route = card3.control.add("one", LIMITS, 1000)
    assert route.pipe_folder.name == namespace_of("one")
    assert [path.name for path in route.pipe_folder.iterdir()] == ["control"]
    assert route.env == {}


def test_the_default_namespace_has_next_to_nothing(card3: MpsCard) -> None:
    """A container that had the server's folder by mistake would otherwise have the whole card."""
    route = card3.control.add("one", LIMITS, 0)
    with card3.started(ClientRoute(route.pipe_folder.parent, {})) as program:
        assert program.ask("init") == 0
        assert program.ask("multiprocessors") == 2
        assert program.ask("context") == 2  # CUDA_ERROR_OUT_OF_MEMORY


def test_limits_of_a_container_with_clients_stay_as_they_were(card3: MpsCard) -> None:
    route = card3.control.add("one", LIMITS, 0)
    with card3.program(route) as program:
        with pytest.raises(MpsError, match="active clients"):
            card3.control.change("one", TenantLimits(GIB, 100))
        with pytest.raises(MpsError, match="active clients"):
            card3.control.remove("one")
        program.kill()
    wait_until(lambda: not card3.control.clients())
    assert card3.control.change("one", LIMITS) == route
    card3.control.remove("one")
    assert not route.pipe_folder.exists()


def test_static_partitions_of_protocol_3(card3: MpsCard) -> None:
    control = card3.control
    one = control.add("one", TenantLimits(2 * GIB, 25, chunks=4), 0)
    with card3.program(one) as program:
        assert program.ask("multiprocessors") == 32
        assert free(program) < 2 * GIB
        with pytest.raises(MpsError, match="active clients"):
            control.add("two", TenantLimits(GIB, 25, chunks=4), 0)
        assert [part.name for part in control.partitions().partitions] == ["p0"]
        with card3.started(control.add("two", TenantLimits(GIB, 25), 0)) as other:
            assert other.ask("init") == 0
            assert other.ask("context") == WITHOUT_PARTITION
    wait_until(lambda: not control.clients())
    control.remove("one")
    assert control.partitions().free_chunks == 16


def test_a_partition_that_is_given_up_beside_clients_is_the_next_containers(card3: MpsCard) -> None:
    control = card3.control
    size = TenantLimits(2 * GIB, 25, chunks=4)
    one, two = control.add("one", size, 0), control.add("two", size, 0)
    with card3.program(two):
        control.remove("one")
        assert control.partitions().free_chunks == 8
        assert control.add("three", size, 0).env == one.env


def test_a_server_that_does_not_run_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of a card that is not there is created without an error, and ends."""
    monkeypatch.setattr("gpushare.daemon.mps.protocol3.COMMAND_SECONDS", 1.0)
    with running(3, uuid="GPU-99") as card:
        with pytest.raises(MpsError, match="server create gpushare_0: it does not run"):
            card.control.add("one", LIMITS, 0)
        with pytest.raises(MpsError, match="device list does not have GPU-99"):
            card.control.partitions()


def test_the_socket_for_commands_is_hidden_from_containers(card: MpsCard) -> None:
    route = card.control.add("one", LIMITS, 0)
    inside = dataclasses.replace(card.control.program, pipe_folder=route.pipe_folder)
    if card.control.program.protocol == 2:
        assert route.hidden == ("control_privileged",)
        for name in route.hidden:
            (route.pipe_folder / name).unlink()  # as if something else were mounted over it
        with pytest.raises(MpsError):
            inside.run(commands="get_server_list")
    else:
        assert route.hidden == ()
    with card.program(route) as program:
        assert program.ask("in_mps") == 1


GIB = 1 << 30


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


def test_partitions_need_a_driver_that_has_them(
    node: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.node.config = configured('cards: {"0": {backend: mps, mps_partitions: true}}', tmp_path)
    monkeypatch.setattr(module, "find_program", lambda _: tmp_path / "none")
    monkeypatch.setattr("gpushare.daemon.identity.processes.sees_host", lambda: True)
    supervisor = MpsSupervisor(node)
    node.decide.run(supervisor.check)
    supervisor.close()
    assert "mps_partitions needs a driver of CUDA 13.1" in node.node.mps.fault_of(
        fakes.card(0).uuid
    )
