# SPDX-License-Identifier: Apache-2.0
"""`gpushare verify`: what it asks for of a card that others use, and what stops it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, cast

import pytest

from gpushare.cli import verify
from gpushare.errors import UserError
from gpushare.verify import Sizes
from gpushare.verify.compute import ComputeScenario, ComputeTrial
from gpushare.verify.memory import MemoryScenario
from tests.unit.rows import GIB

from .conftest import CARD
from .fake_daemon import AnsweringDaemon, rows

if TYPE_CHECKING:
    from gpushare.protocol.rows import CardRow

    from .conftest import Cli


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


def card(**more: Any) -> CardRow:
    return cast("CardRow", {**CARD, "cores_available": 90, "tenants": 0, "utilization": 0, **more})


def test_a_share_is_tried_on_the_card_that_others_leave_the_most_time_of() -> None:
    cards = [card(utilization=80, tenants=1), card(index=1, utilization=2), card(index=2)]
    assert verify._trial(cards, 30, 1.0, single=False) == ComputeTrial(2, 30)
    assert verify._trial(cards[:2], 30, 2.0, single=True) == ComputeTrial(1, 30, True, False, 2.0)
    assert verify._trial(cards[:1], 30, 1.0, single=False) == ComputeTrial(0, 30, others=True)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"cores_available": 20}, "card 0 has 20 % available"),
        ({"available_bytes": GIB}, "card 0 has 1 GiB available, of 2 GiB required"),
        ({"tenants": 15}, "card 0 has 15 of 16 tenants"),
        ({"mode": "exclusive"}, "card 0 is allocated exclusively"),
        ({"health": "XID 79"}, "card 0 is unhealthy (XID 79)"),
        ({"cordoned": True}, "card 0 is cordoned"),
        ({"policy": "best-effort"}, "card 0 has the policy best-effort (gpushare card policy)"),
    ],
)
def test_a_card_with_too_little_available_memory_is_reported(
    more: dict[str, Any], why: str
) -> None:
    with pytest.raises(UserError, match=re.escape(f"to test 30 % of its compute: {why}")):
        verify._trial([card(**more)], 30, 1.0, single=False)


@pytest.mark.parametrize(
    ("words", "percent"),
    [(["--cores"], 30), (["--cores", "40"], 40), (["--cores", "--single"], 30)],
)
def test_a_share_may_be_named(
    cli: Cli,
    daemon: AnsweringDaemon,
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    percent: int,
) -> None:
    tried: list[ComputeTrial] = []

    def run(self: ComputeScenario) -> bool:
        tried.append(self.trial)
        return self.report.check("it ran", True, figures={"requested_percent": percent})

    daemon.answers["cards"] = rows(card())
    monkeypatch.setattr(ComputeScenario, "run", run)
    monkeypatch.setattr(MemoryScenario, "run", lambda _: pytest.fail("memory was not asked for"))
    result = cli("verify", "--runtime", "host", "--json", *words)
    assert result.exit_code == 0, result.output
    assert tried == [ComputeTrial(0, percent, "--single" in words)]
    assert json.loads(result.stdout)[0]["figures"] == {"requested_percent": percent}


def test_single_requires_cores(cli: Cli, daemon: AnsweringDaemon) -> None:
    assert cli("verify", "--single").exit_code == 2
    assert cli("verify", "--cores", "0").exit_code == 2
    assert daemon.requests == []


def test_a_full_card_is_reported() -> None:
    with pytest.raises(UserError, match="4 GiB available"):
        verify._sizes(3 * GIB, 100)
