# SPDX-License-Identifier: Apache-2.0
"""`gpushare simulator`: cards, and what goes wrong with them, by the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpushare import simulator
from gpushare.cli.simulator import command
from gpushare.daemon.cards.driver_client import DriverError, InvalidSample
from gpushare.daemon.cards.nvml_client import Nvml
from gpushare.simulator import device_file

LIBRARY = "libnvidia-ml.so.1"


@pytest.fixture
def cards(tmp_path: Path) -> simulator.Simulator:
    return simulator.create(tmp_path / "cards", "h200", cards=2)


@pytest.fixture
def driver(cards: simulator.Simulator) -> Iterator[Nvml]:
    made = Nvml(device_file.libraries() / LIBRARY, cards.env, 20.0)
    made.open()
    yield made
    made.close()


def said(*words: object, fails: bool = False) -> str:
    done = CliRunner().invoke(command, [str(word) for word in words])
    assert bool(done.exit_code) == fails, done.output
    return str(done.exception) if done.exception and fails and not done.output else done.output


def test_a_fault_takes_effect_at_once_and_ends_at_once(
    cards: simulator.Simulator, driver: Nvml
) -> None:
    assert said("fault", cards.device, "lost", "--card", 1) == "card 1: lost\n"
    assert set(driver.sample().health) == {cards.uuids[1]}
    said("fault", cards.device, "none", "--card", 1)
    assert driver.sample().health == {}
    for kind, mode in (("exclusive", "Exclusive_Process"), ("prohibited", "Prohibited")):
        said("fault", cards.device, kind)
        assert driver.sample().compute_modes[cards.uuids[0]] == mode
    said("fault", cards.device, "lie", "pid,used")
    with pytest.raises(InvalidSample):
        driver.sample()
    said("fault", cards.device, "slow", 1)
    said("xid", cards.device, 79)
    assert driver.sample().xids == ((cards.uuids[0], 79),)


def test_driver_and_partitions_become_others(cards: simulator.Simulator, driver: Nvml) -> None:
    assert said("driver", cards.device, "590.10.01") == "driver 590.10.01\n"
    parts = json.loads(said("--json", "mig", cards.device, "3g.71gb"))["instances"]
    generation = driver.sample().generation
    assert generation.driver == "590.10.01"
    assert [part for _, of in generation.parts for part in of] == parts
    assert "no card is partitioned" in said("mig", cards.device)
    said("driver", cards.device, "--mismatch")
    with pytest.raises(DriverError, match="mismatch"):
        driver.renew(device_file.libraries() / LIBRARY, cards.env)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["fault", "DEVICE", "lie", "much"], "lie requires one or more of bytes, twice"),
        (["fault", "DEVICE", "slow", "soon"], "slow requires milliseconds"),
        (["fault", "DEVICE", "lost", "1"], "lost takes no value"),
        (["fault", "DEVICE", "lost", "--card", "7"], "there are 2 simulated cards"),
        (["driver", "DEVICE", "new"], "Use, for example, 590"),
        (["mig", "DEVICE", "9g.1gb"], "unknown. Use one of"),
    ],
)
def test_an_impossible_value_is_refused(
    cards: simulator.Simulator, words: list[str], why: str
) -> None:
    assert why in said(*(cards.device if word == "DEVICE" else word for word in words), fails=True)
