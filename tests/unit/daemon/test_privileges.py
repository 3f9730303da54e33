# SPDX-License-Identifier: Apache-2.0
"""One file knows the driver's library, and one gives up privileges."""

from __future__ import annotations

import ast
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpushare.daemon.core import privileges

PACKAGE = Path(__file__).parents[3] / "gpushare"


def settings(name: str) -> list[str]:
    """Return what the unit says of `name`, line by line."""
    unit = (PACKAGE.parent / "packaging/systemd/gpushared.service").read_text()
    lines = (line.partition("=") for line in unit.splitlines())
    return [value for key, _, value in lines if key == name]


def importers(module: str) -> set[str]:
    found = set()
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text()
        if module not in text:  # to parse all of them takes seconds
            continue
        for node in ast.walk(ast.parse(text)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.partition(".")[0] == module for name in names):
                found.add(str(file.relative_to(PACKAGE)))
    return found


@pytest.mark.parametrize(
    ("module", "files"),
    [
        (
            "pynvml",
            [
                f"daemon/cards/nvml_{name}.py"
                for name in ("calls", "card", "mig", "sensors", "topology")
            ],
        ),
        ("prctl", ("daemon/core/privileges.py",)),
    ],
)
def test_a_module_is_imported_in_few_places(module: str, files: Sequence[str]) -> None:
    assert importers(module) == {*files}


def test_the_unit_leaves_the_capabilities_that_the_daemon_keeps() -> None:
    kept = {f"CAP_{why.partition(':')[0]}" for why in privileges.KEPT.values()}
    assert set(" ".join(settings("CapabilityBoundingSet")).split()) == kept


def test_the_unit_gives_the_daemon_the_priority_that_it_takes() -> None:
    assert settings("Nice") == [str(privileges.PRIORITY)]


def test_without_root_the_message_asks_for_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(privileges.NotRoot, match="must be root"):
        privileges.require_root()
