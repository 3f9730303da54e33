# SPDX-License-Identifier: Apache-2.0
"""What the overview lists as problems, and which containers wait."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare.dashboard.problems import mode_of, problems, waiting
from tests.unit.cli.conftest import CARD, tenant


def texts(**more: Any) -> list[tuple[str, str]]:
    """Return the problems of a container that has none but those of `more`."""
    one = tenant("train", 3, 4, **{"denied_allocations": 0, **more})
    return [(found["level"], found["text"]) for found in problems([], [one], [])]


def test_a_node_without_problems_has_none() -> None:
    assert texts() == []
    assert problems([CARD], [], []) == []


@pytest.mark.parametrize(
    ("more", "level", "text"),
    [
        ({"over_limit_bytes": 1, "used_bytes": 5 << 30}, "error", "train is over its quota"),
        ({"compute": {"is_hung": True}}, "error", "train has work on card 0 that does not seem"),
        ({"compute": {"gate_bypassed": True}}, "warning", "train bypasses the launch gate"),
        (
            {"denied_allocations": 2},
            "warning",
            "train was refused 2 allocations over its quota so far",
        ),
        (
            {"eviction": {"state": "failed", "error": "CUDA_ERROR_X", "waits_since": None}},
            "error",
            "train: eviction failed, the driver has lost its GPU memory: CUDA_ERROR_X",
        ),
        (
            # That it is idle, too, is no problem: others can get its memory.
            {
                "idle_since": 4.0,
                "eviction": {"state": "evicted", "bytes": 3 << 30, "waits_since": 5.0},
            },
            "warning",
            "train uses CUDA while it is evicted: its restore of 3 GiB waits",
        ),
        ({"idle_since": 5.0}, "warning", "train holds 3 GiB and does not use its cards"),
        (
            {"mps": {"lost": "a fatal fault of serve ended the work of all clients"}},
            "error",
            "train has to be restarted: a fatal fault of serve ended the work of all clients",
        ),
    ],
)
def test_problems_of_a_container(more: Any, level: str, text: str) -> None:
    [(found, shown)] = texts(**more)
    assert (found, shown[: len(text)]) == (level, text)


@pytest.mark.parametrize(
    ("by", "level", "text"),
    [
        ("audit", "error", "train is frozen: over quota"),
        ("operator", "warning", "train is paused: over quota"),
        ("stop", "warning", "train is stopping: over quota"),
    ],
)
def test_interventions(by: str, level: str, text: str) -> None:
    stopped = {"by": by, "reason": "over quota", "since": 0.0}
    assert texts(interventions=[stopped]) == [(level, text)]


def test_problems_of_cards_come_with_errors_first() -> None:
    process: Any = {"pid": 9, "name": "python", "bytes": 1 << 30, "container": "docker 4f5e"}
    sick: Any = {
        **CARD,
        "health": "XID 79",
        "cordoned": True,
        "cordon_reason": "repair",
        "unattributed_bytes": 1 << 30,
        "non_tenant_processes": [process],
    }
    found = problems([sick], [], ["the ledger is damaged"])
    assert [(one["level"], one["text"]) for one in found] == [
        ("error", "Card 0 is unhealthy: XID 79"),
        ("error", "python (9) in docker 4f5e uses 1 GiB of card 0 without an allocation"),
        ("warning", "the ledger is damaged"),
        ("warning", "Card 0 is cordoned: repair"),
        ("warning", "Card 0 has 1 GiB in use by no process that the driver reports"),
    ]
    assert {one["card"] for one in found} == {CARD["uuid"], ""}


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
    queued: Any = [
        {"ticket": "1", "name": "", "state": "granted", "requests": "4 GiB"},
        {
            "ticket": "2",
            "name": "train",
            "state": "waiting",
            "position": 1,
            "requests": "8 GiB",
            "reason": "no card has room for 8 GiB",
        },
    ]
    assert waiting([], queued) == [
        {"key": "", "name": "1", "reason": "was granted 4 GiB, has not started yet"},
        {
            "key": "",
            "name": "train",
            "reason": "position 1 of the queue, for 8 GiB: no card has room for 8 GiB",
        },
    ]
