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
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from gpushare import abi
from gpushare.cli import session as shared
from gpushare.cli import supervisor
from gpushare.cli.session import GpushareCommand, Session, report_error, wants_json
from gpushare.cli.set import quota_option
from gpushare.cli.text import printable
from gpushare.client import DaemonError, DaemonUnreachable
from gpushare.errors import ErrorCode, UserError
from gpushare.host import cgroups, mounts
from gpushare.quota.errors import BadValue, quoted
from gpushare.quota.keys import KEYS, parse_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gpushare.cli.session import Session
    from gpushare.protocol import HostProcessGrant
    from gpushare.protocol.queue import Ticket, TicketStatus


# As in docker run: an error of gpushare, a command that cannot be executed, one that is not found.
OURS: Final = 125
TIMED_OUT: Final = 124  # as timeout(1)
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
    "time-limit",
)
_KEYS: Final = tuple(KEYS.values())
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
    for key in reversed(_KEYS):
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
@click.option(
    "--wait",
    is_flag=False,
    flag_value="",
    metavar="[TIME]",
    help="If no card has room, wait for it: at most for this time (--wait=10m), or until Ctrl-C.",
)
@click.option("--name", metavar="NAME", help="Name shown by ps. Default: the command's name.")
@click.argument("argv", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
def command(
    session: Session,
    argv: tuple[str, ...],
    name: str | None,
    wait: str | None,
    **quota: str | None,
) -> None:
    """Run a command on this host under a quota.

    As root, the command gets its own cgroup and mount namespace. Without root, the quota is only
    advisory: it applies as long as the command keeps the LD_LIBRARY_PATH that gpushare sets. Every
    key of the GPUSHARE_ variables is also an option (--placement, --weight, ...).

    With --wait, a command that no card has room for waits in the queue (gpushare queue) until there
    is room. If the command is `docker run`, `podman run` or `nerdctl run`, the request is read from
    its own options (-e GPUSHARE_MEMORY=4GiB), and the container gets the room that was granted.

    The exit status is that of the command. As in docker run, 125 is an error of gpushare, 126 a
    command that cannot be executed, and 127 a command that is not found. 124 means that no room was
    found in the time of --wait, and 130 that Ctrl-C ended the waiting.
    """
    values = {key.name: quota[f"quota_{key.field}"] for key in _KEYS}
    request = {name: value for name, value in values.items() if value is not None}
    title = name or Path(argv[0]).name
    try:
        engine = None if wait is None else engine_request(argv)
        if engine is not None:
            _refuse_options(request)
            secret = _granted(session, engine.source(), name or engine.name or title, wait)
            argv = with_ticket(argv, engine.place)
            environment = {**os.environ, TICKET_VARIABLE: secret}
        elif wait is not None:
            secret = _granted(session, {"quota": request}, title, wait, "command")
            environment = _become_tenant(session, request, title, secret)
        else:
            environment = _become_tenant(session, request, title)
    except (UserError, OSError) as error:
        session.report(error)
        timed_out = isinstance(error, TicketEnded) and error.timed_out
        click.get_current_context().exit(TIMED_OUT if timed_out else OURS)
    _execute(argv, environment, session)


def _granted(
    session: Session,
    source: dict[str, Any],
    name: str,
    wait: str | None,
    kind: str = "container",
) -> str:
    """Wait until there is room; return the secret of the ticket that was granted."""
    try:
        seconds = parse_duration(wait) if wait else 0
    except BadValue as bad:
        text = f"--wait {quoted(wait or '')} {bad.rule}. {bad.fix[0].upper()}{bad.fix[1:]}."
        raise UserError(text, code=ErrorCode.USAGE, key="--wait", value=wait) from bad
    return wait_for_grant(
        session, source, name=name, kind=kind, seconds=int(seconds), rootless=os.geteuid() != 0
    )


def _refuse_options(request: dict[str, str]) -> None:
    """Refuse options of a quota beside an engine's command, which has its own."""
    if not request:
        return
    key = next(iter(request))
    variable = f"{KEYS[key].env}={request[key]}"
    fix = f"Add -e {variable} to its options instead."
    text = f"--{key}: with --wait, the request of a container is read from the engine's command"
    raise UserError(f"{text}. {fix}", code=ErrorCode.USAGE, key=f"--{key}", fix=fix)


def _become_tenant(
    session: Session, request: dict[str, str], name: str, secret: str = ""
) -> dict[str, str]:
    """Make this process a tenant; return the environment of the command.

    `secret`: it takes over what was granted to its ticket.
    """
    client, pid, rootless = session.client, os.getpid(), os.geteuid() != 0
    grant = client.open(request, name, rootless=rootless, ticket=secret)
    environment = {**os.environ, **grant["env"]}
    try:
        if rootless:
            environment |= _advisory_variables(grant, session)
        else:
            supervisor.start(client, supervisor.Command(pid, grant["key"], grant["id"]))
            cgroups.join(grant["id"])
            search = environment.get("LD_LIBRARY_PATH", "")
            mounts.enter_new_namespace(grant["mounts"], search, grant["closed"])
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
    libraries = mounts.filters(grant["mounts"])
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


# --- `gpushare run --wait` ---

_LOOK_SECONDS: Final = (0.1, 0.1, 0.2, 0.3, 0.5)  # then each second
_GRACE_SECONDS: Final = 5.0  # of a deadline, which gpushared itself notices
_ENDS: Final = {
    "cancelled": "it was cancelled (gpushare queue cancel)",
    "timed-out": "no room was found in time",
    "expired": "it was granted, and the start came too late (queue.start_timeout)",
    "refused": "gpushare.yaml does not allow it any more",
    "": "gpushared does not know it any more",
}


class TicketEnded(UserError):
    """The ticket has ended without a grant; `timed_out`: its time was over."""

    code = ErrorCode.REFUSED

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


def wait_for_grant(
    session: Session,
    source: Mapping[str, Any],
    *,
    name: str,
    kind: str,
    seconds: int,
    rootless: bool,
) -> str:
    """Return the secret of a ticket that was granted; TicketEnded, click.Abort on Ctrl-C."""
    client = session.client
    ticket = client.take_ticket(kind, seconds, name=name, rootless=rootless, **source)
    progress = _Progress(session, ticket)
    until = time.monotonic() + seconds + _GRACE_SECONDS if seconds else None
    looks = iter(_LOOK_SECONDS)
    try:
        while True:
            status = _status(session, ticket, progress)
            if status is not None and status["state"] == "granted":
                progress.end(f"ticket {ticket['ticket']} was granted")
                return ticket["secret"]
            if status is not None and status["state"] == "ended":
                raise _ended(ticket, status["reason"])
            if until is not None and time.monotonic() > until:
                raise _ended(ticket, "timed-out")
            time.sleep(next(looks, 1.0))
    except KeyboardInterrupt:
        with contextlib.suppress(UserError):
            client.cancel_ticket(ticket["ticket"])
        raise click.Abort from None


def _status(session: Session, ticket: Ticket, progress: _Progress) -> TicketStatus | None:
    """Return what has become of the ticket; None while gpushared restarts, which keeps it."""
    try:
        status = session.client.ticket_status(**ticket)
    except (DaemonUnreachable, DaemonError):
        progress.show("gpushared does not respond; the ticket stays valid")
        return None
    if status["state"] == "waiting":
        where = f"position {status['position']} of {status['waiting']}"
        progress.show(f"{where}: {status['reason']}")
    return status


def _ended(ticket: Ticket, reason: str) -> TicketEnded:
    how, _, why = reason.partition(": ")
    text = why or _ENDS.get(how, reason)
    return TicketEnded(
        f"ticket {ticket['ticket']}: {text}. Nothing was started.", timed_out=how == "timed-out"
    )


class _Progress:
    """Lines on stderr: for each change on a terminal, otherwise one."""

    def __init__(self, session: Session, ticket: Ticket) -> None:
        self._session = session
        self._ticket = ticket["ticket"]
        self._shown = ""

    def show(self, text: str) -> None:
        if text != self._shown and (not self._shown or sys.stderr.isatty()):
            note = f"gpushare: waiting for room (ticket {self._ticket}): {text}"
            self._session.note(printable(note))
            self._shown = text

    def end(self, text: str) -> None:
        """Say how the waiting ended, if anything was shown of it."""
        if self._shown:
            self._session.note(f"gpushare: {text}")


# --- what `docker run ARGS` requests, read from its arguments; so of podman and nerdctl ---
#
# Only options before the image are the engine's; what follows it is the container's command. To
# find the image it has to be known which options have no value: those are listed here, and an
# option that is not has one.

#: The variable in which a container shows its ticket.
TICKET_VARIABLE: Final = "GPUSHARE_TICKET"
_ENGINES: Final = frozenset({"docker", "podman", "nerdctl"})
_RUN: Final = ("run", "container run")
#: Options of `run` without a value, of all three engines.
_FLAGS: Final = frozenset(
    {
        "--detach",
        "--disable-content-trust",
        "--help",
        "--init",
        "--interactive",
        "--no-healthcheck",
        "--oom-kill-disable",
        "--privileged",
        "--publish-all",
        "--quiet",
        "--read-only",
        "--rm",
        "--sig-proxy",
        "--tty",
        "--use-api-socket",
        "--env-host",
        "--http-proxy",
        "--no-hosts",
        "--no-hostname",
        "--passwd",
        "--replace",
        "--read-only-tmpfs",
        "--rmi",
        "--rootfs",
        "--tls-verify",
        "--unsetenv-all",
    }
)
_SHORT_FLAGS: Final = frozenset("ditPq")
#: Options before `run` without a value.
_GLOBAL_FLAGS: Final = frozenset(
    {"-D", "--debug", "--tls", "--tlsverify", "--remote", "-r", "--debug-full", "--experimental"}
)
_CDI: Final = "nvidia.com/gpu="


@dataclass
class EngineRequest:
    """The request of an engine's command; `place` is where an option of `run` can be added."""

    place: int
    variables: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    cards: str = ""
    name: str = ""

    def source(self) -> dict[str, object]:
        """Return what gpushared reads of it."""
        return {
            "quota": {},
            "variables": self.variables,
            "annotations": self.annotations,
            "cards": self.cards,
        }


def engine_request(argv: Sequence[str]) -> EngineRequest | None:
    """Return what an engine's `run` in `argv` requests; None where it is another command.

    UserError: a file of variables cannot be read.
    """
    if Path(argv[0]).name not in _ENGINES:
        return None
    place = _after_run(argv)
    if place is None:
        return None
    request = EngineRequest(place)
    devices: list[str] = []
    for option, value in _options(argv[place:]):
        if option in {"-e", "--env"}:
            _put_variable(value, request.variables)
        elif option == "--env-file":
            for line in _lines(value):
                _put_variable(line, request.variables)
        elif option == "--annotation":
            name, _, text = value.partition("=")
            request.annotations[name] = text
        elif option == "--gpus":
            request.cards = value
        elif option == "--device" and value.startswith(_CDI):
            devices.append(value.removeprefix(_CDI))
        elif option == "--name":
            request.name = value
    if devices and not request.cards:
        request.cards = "all" if "all" in devices else f"device={','.join(devices)}"
    # Only these are read; a request to gpushared has a limited length.
    wanted = ("GPUSHARE_", "NVIDIA_VISIBLE_DEVICES", "ALIYUN_", "VOLCANO_", "CUDA_", "HAMI_")
    request.variables = {
        name: text for name, text in request.variables.items() if name.startswith(wanted)
    }
    return request


def with_ticket(argv: Sequence[str], place: int) -> tuple[str, ...]:
    """Return the command with the variable of its ticket, whose value is in the environment.

    So no other user sees the value among the arguments of the command.
    """
    return (*argv[:place], "--env", TICKET_VARIABLE, *argv[place:])


def _after_run(argv: Sequence[str]) -> int | None:
    """Return the index after `run` or `container run`; None where that is not the command."""
    at = 1
    while at < len(argv) and argv[at].startswith("-"):
        at += 1 if "=" in argv[at] or argv[at] in _GLOBAL_FLAGS else 2
    for words in _RUN:
        length = len(words.split())
        if " ".join(argv[at : at + length]) == words:
            return at + length
    return None


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each option before the image, and its value."""
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word = words[at]
        at += 1
        if word == "--":
            return
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            if equals:
                yield name, value
                continue
            if name in _FLAGS:
                continue
        else:
            letters = word[1:].lstrip("".join(_SHORT_FLAGS))
            if not letters:
                continue
            name, value = f"-{letters[0]}", letters[1:].removeprefix("=")
            if value:
                yield name, value
                continue
        if at < len(words):
            yield name, words[at]
            at += 1


def _put_variable(text: str, variables: dict[str, str]) -> None:
    """Note NAME=VALUE, or NAME with the value that it has here, as engines do."""
    name, equals, value = text.partition("=")
    if equals:
        variables[name] = value
    elif name in os.environ:
        variables[name] = os.environ[name]


def _lines(file: str) -> list[str]:
    try:
        text = Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        message = f"--env-file {file}: {why}"
        raise UserError(message, code=ErrorCode.NOT_FOUND, key="--env-file", value=file) from error
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]
