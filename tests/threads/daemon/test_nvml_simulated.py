# SPDX-License-Identifier: Apache-2.0
"""The real worker on a simulated driver: slow, hung, lying, lost, upgraded and partitioned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpushare import simulator
from gpushare.daemon.cards import nvml_sensors
from gpushare.daemon.cards.driver_client import (
    DriverError,
    DriverGeneration,
    DriverSample,
    DriverTimeout,
    InvalidSample,
)
from gpushare.daemon.cards.health import Health
from gpushare.daemon.cards.nvml_client import Nvml
from gpushare.daemon.cards.worker_process import WorkerProcess
from gpushare.metrics_schema import CardSensors
from gpushare.simulator import FalseReading, Simulator
from tests.c.simulator.conftest import SimulatorMachine
from tests.c.simulator.mps_daemon import mps_daemon
from tests.system.waiting import wait_until


@pytest.fixture
def machine(tmp_path: Path) -> SimulatorMachine:
    made = simulator.create(tmp_path / "cards", "h200", cards=2)
    return SimulatorMachine(made, simulator.libraries())


@pytest.fixture
def cards(machine: SimulatorMachine) -> Simulator:
    return machine.simulator


@pytest.fixture
def driver(cards: Simulator) -> Iterator[Nvml]:
    made = Nvml(simulator.libraries() / "libnvidia-ml.so.1", cards.env, 20.0)
    made.open()
    yield made
    made.close()


def looks(driver: Nvml) -> DriverSample | None:
    try:
        return driver.sample()
    except DriverError:
        return None


def test_a_look_with_nothing_new_is_not_sent_again(
    driver: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = []

    def ask(*arguments: Any) -> dict[str, Any]:
        answers.append(original(*arguments))
        return answers[-1]

    original = WorkerProcess.ask
    monkeypatch.setattr(WorkerProcess, "ask", ask)
    first, second = driver.sample(), driver.sample()
    assert set(answers[0]) == {"driver", "cards", "xids", "sensors"}
    assert answers[1] == {"xids": []}
    assert replace(second, taken_ns=first.taken_ns) == first
    assert second.sensors == first.sensors != {}


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


def test_the_sensors_are_those_of_the_card(cards: Simulator, driver: Nvml) -> None:
    """Those of an idle H200 by its profile; energy is not simulated."""
    assert set(nvml_sensors._READ) == set(CardSensors.__annotations__)
    profile = json.loads((simulator.libraries() / "profiles" / "h200.json").read_text())
    found = driver.sample().sensors
    assert set(found) == set(cards.uuids)
    for figures in found.values():
        assert set(figures) == set(CardSensors.__annotations__) - {"energy_millijoules"}
        assert figures["temperature_celsius"] == profile["temperature_idle_celsius"]
        assert figures["memory_temperature_celsius"] == profile["temperature_idle_celsius"]
        assert figures["power_milliwatts"] == profile["power_idle_milliwatts"]
        assert figures["sm_clock_mhz"] == profile["clock_sm_mhz"]
        assert figures["memory_clock_mhz"] == profile["clock_memory_mhz"]
        assert figures["reserved_bytes"] > 0


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


def test_a_lost_card_has_no_sensors(cards: Simulator, driver: Nvml) -> None:
    """Read anew by a worker that has just started."""
    simulator.fail(cards.device, card=1, lost=1)
    driver.renew(driver.library, cards.env)
    assert set(driver.sample().sensors) == {cards.uuids[0]}


def test_the_compute_mode_of_a_card_is_seen(cards: Simulator, driver: Nvml) -> None:
    one, other = cards.uuids
    assert driver.sample().compute_modes == {one: "", other: ""}
    simulator.fail(cards.device, 1, compute_mode=pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
    assert driver.sample().compute_modes == {one: "", other: "Exclusive_Process"}
    simulator.fail(cards.device, 1, compute_mode=pynvml.NVML_COMPUTEMODE_PROHIBITED)
    sample = driver.sample()
    assert sample.compute_modes == {one: "", other: "Prohibited"}
    known = {card.uuid: card for card in driver.cards()}
    assert Health().observe(sample, known) == {
        one: "ok",
        other: "no program can use it (compute mode Prohibited): nvidia-smi -i 1 -c DEFAULT",
    }


def test_a_hung_driver_that_recovers_is_sampled_again(cards: Simulator, driver: Nvml) -> None:
    generation = driver.sample().generation
    driver._deadline = 0.5
    simulator.fail(cards.device, nvml_hangs=1)
    with pytest.raises(DriverTimeout):
        driver.sample()
    with pytest.raises(DriverTimeout):
        driver.limits(cards.uuids[0], Path("/sys/fs/cgroup"))
    simulator.fail(cards.device)
    wait_until(lambda: looks(driver) is not None)
    assert driver.sample().generation == generation


def test_a_card_reports_its_brand_and_compute_capability(driver: Nvml) -> None:
    assert {(card.brand, card.capability) for card in driver.cards()} == {("nvidia", (9, 0))}


def test_a_slow_driver_is_waited_for(cards: Simulator, driver: Nvml) -> None:
    simulator.fail(cards.device, nvml_delay_ms=20)
    assert set(driver.sample().uses) == set(cards.uuids)


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        (FalseReading.BYTES, "holds"),
        (FalseReading.TWICE, "listed with"),
        (FalseReading.USED, "its processes hold"),
        (FalseReading.TOTAL, "and had"),
        (FalseReading.PID, "there is no process"),
    ],
    ids=["bytes", "twice", "used", "total", "pid"],
)
def test_an_impossible_figure_is_detected(
    machine: SimulatorMachine, driver: Nvml, lie: FalseReading, why: str
) -> None:
    device = machine.simulator.device
    with machine.started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        assert tenant.ask("context") == 0
        assert tenant.ask(f"alloc {4 << 30}")[0] == 0
        [use] = driver.sample().uses[machine.simulator.uuids[0]]
        assert use.pid == tenant.ask("pid")
        simulator.fail(device, lies=lie)
        with pytest.raises(InvalidSample, match=why):
            driver.sample()
        simulator.fail(device)
        assert driver.sample().uses[machine.simulator.uuids[0]]


def test_a_missing_figure_is_not_impossible(machine: SimulatorMachine, driver: Nvml) -> None:
    with machine.started("tenant.py") as tenant:
        assert tenant.ask("init") == 0
        assert tenant.ask("context") == 0
        simulator.fail(machine.simulator.device, lies=FalseReading.UNSAID)
        [use] = driver.sample().uses[machine.simulator.uuids[0]]
        assert use.bytes is None


def test_another_uuid_at_an_index_is_another_generation(cards: Simulator, driver: Nvml) -> None:
    before = driver.sample().generation
    simulator.fail(cards.device, lies=FalseReading.UUID)
    sample = driver.sample()
    assert sample.generation.changed_cards(before) > {cards.uuids[0]}
    assert sample.health == {cards.uuids[0]: "no longer listed by the driver"}


def test_a_lost_card_is_reported_and_comes_back(cards: Simulator, driver: Nvml) -> None:
    generation = driver.sample().generation
    simulator.fail(cards.device, 1, lost=1)
    sample = driver.sample()
    assert sample.health == {cards.uuids[1]: "NVML: GPU is lost"}
    assert set(sample.uses) == {cards.uuids[0]}
    assert sample.generation == generation
    simulator.fail(cards.device, 1)
    assert driver.sample().health == {}


def test_a_card_that_is_lost_at_the_loading_is_taken_when_it_answers(cards: Simulator) -> None:
    simulator.fail(cards.device, 0, lost=1)
    driver = Nvml(simulator.libraries() / "libnvidia-ml.so.1", cards.env, 20.0)
    driver.open()
    assert [card.uuid for card in driver.cards()] == [cards.uuids[1]]
    simulator.fail(cards.device, 0)
    assert set(driver.sample().uses) == set(cards.uuids)
    assert [card.index for card in driver.cards()] == [0, 1]
    driver.close()


def test_xids_are_reported_once(cards: Simulator, driver: Nvml) -> None:
    assert driver.sample().xids == ()
    simulator.raise_xid(cards.device, 79, card=1)
    simulator.raise_xid(cards.device, 13)
    assert set(driver.sample().xids) == {(cards.uuids[1], 79), (cards.uuids[0], 13)}
    assert driver.sample().xids == ()


def test_indices_that_change_are_another_generation(cards: Simulator, driver: Nvml) -> None:
    assert [card.uuid for card in driver.cards()] == list(cards.uuids)
    simulator.fail(cards.device, 0, listed=2)
    simulator.fail(cards.device, 1, listed=1)
    assert driver.sample().generation.cards == ((0, cards.uuids[1]), (1, cards.uuids[0]))
    assert [(card.index, card.minor) for card in driver.cards()] == [(0, 1), (1, 0)]


def test_a_card_missing_from_the_list_is_reported(cards: Simulator, driver: Nvml) -> None:
    simulator.fail(cards.device, 0, listed=simulator.NOWHERE)
    simulator.fail(cards.device, 1, listed=1)
    assert set(driver.sample().health) == {cards.uuids[0]}
    assert [card.index for card in driver.cards()] == [0, 1]


def test_mig_that_is_switched_on_and_off_is_another_generation(
    cards: Simulator, driver: Nvml
) -> None:
    before = driver.sample().generation
    parts = simulator.partition(cards.device, ["3g.71gb", "1g.18gb"])
    assert dict(driver.sample().generation.parts) == {
        cards.uuids[0]: parts[:2],
        cards.uuids[1]: parts[2:],
    }
    simulator.partition(cards.device, [])
    assert driver.sample().generation == before


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


def test_a_division_is_what_the_driver_tells_of_it(cards: Simulator, driver: Nvml) -> None:
    before = driver.division(cards.uuids[0])
    assert (before.is_enabled, before.instances, before.places_are_told) == (False, (), False)
    simulator.partition(cards.device, ["3g.71gb", "1g.18gb+me", "1g.35gb"])
    found = driver.division(cards.uuids[0])
    assert (found.is_enabled, found.places_are_told) == (True, True)
    # What NVIDIA's guide says of a card is what the driver says once the card is in MIG mode.
    assert found.kinds == before.kinds
    assert {(kind.name, kind.number, kind.count) for kind in found.kinds} == {
        *(("1g.18gb", 19, 7), ("1g.18gb+me", 20, 1), ("1g.35gb", 15, 4), ("2g.35gb", 14, 3)),
        *(("3g.71gb", 9, 2), ("4g.71gb", 5, 1), ("7g.141gb", 0, 1)),
    }
    held = {(one.gpu_instance, one.kind, one.place) for one in found.instances}
    assert held == {(1, 9, (0, 4)), (2, 20, (4, 1)), (3, 15, (6, 2))}
    sizes = {kind.number: kind.memory_bytes for kind in found.kinds}
    driver.sample()
    memory = {
        card.instance.gpu_instance: card.memory_bytes for card in driver.cards() if card.instance
    }
    for one in found.instances:
        assert abs(memory[one.gpu_instance] - sizes[one.kind]) < 8 << 20


def test_a_process_on_an_instance_is_listed_there_alone(
    machine: SimulatorMachine, cards: Simulator, driver: Nvml
) -> None:
    parts = simulator.partition(cards.device, ["3g.71gb", "1g.18gb"])
    on_instance = ["env", f"CUDA_VISIBLE_DEVICES={parts[1]}"]
    with machine.started("tenant.py", under=on_instance) as tenant:
        assert [tenant.ask(word) for word in ("init", "context")] == [0, 0]
        pid = tenant.ask("pid")
        assert tenant.ask(f"alloc {1 << 30}")[0] == 0
        sample = driver.sample()
        assert sample.uses[cards.uuids[0]] == sample.uses[parts[0]] == ()
        [use] = sample.uses[parts[1]]
        assert use.pid == pid
        assert sample.used[parts[1]] >= (use.bytes or 0) > 1 << 30


def test_an_upgrade_is_loaded_by_a_new_worker(cards: Simulator, driver: Nvml) -> None:
    simulator.change_driver(cards.device, "590.10.01")
    assert driver.sample().generation.driver == "590.10.01"
    assert driver.driver_version == "590.10.01"


def test_between_files_and_module_there_is_no_driver(cards: Simulator, driver: Nvml) -> None:
    """A program with the old library loaded continues; one that loads the new one is refused."""
    library = simulator.libraries() / "libnvidia-ml.so.1"
    simulator.change_driver(cards.device, init_error=simulator.MISMATCH)
    assert driver.sample().generation.driver == "580.65.06"
    with pytest.raises(DriverError, match=r"version mismatch"):
        driver.renew(library, cards.env)
    simulator.change_driver(cards.device, "590.10.01")
    driver.renew(library, cards.env)
    expected = DriverGeneration("590.10.01", tuple(enumerate(cards.uuids)))
    assert driver.sample().generation == expected
