# SPDX-License-Identifier: Apache-2.0
"""`gpushare run`: a host process as a tenant, without a container.

This process becomes the command through exec. Signals, exit status and terminal are therefore the
command's own, and the daemon watches a PID that the caller already knows. A supervisor beside it
is for the time in which the command is frozen.
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
from gpushare.cli import supervisor
from gpushare.cli.errors import GpushareCommand, report_error
from gpushare.cli.quota_options import quota_option
from gpushare.cli.session import Session, wants_json
from gpushare.errors import ErrorCode, UserError
from gpushare.host import cgroups, mount_namespace
from gpushare.quota.errors import quoted
from gpushare.quota.keys import KEYS

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpushare.protocol import HostProcessGrant

# As in docker run: an error of gpushare, a command that cannot be executed, one that is not found.
OURS: Final = 125
NOT_EXECUTABLE: Final = 126
NOT_FOUND: Final = 127

_SHOWN: Final = (
    "memory",
    "memory-limit",
    "cores",
    "count",
    "devices",
    "policy",
    "class",
    "idle-after",
)
_DRIVER: Final = Path("/opt/gpushare/driver/libcuda.so.1")


class RunCommand(GpushareCommand):
    """A command whose usage errors must not be mistaken for the exit status of what it runs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments; exit with 125 on a usage error."""
        as_json = wants_json(args)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            report_error(error, as_json=as_json or ctx.ensure_object(Session).json)
            ctx.exit(OURS)


def _quota_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for key in reversed(tuple(KEYS.values())):
        option = quota_option(
            key.name, variable=f"quota_{key.field}", hidden=key.name not in _SHOWN
        )
        function = option(function)
    return function


@shared.command(
    "run",
    cls=RunCommand,
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
@_quota_options
@click.option("--name", metavar="NAME", help="Name shown by ps. Default: the command's name.")
@click.argument("argv", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(session: Session, argv: tuple[str, ...], name: str | None, **quota: str | None) -> None:
    """Run a command on this host under a quota.

    As root, the command gets its own cgroup and mount namespace. Without root, the quota is only
    advisory: it applies as long as the command keeps the LD_LIBRARY_PATH that gpushare sets. Every
    key of the GPUSHARE_ variables is also an option (--placement, --weight, ...).

    The exit status is that of the command. As in docker run, 125 is an error of gpushare, 126 a
    command that cannot be executed, and 127 a command that is not found.
    """
    values = {key.name: quota[f"quota_{key.field}"] for key in KEYS.values()}
    request = {name: value for name, value in values.items() if value is not None}
    try:
        environment = _become_tenant(session, request, name or Path(argv[0]).name)
    except (UserError, OSError) as error:
        session.report(error)
        click.get_current_context().exit(OURS)
    _execute(argv, environment, session)


def _become_tenant(session: Session, request: dict[str, str], name: str) -> dict[str, str]:
    """Make this process a tenant; return the environment of the command."""
    client, pid, rootless = session.client, os.getpid(), os.geteuid() != 0
    grant = client.open(request, name=name, pid=pid, rootless=rootless)
    environment = {**os.environ, **grant["env"]}
    try:
        if rootless:
            environment |= _advisory_variables(grant, session)
        else:
            supervisor.start(client, supervisor.Command(pid, grant["key"], grant["id"]))
            cgroups.join(grant["id"])
            mount_namespace.enter(grant["mounts"], environment.get("LD_LIBRARY_PATH", ""))
        client.bind(grant["key"], grant["id"], pid)
    except BaseException:
        if not rootless:
            cgroups.leave(grant["id"])
        with contextlib.suppress(UserError):
            client.release(grant["key"], grant["id"])
        raise
    return environment


def _advisory_variables(grant: HostProcessGrant, session: Session) -> dict[str, str]:
    """Return the variables by which an unprivileged process loads the interposer libraries."""
    libraries = mount_namespace.filters(grant["mounts"])
    if not libraries:
        return {}
    if not _DRIVER.exists():
        raise UserError(f"without root, {_DRIVER} is required. Run `sudo gpushare setup` once.")
    session.note(
        "gpushare: not root: the quota is only advisory (LD_LIBRARY_PATH); use sudo to enforce it"
    )
    folders = dict.fromkeys(str(source.parent) for source in libraries.values())
    search = [*folders, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {
        "LD_LIBRARY_PATH": ":".join(search),
        abi.TENANT_DIR_ENV: grant["directory"],
    }


def _execute(argv: tuple[str, ...], environment: dict[str, str], session: Session) -> NoReturn:
    # Python ignores these signals, and ignored signals stay ignored across execve(2).
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvpe(argv[0], argv, environment)  # noqa: S606 - no shell, on purpose
    except (FileNotFoundError, ValueError):  # ValueError: an empty name
        status, code, why = NOT_FOUND, ErrorCode.NOT_FOUND, "command not found"
    except OSError as error:
        status, code, why = NOT_EXECUTABLE, ErrorCode.FORBIDDEN, str(error.strerror)
    text = f"{argv[0] or quoted('')}: {why}"
    session.report(UserError(text, code=code, key="COMMAND", value=argv[0]))
    click.get_current_context().exit(status)
