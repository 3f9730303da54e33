# SPDX-License-Identifier: Apache-2.0
"""The dashboard's filter by mode finds clients of an MPS server, running and exited ones."""

from __future__ import annotations

import time

import pytest

from gpushare.dashboard.series import subjects
from gpushare.history import FOLDER
from gpushare.history.reader import HistoryReader, HistoryUnreadable
from tests.browser import chromium
from tests.dashboard_pictures import address_of, start
from tests.stack import Stack

from .test_mps import MpsNode
from .waiting import wait_until


def modes_in_history(stack: Stack) -> list[str]:
    try:
        with HistoryReader(stack.root / "state" / FOLDER) as reader:
            found = subjects(reader, 0, time.time() + 60)["containers"]
    except HistoryUnreadable:  # it is made with the first sample
        return []
    return [one["sharing"] for one in found]


@pytest.mark.needs("chromium")
def test_the_filter_by_mode_finds_a_client_of_an_mps_server() -> None:
    with Stack() as stack:
        node = MpsNode(stack)
        node.start()
        bundle = node.bundle(cores="30")
        with bundle.run() as tenant:
            assert tenant.start()["code"] == 0
            wait_until(lambda: modes_in_history(stack) == ["MPS"])
            with chromium() as site:
                site.open(address_of(start(stack)))
                [row] = site.table("Containers")
                assert row[6] == "mps (percentage)"
                site.choose("filter-mode", "MPS")
                assert site.table("Containers") == [row]
                assert len(site.table("Cards")) == 1
                site.choose("filter-mode", "share")
                assert site.table("Containers") == site.table("Cards") == []
                site.choose("filter-mode", "MPS")
                assert "last" in site.graph("Memory in use of containers")
                assert site.log() == []
        bundle.remove()
