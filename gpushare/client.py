# SPDX-License-Identifier: Apache-2.0
"""The Python client of the control socket: one method for each operation of gpushare/protocol.

Each call opens its own connection, so a `Client` has no state and threads can share it. The C
client of the same socket is runtime/client.c.
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
from gpushare.quota.errors import quoted
from gpushare.wait_policy import LOOK_SECONDS, WaitPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

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
    """No container or card has that name, or more than one; `candidates` are similar names."""

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
    """The daemon failed, or its reply is not valid in this protocol."""


class Client:
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

    def cards(self) -> list[protocol.CardStatus]:
        """Return the cards of this machine, by index."""
        return self.cards_and_profiles()[0]

    def cards_and_profiles(self) -> tuple[list[protocol.CardStatus], list[protocol.ProfileStatus]]:
        """Return the cards, and the profiles: none from a gpushared that knows none."""
        *rows, last = self._replies("cards", {})
        return [row["row"] for row in rows], last.get("profiles", [])

    def tenants(self, *, everything: bool = False) -> list[protocol.TenantStatus]:
        """Return the tenants; with `everything` also containers without a GPU, with the reason."""
        return [cast("protocol.TenantStatus", row) for row in self._rows("tenants", all=everything)]

    def tenant(self, name: str) -> protocol.TenantStatus:
        """Return a tenant by its name, namespace/pod/container, or the start of a name or id."""
        return cast("protocol.TenantStatus", self._ask("tenant", name=name)["tenant"])

    def why(self, name: str) -> protocol.Why:
        """Return the breakdown of a tenant's memory; `name` as for `tenant`."""
        *rows, last = self._replies("why", {"name": name})
        return cast("protocol.Why", {**last["why"], "processes": [row["row"] for row in rows]})

    def set(self, name: str, **values: str | None) -> protocol.TenantStatus:
        """Change a running tenant's quota: SET_FIELDS as the user wrote them, None for no change.

        Returns the changed tenant; its `warnings` report usage over the new quota.
        """
        changed = {field: text for field, text in values.items() if text is not None}
        return cast("protocol.TenantStatus", self._ask("set", name=name, **changed)["tenant"])

    def reset(self, name: str, *keys: str) -> protocol.TenantStatus:
        """Reset the overrides of a tenant's `keys` (`memory-limit`), or all of them."""
        which = ",".join(keys) or protocol.RESET_ALL
        return cast("protocol.TenantStatus", self._ask("set", name=name, reset=which)["tenant"])

    def pause(self, name: str, reason: str = "") -> protocol.TenantStatus:
        """Pause all processes of a tenant until `resume`; return the tenant."""
        fields = {"reason": reason} if reason else {}
        return cast("protocol.TenantStatus", self._ask("pause", name=name, **fields)["tenant"])

    def resume(self, name: str) -> protocol.TenantStatus:
        """Resume a tenant that an operator paused or the audit froze; return the tenant."""
        return cast("protocol.TenantStatus", self._ask("resume", name=name)["tenant"])

    def stop(self, name: str, signal: str, timeout: int, reason: str = "") -> protocol.TenantStatus:
        """Send `signal` to a tenant's first process, and SIGKILL to all after `timeout` seconds.

        Returns the tenant at once, usually before it has exited.
        """
        fields = {"signal": signal, "timeout": timeout} | ({"reason": reason} if reason else {})
        return cast("protocol.TenantStatus", self._ask("stop", name=name, **fields)["tenant"])

    def evict(self, name: str, reason: str = "", *, hold: bool = False) -> protocol.TenantStatus:
        """Evict a tenant's GPU memory, and wait until it is done; return the tenant.

        With `hold` it is not restored before `restore`, even if its program uses CUDA.
        """
        fields: dict[str, Any] = {"reason": reason} if reason else {}
        fields |= {"hold": True} if hold else {}
        return cast("protocol.TenantStatus", self._ask("evict", name=name, **fields)["tenant"])

    def restore(self, name: str, reason: str = "") -> protocol.TenantStatus:
        """Restore a tenant's evicted memory, and wait until it is done; return the tenant."""
        fields = {"reason": reason} if reason else {}
        return cast("protocol.TenantStatus", self._ask("restore", name=name, **fields)["tenant"])

    def move(self, name: str, card: str, reason: str = "") -> protocol.TenantStatus:
        """Move a tenant to the card with this index or UUID; return the tenant."""
        fields = {"card": card} | ({"reason": reason} if reason else {})
        return cast("protocol.TenantStatus", self._ask("move", name=name, **fields)["tenant"])

    def set_card_policy(self, card: str, policy: str | None) -> protocol.CardStatus:
        """Set the policy of a card's tenants (None: as each requests it); return the card."""
        fields = {} if policy is None else {"policy": policy}
        return cast("protocol.CardStatus", self._ask("card-policy", card=card, **fields)["card"])

    def reload(self) -> list[str]:
        """Reload the configuration; return the changed keys. If it is refused, nothing changes."""
        return [str(key) for key in self._ask("reload")["changed"]]

    def set_node_setting(self, key: str, setting: NodeSetting | None) -> None:
        """Set a setting of the node by a label of its Node object; None: as gpushare.yaml says."""
        fields: Mapping[str, object] = setting or {}
        self._ask("node-setting", key=key, **fields)

    def cordon(self, card: str, reason: str | None = None) -> protocol.CardStatus:
        """Stop placing tenants on the card with this index or UUID; return the card."""
        fields = {} if reason is None else {"reason": reason}
        return cast("protocol.CardStatus", self._ask("card-cordon", card=card, **fields)["card"])

    def uncordon(self, card: str) -> protocol.CardStatus:
        """Allow new tenants on a card again; return the card."""
        return cast("protocol.CardStatus", self._ask("card-uncordon", card=card)["card"])

    def allocation(self, card: str, memory_bytes: int) -> str:
        """Return the folder that the device plugin has mounted for a part of the card `card`."""
        return str(self._ask("allocation", card=card, memory_bytes=memory_bytes)["folder"])

    def prepare_claim(  # noqa: PLR0913 - a claim is put together from all there is
        self,
        uid: str,
        *,
        namespace: str,
        name: str,
        pods: Sequence[str],
        devices: Sequence[protocol.ClaimDevice],
        parameters: Mapping[str, str] | None = None,
    ) -> protocol.PreparedClaim:
        """Reserve what the scheduler allocated to a claim; the same again is fine.

        `parameters` are canonical keys of the claim's opaque configuration.
        """
        reply = self._ask(
            "claim-prepare",
            claim=uid,
            namespace=namespace,
            name=name,
            pods=list(pods),
            devices=[dict(device) for device in devices],
            parameters=dict(parameters or {}),
        )
        return {"folder": reply["folder"], "cdi": reply["cdi"]}

    def set_claim_pods(self, uid: str, pods: Sequence[str]) -> None:
        """Have the pods with these UIDs be those that may use a prepared claim."""
        self._ask("claim-pods", claim=uid, pods=list(pods))

    def unprepare_claim(self, uid: str) -> None:
        """Release a claim; one that is not prepared is fine."""
        self._ask("claim-unprepare", claim=uid)

    def claims(self) -> list[protocol.ClaimStatus]:
        """Return the prepared claims."""
        return [cast("protocol.ClaimStatus", row) for row in self._rows("claims")]

    def status(self) -> protocol.DaemonStatus:
        """Return the status of the daemon."""
        return cast("protocol.DaemonStatus", self._ask("status"))

    def metrics(self) -> Metrics:
        """Return the figures of the cards, the tenants and the daemon at one time."""
        *rows, last = self._replies("metrics", {})
        return Metrics(
            cards=[row["row"]["card"] for row in rows if "card" in row["row"]],
            tenants=[row["row"]["tenant"] for row in rows if "tenant" in row["row"]],
            node=last["node"],
            ended=[row["row"]["ended"] for row in rows if "ended" in row["row"]],
        )

    def history(
        self, name: str = "", since: float = 0.0, after: int = 0
    ) -> Iterator[protocol.HistoryEvent]:
        """Yield the events since `since` (of the epoch) of a container or card, or all events.

        Only those that came after the event with number `after`. `name` may mean several containers
        that had it one after the other: their rows have different IDs.
        """
        while True:
            page = list(self._rows("history", name=name, since=since, after=after))
            yield from (cast("protocol.HistoryEvent", row) for row in page)
            if len(page) < protocol.HISTORY_ROWS:
                return
            after = page[-1]["number"]

    def open(
        self, quota: Mapping[str, str], *, name: str, pid: int, rootless: bool
    ) -> protocol.HostProcessGrant:
        """Reserve `quota` for a host process, which must `bind` before it runs the command."""
        reply = self._ask("open", quota=dict(quota), name=name, pid=pid, rootless=rootless)
        return cast("protocol.HostProcessGrant", reply)

    def bind(self, key: str, identity: str, pid: int) -> None:
        """Bind the reservation `key` to the lifetime of process `pid`."""
        self._ask("bind", key=key, id=identity, pid=pid)

    def release(self, key: str, identity: str) -> None:
        """Release the allocation of the tenant `key`."""
        self._ask("release", key=key, id=identity)

    def _ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Return the final reply to a request."""
        *_, final = self._replies(op, fields)
        return final

    def _rows(self, op: str, **fields: Any) -> Iterator[dict[str, Any]]:
        for message in self._replies(op, fields):
            if "row" in message:
                yield message["row"]

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
    code = message.get("code")
    about = {part: message.get(part) for part in ("key", "value", "fix")}
    if code == protocol.CODE_REFUSED:
        raise RequestRefused(text, **about)
    if code == protocol.CODE_FORBIDDEN:
        raise RequestRefused(text, code=ErrorCode.FORBIDDEN, fix="Use sudo.")
    if code == protocol.CODE_INVALID:
        raise BadRequest(text)
    if code == protocol.CODE_NOT_FOUND:
        candidates = [str(name) for name in message.get("candidates", [])]
        key = "card" if "card" in fields else "name"
        raise UnknownTenant(text, candidates, key=key, value=fields.get(key))
    raise DaemonError(text)


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
