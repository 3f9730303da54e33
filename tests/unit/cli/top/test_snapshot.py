# SPDX-License-Identifier: Apache-2.0
"""What of the daemon's rows is where."""

from __future__ import annotations

import copy
from typing import Any

from gpushare.cli.top.snapshot import snapshot_of
from tests.unit.cli.conftest import CARD, GIB, tenant

from .made import TAKEN, machine


def test_a_container_on_two_cards_is_on_each_with_the_processes_that_are_there() -> None:
    both = tenant("train", 1, 2)
    second: Any = copy.deepcopy(both["cards"][0])
    second["index"], second["compute"]["cores_used"]["1s"] = 1, 7.0
    both["cards"].append(second)
    quiet: Any = {"pid": 9, "container_pid": 3, "name": "quiet", "bytes": None, "cards": []}
    both["processes"] = [
        {
            **both["processes"][0],
            "cards": [{"index": 1, "bytes": GIB, "utilization": 6}],
        },
        quiet,
    ]
    other: Any = {**CARD, "index": 1}
    shown = snapshot_of([CARD, other], [both], TAKEN)
    assert [(one.card, one.cores_used.value) for one in shown.containers] == [(0, 29.8), (1, 7.0)]
    assert [process.name for process in shown.on(0)[0].processes] == ["quiet"]
    assert [(one.pid, one.bytes, one.utilization) for one in shown.on(1)[0].processes] == [
        (4242, GIB, 6)
    ]


def test_a_card_has_the_sums_of_its_containers_quotas_and_use() -> None:
    first, second = machine().cards
    assert first.cores_used.text == "70.8"
    assert (
        first.used_bytes == sum(one.used_bytes for one in machine().on(0)) + first.non_tenant_bytes
    )
    assert (first.cores_allocated, second.cores_used.text) == (90, "-")


def test_a_sum_with_a_figure_of_the_driver_is_in_whole_percent_too() -> None:
    alone = tenant(
        "train", 1, 4, compute={"cores_source": "driver", "gate": "open"}, cores_got=97.4
    )
    assert snapshot_of([CARD], [alone], TAKEN).cards[0].cores_used.text == "~97"
