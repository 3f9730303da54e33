# SPDX-License-Identifier: Apache-2.0
"""What is told of a tenant."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.daemon.placement.request import NoSuchCard
from gpushare.daemon.service.control_server import refusal_packet
from gpushare.errors import ErrorCode

from .node import StoryNode, node


def test_its_row_and_the_report_on_its_memory_have_its_quota(tmp_path: Path) -> None:
    with node(tmp_path) as one:
        one.opens("a", "10GiB")
        one.opens("b", "20GiB")
        row = one.ask("tenant", name="b")["tenant"]
        assert row in one.ask("tenants")["rows"]
        [card] = row["cards"]
        report = one.ask("why", name="b")["why"]
        assert (report["key"], report["name"]) == (row["key"], "b")
        [told] = report["cards"]
        assert told["quota_bytes"] == card["quota_bytes"] == 20 << 30


def test_what_is_set_holds_until_it_is_reset(tmp_path: Path) -> None:
    with node(tmp_path) as one:
        one.opens("a", "10GiB")
        one.ask("set", name="a", memory="20GiB")
        assert quota(one) == 20 << 30
        one.ask("set", name="a", reset=True)
        assert quota(one) == 10 << 30


def test_it_moves_to_no_card_that_does_not_exist(tmp_path: Path) -> None:
    with node(tmp_path) as one:
        one.opens("a", "10GiB")
        with pytest.raises(NoSuchCard, match="card 7 does not exist") as caught:
            one.ask("move", name="a", card="7")
    packet = refusal_packet(caught.value)
    assert packet is not None
    assert (packet["code"], packet["key"]) == (
        ErrorCode.NOT_FOUND.text,
        "card",
    )  # as `card drain 7`


def quota(one: StoryNode) -> int:
    [card] = one.ask("tenant", name="a")["tenant"]["cards"]
    return int(card["quota_bytes"])
