# SPDX-License-Identifier: Apache-2.0
"""`gpushare run`: a host process as a tenant, without a container.

The process that was called becomes the command: signals, exit status and the terminal are the
command's own, and the daemon watches the pid that the caller already knows.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from gpushare import abi
from gpushare.cli import session as shared
from gpushare.errors import UserError
from gpushare.host import cgroups, namespace
from gpushare.quota.errors import quoted
from gpushare.quota.keys import KEYS

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpushare.cli.session import Session
    from gpushare.client import Client
    from gpushare.protocol import Opened

# As docker's: ours, found but not to be executed, not found.
OURS: Final = 125
NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127

HINTS: Final = {
    "memory": "Per card: 4GiB, 512MiB, 4g.",
    "memory-limit": "What it may be lent with its memory; from memory up.",
    "cores": "Percent of a card, 1 to 100.",
    "count": "How many cards.",
    "devices": "Which cards: indices or UUIDs.",
    "policy": "What happens with idle cores: fixed-share, burst-share, ...",
    "class": "online: it never waits for its turn; or offline.",
}
_DRIVER: Final = Path("/opt/gpushare/driver/libcuda.so.1")


class RunCommand(click.Command):
    """A command whose own mistakes must not look like its command's exit status."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse; a usage error exits with 125."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.show()
            ctx.exit(OURS)


def _quota_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for key in reversed(tuple(KEYS.values())):
        hidden = key.name not in HINTS
        function = click.option(
            f"--{key.name}",
            f"quota_{key.field}",
            metavar="VALUE",
            help=HINTS.get(key.name),
            hidden=hidden,
        )(function)
    return function


@shared.command(
    "run",
    cls=RunCommand,
    example="gpushare run --memory 4GiB --cores 30 -- python train.py",
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
@_quota_options
@click.option("--name", metavar="NAME", help="What ps calls it; else the command's name.")
@click.argument("argv", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(session: Session, argv: tuple[str, ...], name: str | None, **quota: str | None) -> None:
    """Run a command on this host under a quota.

    As root it gets a cgroup and a mount namespace of its own. Without root the quota is advice: it
    holds as long as the command keeps the LD_LIBRARY_PATH that it is given. Every key of the
    GPUSHARE_ variables is an option (--placement, --weight, ...).

    The exit status is the command's; 125, 126 and 127 are gpushare's, as docker's.
    """
    given = {key.name: quota[f"quota_{key.field}"] for key in KEYS.values()}
    asked = {name: value for name, value in given.items() if value is not None}
    try:
        environment = _become_tenant(session.client, asked, name or Path(argv[0]).name)
    except (UserError, OSError) as error:
        told = str(error) if isinstance(error, UserError) else f"{error.filename}: {error.strerror}"
        click.echo(f"gpushare: {told.removeprefix('gpushare: ')}", err=True)
        click.get_current_context().exit(OURS)
    _execute(argv, environment)


def _become_tenant(client: Client, asked: dict[str, str], name: str) -> dict[str, str]:
    """Make this process the tenant; return the environment of the command."""
    pid, rootless = os.getpid(), os.geteuid() != 0
    opened = client.open(asked, name=name, pid=pid, rootless=rootless)
    environment = {**os.environ, **opened["env"]}
    try:
        if rootless:
            environment |= _advice(opened)
        else:
            cgroups.join(opened["id"])
            namespace.enter(opened["mounts"], environment.get("LD_LIBRARY_PATH", ""))
        client.bind(opened["key"], opened["id"], pid)
    except BaseException:
        if not rootless:
            cgroups.leave(opened["id"])
        with contextlib.suppress(UserError):
            client.release(opened["key"], opened["id"])
        raise
    return environment


def _advice(opened: Opened) -> dict[str, str]:
    """Return the variables that lead an unprivileged process to the filters."""
    filters = namespace.filters(opened["mounts"])
    if not filters:
        return {}
    if not _DRIVER.exists():
        raise UserError(f"without root {_DRIVER} must be there; run `sudo gpushare setup` once")
    click.echo(
        "gpushare: not root: the quota is advice (LD_LIBRARY_PATH); use sudo for one that holds",
        err=True,
    )
    folders = dict.fromkeys(str(source.parent) for source in filters.values())
    search = [*folders, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {
        "LD_LIBRARY_PATH": ":".join(search),
        abi.TENANT_DIR_ENV: opened["directory"],
    }


def _execute(argv: tuple[str, ...], environment: dict[str, str]) -> NoReturn:
    # Python ignores these, and what is ignored stays so in the command (execve(2)).
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, environment)  # noqa: S606 - a shell is what it must not be
    except (FileNotFoundError, ValueError):  # ValueError: it is called ""
        status, why = NOT_FOUND, "there is no such command"
    except OSError as error:
        status, why = NOT_EXECUTABLE, str(error.strerror)
    click.echo(f"gpushare: {argv[0] or quoted('')}: {why}", err=True)
    click.get_current_context().exit(status)
