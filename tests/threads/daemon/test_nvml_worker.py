# SPDX-License-Identifier: Apache-2.0
"""The processes that ask the driver hang, die and lie; gpushared waits for none of them."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gpushare import simulator
from gpushare.daemon.cards import context_size, nvml_client, worker_process
from gpushare.daemon.cards.context_size import (
    ContextProbe,
    measure_context,
)
from gpushare.daemon.cards.driver_client import (
    DriverError,
    DriverLimits,
    DriverSample,
    DriverTimeout,
    InvalidSample,
    ProcessUse,
)
from gpushare.daemon.cards.nvml_client import Nvml
from gpushare.simulator import Simulator, device_file
from tests.c.simulator.conftest import SimulatorMachine
from tests.c.simulator.mps_daemon import mps_daemon
from tests.system.waiting import wait_until
from tests.unit.daemon import scripted_worker
from tests.unit.daemon.fakes import GIB, MIB, FakeDriver, card
from tests.unit.daemon.scripted_worker import CARD, LOOK

CGROUP = Path("/sys/fs/cgroup/x")

CALLS: dict[str, Callable[[Nvml], object]] = {
    "load": lambda driver: driver.open(),
    "look": lambda driver: driver.sample(),
    "set_limits": lambda driver: driver.set_limits("GPU-0", CGROUP, DriverLimits(GIB, GIB)),
    "limits": lambda driver: driver.limits("GPU-0", CGROUP),
}


@dataclass
class Puppet:
    """A worker that acts as configured, and the client that queries it."""

    file: Path
    driver: Nvml

    def obey(self, **orders: Any) -> None:
        self.file.write_text(json.dumps(orders))

    @property
    def pid(self) -> int:
        assert self.driver._worker is not None
        return self.driver._worker.pid


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Puppet]:
    file = tmp_path / "orders"
    file.write_text("{}")
    argv = [sys.executable, "-I", "-S", scripted_worker.__file__, str(file)]
    monkeypatch.setattr(worker_process, "worker_command", lambda: argv)
    monkeypatch.setattr(nvml_client, "_FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(nvml_client, "_LONGEST_WAIT_SECONDS", 0.01)
    driver = Nvml(Path("/x/libnvidia-ml.so.1"), {}, 60.0)  # a slow machine is not what is tested
    yield Puppet(file, driver)
    driver.close()


def answers(call: Callable[[Nvml], object], driver: Nvml) -> bool:
    try:
        call(driver)
    except DriverError:
        return False
    return True


def is_gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("order", ["die", "garbage", "long", "half", "list", "other", "deep"])
def test_a_worker_that_dies_or_talks_nonsense_is_replaced(
    worker: Puppet, call: str, order: str
) -> None:
    ask = CALLS[call]
    if call != "load":
        worker.driver.open()
    worker.obey(**{call: order})
    with pytest.raises(DriverError):
        ask(worker.driver)
    worker.obey()
    wait_until(lambda: answers(ask, worker.driver))
    assert worker.driver.sample().generation.loads == 1


@pytest.mark.parametrize("call", CALLS)
def test_a_hung_worker_delays_nothing_and_is_killed(
    worker: Puppet, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = CALLS[call]
    if call != "load":
        worker.driver.open()
    worker.driver._deadline = 0.2
    worker.obey(**{call: "hang"})
    with pytest.raises(DriverTimeout, match=r"did not respond within 0\.2 s"):
        ask(worker.driver)
    with pytest.raises(DriverTimeout, match="is not responding"):
        worker.driver.sample()
    hung = worker.pid
    wait_until(lambda: Path(f"{worker.file}-hangs").exists() or is_gone(hung))
    worker.obey()
    monkeypatch.setattr(worker.driver, "_deadline", 5.0)
    wait_until(lambda: answers(ask, worker.driver))
    wait_until(lambda: is_gone(hung))
    assert worker.driver.sample().generation.loads == 1


def test_workers_that_cannot_be_killed_are_few(
    worker: Puppet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hangs in the kernel: here its pidfd is never readable, and then it is."""
    stuck = True
    real = worker_process.WorkerProcess.is_dead
    monkeypatch.setattr(
        worker_process.WorkerProcess,
        "is_dead",
        lambda self, seconds: not stuck and real(self, seconds),
    )
    worker.obey(load="die")
    for _ in range(worker_process.MOST_ABANDONED):
        wait_until(lambda: not answers(CALLS["load"], worker.driver))
        worker.driver._not_before = 0.0
    wait_until(lambda: len(worker_process._abandoned) == worker_process.MOST_ABANDONED)
    worker.obey()
    worker.driver._not_before = 0.0
    with pytest.raises(DriverTimeout, match="3 processes hang in the NVIDIA driver"):
        worker.driver.open()
    stuck = False
    worker.driver._not_before = 0.0
    worker.driver.open()
    assert worker_process._abandoned == []


@pytest.mark.parametrize(
    "look",
    [
        {"driver": "620.1", "cards": [LOOK], "xids": []},
        {"driver": "615.10", "cards": [{**LOOK, "parts": ["MIG-1"]}], "xids": []},
        {"driver": "615.10", "cards": [LOOK, {**LOOK, "index": 1, "uuid": "GPU-1"}], "xids": []},
        {"driver": "615.10", "cards": [{**LOOK, "index": 1}], "xids": []},
    ],
    ids=["version", "mig", "another", "index"],
)
def test_another_driver_or_card_has_the_library_loaded_anew(
    worker: Puppet, look: dict[str, Any]
) -> None:
    worker.driver.open()
    before, pid = worker.driver.sample().generation, worker.pid
    cards = [
        {**CARD, **{key: said[key] for key in ("index", "uuid", "parts")}} for said in look["cards"]
    ]
    load = {**scripted_worker.ANSWERS["load"], "driver": look["driver"], "cards": cards}
    worker.obey(answers={"look": look, "load": load})
    after = worker.driver.sample().generation
    assert after != before
    assert after.loads == 0
    assert worker.pid != pid
    again = worker.pid
    assert worker.driver.sample().generation == after
    assert worker.pid == again


def test_a_card_that_is_listed_no_more_stays_known(worker: Puppet) -> None:
    both = [CARD, {**CARD, "index": 1, "uuid": "GPU-1"}]
    load = {**scripted_worker.ANSWERS["load"], "cards": both}
    looks = [LOOK, {**LOOK, "index": 1, "uuid": "GPU-1"}]
    worker.obey(answers={"load": load, "look": {"driver": "615.10", "cards": looks, "xids": []}})
    worker.driver.open()
    left = {"driver": "615.10", "cards": [{**looks[1], "index": 0}], "xids": []}
    load = {**load, "cards": [{**both[1], "index": 0}]}
    worker.obey(answers={"load": load, "look": left})
    health = worker.driver.sample().health
    assert health == {"GPU-0": "no longer listed by the driver"}
    assert [(card.index, card.uuid) for card in worker.driver.cards()] == [
        (0, "GPU-1"),
        (1, "GPU-0"),
    ]


def test_an_xid_is_reported_once_even_in_a_rejected_sample(worker: Puppet) -> None:
    worker.driver.open()
    lie = {**LOOK, "used": 1 << 60}
    worker.obey(answers={"look": {"driver": "615.10", "cards": [lie], "xids": [["GPU-0", 79]]}})
    with pytest.raises(InvalidSample):
        worker.driver.sample()
    worker.obey()
    assert worker.driver.figures().xids == ()
    assert worker.driver.sample().xids == (("GPU-0", 79),)
    assert worker.driver.sample().xids == ()


CHANGES: dict[str, tuple[dict[str, Any], Callable[[Nvml], object]]] = {
    "cards": ({"driver": "620.1", "cards": [LOOK], "xids": []}, lambda _: None),
    "library": (scripted_worker.ANSWERS["look"], lambda driver: driver.renew(Path("/y"), {})),
    "error": ({"error": "NVML: Driver Not Loaded"}, lambda driver: answers(CALLS["look"], driver)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_xid_that_comes_while_the_library_is_loaded_anew_is_reported_once(
    worker: Puppet, change: str
) -> None:
    """Each worker that listens has been told of it."""
    worker.driver.open()
    worker.driver.sample()
    look, act = CHANGES[change]
    load = {**scripted_worker.ANSWERS["load"], "driver": look.get("driver", "615.10")}
    said = {"look": look, "load": load, "xids": {"xids": [["GPU-0", 31], ["GPU-0", 31]]}}
    before = worker.pid
    worker.obey(answers=said)
    act(worker.driver)
    if "error" in look:
        worker.obey()
    wait_until(lambda: answers(lambda driver: driver.open(), worker.driver))
    assert worker.driver.sample().xids == (("GPU-0", 31), ("GPU-0", 31))
    assert worker.pid != before
    assert worker.driver.sample().xids == ()


def test_a_worker_that_does_not_tell_its_xids_is_replaced_all_the_same(worker: Puppet) -> None:
    worker.driver.open()
    worker.driver.sample()
    worker.obey(xids="die")
    worker.driver.renew(Path("/y"), {})
    worker.obey()
    wait_until(lambda: answers(lambda driver: driver.sample(), worker.driver))
    assert worker.driver.library == Path("/y")


@pytest.fixture
def machine(tmp_path: Path) -> SimulatorMachine:
    made = simulator.create(tmp_path / "cards", "h200", cards=2)
    return SimulatorMachine(made, device_file.libraries())


@pytest.fixture
def cards(machine: SimulatorMachine) -> Simulator:
    return machine.simulator


@pytest.fixture
def driver(cards: Simulator) -> Iterator[Nvml]:
    made = Nvml(device_file.libraries() / "libnvidia-ml.so.1", cards.env, 20.0)
    made.open()
    yield made
    made.close()


def looks(driver: Nvml) -> DriverSample | None:
    try:
        return driver.sample()
    except DriverError:
        return None


def test_a_brief_look_sees_whatever_takes_memory(machine: SimulatorMachine, driver: Nvml) -> None:
    uuid, idle = machine.simulator.uuids[0], driver.sample()
    assert driver.sample(brief=True) == idle
    with machine.started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        assert tenant.ask("context") == 0
        [use] = driver.sample(brief=True).uses[uuid]
        assert use.pid == tenant.ask("pid")
        assert tenant.ask(f"alloc {4 << 30}")[0] == 0
        [grown] = driver.sample(brief=True).uses[uuid]
        assert (grown.bytes or 0) - (use.bytes or 0) == 4 << 30
    wait_until(lambda: driver.sample(brief=True).uses == idle.uses)


def test_the_clients_of_an_mps_server_are_known_by_the_drivers_list(
    machine: SimulatorMachine, driver: Nvml
) -> None:
    with mps_daemon(machine) as control:
        assert driver.sample().uses == dict.fromkeys(machine.simulator.uuids, ())
        with control.client().started("tenant.py") as client, machine.started("tenant.py") as other:
            for tenant in (client, other):
                assert tenant.ask("init") == 0
                assert tenant.ask("context") == 0
            (server,) = control.command("get_server_list")
            found = driver.sample().uses[machine.simulator.uuids[0]]
            assert {use.pid: use.is_mps for use in found} == {
                client.ask("pid"): True,
                other.ask("pid"): False,
                int(server): False,
            }


def test_each_mig_instance_is_a_card_behind_the_cards(cards: Simulator, driver: Nvml) -> None:
    before = driver.cards()
    parts = simulator.partition(cards.device, ["3g.71gb", "1g.18gb"])
    sample = driver.sample()
    found = driver.cards()
    assert found[:2] == tuple(replace(card, is_divided=True) for card in before)
    assert [(card.index, card.uuid) for card in found[2:]] == list(enumerate(parts, 2))
    assert [card.model for card in found[2:]] == ["H200 MIG 3g.71gb", "H200 MIG 1g.18gb"] * 2
    assert [card.instance.names for card in found[2:] if card.instance] == [
        ("0:0", "0:gi1:ci0"),
        ("0:1", "0:gi2:ci0"),
        ("1:0", "1:gi1:ci0"),
        ("1:1", "1:gi2:ci0"),
    ]
    assert found[3].memory_bytes * 3 <= found[2].memory_bytes <= before[0].memory_bytes // 2
    assert {uuid: sample.uses[uuid] for uuid in parts} == dict.fromkeys(parts, ())
    simulator.fail(cards.device, 0, lost=1)
    assert set(driver.sample().health) == {cards.uuids[0], *parts[:2]}
    simulator.fail(cards.device, 0)
    simulator.partition(cards.device, [])
    assert driver.sample().health == {}
    assert driver.cards() == before


def probe(folder: Path, code: str) -> ContextProbe:
    program = folder / "probe"
    program.write_text(f"#!{sys.executable}\n{code}")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return ContextProbe(program, Path("/lib/libcuda.so.1"), {"GPUSHARE_SIM_DEVICE": "/sim"})


SPEAKS = """
import json, os, sys
assert sys.argv[1:] == ["--library", "/lib/libcuda.so.1", "--card", "0", "context"], sys.argv
assert os.environ["GPUSHARE_SIM_DEVICE"] == "/sim"
for event in ("driver", "context"):
    print(json.dumps({"event": event, "code": 0}), flush=True)
sys.stdin.read()
"""


def test_a_context_has_the_size_of_the_probes_once_it_is_stable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, excused = FakeDriver(), list[int]()
    figures = iter([100, 300, 500, 500])

    def grow() -> None:
        driver.uses = {
            card().uuid: (ProcessUse(1, 9 * MIB), ProcessUse(excused[0], next(figures) * MIB))
        }

    driver.during = grow
    monkeypatch.setattr(context_size, "_LOOK_SECONDS", 0.001)
    found = measure_context(card(), driver, probe(tmp_path, SPEAKS), excused.append)
    assert found == 500 * MIB
    assert len(set(excused)) == 1
    assert not Path(f"/proc/{excused[0]}").exists()


@pytest.mark.parametrize("code", ["", "print('not json')"])
def test_a_probe_that_fails_is_no_figure(tmp_path: Path, code: str) -> None:
    assert measure_context(card(), FakeDriver(), probe(tmp_path, code), lambda _: None) is None
