# SPDX-License-Identifier: Apache-2.0
"""Ceilings: what is above one is refused, from whatever source; a default is put down to it."""

from __future__ import annotations

import pytest

from gpushare.quota.effective_request import Defaults, resolve_request
from gpushare.quota.errors import QuotaError
from gpushare.quota.keys import KEYS
from gpushare.quota.parse import parse_request
from gpushare.quota.request import EngineCards
from gpushare.quota.request_policy import MaxPerRequest

GIB = 1 << 30
LINE = "max_per_request.{}, /etc/gpushare/gpushare.yaml:12"
WHERE = {
    key: LINE.format(key)
    for key in (
        "memory",
        "memory_percent",
        "memory_limit",
        "cores",
        "count",
        "weight",
        "priority",
        "policies",
        "classes",
        "backends",
        "allow_exclusive",
    )
}


def ceilings(**most: object) -> MaxPerRequest:
    return MaxPerRequest(**most, where=WHERE)  # type: ignore[arg-type]


def held(
    most: MaxPerRequest,
    asked: dict[str, str],
    *,
    source: str = "annotation",
    cards: EngineCards | None = None,
    operator: dict[str, str] | None = None,
) -> None:
    annotations = {KEYS[key].annotation: text for key, text in asked.items()}
    env = {KEYS[key].env: text for key, text in asked.items()}
    quota = parse_request(
        annotations if source == "annotation" else {},
        env if source == "env" else {},
        options=asked if source == "option" else {},
        operator=operator,
        cards=cards,
        trust="request",
    ).valid()
    most.refuse_above(quota, resolve_request(quota, cards=cards), cards)


MEMORY = {"memory": "1GiB"}
WITH_CORES = MEMORY | {"cores": "9"}
WHOLE = "requests whole cards, which the policy of this node does not allow (max_per_request."
#: The ceiling, a key, its text at the ceiling and above it, and what is said of that.
BESIDE_MEMORY: list[tuple[str, object, str, str, str, str]] = [
    ("cores", 30, "cores", "30", "31", "exceeds the maximum, 30"),
    ("count", 2, "count", "2", "3", "3 cards exceed the maximum, 2"),
    ("count", 1, "devices", "1", "0,1", "2 cards exceed the maximum, 1"),
    ("weight", 5, "weight", "5", "6", "exceeds the maximum, 5"),
    ("priority", 3, "priority", "3", "2", "above the highest allowed priority, 3"),
    ("classes", ("offline",), "class", "offline", "online", "not allowed on this node"),
    ("backends", ("driver",), "backend", "driver", "mps", "not allowed on this node"),
]
#: The ceiling, what is at it, what exceeds it, and what is said of that.
EACH: list[tuple[dict[str, object], dict[str, str], dict[str, str], str]] = [
    (
        {"memory_bytes": 4 * GIB},
        {"memory": "4GiB"},
        {"memory": "5GiB"},
        f"=5GiB: exceeds the maximum, 4GiB ({WHERE['memory']}). Request 4GiB or less.",
    ),
    (
        {"memory_percent": 25},
        {"memory-percent": "25"},
        {"memory-percent": "26"},
        "=26: exceeds the maximum, 25 (max_per_request.memory_percent, ",
    ),
    (
        {"memory_bytes": 4 * GIB},
        MEMORY | {"memory-limit": "4GiB"},
        MEMORY | {"memory-limit": "5GiB"},
        "=5GiB: exceeds the maximum, 4GiB (max_per_request.memory, ",
    ),
    (
        {"memory_bytes": 2 * GIB, "memory_limit_bytes": 4 * GIB},
        {"memory": "2GiB", "memory-limit": "4GiB"},
        {"memory": "2GiB", "memory-limit": "5GiB"},
        "=5GiB: exceeds the maximum, 4GiB (max_per_request.memory_limit, ",
    ),
    (
        {"policies": ("fixed-share", "best-effort")},
        WITH_CORES | {"policy": "best-effort"},
        WITH_CORES | {"policy": "burst-share"},
        f"not allowed on this node ({WHERE['policies']}). Request fixed-share or best-effort.",
    ),
    (
        {"policies": ("best-effort",)},
        MEMORY,
        WITH_CORES,
        "=9: policy fixed-share, which this node does not allow (max_per_request.policies, ",
    ),
    (
        {"policies": ("fixed-share",)},
        WITH_CORES,
        MEMORY,
        "=1GiB: without cores is policy best-effort, which this node does not allow (max_per",
    ),
    (
        {"allow_exclusive": False},
        MEMORY | {"count": "1"},
        {"count": "1"},
        f"=1: {WHOLE}allow_exclusive, ",
    ),
    ({"memory_bytes": 4 * GIB}, MEMORY, {"cores": "100"}, f"=100: {WHOLE}memory, "),
    *(
        (
            {ceiling: most},
            MEMORY | {key: at},
            MEMORY | {key: above},
            f"={above}: {told} (max_per_request.{ceiling}, ",
        )
        for ceiling, most, key, at, above, told in BESIDE_MEMORY
    ),
]


@pytest.mark.parametrize(("most", "at", "above", "told"), EACH)
def test_a_request_at_the_ceiling_is_met_and_one_above_it_is_refused(
    most: dict[str, object], at: dict[str, str], above: dict[str, str], told: str
) -> None:
    for source, prefix in (
        ("annotation", "annotation gpushare.io/"),
        ("env", "env GPUSHARE_"),
        ("option", "--"),
    ):
        held(ceilings(**most), at, source=source)
        with pytest.raises(QuotaError) as refused:
            held(ceilings(**most), above, source=source)
        assert told in str(refused.value)
        assert str(refused.value).startswith(prefix)


def test_every_ceiling_is_tried() -> None:
    tried = {key for row in EACH for key in row[0]}
    assert tried == set(MaxPerRequest.__dataclass_fields__) - {"where"}


@pytest.mark.parametrize(
    ("most", "operator"),
    [
        (most, above)
        for most, _, above, _ in EACH
        # An operator sets no cards, and a ceiling on whole cards or without cores is no ceiling.
        if not {"count", "devices"} & above.keys() and above not in (MEMORY, {"cores": "100"})
    ],
)
def test_overrides_are_not_bounded_by_ceilings(
    most: dict[str, object], operator: dict[str, str]
) -> None:
    held(ceilings(**most), MEMORY, operator=operator)


def test_cards_that_an_engine_requests_obey_the_ceiling() -> None:
    for cards in (
        EngineCards("docker run --gpus", count=2),
        EngineCards("CDI", devices=("GPU-1", "GPU-2")),
    ):
        with pytest.raises(QuotaError, match=f"{cards.source}: 2 cards exceed the maximum, 1"):
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
        ({"cores": 50, "allow_exclusive": True}, True),
        ({"allow_exclusive": False}, False),
    ],
)
def test_a_ceiling_of_a_share_takes_whole_cards_with_it(
    most: dict[str, object], whole: bool
) -> None:
    cards = EngineCards("docker run --gpus", count=1)
    if whole:
        held(ceilings(**most), {}, cards=cards)
        return
    with pytest.raises(QuotaError) as refused:
        held(ceilings(**most), {}, cards=cards)
    assert str(refused.value).startswith(f"docker run --gpus: {WHOLE}")
    assert "For a share, add -e GPUSHARE_MEMORY=4GiB" in str(refused.value)


def test_a_default_above_a_ceiling_is_the_ceiling() -> None:
    most = ceilings(memory_bytes=2 * GIB, cores=10, policies=("best-effort",))
    assert most.limit_defaults(Defaults(4 * GIB, 50)) == Defaults(2 * GIB, 10, "best-effort")
    assert most.limit_defaults(Defaults(GIB, 5, "best-effort")) == Defaults(GIB, 5, "best-effort")
    assert ceilings().limit_defaults(Defaults(4 * GIB, 50)) == Defaults(4 * GIB, 50)
    assert ceilings(policies=("fixed-share",)).limit_defaults(Defaults()) == Defaults()
