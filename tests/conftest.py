# SPDX-License-Identifier: Apache-2.0
"""How the tests share the machine: see run_tests in ./dev."""

from __future__ import annotations

from pathlib import Path

import pytest

E2E = Path(__file__).parent / "e2e"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the end-to-end tests in one worker and in order: they share engines and a daemon."""
    for item in items:
        if E2E in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("e2e"))
