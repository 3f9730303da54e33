# SPDX-License-Identifier: Apache-2.0
"""`gpushare` itself: which commands there are, and what goes wrong in them."""

from __future__ import annotations

import difflib
import importlib
import os
from typing import TYPE_CHECKING, Any, Final

import click

import gpushare as package
from gpushare.cli.failure import ERROR, REFUSED, USAGE, say, tell
from gpushare.cli.session import Session, shared_options
from gpushare.cli.summary import show_summary
from gpushare.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ERROR", "REFUSED", "SECTIONS", "USAGE", "Gpushare", "gpushare"]

# A command is imported when it is called: most need a fifth of what all of them import.
SECTIONS: Final = {
    "See": ("ls", "ps", "top", "inspect", "why", "history", "metrics"),
    "Use": ("run", "set", "pause", "resume", "kick", "card"),
    "Check": ("doctor", "verify"),
    "Manifests": ("explain", "validate", "compat", "convert"),
    "Set up": ("setup", "runtime", "cdi", "config", "rules", "simulator"),
}


class Gpushare(click.Group):
    """The top of the command tree."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return the commands in the order of the help."""
        return [name for names in SECTIONS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command from the module of its name."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command = importlib.import_module(f"gpushare.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; of a misspelt one, say which may have been meant."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            close = difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
            if not close:
                raise
            raise click.UsageError(f"{error.message} Did you mean {close[0]}?", ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section."""
        for section, names in SECTIONS.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(section):
                formatter.write_dl(
                    [(name, found.get_short_help_str(80)) for name, found in commands if found]
                )

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write every command's example."""
        found = [self.get_command(ctx, name) for name in self.list_commands(ctx)]
        examples = [
            command.epilog.removeprefix("Example: ")
            for command in found
            if command and command.epilog
        ]
        with formatter.section("Examples"):
            formatter.write("".join(f"  {example}\n" for example in examples))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; what it raises becomes a sentence on stderr and an exit status."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except UserError as error:
            ctx.exit(tell(error))
        except BrokenPipeError:
            raise  # click knows: `gpushare ps | head`
        except OSError as error:
            named = f"{error.filename}: " if error.filename is not None else ""
            sudo = "; use sudo" if isinstance(error, PermissionError) else ""
            say(f"{named}{error.strerror or error}{sudo}")
            ctx.exit(ERROR)
        except Exception as error:  # the one place where a bug meets the user
            if os.environ.get("GPUSHARE_LOG") == "debug":
                raise
            what = f"{type(error).__name__}: {error}"
            say(f"a bug in gpushare: {what} (GPUSHARE_LOG=debug tells where)")
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
    help="Show the version.",
)
@shared_options
@click.pass_context
def gpushare(ctx: click.Context) -> None:
    """Share an NVIDIA GPU between containers, with quotas of memory and compute that hold.

    Without a command: this machine and the next step. Every command has --json.

    Exit status: 0 ok, 1 error, 2 usage, 3 refused, 4 degraded.
    """
    if ctx.invoked_subcommand is None:
        show_summary(ctx.ensure_object(Session))
