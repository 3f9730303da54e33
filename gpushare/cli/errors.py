# SPDX-License-Identifier: Apache-2.0
"""How errors reach the user: a sentence, or a JSON object with --json, on stderr."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from gpushare.cli.text import printable
from gpushare.client import UnknownTenant
from gpushare.errors import ErrorCode, ExitStatus, UserError

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
    what = f"{type(error).__name__}: {error}"
    fix = "For a traceback, set GPUSHARE_LOG=debug."
    return ErrorReport(ErrorCode.INTERNAL, f"internal error: {what}. {fix}", fix=fix)


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
                given, _, _ = self.make_parser(ctx).parse_args(words)
                ctx.meta[_VALUE] = given.get(error.param.name or "")
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
