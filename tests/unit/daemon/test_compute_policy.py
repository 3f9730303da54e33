# SPDX-License-Identifier: Apache-2.0
"""The share of each tenant: guarantees are kept, the rest is divided, and no tenant starves."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.daemon.policy import (
    ShareRequest,
    charge_corrections,
    divide_compute,
    policy_on,
    reserved_cores,
)
from gpushare.quota.keys import POLICIES

GUARANTEED = ("fixed-share", "burst-share")
CARD_POLICIES = ("", *POLICIES)


def claim(key: str, policy: str = "best-effort", cores: int = 0, weight: int = 0) -> ShareRequest:
    return ShareRequest(key, policy, cores, weight, "offline", 5)


@st.composite
def claims(draw: st.DrawFn) -> list[ShareRequest]:
    made = []
    for number in range(draw(st.integers(0, 20))):
        policy = draw(st.sampled_from(POLICIES))
        made.append(
            ShareRequest(
                key=f"{number:02}",
                policy=policy,
                cores=draw(st.integers(policy in GUARANTEED, 100)),
                weight=draw(st.integers(0, 1000)),
                class_=draw(st.sampled_from(["online", "offline"])),
                priority=draw(st.integers(0, 9)),
                policy_is_set=draw(st.booleans()),
            )
        )
    return made


card_policies = st.sampled_from(CARD_POLICIES)


@given(claims(), card_policies)
def test_no_share_is_allocated_twice_and_none_is_zero(
    found: list[ShareRequest], card_policy: str
) -> None:
    given_to = divide_compute(found, card_policy)
    parts = {key: share.permille for key, share in given_to.items()}
    policies = {
        one.key: policy_on(one.policy, one.cores, card_policy, is_set=one.policy_is_set)
        for one in found
    }
    reserved = {one.key: reserved_cores(policies[one.key], one.cores) * 10 for one in found}
    others = [key for key, cores in reserved.items() if not cores]
    assert parts.keys() == reserved.keys()
    assert sum(parts.values()) <= 1000
    assert min(parts.values(), default=1) >= 1
    if others:  # they have at least one percent, and all that is left
        assert sum(parts[key] for key in others) >= 10
        assert sum(parts.values()) == 1000
    if sum(reserved.values()) + (max(10, len(others)) if others else 0) <= 1000:
        assert all(parts[key] == permille or not permille for key, permille in reserved.items())
    for one in found:
        share, online = given_to[one.key], one.class_ == "online"
        assert share.capped == (policies[one.key] == "fixed-share")
        assert share.online == (online and not share.capped)
        assert share.priority == (0 if online else one.priority + 1)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=16), st.integers(0, 99))
def test_the_remaining_compute_is_divided_by_weight(weights: list[int], cores: int) -> None:
    found = [claim(f"{i:02}", "native-burst-share", 0, w) for i, w in enumerate(weights)]
    fixed = [claim("fixed", "fixed-share", cores)] if cores else []
    given_to = divide_compute([*found, *fixed])
    rest = sum(given_to[one.key].permille for one in found)
    for one in found:
        exact = rest * one.weight / sum(weights)
        # A tenant with less than 1 permille gets it from the largest.
        assert given_to[one.key].permille - exact < 1 or given_to[one.key].permille == 1
        assert exact - given_to[one.key].permille < 1 + len(weights)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([claim("a"), claim("b")], [500, 500]),
        ([claim("a"), claim("b"), claim("c")], [334, 333, 333]),
        ([claim("a", "fixed-share", 30), claim("b", "fixed-share", 60)], [300, 600]),
        ([claim("a", "burst-share", 30), claim("b")], [300, 700]),
        ([claim("a", "native-burst-share", 0, 3), claim("b")], [750, 250]),
        ([claim("a", "native-burst-share", 60), claim("b", "native-burst-share", 20)], [750, 250]),
        ([claim("a", "best-effort", 90, 9), claim("b")], [500, 500]),
        (
            [claim("a", "fixed-share", 60), claim("b", "burst-share", 40), claim("c")],
            [594, 396, 10],
        ),
        ([claim("a", "fixed-share", 100)], [1000]),
    ],
)
def test_parts_in_permille(found: list[ShareRequest], expected: list[int]) -> None:
    assert [share.permille for share in divide_compute(found).values()] == expected


def test_the_cards_policy_replaces_requests_but_no_operators_set() -> None:
    asked, was_set = claim("a", "fixed-share", 30), claim("b", "fixed-share", 30)
    given_to = divide_compute([asked, replace(was_set, policy_is_set=True)], "best-effort")
    assert (given_to["a"].permille, given_to["a"].capped) == (700, False)
    assert (given_to["b"].permille, given_to["b"].capped) == (300, True)


def test_a_bypassing_tenant_owes_the_time_charged_to_others() -> None:
    found = charge_corrections({"attacker": (49.5, 0), "victim": (36, 60)})
    assert found == {"attacker": 49.5, "victim": -24}


def test_copies_that_the_driver_does_not_measure_are_not_compensated() -> None:
    assert charge_corrections({"copies": (0, 30), "kernels": (60, 60)}) == {}


def test_no_more_is_compensated_than_is_owed() -> None:
    found = charge_corrections({"a": (20, 10), "b": (10, 40), "c": (10, 20)})
    assert found == {"a": 10, "b": pytest.approx(-7.5), "c": pytest.approx(-2.5)}


@given(st.dictionaries(st.text(max_size=2), st.tuples(st.floats(0, 100), st.floats(0, 100))))
def test_all_compensation_was_owed(figures: dict[str, tuple[float, float]]) -> None:
    found = charge_corrections(figures)
    owed = sum(percent for percent in found.values() if percent > 0)
    assert -sum(percent for percent in found.values() if percent < 0) <= owed + 1e-6
