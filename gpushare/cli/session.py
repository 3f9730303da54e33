# SPDX-License-Identifier: Apache-2.0
"""The parts that all commands share: --socket and --json, and how results and errors are shown."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click
from click.core import ParameterSource

from gpushare.cli.commands import COMMANDS
from gpushare.cli.text import printable
from gpushare.client import (
    DEFAULT_SOCKET,
    Client,
    DaemonError,
    DaemonUnreachable,
    RequestRefused,
    UnknownTenant,
)
from gpushare.errors import ErrorCode, ExitStatus, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Completer = Callable[[click.Context, click.Parameter, str], Any]

    from gpushare.client import Client
    from gpushare.errors import ExitStatus, UserError
    from gpushare.protocol.rows import TenantStatus
    from gpushare.quota.node_settings import NodeSetting


# --- how errors reach the user: a sentence, or a JSON object with --json, on stderr ---

_PREFIX: Final = "gpushare: "
_VALUE: Final = "gpushare.value"  # in click's meta: the value that was not accepted


@dataclass(frozen=True)
class ErrorReport:
    """One error; `key`, `value` and `fix` are None if they are not known."""

    code: ErrorCode
    message: str
    key: str | None = None
    value: str | None = None
    fix: str | None = None

    @property
    def document(self) -> dict[str, dict[str, str | None]]:
        """The JSON object."""
        message = self.message.removeprefix(_PREFIX)
        return {"error": {**vars(self), "code": self.code.text, "message": message}}


def report_error(error: Exception, *, as_json: bool) -> ExitStatus:
    """Print an error on stderr; return the exit status of a command that ends with it."""
    report = error_report(error)
    if as_json:
        click.echo(json.dumps(report.document), err=True)
    elif isinstance(error, click.UsageError):
        error.show()
    else:
        print_error(report.message)
        if isinstance(error, UnknownTenant):
            for name in error.candidates:
                click.echo(f"  {printable(name)}", err=True)
    return report.code.status


def error_report(error: Exception) -> ErrorReport:
    """Return what is known of an error. An unknown one is a bug in gpushare."""
    if isinstance(error, click.UsageError):
        return _usage(error)
    if isinstance(error, click.ClickException):
        return ErrorReport(ErrorCode.FAILED, error.format_message())
    if isinstance(error, click.Abort):
        return ErrorReport(ErrorCode.INTERRUPTED, "interrupted")
    if isinstance(error, UserError):
        return ErrorReport(_code(error), str(error), error.key, error.value, error.fix)
    if isinstance(error, OSError):
        return _system_error(error)
    message = f"{type(error).__name__}: {error}"
    fix = "For a traceback, set GPUSHARE_LOG=debug."
    return ErrorReport(ErrorCode.INTERNAL, f"internal error: {message}. {fix}", fix=fix)


def print_error(text: str) -> None:
    """Print `text` on stderr, with the prefix `gpushare: ` exactly once."""
    # Refusals by the daemon begin with the prefix already, because engines print them without one.
    # A text may contain a container's name, which its owner chooses.
    lines = "\n".join(printable(line) for line in text.splitlines())
    click.echo(lines if text.startswith(_PREFIX) else f"{_PREFIX}{lines}", err=True)


class GpushareCommand(click.Command):
    """A command that keeps the value that its parser does not accept, for the report."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments."""
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.BadParameter as error:
            if error.param is not None and not isinstance(error, click.MissingParameter):
                values, _, _ = self.make_parser(ctx).parse_args(words)
                ctx.meta[_VALUE] = values.get(error.param.name or "")
            raise


class BadKeyValue(click.BadParameter):
    """A value that a key cannot have, with what to write instead."""

    def __init__(
        self, message: str, fix: str, ctx: click.Context | None, param: click.Parameter | None
    ) -> None:
        super().__init__(message, ctx, param)
        self.fix = fix


def no_such_command(message: str, name: str, ctx: click.Context) -> click.UsageError:
    """Return the error for a command that does not exist."""
    ctx.meta[_VALUE] = name
    return click.UsageError(message, ctx)


def _usage(error: click.UsageError) -> ErrorReport:
    key, value = None, None
    if isinstance(error, click.BadParameter) and error.param is not None:
        key = error.param.opts[0] if error.param.opts[0].startswith("-") else error.param.metavar
        key = key or error.param.human_readable_name
    elif isinstance(error, click.NoSuchOption | click.BadOptionUsage):
        key = error.option_name
    if error.ctx is not None:
        value = error.ctx.meta.get(_VALUE)
    if isinstance(error, BadKeyValue):
        fix: str | None = error.fix
    else:
        fix = f"See {error.ctx.command_path} --help." if error.ctx is not None else None
    return ErrorReport(ErrorCode.USAGE, error.format_message(), key, _text(value), fix)


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return " ".join(map(str, value)) if isinstance(value, Sequence) else str(value)


def _system_error(error: OSError) -> ErrorReport:
    name = None if error.filename is None else os.fsdecode(error.filename)
    fix = "Use sudo." if isinstance(error, PermissionError) and os.geteuid() != 0 else None
    text = ": ".join(filter(None, (name, error.strerror or str(error))))
    message = f"{text}. {fix}" if fix else text
    return ErrorReport(_system_code(error) or ErrorCode.FAILED, message, "file", name, fix)


def _code(error: UserError) -> ErrorCode:
    """Return the class of an error; that of its cause, if it says no more than that it failed."""
    if error.code not in {ErrorCode.FAILED, ErrorCode.INVALID}:
        return error.code
    return next(filter(None, map(_system_code, _causes(error))), error.code)


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause = error.__cause__
    while cause is not None:
        yield cause
        cause = cause.__cause__


def _system_code(error: BaseException) -> ErrorCode | None:
    if isinstance(error, PermissionError):
        return ErrorCode.FORBIDDEN
    return ErrorCode.NOT_FOUND if isinstance(error, FileNotFoundError) else None


# --- what all commands share: --socket and --json, and how results are shown ---

TableRow = TypeVar("TableRow")

_LONGEST_SOCKET: Final = 107

#: How to start a container with a GPU.
TRY: Final = "docker run --runtime=gpushare -e GPUSHARE_MEMORY=4GiB -e GPUSHARE_CORES=30 IMAGE"


@dataclass
class Session:
    """One invocation of the command line."""

    socket: Path = DEFAULT_SOCKET
    json: bool = False

    @property
    def client(self) -> Client:
        """The client of this session's daemon."""
        return Client(self.socket, waits=lambda: self.note("waiting for gpushared to start"))

    def node_settings(self) -> dict[str, NodeSetting]:
        """Return the settings that labels of this node set; none if gpushared does not answer."""
        try:
            return self.client.status().get("node_settings", {})
        except (DaemonUnreachable, DaemonError, RequestRefused):
            return {}

    def config_file(self) -> Path | None:
        """Return the configuration file of the running gpushared, None if there is none."""
        try:
            path = self.client.status()["config"]
        except (DaemonUnreachable, DaemonError, RequestRefused):
            return None
        return Path(path) if path else None

    def note(self, text: str) -> None:
        """Print a remark on stderr, where --json has only errors."""
        if not self.json:
            click.echo(text, err=True)

    def progress(self, text: str) -> None:
        """Say what is being done, to somebody at a terminal."""
        if sys.stderr.isatty():
            self.note(f"{printable(text)} ...")

    def report(self, error: UserError | OSError) -> ExitStatus:
        """Print an error with which the command does not end; return its exit status."""
        return report_error(error, as_json=self.json)

    def show(self, data: object, text: Callable[[], str]) -> None:
        """Print `data` with --json, otherwise the result of `text`."""
        shown = json.dumps(data, indent=2) if self.json else text()
        # A path with bytes that are no UTF-8 has halves of letters, which cannot be written.
        click.echo(shown.encode("utf-8", "backslashreplace").decode())

    def show_rows(
        self, rows: list[TableRow], text: Callable[[list[TableRow]], str], none: str
    ) -> None:
        """Print `rows`; if there are none, print `none` on stderr, which pipes do not read."""
        if rows or self.json:
            self.show(rows, lambda: text(rows))
        else:
            click.echo(none, err=True)


class SocketPath(click.Path):
    """A path that a socket can have: 1 to 107 bytes long (unix(7))."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path; UsageError for another one."""
        if not 0 < len(os.fsencode(value)) <= _LONGEST_SOCKET:
            self.fail(f"the path of a socket has 1 to {_LONGEST_SOCKET} bytes.", param, ctx)
        return super().convert(value, param, ctx)


def wants_json(words: Sequence[str]) -> bool:
    """Whether --json is among the words of a command line that cannot be parsed."""
    return "--json" in words[: words.index("--") if "--" in words else None]


class RootCommand(GpushareCommand, click.Group):
    """The root of a program's commands."""

    def main(self, args: Sequence[str] | None = None, *names: Any, **extra: Any) -> NoReturn:
        """Run the command line; report an error on stderr, and exit with its status."""
        words = sys.argv[1:] if args is None else list(args)
        session = Session()
        extra |= {"obj": session, "standalone_mode": False}
        if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":  # no-color.org
            extra |= {"color": False}
        try:
            # What ended early, by --help or a status, returns its status.
            status = super().main(words, *names, **extra) or 0
        except Exception as error:  # the only place where a bug reaches the user
            is_bug = error_report(error).code is ErrorCode.INTERNAL
            if is_bug and os.environ.get("GPUSHARE_LOG") == "debug":
                raise
            status = report_error(error, as_json=session.json or wants_json(words))
        sys.exit(status)


def _set(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Store an option; one that was not given keeps the value from before the command's name."""
    assert parameter.name is not None
    session = ctx.ensure_object(Session)
    # The environment was already read for the root command; reading it again here would override
    # an option that was given there.
    again = ctx.parent and ctx.get_parameter_source(parameter.name) is ParameterSource.ENVIRONMENT
    if value and not again:
        setattr(session, parameter.name, value)


def shared_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --json and --socket, which are accepted before and after the command's name."""
    socket = click.option(
        "--socket",
        type=SocketPath(path_type=Path),
        metavar="PATH",
        envvar="GPUSHARE_SOCKET",
        expose_value=False,
        callback=_set,
        help=f"Path of the control socket. Default: $GPUSHARE_SOCKET or {DEFAULT_SOCKET}.",
    )
    as_json = click.option(
        "--json",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_set,
        help="Print JSON, also for errors.",
    )
    return socket(as_json(function))


def command(
    name: str, *, example: str = "", cls: type[click.Command] = GpushareCommand, **settings: Any
) -> Callable[[Callable[..., Any]], click.Command]:
    """Turn a function whose first argument is the Session into a command.

    Without an `example`, it is one of COMMANDS.
    """

    def wrap(function: Callable[..., Any]) -> click.Command:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            session = click.get_current_context().ensure_object(Session)
            return function(session, *args, **kwargs)

        epilog = f"Example: {example or COMMANDS[name].example}"
        return click.command(name, cls, epilog=epilog, **settings)(shared_options(call))

    return wrap


class CommandGroup(GpushareCommand, click.Group):
    """A command that has commands of its own."""


def group(name: str, *, example: str = "") -> Callable[[Callable[..., Any]], click.Group]:
    """Turn a function into a command that has commands of its own; `example`: see `command`."""
    epilog = f"Example: {example or COMMANDS[name].example}"
    return lambda function: click.group(name, CommandGroup, epilog=epilog)(shared_options(function))


def completes(*kinds: str) -> Completer:
    """Return how a shell completes a parameter: containers, cards, tickets, topics, files."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> Any:
        from gpushare.cli import completion  # noqa: PLC0415 - only for shells

        return list(completion.complete(kinds, ctx, incomplete))

    return complete


def _read_model(_ctx: click.Context, _parameter: click.Parameter, folder: Any) -> Any:
    from gpushare.compatibility.model import read_model  # noqa: PLC0415 - only if there is one

    return () if folder is None else read_model(folder)


model_option = click.option(
    "--model",
    type=click.Path(path_type=Path),
    callback=_read_model,
    metavar="DIR",
    help="Model of the containers: of its config.json, the formats of numbers are read.",
)


def config_option(purpose: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option for a configuration file; `purpose` begins its help."""
    return click.option(
        "--config",
        "file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help=f"{purpose} Default: that of the running gpushared, otherwise "
        "/etc/gpushare/gpushare.yaml.",
    )


container_argument = click.argument("container", shell_complete=completes("containers"))
containers_argument = click.argument(
    "containers",
    metavar="CONTAINER...",
    nargs=-1,
    required=True,
    shell_complete=completes("containers"),
)


def for_each_container(
    session: Session,
    containers: Sequence[str],
    ask: Callable[[str], TenantStatus],
    line: Callable[[TenantStatus], str],
) -> None:
    """Run `ask` for each container and print a line for each; exit with the worst status."""
    tenants: list[TenantStatus] = []
    status = 0
    for container in dict.fromkeys(containers):
        try:
            tenants.append(ask(container))
        except (RequestRefused, UnknownTenant, DaemonError) as error:
            status = max(status, session.report(error))
    if tenants or session.json:
        session.show(tenants, lambda: "\n".join(map(line, tenants)))
    click.get_current_context().exit(status)
