# SPDX-License-Identifier: Apache-2.0
"""The machine of tests/unit/cli behind a real socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.conftest import answers, cli
from tests.unit.cli.fake_daemon import AnsweringDaemon

__all__ = ["cli"]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[AnsweringDaemon]:
    with AnsweringDaemon(tmp_path / "control.sock", answers()).running() as running:
        yield running
