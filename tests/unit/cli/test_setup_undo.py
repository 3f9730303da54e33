# SPDX-License-Identifier: Apache-2.0
"""`gpushare setup --undo` on a machine in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result


@pytest.mark.usefixtures("daemon")
def test_remaining_tenants_are_named(cli: Callable[..., Result]) -> None:
    result = cli("setup", "--undo", "--dry-run")
    assert result.exit_code == 3
    assert result.stderr == (
        "gpushare: these containers still have a GPU: train, serve. Stop them first.\n"
    )
