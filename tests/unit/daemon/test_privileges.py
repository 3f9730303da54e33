# SPDX-License-Identifier: Apache-2.0
"""One file knows the driver's library, and one gives up privileges."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpushare.daemon.core import privileges

PACKAGE = Path(__file__).parents[3] / "gpushare"


def settings(name: str) -> list[str]:
    """Return what the unit says of `name`, line by line."""
    unit = (PACKAGE.parent / "packaging/systemd/gpushared.service").read_text()
    lines = (line.partition("=") for line in unit.splitlines())
    return [value for key, _, value in lines if key == name]


def test_the_unit_leaves_the_capabilities_that_the_daemon_keeps() -> None:
    kept = {f"CAP_{why.partition(':')[0]}" for why in privileges.KEPT.values()}
    assert set(" ".join(settings("CapabilityBoundingSet")).split()) == kept


def test_the_unit_gives_the_daemon_the_priority_that_it_takes() -> None:
    assert settings("Nice") == [str(privileges.PRIORITY)]


def test_without_root_the_message_asks_for_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(privileges.NotRoot, match="must be root"):
        privileges.require_root()
