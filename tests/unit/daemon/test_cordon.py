# SPDX-License-Identifier: Apache-2.0
"""Cards that an operator takes out of service, or keeps for one kind of request."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpushare import config
from gpushare.daemon.lifecycle.tenant_names import TenantNotFound
from gpushare.daemon.observed import CardUsage, UsageView
from gpushare.daemon.operator.cards import cordon_card, set_card_policy, uncordon_card
from gpushare.daemon.placement.request import NoRoom
from gpushare.daemon.service.control_request import refusal_packet
from gpushare.daemon.views.rows import card_rows
from gpushare.protocol import CODE_NOT_FOUND

from . import fakes
from .fakes import FakeDaemon, FakeDriver
from .operations import entry_of, opened

FILE = Path("/etc/gpushare/gpushare.yaml")
CARDS = tuple(fakes.card(index) for index in range(2))


@contextmanager
def node(folder: Path, text: str = "", count: int = 2) -> Iterator[FakeDaemon]:
    driver = FakeDriver(*(fakes.card(index) for index in range(count)))
    with fakes.node(folder, driver, config.parse(text, FILE)) as made:
        yield made


def ask(node: FakeDaemon, op: str, uid: int = 0, **fields: Any) -> list[dict[str, object]]:
    answer = node.ask(op, uid, **fields)
    return answer if isinstance(answer, list) else [answer["card"]]


def test_a_cordoned_card_takes_no_new_tenant_and_keeps_its_tenants(tmp_path: Path) -> None:
    with node(tmp_path) as made:
        first = opened(made, memory="4GiB")
        cordon_card(CARDS[0], "ECC errors", made)
        assert entry_of(made, opened(made, memory="4GiB")).allocations[0].uuid == CARDS[1].uuid
        assert first["key"] in made.ledger.entries
        with pytest.raises(NoRoom, match=r"card 0 is cordoned \(ECC errors\); gpushare card unco"):
            opened(made, memory="4GiB", devices="0")
        uncordon_card(CARDS[0], made)
        opened(made, memory="4GiB", devices="0")


def test_it_outlives_the_daemon_beside_the_card_s_policy(tmp_path: Path) -> None:
    with node(tmp_path) as made:
        set_card_policy(CARDS[0].uuid, "best-effort", made)
        cordon_card(CARDS[0], "", made)
        cordon_card(CARDS[1], "broken", made)
        uncordon_card(CARDS[1], made)
    with node(tmp_path) as after:
        assert [room.cordoned for room in after.accounts.capacities()] == ["", None]
        set_card_policy(CARDS[0].uuid, "", after)
        assert [room.cordoned for room in after.accounts.capacities()] == ["", None]
        uncordon_card(CARDS[0], after)
    assert json.loads((tmp_path / "state/cards.json").read_text()) == {}


def test_a_card_that_takes_no_new_tenant_has_nothing_available(tmp_path: Path) -> None:
    with node(tmp_path, count=3) as made:

        def shown() -> list[object]:
            assert [*card_rows(made)] == ask(made, "cards")
            return [card["available_bytes"] for card in card_rows(made)]

        every = CARDS[0].memory_bytes
        assert shown() == [every] * 3
        cordon_card(CARDS[0], "", made)
        made.observed.usage = UsageView(cards={CARDS[1].uuid: CardUsage(health="GPU is lost")})
        assert shown() == [0, 0, every]
        uncordon_card(CARDS[0], made)
        made.node.driver_fault = "another driver"
        assert shown() == [0, 0, 0]


@pytest.mark.parametrize("card", ["9", "abc", "GPU-00000000"])
@pytest.mark.parametrize("op", ["card-policy", "card-cordon", "card-uncordon"])
def test_a_card_that_does_not_exist_is_not_found(tmp_path: Path, op: str, card: str) -> None:
    with node(tmp_path) as made, pytest.raises(TenantNotFound) as caught:
        ask(made, op, card=card)
    packet = refusal_packet(caught.value)
    assert packet is not None
    assert packet["code"] == CODE_NOT_FOUND
    assert f"card {card} does not exist" in packet["error"]


MODES = """\
max_tenants: 3
cards:
  H200: {allowed_mode: shared, max_tenants: 2}
  "1": {allowed_mode: exclusive}
  GPU-2000:
    allowed_mode: any
    max_tenants: 1
"""


def test_the_operator_says_which_requests_a_card_takes(tmp_path: Path) -> None:
    with node(tmp_path, MODES, count=3) as made:
        for asked, told in (
            ({"memory": "4GiB", "devices": "1"}, "card 1 is allocated only as a whole (cards.1.a"),
            ({"count": "1", "devices": "0"}, "card 0 is for shares only (cards.H200.allowed_mode"),
        ):
            with pytest.raises(NoRoom, match=re.escape(told)):
                opened(made, **asked)
        assert entry_of(made, opened(made, count="1")).allocations[0].uuid == "GPU-1000"


def test_a_card_has_its_own_number_of_shares(tmp_path: Path) -> None:
    with node(tmp_path, MODES, count=3) as made:
        on = [entry_of(made, opened(made, memory="1GiB")).allocations[0].uuid for _ in range(3)]
        assert sorted(on) == ["GPU-0000", "GPU-0000", "GPU-2000"]
        with pytest.raises(NoRoom) as refused:
            opened(made, memory="1GiB")
        assert "card 0 has 2 tenants of at most 2 (cards.H200.max_tenants, " in str(refused.value)
        assert "card 2 has 1 tenants of at most 1 (cards.GPU-2000.max_tenants" in str(refused.value)
        assert "request less" not in str(refused.value)
