# SPDX-License-Identifier: Apache-2.0
"""The Python client of the control socket: a method for each operation of gpushare/protocol.

Most methods are declared there, in operations.py; here are those that return more than one part of
a reply, and how a request is sent. Each call opens its own connection, so a `Client` has no state
and threads can share it. The C client of the same socket is runtime/client.c.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from gpushare import protocol
from gpushare.errors import ErrorCode, UserError
from gpushare.host import init_system
from gpushare.metrics_schema import Metrics
from gpushare.protocol.operations import ClientOperations, Replies
from gpushare.protocol.rows import Why
from gpushare.quota.errors import quoted
from gpushare.wait_policy import LOOK_SECONDS, WaitPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpushare.quota.node_settings import NodeSetting


_LONG: Final = frozenset({"claim-prepare", "claim-pods"})  # root's
_STARTS: Final = frozenset({"open", "bind"})  # of `gpushare run`
DEFAULT_SOCKET: Final = Path("/run/gpushare/control.sock")


class DaemonUnreachable(UserError):
    """No gpushared responds on the socket; the text says how to fix that."""

    code = ErrorCode.UNREACHABLE


class RequestRefused(UserError):
    """The daemon refused the request: no capacity, an invalid value, or a missing permission."""

    code = ErrorCode.REFUSED


class UnknownTenant(UserError):
    """No container, card or ticket has that name, or several have; `candidates` are similar."""

    code = ErrorCode.NOT_FOUND

    def __init__(
        self,
        message: str,
        candidates: list[str],
        *,
        key: str | None = None,
        value: str | None = None,
    ) -> None:
        fix = f"Use one of: {', '.join(candidates)}." if candidates else None
        super().__init__(message, key=key, value=value, fix=fix)
        self.candidates = candidates


class BadRequest(UserError):
    """The request is invalid: too long, or with arguments that the operation does not accept."""

    code = ErrorCode.USAGE


class DaemonError(UserError):
    """The daemon or its driver failed, a file of it has an error, or its reply is not valid."""


class Client(ClientOperations):
    """Sends requests to the daemon at `path`; every method may raise this module's exceptions.

    `seconds` limits the time for a reply after the daemon has acknowledged the request, and
    `start_seconds` the time to wait for a daemon that is starting, in which `waits` is called.
    """

    def __init__(
        self,
        path: Path = DEFAULT_SOCKET,
        seconds: float = protocol.REPLY_SECONDS,
        *,
        start_seconds: float = protocol.START_SECONDS,
        waits: Callable[[], None] = lambda: None,
    ) -> None:
        self.path = path
        self.seconds = seconds
        self._start_seconds = start_seconds
        self._waits = waits

    def why(self, name: str) -> Why:
        """Return the breakdown of a tenant's memory; `name` as for `tenant`."""
        rows, last = self._why(name)
        return cast("Why", {**last["why"], "processes": rows})

    def set_node_setting(self, key: str, setting: NodeSetting | None) -> None:
        """Set a setting of the node by a label of its Node object; None: as gpushare.yaml says."""
        if setting is None:
            self._node_setting(key)
        else:
            self._node_setting(key, **setting)

    def metrics(self) -> Metrics:
        """Return the figures of the cards, the tenants and the daemon at one time."""
        rows, last = self._metrics()

        def of(kind: str) -> list[Any]:
            return [row[kind] for row in rows if kind in row]

        return Metrics(of("card"), of("tenant"), last["node"], of("ended"))

    def history(
        self, name: str = "", since: float = 0.0, after: int = 0
    ) -> Iterator[protocol.HistoryEvent]:
        """Yield the events since `since` (of the epoch) of a container or card, or all events.

        Only those that came after the event with number `after`. `name` may mean several
        containers: their rows have different IDs.
        """
        while True:
            page = self._events(name, since, after)
            yield from page
            if len(page) < protocol.HISTORY_ROWS:
                return
            after = page[-1]["number"]

    def exchange(self, op: str, fields: Mapping[str, Any]) -> Replies:
        """Send a request; return the rows of the reply, and its other keys."""
        *rows, last = self._replies(op, fields)
        return [row["row"] for row in rows], {key: last[key] for key in last if key != "ok"}

    def _replies(self, op: str, fields: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield each reply after the acknowledgement, the final one last."""
        try:
            limit = protocol.MAX_ROOT_REQUEST_BYTES if op in _LONG else protocol.MAX_REQUEST_BYTES
            request = protocol.encode({"op": op, **fields}, limit)
        except protocol.ProtocolError as error:
            raise _too_long(fields, limit) from error
        with contextlib.ExitStack() as opened:
            try:
                link, acknowledged = self._acknowledged(request, opened, starts=op in _STARTS)
                if acknowledged.get("ack") is not True:
                    # A daemon that refuses the caller sends no acknowledgement.
                    yield _final(acknowledged, fields)
                    return
                deadline = time.monotonic() + self.seconds
                while True:
                    message = self._receive(link, deadline)
                    if message.get("ack") is True:  # it is in a queue
                        deadline = time.monotonic() + self.seconds
                        continue
                    if "row" not in message:
                        yield _final(message, fields)
                        return
                    yield message
            except TimeoutError:
                raise DaemonUnreachable(
                    f"gpushared is running but not responding on {self.path}. "
                    "See journalctl -u gpushared."
                ) from None
            except ConnectionError as error:
                raise DaemonUnreachable(
                    f"gpushared closed the connection on {self.path} ({error.strerror}). "
                    "See journalctl -u gpushared."
                ) from error
            except protocol.ProtocolError as error:
                raise DaemonError(
                    f"the service on {self.path} does not use this protocol: {error}"
                ) from error

    def _acknowledged(
        self, request: bytes, opened: contextlib.ExitStack, *, starts: bool
    ) -> tuple[socket.socket, dict[str, Any]]:
        """Send `request`; return the connection, which `opened` closes, and the first reply.

        A request that was not acknowledged had no effect, so it is sent again if the daemon stops
        before that. One that `starts` a process waits for a daemon that was killed.
        """
        policy = WaitPolicy(self.path, self._start_seconds, self._waits, after_kill=starts)
        while True:
            opened.close()
            link = opened.enter_context(
                socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
            )
            link.settimeout(protocol.ACK_SECONDS)
            try:
                link.connect(str(self.path))
            except OSError as error:
                if not policy.may_become_ready(error):
                    raise _unreachable(self.path, error) from error
                time.sleep(LOOK_SECONDS / 2)
                continue
            try:
                link.send(request)
                return link, self._first(link, policy)
            except ConnectionError:
                if not policy.keeps_waiting():
                    raise
                time.sleep(LOOK_SECONDS / 2)

    def _first(self, link: socket.socket, policy: WaitPolicy) -> dict[str, Any]:
        """Return the first reply other than that the daemon is starting."""
        while True:
            try:
                message = self._receive(link, time.monotonic() + LOOK_SECONDS)
            except TimeoutError:
                if policy.keeps_waiting():
                    continue
                if policy.is_starting:
                    raise DaemonUnreachable(
                        f"gpushared is still starting: not ready on {self.path} after "
                        f"{self._start_seconds:g} s. See journalctl -u gpushared."
                    ) from None
                raise
            if message.get("starting") is not True:
                return message
            policy.daemon_is_starting = True

    def _receive(self, link: socket.socket, deadline: float) -> dict[str, Any]:
        link.settimeout(max(deadline - time.monotonic(), 0.001))
        packet = link.recv(protocol.MAX_REPLY_BYTES)
        if not packet:
            raise ConnectionResetError(errno.ECONNRESET, "closed before the reply was complete")
        return protocol.decode(packet)


def _final(message: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return a final reply to a request with `fields` that is ok; raise the exception otherwise."""
    if message.get("ok") is True:
        return message
    text = str(message.get("error", message))
    code = next((one for one in ErrorCode if one.text == message.get("code")), ErrorCode.FAILED)
    about = {part: message.get(part) for part in ("key", "value", "fix")}
    if code is ErrorCode.REFUSED:
        raise RequestRefused(text, **about)
    if code is ErrorCode.FORBIDDEN:
        raise RequestRefused(text, code=code, fix="Use sudo.")
    if code is ErrorCode.USAGE:
        raise BadRequest(text)
    if code is ErrorCode.NOT_FOUND:
        candidates = [str(name) for name in message.get("candidates", [])]
        key = str(message.get("key", "name"))
        raise UnknownTenant(text, candidates, key=key, value=fields.get(key))
    raise DaemonError(text, code=code)


def _too_long(fields: Mapping[str, Any], limit: int) -> BadRequest:
    """Return the error for a request of more than `limit` bytes: its longest value is too long."""
    key, value = max(fields.items(), key=lambda field: len(json.dumps(field[1])))
    text = str(value)
    shown = quoted(text, 40)
    fix = f"A request to gpushared has at most {limit} bytes."
    return BadRequest(f"{key} {shown}: too long. {fix}", key=key, value=text, fix=fix)


def _unreachable(path: Path, error: OSError) -> DaemonUnreachable:
    code, fix = ErrorCode.UNREACHABLE, "start gpushared"
    if isinstance(error, FileNotFoundError):
        what = f"gpushared is not running: there is no {path}"
        fix = f"{init_system.advice('systemctl start gpushared')} (first time: gpushare setup)"
    elif isinstance(error, ConnectionRefusedError):
        what, fix = f"gpushared is not running: nothing listens on {path}", "start it"
    elif isinstance(error, PermissionError):
        what = f"{path} is not open to this user (read_group in gpushare.yaml)"
        code, fix = ErrorCode.FORBIDDEN, "use sudo"
    else:
        what = f"{path}: {error.strerror or error}"
    fix += ", or name another socket with --socket or GPUSHARE_SOCKET"
    return DaemonUnreachable(f"{what}; {fix}", code=code, key="socket", value=str(path), fix=fix)
