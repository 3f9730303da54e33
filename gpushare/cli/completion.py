# SPDX-License-Identifier: Apache-2.0
"""`gpushare completion`, and the values that a shell completes: cards, containers, tickets, topics.

click writes the script and parses the line. What gpushared knows is asked for with a short time
limit, and nothing is completed if it does not answer.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final

import click

from gpushare.cli import session as shared
from gpushare.cli.session import Session
from gpushare.cli.status import tenant_name
from gpushare.client import Client
from gpushare.errors import UserError
from gpushare.quota.size import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from click.shell_completion import CompletionItem

    #: Each with what a shell may show beside it.
    Values = Iterator[tuple[str, str]]

SHELLS: Final = ("bash", "zsh", "fish")
_VARIABLE: Final = "_GPUSHARE_COMPLETE"
_REPLY_SECONDS: Final = 0.5
#: A text that a shell takes as one plain word. `gpushare run --name` takes any text, of any user.
_SAFE: Final = re.compile(r"[A-Za-z0-9][\w.,:/@+-]*", re.ASCII).fullmatch


@shared.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(session: Session, shell: str) -> None:
    """Print the script with which a shell completes gpushare.

    The packages install these scripts. For an installation with pip, add a line to the shell's
    start file: eval "$(gpushare completion bash)" to ~/.bashrc, eval "$(gpushare completion zsh)"
    to ~/.zshrc, or gpushare completion fish | source to ~/.config/fish/config.fish.
    """
    text = script(click.get_current_context().find_root().command, shell)
    session.show({"shell": shell, "script": text}, text.rstrip)


def script(root: click.Command, shell: str) -> str:
    """Return the script for a shell; bash itself is not asked for its version."""
    from click.shell_completion import get_completion_class  # noqa: PLC0415 - only for shells

    kind = get_completion_class(shell)
    assert kind is not None
    completer = kind(root, {}, "gpushare", _VARIABLE)
    return completer.source_template % completer.source_vars()


def complete(
    kinds: Sequence[str], ctx: click.Context, incomplete: str
) -> Iterator[CompletionItem[str]]:
    """Yield the values of these kinds that begin with `incomplete`; files come first, for bash."""
    from click.shell_completion import CompletionItem  # noqa: PLC0415 - only for shells

    client = Client(ctx.ensure_object(Session).socket, _REPLY_SECONDS, start_seconds=0)
    for kind in kinds:
        if kind == "files":
            yield CompletionItem(incomplete, type="file")
            continue
        with contextlib.suppress(UserError, OSError):  # nothing is better than an error here
            for value, text in _VALUES[kind](client, incomplete):
                if value.startswith(incomplete) and _SAFE(value):
                    yield CompletionItem(value, help=text)


def _containers(client: Client, _: str) -> Values:
    for tenant in client.tenants():
        quota = sum(card["quota_bytes"] for card in tenant["cards"])
        yield tenant_name(tenant), f"{format_size(quota)}, {tenant['state']}"


def _cards(client: Client, _: str) -> Values:
    for card in client.cards():
        yield str(card["index"]), card["model"]
        yield card["uuid"], card["model"]


def _tickets(client: Client, _: str) -> Values:
    for entry in client.queue():
        yield entry["ticket"], f"{entry['name'] or 'a start'}, {entry['requests']}"


def _topics(_: Client, incomplete: str) -> Values:
    """Yield the topics; the codes too once something is written."""
    from gpushare import knowledge  # noqa: PLC0415 - only for `explain`

    for entry in knowledge.all_entries():
        if incomplete or entry.group in knowledge.TOPICS:
            yield entry.name, entry.what


_VALUES: Final[Mapping[str, Callable[[Client, str], Values]]] = {
    "containers": _containers,
    "cards": _cards,
    "tickets": _tickets,
    "topics": _topics,
}
