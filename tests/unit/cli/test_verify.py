# SPDX-License-Identifier: Apache-2.0
"""`gpushare verify` and `gpushare audit --self-test`: which card they use, and how they judge."""

from __future__ import annotations

import json
import re
from typing import Any, cast

import pytest

from gpushare.cli import verify
from gpushare.errors import ErrorCode, UserError
from gpushare.protocol.rows import CardRow
from gpushare.verify import Report, ScenarioSteps, Sizes
from gpushare.verify.compute import ComputeTrial
from tests.unit.rows import GIB

from .conftest import CARD


@pytest.mark.parametrize(
    ("available_bytes", "cores_available", "sizes"),
    [
        (126 * GIB, 100, Sizes()),
        (126 * GIB, 90, Sizes()),
        (126 * GIB, 70, Sizes(small_cores=23, large_cores=46)),
        (126 * GIB, 0, Sizes(small_cores=0, large_cores=0)),
        (8 * GIB, 100, Sizes(2 * GIB, 4 * GIB, 3 * GIB)),
    ],
)
def test_the_request_is_for_the_remaining_memory_of_the_card(
    available_bytes: int, cores_available: int, sizes: Sizes
) -> None:
    assert verify._sizes(available_bytes, cores_available) == sizes
    with pytest.raises(UserError) as refused:
        verify._sizes(3 * GIB, cores_available)
    assert refused.value.code is ErrorCode.REFUSED


def test_a_card_with_unified_memory_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = json.dumps([{"index": 0, "mode": "unified"}, {"index": 1, "mode": "unused"}])
    monkeypatch.setattr(ScenarioSteps, "cli_output", lambda *_: listed)
    engine: Any = None
    assert [card["index"] for card in ScenarioSteps(engine, [], Report()).cards()] == [1]


UNUSED = {"tenants": 0, "utilization": 0, "non_tenant_processes": []}


def card(**more: Any) -> CardRow:
    return cast("CardRow", {**CARD, "cores_available": 90, **UNUSED, **more})


def test_a_share_is_tried_on_the_card_that_others_leave_the_most_time_of() -> None:
    cards = [card(utilization=80, tenants=1), card(index=1, utilization=2), card(index=2)]
    assert verify._trial(cards, 30, 1.0) == ComputeTrial(2, 30)
    assert verify._trial(cards[:2], 30, 2.0) == ComputeTrial(1, 30, False, 2.0)
    assert verify._trial(cards[:1], 30, 1.0) == ComputeTrial(0, 30, others=True)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"cores_available": 20}, "card 0 has 20 % available"),
        ({"available_bytes": GIB}, "card 0 has 1 GiB available, of 2 GiB required"),
        ({"tenants": 15}, "card 0 has 15 of 16 tenants"),
        ({"mode": "exclusive"}, "card 0 gives no shares"),
        ({"schedulable_reason": "cordoned"}, "card 0 takes no containers (cordoned)"),
        ({"policy": "best-effort"}, "card 0 has the policy best-effort (gpushare card policy)"),
    ],
)
def test_a_card_with_too_little_available_memory_is_reported(
    more: dict[str, Any], why: str
) -> None:
    with pytest.raises(
        UserError, match=re.escape(f"to test 30 % of its compute: {why}")
    ) as refused:
        verify._trial([card(**more)], 30, 1.0)
    assert refused.value.code is ErrorCode.REFUSED  # as where no card has room for a container


def test_the_first_unused_card_is_taken() -> None:
    assert verify._unused_card([card(tenants=1), card(index=1), card(index=2)], None) == 1
    assert verify._unused_card([card(), card(index=1)], 1) == 1


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"tenants": 2}, "card 0 has 2 tenants"),
        ({"utilization": 7}, "card 0 is used by processes without a quota"),
        ({"non_tenant_processes": [{"pid": 1}]}, "card 0 is used by processes without a quota"),
        ({"schedulable_reason": "unhealthy: XID 79"}, "card 0 takes no containers (unhealthy: "),
        ({"allowed_mode": "exclusive"}, "card 0 gives no shares"),
        ({"available_bytes": 2 * GIB}, "card 0 has 2 GiB available, of 3 GiB required"),
    ],
)
def test_a_card_in_use_is_refused_with_the_reason(more: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError) as refused:
        verify._unused_card([card(**more)], None)
    assert str(refused.value).startswith(f"the test requires an unused card: {why}")
    assert refused.value.code is ErrorCode.REFUSED


class AuditedTenantClient:
    """A client whose tenant goes through `states`, one state a look; the last one stays."""

    def __init__(self, action: str, states: list[dict[str, Any]], isolation: str) -> None:
        self.row: dict[str, Any] = {
            "name": "bypass",
            "key": "k",
            "over_quota_action": action,
            "warnings": [],
        }
        self.row |= {"isolation": isolation, "interventions": [], "cards": [{}]}
        self.states = states
        self.stopped: list[str] = []

    def tenants(self) -> list[dict[str, Any]]:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if self.stopped or state.get("gone"):
            return []
        cards = [{"over_quota_state": state.get("over", "")}]
        return [{**self.row, "cards": cards, **state}]

    def stop(self, name: str, *_: object) -> None:
        self.stopped.append(name)


NOTHING: dict[str, Any] = {}


PROBE = """#!/bin/sh
echo '{"event": "driver", "code": 0}'
read line
echo '{"event": "alloc", "code": %d}'
exec cat
"""
