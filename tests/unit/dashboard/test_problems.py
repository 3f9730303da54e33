# SPDX-License-Identifier: Apache-2.0
"""What the overview lists as problems, and which containers wait."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare.dashboard.problems import mode_of, problems, waiting
from tests.unit.cli.conftest import CARD, tenant
from tests.unit.cli.test_transcripts import waiting as start


def test_problems_are_the_warnings_of_gpushared_and_closed_cards() -> None:
    closed: Any = {
        **CARD,
        "cordoned": True,
        "cordon_reason": "repair",
        "unattributed_bytes": 1 << 30,
    }
    train = tenant("train", 3, 4, warnings=["train is frozen"])
    found = problems([closed], [train], ["the ledger is damaged"])
    assert [(one["text"], one["card"], one["key"]) for one in found] == [
        ("the ledger is damaged", "", ""),
        ("Card 0 is cordoned: repair", CARD["uuid"], ""),
        ("Card 0 has 1 GiB in use by no process that the driver reports", CARD["uuid"], ""),
        ("train is frozen", "", train["key"]),
    ]
    assert problems([CARD], [tenant("train", 3, 4)], []) == []


def test_who_waits_longest_comes_first() -> None:
    rows = [
        tenant("free", 1, 4, throttled=0.01),
        tenant("slow", 1, 4, throttled=0.4),
        tenant("slower", 1, 4, throttled=0.8),
        tenant("new", 0, 4, throttled=0.0, state="reserved"),
    ]
    assert [(one["name"], one["reason"]) for one in waiting(rows)] == [
        ("new", "reserved, has not started yet"),
        ("slower", "waits for its card 80 % of the time"),
        ("slow", "waits for its card 40 % of the time"),
    ]


@pytest.mark.parametrize(
    ("about", "mode"),
    [
        ({"mode": "unused"}, ""),
        ({"mode": "shared"}, "share"),
        ({"mode": "exclusive"}, "whole"),
        ({"mode": "shared", "isolation": "exclusive"}, "whole"),
        ({"mode": "shared", "isolation": "mps"}, "MPS"),
        ({"mode": "exclusive", "uuid": "MIG-5b1f"}, "MIG"),
    ],
)
def test_modes(about: Any, mode: str) -> None:
    assert mode_of(**about) == mode


def test_starts_of_the_queue_come_first_in_its_order() -> None:
    granted = {"ticket": "1", "name": "", "state": "granted", "requests": "4 GiB"}
    queued: Any = [{**start(), **granted}, start()]
    assert waiting([], queued) == [
        {"key": "", "name": "1", "reason": "was granted 4 GiB, has not started yet"},
        {
            "key": "",
            "name": "train",
            "reason": "position 1 of the queue, for 8 GiB: no card has room for 8 GiB",
        },
    ]
