# SPDX-License-Identifier: Apache-2.0
"""Figures that cannot be are no figures; odd ones that a driver really gives are."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.daemon.cards import plausible
from gpushare.daemon.cards.card import Implausible, Sample, Use

from . import puppet
from .puppet import GIB, LOOK

OF = plausible.loaded(puppet.ANSWERS["load"])


def seen(**changes: Any) -> Sample:
    answer = {"driver": "615.10", "cards": [{**LOOK, **changes}], "xids": []}
    return plausible.sample(answer, OF)


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
        ({"total": "much"}, "in no known way"),
        ({"compute": None}, "in no known way"),
        ({"shares": [[7]]}, "in no known way"),
    ],
)
def test_what_cannot_be_is_refused(lie: dict[str, Any], why: str) -> None:
    with pytest.raises(Implausible, match=why):
        seen(**lie)


@pytest.mark.parametrize(
    ("said", "uses"),
    [
        ({"compute": [[7, None, None]]}, [Use(7, None, 40)]),
        ({"graphics": [[7, GIB, None]]}, [Use(7, GIB, 40)]),
        ({"graphics": [[7, GIB + 5, None]]}, [Use(7, GIB + 5, 40)]),
        ({"graphics": [[8, 1, None]]}, [Use(7, GIB, 40), Use(8, 1)]),
        ({"compute": [[7, GIB, 1], [7, GIB, 2]]}, [Use(7, 2 * GIB, 40)]),
        ({"shares": [[7, 4000]]}, [Use(7, GIB)]),
        ({"compute": []}, []),
        ({"busy": None}, [Use(7, GIB, 40)]),
    ],
    ids=["unsaid", "both", "grew", "graphics", "parts", "percent", "none", "mig"],
)
def test_what_a_driver_does_in_earnest_is_taken(said: dict[str, Any], uses: list[Use]) -> None:
    assert list(seen(**said).uses["GPU-0"]) == uses


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
        with contextlib.suppress(Implausible):
            plausible.sample({"driver": "615.10", "cards": answers, "xids": []}, OF)
    with contextlib.suppress(Implausible):
        plausible.xids({"xids": said})
    with contextlib.suppress(Implausible):
        plausible.loaded({**puppet.ANSWERS["load"], "cards": [{**puppet.CARD, field: said}]})


def test_two_cards_of_one_uuid_are_none() -> None:
    twice = [puppet.CARD, {**puppet.CARD, "index": 1}]
    with pytest.raises(Implausible, match="two cards of one UUID"):
        plausible.loaded({**puppet.ANSWERS["load"], "cards": twice})
