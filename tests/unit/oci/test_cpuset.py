# SPDX-License-Identifier: Apache-2.0
"""A container's CPUs, kept to NUMA nodes: never more than it had."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.host.numa import Bound, Cpuset, bind, parse, shown
from gpushare.oci import edits
from gpushare.oci.edits import Edits
from gpushare.oci.spec import Spec

CPUS = st.frozensets(st.integers(0, 40), max_size=12)
NEAR = Cpuset(frozenset(range(8, 16)), frozenset({1}))
ALL = Cpuset(frozenset(range(16)), frozenset({0, 1}))


def spec(**cpu: Any) -> Spec:
    return Spec({"linux": {"resources": {"cpu": cpu}}} if cpu else {})


@given(CPUS)
def test_a_list_is_read_as_it_is_written(numbers: frozenset[int]) -> None:
    if numbers:
        assert parse(shown(numbers)) == numbers
    assert shown(parse("0-3,8,10-11")) == "0-3,8,10-11"


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2", "-1", "0-9999999", "1-2-3"])
def test_a_malformed_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse(text)


@pytest.mark.parametrize(
    ("cpu", "cpus", "mems"),
    [
        ({}, "8-15", "1"),
        ({"shares": 512}, "8-15", "1"),
        ({"cpus": "6-9", "mems": "0-1"}, "8-9", "1"),
        ({"cpus": ""}, "8-15", "1"),
    ],
)
def test_the_remaining_cpus_are_those_near_the_cards(
    cpu: dict[str, Any], cpus: str, mems: str
) -> None:
    assert bind(spec(**cpu), NEAR, ALL) == Bound(cpus, mems)


def test_where_no_cpu_is_left_the_cpuset_stays_and_is_reported() -> None:
    found = bind(spec(cpus="0-3", mems="0"), NEAR, ALL)
    assert (found.cpus, found.mems) == ("", "")
    assert found.notes == (
        "numa: bind: it may have CPUs 0-3, but its cards are on 8-15: left unchanged",
        "numa: bind: it may have memory nodes 0, but its cards are on 1: left unchanged",
    )


def test_a_list_that_cannot_be_read_stays_as_it_is() -> None:
    found = bind(spec(cpus="all"), NEAR, ALL)
    assert found.cpus == ""
    assert "linux.resources.cpu.cpus 'all' is not a list of CPUs" in found.notes[0]


@given(st.one_of(st.none(), CPUS), CPUS, CPUS)
def test_the_cpuset_never_exceeds_the_one_before(
    said: frozenset[int] | None, near: frozenset[int], allowed: frozenset[int]
) -> None:
    given_before = said or allowed
    document = spec(cpus=shown(said)) if said else spec(shares=2)
    found = bind(document, Cpuset(near), Cpuset(allowed))
    if found.cpus:
        assert parse(found.cpus) == given_before & near
    else:
        assert not given_before & near


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"linux": None},
        {"linux": {"resources": {"cpu": None}}},
        {"linux": {"resources": {"cpu": {"cpus": "0-15", "mems": None}}}},
        {"linux": {"resources": {"cpu": {"shares": 2}, "memory": {"limit": 5}}}},
    ],
)
def test_strip_restores_the_cpuset(document: dict[str, Any]) -> None:
    original = Spec(document)
    edited = edits.apply(original, Edits(cpus="8-15", mems="1"))
    assert edited.at("linux", "resources", "cpu", "cpus") == "8-15"
    assert edited.at("linux", "resources", "cpu", "mems") == "1"
    assert edits.strip(edited).document == document


def test_changes_of_other_programs_stay() -> None:
    edited = edits.apply(spec(cpus="0-15"), Edits(cpus="8-15"))
    changed = edited.with_value(("linux", "resources", "cpu", "cpus"), "8-9")
    assert edits.strip(changed).document == spec(cpus="8-9").document
