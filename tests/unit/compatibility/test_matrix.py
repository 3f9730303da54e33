# SPDX-License-Identifier: Apache-2.0
"""The tables agree with each other, and with what the interposer was made of."""

from __future__ import annotations

from gpushare.compatibility import rules
from gpushare.compatibility.rules import parse_version, strip_zeros
from libhook.table import headers


def test_the_baseline_is_the_source_of_the_interposers_table() -> None:
    releases = [parse_version(name) for name in headers.RELEASES]
    assert (releases[0], releases[-1]) == (rules.BASELINE_OLDEST, rules.BASELINE_NEWEST)


def test_newer_toolkits_came_with_newer_drivers() -> None:
    assert list(rules.TOOLKITS) == sorted(rules.TOOLKITS)
    drivers = list(rules.TOOLKITS.values())
    assert drivers == sorted(drivers)


def test_versions_have_no_zeros_at_their_end() -> None:
    tables = (rules.TOOLKITS, rules.ARCHITECTURES, rules.MIG_DRIVERS)
    for version in (version for table in tables for version in table):
        assert strip_zeros(version) == version


def test_the_oldest_driver_of_a_major_version_is_none_that_came_later_than_its_first_toolkit() -> (
    None
):
    for major, least in rules.MINOR_COMPATIBLE.items():
        after = min(own for cuda, own in rules.TOOLKITS.items() if cuda > (major, 1))
        assert rules.TOOLKITS[major,] <= least < after


def test_a_card_is_known_to_some_toolkit_and_to_its_driver() -> None:
    for known in rules.ARCHITECTURES.values():
        assert known.last is None or known.last >= known.first[0]
        assert (known.last is None) == (known.last_driver is None)
    for wanted in rules.PRECISIONS.values():
        assert any(capability >= wanted.capability for capability in rules.ARCHITECTURES)
