# SPDX-License-Identifier: Apache-2.0
"""`gpushare explain`: what a code, a topic, a manifest or an image means, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from gpushare import topics
from gpushare.cli import session as shared
from gpushare.cli.explain import entry
from gpushare.errors import UserError

if TYPE_CHECKING:
    from gpushare.cli.session import Session

__all__ = ["command"]


@shared.command("explain", example="gpushare explain CUDA_ERROR_OUT_OF_MEMORY")
@click.argument("words", nargs=-1, metavar="[CODE|TOPIC]")
def command(session: Session, words: tuple[str, ...]) -> None:
    """Explain a code or a topic: what it is, why, and what to do.

    CODE is an error of CUDA or of NVML, by its name in any spelling or its number (2, nvml 2), an
    XID (xid-79), an exit status (exit-3), an event of the log, or a message, as it was printed: of
    gpushare, of CUDA or of a framework. TOPIC is one of those that are listed without an argument.

    It asks nobody and changes nothing. The exit status is 1 where it knows nothing of the word.
    """
    said = " ".join(words)
    if not said:
        session.show(entry.as_list(topics.entries()), lambda: "\n".join(entry.listed()))
        return
    found = topics.find(said)
    if not found:
        raise UserError(entry.unknown(said))
    session.show(entry.as_data(found), lambda: "\n".join(entry.lines(found)))
