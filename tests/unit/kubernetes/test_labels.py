# SPDX-License-Identifier: Apache-2.0
"""A node's labels: what its cards are, valid, and gone when the node does not offer them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare.kubernetes.api.labels import NAMES, label_value, labels_of
from gpushare.kubernetes.cards import NodeCards

from .made import GIB, card, node

VALID = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")


@given(st.text(max_size=200))
def test_any_text_becomes_a_valid_value(text: str) -> None:
    assert VALID.fullmatch(label_value(text))


@given(st.from_regex(VALID, fullmatch=True))
def test_a_valid_value_stays_as_it_is(text: str) -> None:
    assert label_value(text) == text


def test_a_node_of_two_equal_cards() -> None:
    assert labels_of(node(card(0), card(1))) == {
        "gpushare.io/mode": "dra",
        "gpushare.io/isolation": "interposer",
        "gpushare.io/gpu.count": "2",
        "gpushare.io/gpu.product": "NVIDIA-H200",
        "gpushare.io/gpu.memory": str(140 * 1024),
        "gpushare.io/gpu.compute.major": "9",
        "gpushare.io/gpu.compute.minor": "0",
        "gpushare.io/cuda.driver-version.full": "580.95.05",
        "gpushare.io/cuda.driver-version.major": "580",
        "gpushare.io/cuda.driver-version.minor": "95",
        "gpushare.io/cuda.driver-version.revision": "5",
        "gpushare.io/cuda.runtime-version.full": "13.0",
        "gpushare.io/cuda.runtime-version.major": "13",
        "gpushare.io/cuda.runtime-version.minor": "0",
        "cuda-major-version": "13",
        "cuda-minor-version": "0",
    }


def test_of_different_cards_the_least_counts() -> None:
    old = card(1, model="Tesla T4", compute_capability="7.5", memory_bytes=15 * GIB)
    found = labels_of(node(card(0), old))
    assert found["gpushare.io/gpu.product"] == "mixed"
    assert found["gpushare.io/gpu.memory"] == str(15 * 1024)
    assert found["gpushare.io/gpu.compute.major"] == "7"


def test_of_a_node_without_cards_only_the_mode_is_known() -> None:
    empty = NodeCards([], "plugin", driver_version="580.95.05")
    assert labels_of(empty) == {"gpushare.io/mode": "plugin"}


@pytest.mark.parametrize("version", ["", "unknown", "580.x"])
def test_a_version_that_is_none_makes_no_label(version: str) -> None:
    found = labels_of(node(driver_version=version, cuda_version=version))
    assert not [name for name in found if "version" in name]


def test_every_label_is_one_that_is_removed_later() -> None:
    assert set(labels_of(node())) == set(NAMES)
