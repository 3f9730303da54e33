# SPDX-License-Identifier: Apache-2.0
"""Profiles: what they stand for, what may stand beside them, and which are refused."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from gpushare.config import parse
from gpushare.quota.effective_request import resolve_request
from gpushare.quota.errors import QuotaError
from gpushare.quota.parse import parse_request
from gpushare.quota.request import QuotaRequest, to_record
from gpushare.quota.request_policy import profile

GIB = 1 << 30
ANNOTATION = "gpushare.io/profile"
GIVEN: dict[str, dict[str, Any]] = {
    "small": {"memory": "8GiB", "cores": 10, "policy": "burst-share"},
    "big": {"memory": "40GiB", "cores": 50},
    "third": {"equal": 3},
    "seat": {"equal": 4, "policy": "best-effort"},
    "turn": {"equal": 4, "policy": "equal-share"},
}
PROFILES = {name: profile(name, given) for name, given in GIVEN.items()}


def asked(
    annotations: dict[str, str] | None = None, env: dict[str, str] | None = None, **more: Any
) -> QuotaRequest:
    return parse_request(annotations or {}, env or {}, profiles=PROFILES, **more).valid()


def refusal(*sources: dict[str, str], **more: Any) -> str:
    with pytest.raises(QuotaError) as caught:
        asked(*sources, **more)
    return str(caught.value)


def test_a_profile_stands_for_its_values() -> None:
    quota = asked({ANNOTATION: "small"})
    assert (quota.memory_bytes, quota.cores, quota.policy) == (8 * GIB, 10, "burst-share")
    assert to_record(quota.requested) == {
        "memory": {"value": "8GiB", "source": "annotation"},
        "cores": {"value": "10", "source": "annotation"},
        "policy": {"value": "burst-share", "source": "annotation"},
        "profile": {"value": "small", "source": "annotation"},
    }
    assert quota.requested["memory"].shown == "small"
    assert asked({}, {"GPUSHARE_PROFILE": "small"}).memory_bytes == 8 * GIB
    assert asked(options={"profile": "big"}).cores == 50


@pytest.mark.parametrize(
    ("name", "percent", "cores", "policy", "weight"),
    [
        ("third", Fraction(100, 3), 33, "fixed-share", 0),
        ("seat", 25, 0, "best-effort", 0),
        ("turn", 25, 0, "native-burst-share", 1),
    ],
)
def test_equal_parts_are_exact(
    name: str, percent: Fraction, cores: int, policy: str, weight: int
) -> None:
    effective = resolve_request(asked({ANNOTATION: name}))
    assert effective.memory_percent == percent
    assert (effective.cores, effective.policy, effective.weight) == (cores, policy, weight)


@pytest.mark.parametrize("key", ["memory", "memory-percent", "memory-limit", "cores", "weight"])
def test_no_key_of_memory_or_compute_may_stand_beside_it(key: str) -> None:
    beside = {ANNOTATION: "small", f"gpushare.io/{key}": "64GiB" if "memo" in key else "20"}
    if key == "memory-percent":
        beside[f"gpushare.io/{key}"] = "20"
    assert refusal(beside) == (
        "annotation gpushare.io/profile=small: sets memory and compute, and so do other keys "
        "beside it. Keep the profile or the other keys."
    )


def test_priority_and_class_may() -> None:
    quota = asked({ANNOTATION: "small", "gpushare.io/class": "online"})
    assert (quota.memory_bytes, quota.class_) == (8 * GIB, "online")


def test_a_lower_source_narrows_a_profile() -> None:
    quota = asked({ANNOTATION: "big"}, {"GPUSHARE_MEMORY": "4GiB"}, trust="reduce")
    assert (quota.memory_bytes, quota.cores, quota.profile) == (4 * GIB, 50, None)
    quota = asked({ANNOTATION: "small"}, {"GPUSHARE_PROFILE": "big"}, trust="reduce")
    assert (quota.memory_bytes, quota.cores, quota.profile) == (8 * GIB, 10, "small")
    quota = asked({"gpushare.io/memory": "40GiB"}, {"GPUSHARE_PROFILE": "small"})
    assert (quota.memory_bytes, quota.profile) == (8 * GIB, "small")


def test_what_the_operator_sets_is_no_profile_any_more() -> None:
    quota = asked({ANNOTATION: "small"}, operator={"memory": "2GiB"})
    assert (quota.memory_bytes, quota.cores, quota.profile) == (2 * GIB, 10, None)
    quota = asked({ANNOTATION: "small"}, operator={"memory": "2GiB", "profile": "tiny"})
    assert (quota.memory_bytes, quota.profile) == (2 * GIB, "tiny")


def test_an_unknown_profile_is_refused_with_those_there_are() -> None:
    assert "not a profile of this node. Did you mean small?" in refusal({ANNOTATION: "smell"})
    shown = refusal({ANNOTATION: "x"})
    assert "The profiles are small, big, third, seat, turn" in shown
    with pytest.raises(QuotaError, match=r"this node has none. Add profiles"):
        parse_request({ANNOTATION: "small"}, {}).valid()


def test_the_configuration_has_them_for_every_section() -> None:
    text = "profiles: {small: {memory: 8GiB, cores: 10}, half: {equal: 2}}\n"
    config = parse(text, Path("gpushare.yaml"))
    for terms in (config.terms, config.users, config.terms_of("team-a")):
        assert list(terms.profiles) == ["small", "half"]
    assert config.terms.profiles["half"].values == {"memory-percent": "50", "cores": "50"}
