# SPDX-License-Identifier: Apache-2.0
"""A machine on which `gpushare setup` runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare import install
from gpushare.setup import plan

from .machine import UNITS, make
from .test_install import make_source


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine, and C parts of ours to set up on it."""
    source = make_source(tmp_path)
    monkeypatch.setattr(install.InstallSource, "of_package", classmethod(lambda _: source))
    monkeypatch.setattr(plan, "unit_files", lambda: UNITS)
    root = tmp_path / "machine"
    root.mkdir()
    return make(root)
