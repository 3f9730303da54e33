# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's libraries answer without a card, a share does, and the simulator for its part."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tools.gpu.symbols import cuda_lines

from .conftest import Place

NO_DEVICE, SYSTEM_NOT_READY = 100, 802
#: 550.163 has this error, and 555.58, which is older, has not.
OF_LATE_550 = 916
#: Names that no driver answers to: empty, as cudart asks, with a suffix, and in no header.
NO_NAMES = ("", "cuNoSuchThing", "cuMemAlloc_v2", "cuLaunchKernel_ptsz", "cuMemGetAttribute")
#: How many of the table's versions the gate passes over.
STEP = 6


@pytest.fixture
def lookups(request: pytest.FixtureRequest) -> tuple[object, ...]:
    """Names, versions and symbols: in the gate some of the versions, otherwise all."""
    lines = cuda_lines()
    versions = sorted({line.version for line in lines})
    if request.config.getoption("gate"):
        versions = versions[::STEP]
    names = sorted({*NO_NAMES, *(line.name for line in lines)})
    return "lookups", names, [0, *versions, 99999, -1], [line.symbol for line in lines], []


def test_a_share_looks_up_what_the_driver_does(
    lookups: tuple[Any, ...], bare: Place, share: Place
) -> None:
    answers = bare.ask(*lookups)
    assert len(answers) > len(lookups[1])
    assert share.ask(*lookups) == answers


def test_the_simulator_looks_up_what_the_driver_does(
    lookups: tuple[Any, ...], bare: Place, simulated: Place
) -> None:
    answers, of_simulator = bare.ask(*lookups), simulated.ask(*lookups)
    assert answers
    different = {key: (answers[key], of_simulator.get(key)) for key in answers}
    assert {key: pair for key, pair in different.items() if pair[0] != pair[1]} == {}


def test_the_worker_of_gpushared_has_the_driver_s_reason(bare: Place, share: Place) -> None:
    program = (
        "from gpushare.daemon.cards import nvml_calls\n"
        "try: nvml_calls.Devices('libnvidia-ml.so.1')\n"
        "except Exception as error: print(nvml_calls.failure(error)['error'])"
    )
    for place in (bare, share):
        assert place.run(sys.executable, "-c", program).stdout == "NVML: Driver Not Loaded\n"


def test_without_a_card_a_share_has_none(bare: Place, share: Place) -> None:
    said = bare.ask("calls")
    assert said["cuInit"] == NO_DEVICE
    assert share.ask("calls") == said


def test_without_its_quota_a_container_is_refused_before_the_driver_is(
    bare: Place, filters: Path
) -> None:
    refused = {"cuInit": SYSTEM_NOT_READY, "flags": SYSTEM_NOT_READY}
    assert Place(filters).ask("calls") == {**bare.ask("calls"), **refused}


def test_the_simulator_answers_as_the_driver_before_it_is_initialized(
    bare: Place, simulated: Place
) -> None:
    assert simulated.ask("calls")["before"] == bare.ask("calls")["before"]
    assert simulated.ask("nvml")["before"] == bare.ask("nvml")["before"]


def test_a_share_has_the_driver_s_words_for_errors(bare: Place, share: Place) -> None:
    assert share.ask("errors") == bare.ask("errors")
    assert share.ask("nvml") == bare.ask("nvml")


def test_the_simulator_has_the_driver_s_words_for_errors(bare: Place, simulated: Place) -> None:
    of_simulator, of_driver = simulated.ask("errors"), bare.ask("errors")
    for form in ("cuGetErrorName", "cuGetErrorString"):
        del of_simulator[f"{form} {OF_LATE_550}"], of_driver[f"{form} {OF_LATE_550}"]
    assert of_simulator == of_driver
    assert simulated.ask("nvml")["errors"] == bare.ask("nvml")["errors"]
