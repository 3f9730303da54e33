# SPDX-License-Identifier: Apache-2.0
"""The Python client of the control socket: one method per op of gpushare/protocol.

Each call is a connection of its own, so a `Client` holds nothing and may be shared by threads. The
C client of the same socket is runtime/client.c.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from gpushare import protocol
from gpushare.errors import UserError
from gpushare.patience import LOOK_SECONDS, Patience

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpushare.figures import CardFigures, NodeFigures, TenantFigures

DEFAULT_SOCKET: Final = Path("/run/gpushare/control.sock")


class DaemonUnreachable(UserError):
    """No gpushared answers on the socket; the text says what to do about it."""


class Refused(UserError):
    """The daemon understood and said no: no room, a bad value, or not for this user."""


class UnknownTenant(UserError):
    """No container, or more than one, goes by that name; `candidates` are those that came close."""

    def __init__(self, message: str, candidates: list[str]) -> None:
        super().__init__(message)
        self.candidates = candidates


class BadRequest(UserError):
    """What was asked makes no request: too long, or not what the op takes."""


class DaemonError(UserError):
    """The daemon could not do it, or answered what this client does not understand."""


@dataclass(frozen=True)
class Metrics:
    """The figures of gpushare/figures.py, of one moment."""

    cards: list[CardFigures]
    tenants: list[TenantFigures]
    node: NodeFigures


class Client:
    """Asks the daemon behind `path`; every method may raise the exceptions of this module.

    `seconds` is how long an answer may take once the daemon has acknowledged the question, and
    `start_seconds` how long a daemon that is starting is waited for, where `waits` is called.
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

    def cards(self) -> list[protocol.Card]:
        """Return the cards of this machine, by index."""
        return [cast("protocol.Card", row) for row in self._rows("cards")]

    def tenants(self, *, everything: bool = False) -> list[protocol.Tenant]:
        """Return the tenants; with `everything` also containers that got no GPU, and why."""
        return [cast("protocol.Tenant", row) for row in self._rows("tenants", all=everything)]

    def tenant(self, name: str) -> protocol.Tenant:
        """Return one tenant by its engine's name, an id prefix or namespace/pod/container."""
        return cast("protocol.Tenant", self._ask("tenant", name=name)["tenant"])

    def why(self, name: str) -> protocol.Why:
        """Return where every byte of a tenant's memory is, by the names that `tenant` takes."""
        *rows, last = self._replies("why", {"name": name})
        return cast("protocol.Why", {**last["why"], "processes": [row["row"] for row in rows]})

    def set(self, name: str, **asked: str | None) -> protocol.Tenant:
        """Change a running tenant's quota: values of SET_FIELDS as the user wrote them, None: kept.

        Returns the tenant as it is now; its `warnings` say where it uses more than it now may.
        """
        changed = {field: text for field, text in asked.items() if text is not None}
        return cast("protocol.Tenant", self._ask("set", name=name, **changed)["tenant"])

    def reset(self, name: str, *keys: str) -> protocol.Tenant:
        """Take back what was set of a tenant's `keys` (`memory-limit`), all of it for none."""
        what = ",".join(keys) or protocol.RESET_ALL
        return cast("protocol.Tenant", self._ask("set", name=name, reset=what)["tenant"])

    def pause(self, name: str, why: str = "") -> protocol.Tenant:
        """Freeze all processes of a tenant, until `resume`; returns it as it is now."""
        asked = {"why": why} if why else {}
        return cast("protocol.Tenant", self._ask("pause", name=name, **asked)["tenant"])

    def resume(self, name: str) -> protocol.Tenant:
        """Let a tenant go on that an operator or the audit froze; returns it as it is now."""
        return cast("protocol.Tenant", self._ask("resume", name=name)["tenant"])

    def kick(self, name: str, signal: str, grace: int, why: str = "") -> protocol.Tenant:
        """Send a tenant's first process `signal`, and end what is left after `grace` seconds.

        Returns the tenant as it is now, which is mostly still there.
        """
        asked = {"signal": signal, "grace": grace} | ({"why": why} if why else {})
        return cast("protocol.Tenant", self._ask("kick", name=name, **asked)["tenant"])

    def set_card_policy(self, card: str, policy: str | None) -> protocol.Card:
        """Have `policy` hold for the compute of a card's tenants; None: each has what it asks.

        Returns the card, which is named by its index or its UUID, as it is now.
        """
        asked = {} if policy is None else {"policy": policy}
        return cast("protocol.Card", self._ask("card-policy", card=card, **asked)["card"])

    def reload(self) -> list[str]:
        """Have the configuration read again; return the keys that changed. Refused: none did."""
        return [str(key) for key in self._ask("reload")["changed"]]

    def cordon(self, card: str, reason: str | None = None) -> protocol.Card:
        """Place nothing new on a card, which is named by its index or its UUID; return it."""
        asked = {} if reason is None else {"reason": reason}
        return cast("protocol.Card", self._ask("card-cordon", card=card, **asked)["card"])

    def uncordon(self, card: str) -> protocol.Card:
        """Place on a card again; return it as it is now."""
        return cast("protocol.Card", self._ask("card-uncordon", card=card)["card"])

    def status(self) -> protocol.Status:
        """Return what the daemon says about itself."""
        return cast("protocol.Status", self._ask("status"))

    def metrics(self) -> Metrics:
        """Return the figures of the cards, the tenants and the daemon at one moment."""
        *rows, last = self._replies("metrics", {})
        return Metrics(
            cards=[row["row"]["card"] for row in rows if "card" in row["row"]],
            tenants=[row["row"]["tenant"] for row in rows if "tenant" in row["row"]],
            node=last["node"],
        )

    def history(self, name: str = "", since: float = 0.0) -> Iterator[protocol.HistoryEvent]:
        """Yield what was kept since `since` (of the epoch) of a container or a card; else all."""
        after = 0
        while True:
            page = list(self._rows("history", name=name, since=since, after=after))
            yield from (cast("protocol.HistoryEvent", row) for row in page)
            if len(page) < protocol.HISTORY_ROWS:
                return
            after = page[-1]["number"]

    def open(
        self, quota: Mapping[str, str], *, name: str, pid: int, rootless: bool
    ) -> protocol.Opened:
        """Reserve `quota` for a host process; `bind` it before the command starts."""
        asked = dict(quota)
        reply = self._ask("open", quota=asked, name=name, pid=pid, rootless=rootless)
        return cast("protocol.Opened", reply)

    def bind(self, key: str, identity: str, pid: int) -> None:
        """Say that process `pid` is the tenant `key`: the reservation is bound to its life."""
        self._ask("bind", key=key, id=identity, pid=pid)

    def release(self, key: str, identity: str) -> None:
        """Give back what the tenant `key` holds."""
        self._ask("release", key=key, id=identity)

    def _ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Return the final reply to a request that has no rows."""
        for message in self._replies(op, fields):
            if "ok" in message:
                return message
        raise AssertionError  # _replies ends with the final reply or raises

    def _rows(self, op: str, **fields: Any) -> Iterator[dict[str, Any]]:
        for message in self._replies(op, fields):
            if "row" in message:
                yield message["row"]

    def _replies(self, op: str, fields: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield each reply after the acknowledgement, the final one last."""
        try:
            request = protocol.encode({"op": op, **fields}, protocol.MAX_REQUEST_BYTES)
        except protocol.ProtocolError as error:
            raise BadRequest(f"{op}: {error}") from error
        with contextlib.ExitStack() as opened:
            try:
                link, acknowledged = self._acknowledged(request, opened)
                if acknowledged != {"ack": True}:
                    # A daemon that refuses the caller outright has nothing to acknowledge.
                    yield _final(acknowledged)
                    return
                deadline = time.monotonic() + self.seconds
                while True:
                    message = self._receive(link, deadline)
                    if "row" not in message:
                        yield _final(message)
                        return
                    yield message
            except TimeoutError:
                raise DaemonUnreachable(
                    f"gpushared is there but does not answer on {self.path}; "
                    "see: journalctl -u gpushared"
                ) from None
            except ConnectionError as error:
                raise DaemonUnreachable(
                    f"gpushared ended the connection on {self.path} ({error.strerror}); "
                    "see: journalctl -u gpushared"
                ) from error
            except protocol.ProtocolError as error:
                raise DaemonError(
                    f"what answers on {self.path} does not speak this protocol: {error}"
                ) from error

    def _acknowledged(
        self, request: bytes, opened: contextlib.ExitStack
    ) -> tuple[socket.socket, dict[str, Any]]:
        """Send `request`; return the connection, which `opened` closes, and the first answer.

        What was not acknowledged was not done, so a daemon that goes before that is asked again.
        """
        patience = Patience(self.path, self._start_seconds, self._waits)
        while True:
            opened.close()
            link = opened.enter_context(
                socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
            )
            link.settimeout(protocol.ACK_SECONDS)
            try:
                link.connect(str(self.path))
            except OSError as error:
                if not _comes(error, patience):
                    raise DaemonUnreachable(_why_unreachable(self.path, error)) from error
                time.sleep(LOOK_SECONDS / 2)
                continue
            try:
                link.send(request)
                return link, self._first(link, patience)
            except ConnectionError:
                if not patience.lasts():
                    raise
                time.sleep(LOOK_SECONDS / 2)

    def _first(self, link: socket.socket, patience: Patience) -> dict[str, Any]:
        """Return what is answered first, but that the daemon is starting."""
        while True:
            try:
                message = self._receive(link, time.monotonic() + LOOK_SECONDS)
            except TimeoutError:
                if patience.lasts():
                    continue
                if patience.is_starting:
                    raise DaemonUnreachable(
                        f"gpushared is starting, and is not ready on {self.path} after "
                        f"{self._start_seconds:g} s; see: journalctl -u gpushared"
                    ) from None
                raise
            if message != {"starting": True}:
                return message
            patience.said_starting = True

    def _receive(self, link: socket.socket, deadline: float) -> dict[str, Any]:
        link.settimeout(max(deadline - time.monotonic(), 0.001))
        packet = link.recv(protocol.MAX_REPLY_BYTES)
        if not packet:
            raise ConnectionResetError(errno.ECONNRESET, "closed before the answer was complete")
        return protocol.decode(packet)


def _final(message: dict[str, Any]) -> dict[str, Any]:
    """Return a final reply that says ok; raise what one that does not stands for."""
    if message.get("ok") is True:
        return message
    text = str(message.get("error", message))
    code = message.get("code")
    if code in {protocol.CODE_REFUSED, protocol.CODE_FORBIDDEN}:
        raise Refused(text)
    if code == protocol.CODE_USAGE:
        raise BadRequest(text)
    if code == protocol.CODE_UNKNOWN:
        raise UnknownTenant(text, [str(name) for name in message.get("candidates", [])])
    raise DaemonError(text)


def _comes(error: OSError, patience: Patience) -> bool:
    """Whether a socket that cannot be connected to is of a daemon that is about to serve it.

    Where nobody listens and no daemon lives there is nobody to wait for.
    """
    if isinstance(error, FileNotFoundError | ConnectionRefusedError):
        return not patience.is_starting and patience.lasts()
    return isinstance(error, TimeoutError | BlockingIOError) and patience.lasts()


def _why_unreachable(path: Path, error: OSError) -> str:
    other = "or name another socket with --socket or GPUSHARE_SOCKET"
    if isinstance(error, FileNotFoundError):
        return (
            f"gpushared is not running: there is no {path}; start it with "
            f"`systemctl start gpushared` (first time: `gpushare setup`), {other}"
        )
    if isinstance(error, ConnectionRefusedError):
        return f"gpushared is not running: nobody listens on {path}; start it, {other}"
    if isinstance(error, PermissionError):
        return f"{path} is not for this user (read_group in gpushare.yaml); use sudo, {other}"
    return f"{path}: {error.strerror or error}; start gpushared, {other}"
