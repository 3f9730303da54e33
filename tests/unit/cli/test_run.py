# SPDX-License-Identifier: Apache-2.0
"""`gpushare run`, as far as the daemon: what it asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .fake_daemon import AnsweringDaemon

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    Cli = Callable[..., Result]


def test_an_empty_option_is_refused_not_left_out(cli: Cli, daemon: AnsweringDaemon) -> None:
    result = cli("run", "--memory", "", "--count", "1", "--", "true")
    assert result.exit_code == 125
    assert "Invalid value for '--memory': \"\" is not a size." in result.stderr
    assert daemon.requests == []
