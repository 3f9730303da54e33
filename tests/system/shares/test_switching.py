# SPDX-License-Identifier: Apache-2.0
"""What an operator changes holds at once, and nothing is restarted for it."""

from __future__ import annotations

from .tenants import Busy, SharedCardStack


def test_changes_of_an_operator_hold_while_tenants_run(place: SharedCardStack) -> None:
    first = place.start({"cores": "50", "policy": "burst-share"})
    second = place.start({"cores": "30", "policy": "burst-share"})
    before = first.pids, second.pids

    def split(one: float, other: float) -> None:
        place.assert_parts({first: one, second: other})

    def change(tenant: Busy, *words: str) -> None:
        place.gpushare("set", tenant.id, *words)

    split(61, 36)  # what is left goes by what each has
    place.gpushare("card", "policy", "0", "fixed-share")
    try:
        split(50, 30)
    finally:
        place.gpushare("card", "policy", "0", "--reset")
    change(first, "--cores", "20", "--policy", "fixed-share")
    split(20, 77)
    change(first, "--policy", "native-burst-share", "--weight", "1")
    change(second, "--policy", "native-burst-share", "--weight", "3")
    split(24, 73)
    change(first, "--class", "online")
    place.assert_parts({first: 90}, band=12)
    assert (first.pids, second.pids) == before
