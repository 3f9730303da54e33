# SPDX-License-Identifier: Apache-2.0
"""Ceilings: what is above one is refused, from whatever source; a default is put down to it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given as any_of
from hypothesis import strategies as st

from gpushare.quota import Cards, Ceilings, Defaults, QuotaError, give, read_quota
from gpushare.quota.keys import KEYS

GIB = 1 << 30
LINE = "ceilings.{}, /etc/gpushare/gpushare.yaml:12"
WHERE = {
    key: LINE.format(key)
    for key in (
        *("memory", "memory_percent", "memory_limit", "cores", "count", "weight", "priority"),
        *("policies", "classes", "backends", "whole_cards"),
    )
}


def ceilings(**most: object) -> Ceilings:
    return Ceilings(**most, where=WHERE)  # type: ignore[arg-type]


def held(
    most: Ceilings,
    asked: dict[str, str],
    *,
    source: str = "annotation",
    cards: Cards | None = None,
    operator: dict[str, str] | None = None,
) -> None:
    annotations = {KEYS[key].annotation: text for key, text in asked.items()}
    env = {KEYS[key].env: text for key, text in asked.items()}
    quota = read_quota(
        annotations if source == "annotation" else {},
        env if source == "env" else {},
        options=asked if source == "option" else {},
        operator=operator,
        cards=cards,
        trust="ask",
    )
    most.refuse_above(quota, give(quota, cards=cards), cards)


MEMORY = {"memory": "1GiB"}
#: The ceiling, what is at it, what is above it, and what is said of that.
EACH: list[tuple[dict[str, object], dict[str, str], dict[str, str], str]] = [
    (
        {"memory_bytes": 4 * GIB},
        {"memory": "4GiB"},
        {"memory": "5GiB"},
        (
            '"5GiB" is above the ceiling, 4GiB (ceilings.memory, /etc/gpushare/gpushare.yaml:12); '
            "ask for 4GiB or less"
        ),
    ),
    (
        {"memory_percent": 25},
        {"memory-percent": "25"},
        {"memory-percent": "26"},
        '"26" is above the ceiling, 25 (ceilings.memory_percent, ',
    ),
    (
        {"memory_bytes": 4 * GIB},
        {"memory": "1GiB", "memory-limit": "4GiB"},
        {"memory": "1GiB", "memory-limit": "5GiB"},
        '"5GiB" is above the ceiling, 4GiB (ceilings.memory, ',
    ),
    (
        {"memory_bytes": 2 * GIB, "memory_limit_bytes": 4 * GIB},
        {"memory": "2GiB", "memory-limit": "4GiB"},
        {"memory": "2GiB", "memory-limit": "5GiB"},
        '"5GiB" is above the ceiling, 4GiB (ceilings.memory_limit, ',
    ),
    (
        {"cores": 30},
        MEMORY | {"cores": "30"},
        MEMORY | {"cores": "31"},
        '"31" is above the ceiling, 30 (ceilings.cores, ',
    ),
    (
        {"count": 2},
        MEMORY | {"count": "2"},
        MEMORY | {"count": "3"},
        '"3" is 3 cards, which are above the ceiling, 2 (ceilings.count, ',
    ),
    (
        {"count": 1},
        MEMORY | {"devices": "1"},
        MEMORY | {"devices": "0,1"},
        '"0,1" is 2 cards, which are above the ceiling, 1 (ceilings.count, ',
    ),
    (
        {"weight": 5},
        MEMORY | {"weight": "5"},
        MEMORY | {"weight": "6"},
        '"6" is above the ceiling, 5 (ceilings.weight, ',
    ),
    (
        {"priority": 3},
        MEMORY | {"priority": "3"},
        MEMORY | {"priority": "2"},
        (
            '"2" is above the ceiling, 3 (ceilings.priority, /etc/gpushare/gpushare.yaml:12); ask '
            "for 3 or more"
        ),
    ),
    (
        {"policies": ("fixed-share", "best-effort")},
        MEMORY | {"cores": "9", "policy": "best-effort"},
        MEMORY | {"cores": "9", "policy": "burst-share"},
        (
            '"burst-share" is not given here (ceilings.policies, /etc/gpushare/gpushare.yaml:12); '
            "ask for fixed-share or best-effort"
        ),
    ),
    (
        {"policies": ("best-effort",)},
        MEMORY,
        MEMORY | {"cores": "9"},
        '"9" is policy fixed-share, which is not given here (ceilings.policies, ',
    ),
    (
        {"policies": ("fixed-share",)},
        MEMORY | {"cores": "9"},
        MEMORY,
        '"1GiB" without cores is policy best-effort, which is not given here (ceilings.policies, ',
    ),
    (
        {"classes": ("offline",)},
        MEMORY | {"class": "offline"},
        MEMORY | {"class": "online"},
        '"online" is not given here (ceilings.classes, ',
    ),
    (
        {"backends": ("interposer",)},
        MEMORY | {"backend": "interposer"},
        MEMORY | {"backend": "driver"},
        '"driver" is not given here (ceilings.backends, ',
    ),
    (
        {"whole_cards": False},
        MEMORY | {"count": "1"},
        {"count": "1"},
        '"1" asks for whole cards, which are not given here (ceilings.whole_cards, ',
    ),
    (
        {"memory_bytes": 4 * GIB},
        MEMORY,
        {"cores": "100"},
        '"100" asks for whole cards, which are not given here (ceilings.memory, ',
    ),
]


@pytest.mark.parametrize("source", ["annotation", "env", "option"])
@pytest.mark.parametrize(("most", "at", "above", "told"), EACH)
def test_a_ceiling_is_given_and_what_is_above_it_is_refused(
    most: dict[str, object], at: dict[str, str], above: dict[str, str], told: str, source: str
) -> None:
    held(ceilings(**most), at, source=source)
    with pytest.raises(QuotaError) as refused:
        held(ceilings(**most), above, source=source)
    assert told in str(refused.value)
    prefix = {"annotation": "annotation gpushare.io/", "env": "env GPUSHARE_", "option": "--"}
    assert str(refused.value).startswith(prefix[source])


def test_every_ceiling_is_tried() -> None:
    tried = {key for row in EACH for key in row[0]}
    assert tried == set(Ceilings.__dataclass_fields__) - {"where"}


@pytest.mark.parametrize(
    ("most", "operator"),
    [
        ({"memory_bytes": GIB}, {"memory": "64GiB"}),
        ({"memory_bytes": GIB}, {"memory-limit": "64GiB"}),
        ({"memory_percent": 1}, {"memory-percent": "90"}),
        ({"cores": 1}, {"cores": "90"}),
        ({"weight": 1}, {"weight": "90"}),
        ({"priority": 9}, {"priority": "0"}),
        ({"classes": ("offline",)}, {"class": "online"}),
        ({"backends": ("interposer",)}, {"backend": "driver"}),
        ({"policies": ("best-effort",)}, {"cores": "5", "policy": "burst-share"}),
    ],
)
def test_what_the_operator_set_is_held_to_no_ceiling(
    most: dict[str, object], operator: dict[str, str]
) -> None:
    held(ceilings(**most), MEMORY, operator=operator)


@pytest.mark.parametrize(
    ("cards", "told"),
    [
        (
            Cards("docker run --gpus", count=2),
            "docker run --gpus: 2 cards are above the ceiling, 1",
        ),
        (Cards("CDI", devices=("GPU-1", "GPU-2")), "CDI: 2 cards are above the ceiling, 1"),
    ],
)
def test_cards_of_the_engine_are_held_to_the_ceiling(cards: Cards, told: str) -> None:
    with pytest.raises(QuotaError, match=re.escape(told)):
        held(ceilings(count=1), {}, cards=cards)
    held(ceilings(count=2), {}, cards=cards)


@pytest.mark.parametrize(
    ("most", "whole"),
    [
        ({}, True),
        ({"count": 1, "weight": 3}, True),
        ({"memory_percent": 100, "cores": 100}, True),
        ({"memory_bytes": 4 * GIB}, False),
        ({"memory_percent": 50}, False),
        ({"cores": 99}, False),
        ({"cores": 50, "whole_cards": True}, True),
        ({"whole_cards": False}, False),
    ],
)
def test_a_ceiling_of_a_share_takes_whole_cards_with_it(
    most: dict[str, object], whole: bool
) -> None:
    cards = Cards("docker run --gpus", count=1)
    if whole:
        held(ceilings(**most), {}, cards=cards)
        return
    with pytest.raises(QuotaError) as refused:
        held(ceilings(**most), {}, cards=cards)
    assert str(refused.value).startswith(
        "docker run --gpus: asks for whole cards, which are not given here (ceil"
    )
    assert "for a share, add -e GPUSHARE_MEMORY=4GiB" in str(refused.value)


def test_a_default_above_a_ceiling_is_the_ceiling() -> None:
    most = ceilings(memory_bytes=2 * GIB, cores=10, policies=("best-effort",))
    assert most.held(Defaults(4 * GIB, 50)) == Defaults(2 * GIB, 10, "best-effort")
    assert most.held(Defaults(GIB, 5, "best-effort")) == Defaults(GIB, 5, "best-effort")
    assert ceilings().held(Defaults(4 * GIB, 50)) == Defaults(4 * GIB, 50)
    assert ceilings(policies=("fixed-share",)).held(Defaults()) == Defaults()


def test_who_asks_for_nothing_is_refused_nothing() -> None:
    held(ceilings(memory_bytes=1, count=1, cores=1, whole_cards=False), {})


@any_of(
    st.integers(1, 99),
    st.integers(1, 99),
    st.integers(1, 8),
    st.sampled_from(["annotation", "env"]),
)
def test_what_is_given_is_at_most_the_ceiling(
    memory: int, cores: int, count: int, source: str
) -> None:
    most = ceilings(memory_bytes=50 * GIB, cores=50, count=4)
    asked = {"memory": f"{memory}GiB", "cores": str(cores), "count": str(count)}
    try:
        held(most, asked, source=source)
    except QuotaError:
        assert memory > 50 or cores > 50 or count > 4
    else:
        assert memory <= 50
        assert cores <= 50
        assert count <= 4
