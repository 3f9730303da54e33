# SPDX-License-Identifier: Apache-2.0
"""The effective request: defaults, combinations of keys, profiles, and sizes."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.quota.effective_request import (
    Defaults,
    EffectiveRequest,
    resolve_request,
)
from gpushare.quota.errors import BadValue, QuotaError
from gpushare.quota.keys import KEYS
from gpushare.quota.parse import parse_request
from gpushare.quota.request import EngineCards, QuotaRequest, to_record
from gpushare.quota.request_policy import profile
from gpushare.quota.size import MAX_BYTES, exact_size, parse_size

GIB = 1 << 30


GPUS = EngineCards("docker run --gpus", count=2)


def resolved(
    env: dict[str, str] | None = None,
    *,
    visible: str | None = None,
    cards: EngineCards | None = None,
    defaults: Defaults | None = None,
) -> EffectiveRequest:
    variables = {f"GPUSHARE_{name}": value for name, value in (env or {}).items()}
    quota = parse_request({}, variables, cards=cards, defaults=defaults).valid()
    return resolve_request(quota, visible=visible, cards=cards)


def refusal(env: dict[str, str], cards: EngineCards | None = None) -> str:
    with pytest.raises(QuotaError) as caught:
        resolved(env, cards=cards)
    return str(caught.value)


def test_the_images_visible_devices_alone_give_nothing() -> None:
    nothing = resolved(visible="all")
    assert nothing.kind == "none"
    assert nothing.why == (
        'NVIDIA_VISIBLE_DEVICES="all" alone requests no GPU; to get one, '
        "add -e GPUSHARE_MEMORY=4GiB (in a pod: the annotation gpushare.io/memory=4GiB)"
    )


@pytest.mark.parametrize(
    ("env", "cards", "count", "devices"),
    [
        ({}, GPUS, 2, ()),
        ({}, EngineCards("--gpus", all_cards=True), None, ()),
        ({}, EngineCards("--gpus", devices=("GPU-1", "GPU-2")), 2, ("GPU-1", "GPU-2")),
        ({"COUNT": "3"}, None, 3, ()),
        ({"DEVICES": "1"}, None, 1, ("1",)),
        ({"CORES": "100"}, None, 1, ()),
        ({"CORES": "100", "COUNT": "2"}, None, 2, ()),
    ],
)
def test_cards_without_memory_are_whole_cards(
    env: dict[str, str], cards: EngineCards | None, count: int | None, devices: tuple[str, ...]
) -> None:
    whole = resolved(env, cards=cards)
    assert (whole.kind, whole.count, whole.devices) == ("exclusive", count, devices)


def test_the_nodes_policy_and_the_containers_own_come_before_fixed_share() -> None:
    node = Defaults(policy="burst-share")
    assert resolved({"MEMORY": "4GiB", "CORES": "30"}, defaults=node).policy == "burst-share"
    own = resolved({"MEMORY": "4GiB", "CORES": "30", "POLICY": "best-effort"}, defaults=node)
    assert own.policy == "best-effort"


def test_defaults_fill_memory_for_cores_and_for_cards_where_the_node_says_so() -> None:
    defaults = Defaults(memory_bytes=2 * GIB)
    assert resolved({"CORES": "30"}, defaults=defaults).memory_bytes == 2 * GIB
    assert resolved({"COUNT": "1"}, defaults=defaults).kind == "exclusive"
    assert resolved({"REMOTE": "lab"}, defaults=defaults).kind == "remote"
    share = resolved(cards=GPUS, defaults=Defaults(memory_bytes=2 * GIB, shared_by_default=True))
    assert (share.kind, share.memory_bytes, share.count) == ("shared", 2 * GIB, 2)


INCOMPLETE = """\
CORES=30: env GPUSHARE_CORES=30: requests cores without memory.
    Add gpushare.io/memory or GPUSHARE_MEMORY, e.g. 4GiB.
MEMORY=4GiB MEMORY_PERCENT=50: env GPUSHARE_MEMORY=4GiB:
    conflicts with env GPUSHARE_MEMORY_PERCENT: both set memory. Keep one of the two.
MEMORY=4GiB MEMORY_LIMIT=2GiB: env GPUSHARE_MEMORY_LIMIT=2GiB: below memory 4GiB.
    Write 4GiB or more.
MEMORY_LIMIT=2GiB: env GPUSHARE_MEMORY_LIMIT=2GiB: sets a burst limit,
    but memory is not requested. Add gpushare.io/memory or GPUSHARE_MEMORY, the guaranteed part.
DEVICES=0,1 COUNT=3: env GPUSHARE_COUNT=3: not the number of cards in env GPUSHARE_DEVICES.
    Write 2, or omit count.
MEMORY=4GiB POLICY=fixed-share: env GPUSHARE_POLICY=fixed-share: requires cores,
    but none are requested. Add gpushare.io/cores or GPUSHARE_CORES, e.g. 30.
WEIGHT=3: env GPUSHARE_WEIGHT=3: requires a memory or card request.
    Add -e GPUSHARE_MEMORY=4GiB (in a pod: the annotation gpushare.io/memory=4GiB)."""


@pytest.mark.parametrize("line", INCOMPLETE.replace("\n    ", " ").splitlines())
def test_a_contradictory_or_incomplete_request_is_refused(line: str) -> None:
    words, _, message = line.partition(": ")
    assert refusal(dict(word.split("=") for word in words.split())) == message


def test_a_key_and_an_engine_with_different_cards_are_refused() -> None:
    assert refusal({"COUNT": "1"}, GPUS) == (
        "env GPUSHARE_COUNT=1: conflicts with docker run --gpus: different numbers of cards. "
        "Keep one of the two."
    )
    assert refusal({"DEVICES": "0"}, EngineCards("docker run --gpus", devices=("1",))) == (
        "env GPUSHARE_DEVICES=0: conflicts with docker run --gpus: both name cards. "
        "Keep one of the two."
    )
    assert refusal({"REMOTE": "lab"}, GPUS) == (
        "env GPUSHARE_REMOTE=lab: conflicts with docker run --gpus: a container has no cards "
        "beside a remote GPU. Keep one of the two."
    )


ANNOTATION = "gpushare.io/profile"


GIVEN: dict[str, dict[str, Any]] = {
    "small": {"memory": "8GiB", "cores": 10, "policy": "burst-share"},
    "big": {"memory": "40GiB", "cores": 50},
    "third": {"equal": 3},
    "seat": {"equal": 4, "policy": "best-effort"},
    "turn": {"equal": 4, "policy": "equal-share"},
}


PROFILES = {name: profile(name, resolved) for name, resolved in GIVEN.items()}


def asked(
    annotations: dict[str, str] | None = None, env: dict[str, str] | None = None, **more: Any
) -> QuotaRequest:
    return parse_request(annotations or {}, env or {}, profiles=PROFILES, **more).valid()


def profile_refusal(*sources: dict[str, str], **more: Any) -> str:
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
    assert profile_refusal(beside) == (
        "annotation gpushare.io/profile=small: sets memory and compute, and so do other keys "
        "beside it. Keep the profile or the other keys."
    )


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


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4GiB", 4 * GIB),
        ("4Gi", 4 * GIB),
        (" 4 GiB\n", 4 * GIB),
        ("512m", 512 << 20),
        ("1.5GiB", 3 * GIB // 2),
        ("0.1MiB", None),
        ("2TiB", 2 << 40),
        ("1k", 1024),
        ("4096B", 4096),
    ],
)
def test_units_are_binary(text: str, size: int | None) -> None:
    if size is None:
        with pytest.raises(BadValue, match=r"is not a whole number of bytes; write e\.g\. 104857B"):
            parse_size(text)
    else:
        assert parse_size(text) == size


REFUSED = """
4G => is ambiguous: 4 GiB = 4294967296 bytes, or 4000000000 bytes; write 4GiB or 4000000000B
512M => is ambiguous: 512 MiB = 536870912 bytes, or 512000000 bytes; write 512MiB or 512000000B
3.7GiB => is not a whole number of bytes; write e.g. 3788MiB
0 => must be greater than zero; write e.g. 4GiB, or omit the key to request no GPU
4 => has no unit: 4 bytes or 4 GiB; write 4GiB, or 4B for bytes
4Q => is not a size; write e.g. 4GiB
 => is not a size; write e.g. 4GiB
4e9 => is not a size; write e.g. 4GiB
٤GiB => is not a size; write e.g. 4GiB
99999999999999999999GiB => exceeds the memory of any card; write e.g. 4GiB
"""


@pytest.mark.parametrize("row", REFUSED.replace("\n    ", " ").strip().splitlines())
def test_an_ambiguous_or_invalid_size_is_refused(row: str) -> None:
    text, message = row.split(" => ")
    with pytest.raises(BadValue) as caught:
        parse_size(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "text", ["", "0", "0.0", "0/3", "1/0", "100.01", "301/3", "-1", "1e1", "x"]
)
def test_what_is_no_percentage_is_refused(text: str) -> None:
    with pytest.raises(BadValue, match="not a percentage of a card's memory") as refusal:
        KEYS["memory-percent"].parse(text)
    assert refusal.value.fix == "write a number up to 100, e.g. 25, 12.5 or 100/3"


@given(st.integers(min_value=1, max_value=MAX_BYTES))
def test_an_exact_size_reads_as_the_same_bytes(size: int) -> None:
    assert parse_size(exact_size(size)) == size
