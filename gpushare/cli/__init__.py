# SPDX-License-Identifier: Apache-2.0
"""The `gpushare` command: `commands` lists the functions, which use gpushare/client.py.

The exit statuses are those of gpushare/errors.py. `gpushare run` exits with that of its command.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import click

import gpushare as package
from gpushare.cli.commands import COMMANDS, SECTIONS
from gpushare.cli.session import TRY, RootCommand, Session, no_such_command, shared_options
from gpushare.cli.text import count, printable
from gpushare.client import DaemonUnreachable
from gpushare.quota.size import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.shell_completion import CompletionItem

    from gpushare.protocol import DaemonStatus
    from gpushare.protocol.rows import CardRow

__all__ = ["Gpushare", "gpushare", "main"]


def main() -> None:
    """Run the command line of this process."""
    gpushare(prog_name="gpushare")


class Gpushare(RootCommand):
    """The root of the command tree."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of the help text."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command."""
        if cmd_name not in COMMANDS:
            return None
        place = COMMANDS[cmd_name].place or f"{cmd_name}:command"
        module, _, name = place.partition(":")
        command = getattr(importlib.import_module(f"gpushare.cli.{module}"), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; suggest the closest name for a misspelled one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            import difflib  # noqa: PLC0415 - only for a mistake

            close = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            meant = f" Did you mean {close[0]}?" if close else ""
            raise no_such_command(f"{error.message}{meant}", args[0], ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, grouped by section."""
        for section, entries in SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(name, entry.summary) for name, entry in entries.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the example of every command."""
        with formatter.section("Examples"):
            formatter.write("".join(f"  {entry.example}\n" for entry in COMMANDS.values()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[Any]]:
        """Return the commands, which are not imported for that, or the options."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - only for shells

        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [
            CompletionItem(name, help=entry.summary)
            for name, entry in COMMANDS.items()
            if name.startswith(incomplete)
        ]


def _version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"gpushare {package.__version__}")
        ctx.exit()


def _top() -> Callable[[Callable[..., Any]], click.Command]:
    return click.group(
        "gpushare",
        cls=Gpushare,
        invoke_without_command=True,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )


@_top()
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and exit.",
)
@shared_options
@click.pass_context
def gpushare(ctx: click.Context) -> None:
    """Share NVIDIA GPUs between containers under enforced memory and compute quotas.

    Without a command, gpushare shows the state of this machine and the next step. Every command
    accepts --json.

    Exit status: 0 success, 1 error, 2 usage error, 3 request refused, 4 degraded.
    """
    if ctx.invoked_subcommand is None:
        show_summary(ctx.ensure_object(Session))


def show_summary(session: Session) -> None:
    """Print the state of this machine and the next step, also if gpushare is not set up."""
    try:
        status = session.client.status()
        cards = session.client.cards()
    except DaemonUnreachable as error:
        why = str(error)
        nothing = {"version": package.__version__, "daemon": None, "next": "gpushare setup"}
        session.show(nothing, lambda: _absent(why))
        return
    data: dict[str, object] = {
        "version": package.__version__,
        "daemon": status,
        "cards": cards,
        "next": _next(status, cards),
    }
    session.show(data, lambda: _present(status, cards))


def _absent(why: str) -> str:
    return "\n".join(
        [
            f"gpushare {package.__version__}: {why}",
            "next: sudo gpushare setup --dry-run   (then run it without --dry-run)",
            "      gpushare --help",
        ]
    )


def _present(status: DaemonStatus, cards: list[CardRow]) -> str:
    from gpushare.cli.status import available  # noqa: PLC0415 - for no other command

    kind = "simulated driver" if status["simulated"] else "driver"
    has = f"{count(status['cards'], 'card')}, {count(status['tenants'], 'container')}"
    driver = f"{kind} {status['driver_version']}, CUDA {status['cuda_version']}"
    lines = [f"gpushare {status['version']}: {driver}, {has}"]
    lines += [
        f"card {card['index']}: {card['model']}, {available(card)} of "
        f"{format_size(card['memory_bytes'])} available, {card['health']}{_cordon(card)}"
        for card in cards
    ]
    lines += [f"warn: {warning}" for warning in status["warnings"]]
    lines.append(f"next: {_next(status, cards)}")
    return "\n".join(map(printable, lines))


def _cordon(card: CardRow) -> str:
    """Return ", cordoned: ECC errors"; "" for a card that is not cordoned."""
    reason = f": {card['cordon_reason']}" if card["cordon_reason"] else ""
    return f", cordoned{reason}" if card["cordoned"] else ""


def _next(status: DaemonStatus, cards: list[CardRow]) -> str:
    if not cards or any(card["health"] != "ok" for card in cards):
        return "gpushare doctor"
    return "gpushare ps" if status["tenants"] else TRY
