# SPDX-License-Identifier: Apache-2.0
"""Figures that cannot be are no figures; odd ones that a driver really gives are."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.daemon.cards import validation
from gpushare.daemon.cards.driver_client import DriverSample, InvalidSample, ProcessUse

from . import scripted_worker
from .scripted_worker import GIB, LOOK

OF = validation.driver_description(scripted_worker.ANSWERS["load"])


def seen(**changes: Any) -> DriverSample:
    answer = {"driver": "615.10", "cards": [{**LOOK, **changes}], "xids": []}
    return validation.driver_sample(answer, OF)


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        ({"compute": [[7, 142 * GIB, None]]}, "process 7 holds"),
        ({"compute": [[7, -1, None]]}, "process 7 holds -1 bytes"),
        ({"compute": [[7, (1 << 64) - 2, None]]}, "process 7 holds"),
        ({"compute": [[7, GIB, None], [7, 2 * GIB, None]]}, "listed with"),
        ({"compute": [[0, GIB, None]]}, "there is no process 0"),
        ({"compute": [[1 << 23, GIB, None]]}, "there is no process"),
        ({"used": 0, "compute": [[7, 40 * GIB, None]]}, "its processes hold"),
        ({"used": 142 * GIB}, "are used"),
        ({"used": -1}, "-1 bytes"),
        ({"total": 70 * GIB}, "and had"),
        ({"total": "much"}, "in an unknown format"),
        ({"compute": None}, "in an unknown format"),
        ({"shares": [[7]]}, "in an unknown format"),
    ],
)
def test_an_impossible_value_is_refused(lie: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidSample, match=why):
        seen(**lie)


@pytest.mark.parametrize(
    ("said", "uses"),
    [
        ({"compute": [[7, None, None]]}, [ProcessUse(7, None, 40)]),
        ({"graphics": [[7, GIB, None]]}, [ProcessUse(7, GIB, 40)]),
        ({"graphics": [[7, GIB + 5, None]]}, [ProcessUse(7, GIB + 5, 40)]),
        ({"graphics": [[8, 1, None]]}, [ProcessUse(7, GIB, 40), ProcessUse(8, 1)]),
        ({"compute": [[7, GIB, 1], [7, GIB, 2]]}, [ProcessUse(7, 2 * GIB, 40)]),
        ({"shares": [[7, 4000]]}, [ProcessUse(7, GIB)]),
        ({"mps": [[7, GIB, None]]}, [ProcessUse(7, GIB, 40, is_mps=True)]),
        (
            {"mps": [[8, 5, None]]},
            [ProcessUse(7, GIB, 40), ProcessUse(8, 5, is_mps=True)],
        ),
        ({"compute": []}, []),
        ({"busy": None}, [ProcessUse(7, GIB, 40)]),
    ],
    ids=["unsaid", "both", "grew", "graphics", "parts", "percent", "mps", "only", "none", "mig"],
)
def test_valid_replies_of_a_driver_are_accepted(
    said: dict[str, Any], uses: list[ProcessUse]
) -> None:
    assert list(seen(**said).uses["GPU-0"]) == uses


def test_sensors_are_numbers_that_can_be() -> None:
    said = {"temperature_celsius": 41, "power_milliwatts": -1, "pcie_replays": 1 << 63}
    said |= {"encoder_percent": 101, "decoder_percent": True, "sm_clock_mhz": "9", "lies": 1}  # type: ignore[dict-item]
    assert validation.card_sensors({"sensors": {"GPU-0": said}}) == {
        "GPU-0": {"temperature_celsius": 41}
    }
    malformed: tuple[Any, ...] = (None, [], {"GPU-0": None})
    for broken in malformed:
        assert validation.card_sensors({"sensors": broken}) == {}


json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*LOOK, "error", "cards", "xids"]), inner, max_size=9)
    ),
    max_leaves=20,
)


@given(said=json, field=st.sampled_from(sorted(LOOK)))
def test_no_answer_is_worse_than_implausible(said: Any, field: str) -> None:
    for answers in ([{**LOOK, field: said}], [said], said):
        with contextlib.suppress(InvalidSample):
            validation.driver_sample({"driver": "615.10", "cards": answers, "xids": []}, OF)
    with contextlib.suppress(InvalidSample):
        validation.new_xids({"xids": said})
    with contextlib.suppress(InvalidSample):
        validation.driver_description(
            {**scripted_worker.ANSWERS["load"], "cards": [{**scripted_worker.CARD, field: said}]}
        )


def test_two_cards_of_one_uuid_are_none() -> None:
    twice = [scripted_worker.CARD, {**scripted_worker.CARD, "index": 1}]
    with pytest.raises(InvalidSample, match="two cards with the same UUID"):
        validation.driver_description({**scripted_worker.ANSWERS["load"], "cards": twice})
