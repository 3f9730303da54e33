# SPDX-License-Identifier: Apache-2.0
"""The `gpushare` command: one file per command, each one function over gpushare/client.py.

Exit status: 0 success, 1 error, 2 usage error, 3 request refused, 4 degraded. `gpushare run` exits
with the status of its command.
"""

from __future__ import annotations

import difflib
import importlib
import os
from typing import TYPE_CHECKING, Any, Final

import click

import gpushare as package
from gpushare.cli.session import (
    ERROR,
    REFUSED,
    TRY,
    USAGE,
    Session,
    print_error,
    report_error,
    shared_options,
)
from gpushare.cli.text import count
from gpushare.client import DaemonUnreachable
from gpushare.errors import UserError
from gpushare.quota.size import format_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpushare.protocol import CardStatus, DaemonStatus

__all__ = ["ERROR", "REFUSED", "SECTIONS", "USAGE", "Gpushare", "gpushare"]

# A command is imported when it is called: most need a fifth of the modules of all commands.
SECTIONS: Final = {
    "Inspect": ("ls", "ps", "top", "inspect", "why", "history", "metrics"),
    "Manage": ("run", "set", "pause", "resume", "stop", "card"),
    "Diagnose": ("doctor", "verify", "audit"),
    "Manifests and images": ("explain", "validate", "compat", "convert"),
    "Install and configure": ("setup", "runtime", "cdi", "config", "rules", "simulator"),
}


def main() -> None:
    """Run the command line of this process."""
    gpushare(prog_name="gpushare")


class Gpushare(click.Group):
    """The root of the command tree."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the commands in the order of the help text."""
        return [name for names in SECTIONS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command from the module of the same name."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command = importlib.import_module(f"gpushare.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; suggest the closest name for a misspelled one."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            close = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not close:
                raise
            raise click.UsageError(f"{error.message} Did you mean {close[0]}?", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, grouped by section."""
        for section, names in SECTIONS.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(section):
                formatter.write_dl(
                    [(name, found.get_short_help_str(80)) for name, found in commands if found]
                )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the example of every command."""
        found = [self.get_command(ctx, name) for name in self.list_commands(ctx)]
        examples = [
            command.epilog.removeprefix("Example: ")
            for command in found
            if command and command.epilog
        ]
        with formatter.section("Examples"):
            formatter.write("".join(f"  {example}\n" for example in examples))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; report an exception as a sentence on stderr and an exit status."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except UserError as error:
            ctx.exit(report_error(error))
        except BrokenPipeError:
            raise  # click handles it: `gpushare ps | head`
        except OSError as error:
            named = f"{error.filename}: " if error.filename is not None else ""
            sudo = ". Use sudo." if isinstance(error, PermissionError) else ""
            print_error(f"{named}{error.strerror or error}{sudo}")
            ctx.exit(ERROR)
        except Exception as error:  # the only place where a bug reaches the user
            if os.environ.get("GPUSHARE_LOG") == "debug":
                raise
            what = f"{type(error).__name__}: {error}"
            print_error(f"internal error: {what}. For a traceback, set GPUSHARE_LOG=debug.")
            ctx.exit(ERROR)


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


def _present(status: DaemonStatus, cards: list[CardStatus]) -> str:
    kind = "simulated driver" if status["simulated"] else "driver"
    has = f"{count(status['cards'], 'card')}, {count(status['tenants'], 'container')}"
    driver = f"{kind} {status['driver_version']}, CUDA {status['cuda_version']}"
    lines = [f"gpushare {status['version']}: {driver}, {has}"]
    lines += [
        f"card {card['index']}: {card['model']}, {format_size(card['available_bytes'])} of "
        f"{format_size(card['memory_bytes'])} available, {card['health']}"
        for card in cards
    ]
    lines += [f"warn: {warning}" for warning in status["warnings"]]
    lines.append(f"next: {_next(status, cards)}")
    return "\n".join(lines)


def _next(status: DaemonStatus, cards: list[CardStatus]) -> str:
    if not cards or any(card["health"] != "ok" for card in cards):
        return "gpushare doctor"
    return "gpushare ps" if status["tenants"] else TRY
