# SPDX-License-Identifier: Apache-2.0
"""`gpushare audit --self-test`: which card it uses, and how it judges what the daemon did."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, cast

import pytest

from gpushare.cli import verify
from gpushare.errors import UserError
from gpushare.verify.audit import AuditScenario
from tests.unit.rows import GIB

from .conftest import CARD
from .fake_daemon import AnsweringDaemon, rows

if TYPE_CHECKING:
    from gpushare.protocol.rows import CardRow

    from .conftest import Cli

UNUSED = {
    "tenants": 0,
    "utilization": 0,
    "non_tenant_processes": [],
    "cordoned": False,
    "allowed_mode": "any",
    "available_bytes": 100 * GIB,
}


def card(**more: Any) -> CardRow:
    return cast("CardRow", {**CARD, **UNUSED, **more})


def test_the_first_unused_card_is_taken() -> None:
    assert verify._unused_card([card(tenants=1), card(index=1), card(index=2)], None) == 1
    assert verify._unused_card([card(), card(index=1)], 1) == 1


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"tenants": 2}, "card 0 has 2 tenants"),
        ({"utilization": 7}, "card 0 is used by processes without a quota"),
        ({"non_tenant_processes": [{"pid": 1}]}, "card 0 is used by processes without a quota"),
        ({"cordoned": True}, "card 0 is cordoned"),
        ({"health": "XID 79"}, "card 0 is unhealthy (XID 79)"),
        ({"allowed_mode": "exclusive"}, "card 0 accepts no shares (cards.allowed_mode)"),
        ({"available_bytes": 2 * GIB}, "card 0 has 2 GiB available, of 3 GiB required"),
    ],
)
def test_a_card_in_use_is_refused_with_the_reason(more: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError) as refused:
        verify._unused_card([card(**more)], None)
    assert str(refused.value) == f"the test requires an unused card: {why}"


def test_a_card_that_is_not_there_is_refused() -> None:
    with pytest.raises(UserError, match=r"^there is no card 3\. See gpushare ls\.$"):
        verify._unused_card([card()], 3)
    with pytest.raises(UserError, match=r"^there is no card\. See gpushare ls\.$"):
        verify._unused_card([], None)


def test_it_needs_its_option_and_root(
    cli: Cli, daemon: AnsweringDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("audit").exit_code == 2
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    result = cli("audit", "--self-test")
    assert result.exit_code == 3
    assert result.stderr == "gpushare: gpushare audit --self-test requires root. Use sudo.\n"
    assert daemon.requests == []


def test_a_used_card_starts_nothing(
    cli: Cli, daemon: AnsweringDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(AuditScenario, "run", lambda _: pytest.fail("it was started"))
    daemon.answers["cards"] = rows(card(tenants=1))
    assert cli("audit", "--self-test").exit_code == 1


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
