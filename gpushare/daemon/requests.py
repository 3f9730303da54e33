# SPDX-License-Identifier: Apache-2.0
"""The operations of the control socket: who may ask, what the fields must be, what is done.

gpushare/protocol.py has the table. An operation runs on the decide thread where it changes
something, on the read thread otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpushare import protocol
from gpushare.daemon import naming, processes, release, shares, views, why
from gpushare.daemon.bind import NoSuchTenant, bind, owned_entry
from gpushare.daemon.create import Bundle, create
from gpushare.daemon.host import Command, open_tenant
from gpushare.daemon.ledger import Entry
from gpushare.daemon.node import Node
from gpushare.daemon.placement import find_card
from gpushare.daemon.resize import set_quota
from gpushare.errors import UserError
from gpushare.oci.cdi import CdiError
from gpushare.oci.spec import SpecError
from gpushare.quota import QuotaError, Source
from gpushare.quota.errors import quoted
from gpushare.quota.keys import KEYS, read

_IDENTITY: Final = re.compile(r"[A-Za-z0-9_][\w+.-]{0,127}", re.ASCII)
_KEY: Final = re.compile(r"[0-9a-f]{16}", re.ASCII)
_MOST_PID: Final = 1 << 22  # PID_MAX_LIMIT


class BadRequest(ValueError):
    """A field that is missing or is not what it has to be."""


class Forbidden(Exception):
    """Not for this caller; the text says for whom."""


class UnknownTenant(Exception):
    """No tenant, or several, by that name."""

    def __init__(self, message: str, candidates: Sequence[str]) -> None:
        super().__init__(message)
        self.candidates = list(candidates)


@dataclass(frozen=True)
class Peer:
    """Who is at the other end, as the kernel says (SO_PEERCRED)."""

    pid: int
    uid: int

    @property
    def is_root(self) -> bool:
        """Whether it may change what others have."""
        return self.uid == 0


@dataclass(frozen=True)
class Request:
    """One request: its fields, who sent it, and the descriptors that came with it."""

    fields: Mapping[str, Any]
    peer: Peer
    fds: tuple[int, ...] = ()

    def text(self, name: str, most: int = 4096) -> str:
        """Return a text field; BadRequest where it is none."""
        value = self.fields.get(name)
        if not isinstance(value, str) or not value or len(value) > most or "\0" in value:
            raise BadRequest(f"{name} is not a text of 1 to {most} characters")
        return value

    def number(self, name: str, low: int, high: int) -> int:
        """Return a whole number of `low`..`high`; BadRequest where it is none."""
        value = self.fields.get(name)
        if type(value) is not int or not low <= value <= high:
            raise BadRequest(f"{name} is not a whole number from {low} to {high}")
        return value

    def flag(self, name: str) -> bool:
        """Return a true or false; false where it is not there."""
        value = self.fields.get(name, False)
        if not isinstance(value, bool):
            raise BadRequest(f"{name} is neither true nor false")
        return value

    def matched(self, name: str, pattern: re.Pattern[str]) -> str:
        """Return a text field that is all `pattern`."""
        value = self.text(name)
        if not pattern.fullmatch(value):
            raise BadRequest(f"{name} {quoted(value)} is not like {pattern.pattern}")
        return value

    def root_only(self) -> None:
        """Raise Forbidden where the caller is not root."""
        if not self.peer.is_root:
            raise Forbidden(f"{self.fields.get('op')} is for root; use sudo")


# An answer: rows, and what stands beside `ok` in the final packet.
Answer = tuple[Iterator[Mapping[str, Any]], Mapping[str, Any]]
_NO_ROWS: Final[tuple[Mapping[str, Any], ...]] = ()


@dataclass(frozen=True)
class Operation:
    """What an op does, and whether it changes anything."""

    run: Callable[[Request, Node], Answer]
    changes: bool = False


def _answer(fields: Mapping[str, Any] | None = None) -> Answer:
    return iter(_NO_ROWS), fields or {}


def _create(request: Request, node: Node) -> Answer:
    request.root_only()
    if len(request.fds) != 2:
        raise BadRequest("create needs two descriptors: the bundle and its root filesystem")
    bundle = Bundle(
        identity=request.matched("id", _IDENTITY),
        path=request.text("bundle"),
        marker=request.text("marker"),
        bundle_fd=request.fds[0],
        rootfs_fd=request.fds[1],
        maker=request.peer.pid,
    )
    return _answer(create(bundle, node))


def _bind(request: Request, node: Node) -> Answer:
    key, identity = request.matched("key", _KEY), request.matched("id", _IDENTITY)
    pid = request.number("pid", 1, _MOST_PID)
    _refuse_stranger(request, key, node)
    if not request.peer.is_root and processes.owner_of(pid) != request.peer.uid:
        raise Forbidden(f"process {pid} is another user's")
    bind(key, identity, pid, request.peer.pid, node)
    return _answer()


def _release(request: Request, node: Node) -> Answer:
    key, identity = request.matched("key", _KEY), request.matched("id", _IDENTITY)
    _refuse_stranger(request, key, node)
    if key not in node.ledger.entries:
        return _answer()
    entry = owned_entry(key, identity, node)
    if entry.state == "reserved":
        release.end(key, node, "the runtime gave it up")
    else:
        release.process_ended(key, node)
    return _answer()


def _refuse_stranger(request: Request, key: str, node: Node) -> None:
    """Let root, and who opened a host process's tenant, speak for it; nobody else."""
    entry = node.ledger.entries.get(key)
    if request.peer.is_root:
        return
    if entry is None or entry.engine != "host" or entry.uid != request.peer.uid:
        raise Forbidden(f"{request.fields.get('op')} of this tenant is for root; use sudo")


def _open(request: Request, node: Node) -> Answer:
    quota = request.fields.get("quota")
    if not isinstance(quota, dict) or not all(isinstance(text, str) for text in quota.values()):
        raise BadRequest("quota is not an object of texts")
    rootless = request.flag("rootless") or not request.peer.is_root
    name = str(request.fields.get("name") or "")[:128]
    command = Command(name=name, uid=request.peer.uid, rootless=rootless)
    return _answer({**open_tenant(command, quota, node)})


def _cards(_request: Request, node: Node) -> Answer:
    if node.driver is None:
        return _answer()
    most = node.config.max_shares
    return (dict(views.card_row(room, most)) for room in node.rooms()), {}


def _tenants(request: Request, node: Node) -> Answer:
    everything = request.flag("all")
    entries = [entry for entry in _running(node) if everything or entry.state != "none"]
    named = naming.with_names(entries, node)
    return (dict(views.tenant_row(entry, node)) for entry in named), {}


def _running(node: Node) -> list[Entry]:
    """Return the entries but for those that are only waiting to be swept (release.reconcile)."""
    entries = node.ledger.entries.values()
    return [entry for entry in entries if not release.has_ended_with_none(entry)]


def _tenant(request: Request, node: Node) -> Answer:
    entry = _named(request.text("name"), node)
    return _answer({"tenant": views.tenant_row(entry, node)})


def _why(request: Request, node: Node) -> Answer:
    entry = _named(request.text("name"), node)
    report, holders = why.why(entry, node)
    return (dict(row) for row in holders), {"why": report}


def _set(request: Request, node: Node) -> Answer:
    request.root_only()
    entry = _named(request.text("name"), node)
    asked = {
        name.replace("_", "-"): request.text(name, 64)
        for name in protocol.SET_FIELDS
        if name in request.fields
    }
    if not asked:
        raise BadRequest(f"set needs one of {', '.join(protocol.SET_FIELDS)}")
    entry = set_quota(entry, asked, node)
    return _answer({"tenant": views.tenant_row(entry, node)})


def _card_policy(request: Request, node: Node) -> Answer:
    request.root_only()
    card = find_card(request.text("card", 96), node.rooms()).card
    policy = ""
    if "policy" in request.fields:
        policy = str(read("policy", Source("option", "policy"), request.text("policy"), KEYS).value)
    shares.set_policy(card.uuid, policy, node)
    room = next(room for room in node.rooms() if room.card.uuid == card.uuid)
    return _answer({"card": views.card_row(room, node.config.max_shares)})


def _status(_request: Request, node: Node) -> Answer:
    return _answer({**views.status_row(node)})


OPERATIONS: Final[Mapping[str, Operation]] = {
    "create": Operation(_create, changes=True),
    "bind": Operation(_bind, changes=True),
    "release": Operation(_release, changes=True),
    "open": Operation(_open, changes=True),
    "set": Operation(_set, changes=True),
    "card-policy": Operation(_card_policy, changes=True),
    "cards": Operation(_cards),
    "tenants": Operation(_tenants),
    "tenant": Operation(_tenant),
    "why": Operation(_why),
    "status": Operation(_status),
}


def operation(request: Request) -> Operation:
    """Return what `request` asks for; BadRequest where there is no such op."""
    op = request.fields.get("op")
    found = OPERATIONS.get(op) if isinstance(op, str) else None
    if found is None:
        raise BadRequest(f"op is none of {', '.join(OPERATIONS)}")
    return found


def refusal(error: Exception) -> dict[str, Any] | None:
    """Return the final packet for an error that the caller is told, None for a fault of ours."""
    if isinstance(error, UnknownTenant):
        return _no(protocol.CODE_UNKNOWN, error, candidates=error.candidates)
    if isinstance(error, Forbidden):
        return _no(protocol.CODE_FORBIDDEN, error)
    if isinstance(error, BadRequest | protocol.ProtocolError):
        return _no(protocol.CODE_USAGE, error)
    if isinstance(error, NoSuchTenant):
        return _no(protocol.CODE_UNKNOWN, error, candidates=[])
    if isinstance(error, UserError | QuotaError):
        return _no(protocol.CODE_REFUSED, error)
    # A spec that cannot be read says nothing of what was asked: who only has an image's word for a
    # GPU starts without one (runtime/launcher.c, judge).
    if isinstance(error, SpecError | CdiError | OSError):
        return _no(protocol.CODE_ERROR, error)
    return None


def _no(code: str, error: Exception, **more: Any) -> dict[str, Any]:
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = f"{error.filename or 'gpushared'}: {error.strerror}"
    return {"ok": False, "code": code, "error": text[:4000], **more}


def _named(name: str, node: Node) -> Entry:
    """Return the one tenant that `name` means: its name, an end of it, or the start of its id."""
    entries = naming.with_names(_running(node), node)
    exact = [entry for entry in entries if name in {entry.name, entry.id, entry.key}]
    if len(exact) == 1:
        return exact[0]
    close = exact or [
        entry for entry in entries if entry.id.startswith(name) or entry.name.endswith(f"/{name}")
    ]
    if len(close) == 1:
        return close[0]
    if not close:
        known = [entry.title for entry in entries][:16]
        raise UnknownTenant(f"no container is called {quoted(name)}; see gpushare ps -a", known)
    candidates = [entry.name or entry.id for entry in close]
    raise UnknownTenant(f"{quoted(name)} is the name of several containers", candidates[:16])
