# SPDX-License-Identifier: Apache-2.0
"""`gpushare run`, as far as the daemon: what it asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpushare.protocol import CODE_REFUSED

from .fake_daemon import AnsweringDaemon, refusal

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

    Cli = Callable[..., Result]


def test_an_empty_option_is_sent_and_refused_not_left_out(
    cli: Cli, daemon: AnsweringDaemon
) -> None:
    daemon.answers["open"] = refusal(CODE_REFUSED, '--memory="": not a size.')
    result = cli("run", "--memory", "", "--count", "1", "--", "true")
    assert (result.exit_code, result.stderr) == (125, 'gpushare: --memory="": not a size.\n')
    assert daemon.requests[0]["quota"] == {"memory": "", "count": "1"}
