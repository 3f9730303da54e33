# SPDX-License-Identifier: Apache-2.0
"""What `gpushare doctor` says of cards in MPS mode, and of other control daemons."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare.checks.mps import check_mps
from gpushare.protocol import CardStatus

from .conftest import CARD


def in_mode(mode: str) -> CardStatus:
    return {**CARD, "mode": mode}


def test_a_card_in_mps_mode_is_named(tmp_path: Path) -> None:
    (found,) = check_mps([in_mode("mps")], [], [tmp_path])
    assert found.level == "ok"
    assert found.text.startswith("card 0 is in MPS mode, its control daemon runs")


def test_a_fault_is_not_named_twice(tmp_path: Path) -> None:
    warning = "card 0 is in MPS mode, and its MPS control daemon does not run: no file"
    assert not list(check_mps([in_mode("mps")], [warning], [tmp_path]))


@pytest.mark.parametrize(("mode", "expected"), [("mps", ["warn"]), ("shared", [])])
def test_a_control_daemon_of_somebody_else_is_in_the_way_of_such_a_card(
    tmp_path: Path, mode: str, expected: list[str]
) -> None:
    (tmp_path / "control").touch()
    found = list(check_mps([in_mode(mode)], [], [tmp_path]))
    assert [one.level for one in found if one.level != "ok"] == expected
