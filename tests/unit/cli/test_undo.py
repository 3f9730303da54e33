# SPDX-License-Identifier: Apache-2.0
"""`gpushare setup --undo` on a machine in use."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result


@pytest.mark.usefixtures("daemon")
def test_who_still_has_a_share_is_named(cli: Callable[..., Result]) -> None:
    result = cli("setup", "--undo", "--dry-run")
    assert result.exit_code == 3
    assert result.stderr == ("gpushare: these still have a share: train, serve; stop them first\n")
