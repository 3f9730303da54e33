# SPDX-License-Identifier: Apache-2.0
"""What is shown of tenants, and what an operator changes of one."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Final

from gpushare import protocol
from gpushare.daemon.control import on_over as over
from gpushare.daemon.control.kick import Kick, kick
from gpushare.daemon.control.pause import pause, resume
from gpushare.daemon.control.reset import reset_quota
from gpushare.daemon.control.resize import set_quota
from gpushare.daemon.identity import naming
from gpushare.daemon.life import release
from gpushare.daemon.node import Node
from gpushare.daemon.service.request import (
    Answer,
    BadRequest,
    Operation,
    Request,
    UnknownTenant,
    answer,
)
from gpushare.daemon.store.ledger import Entry
from gpushare.daemon.views import rows, why
from gpushare.quota.errors import quoted

_SIGNALS: Final = {name: signal.Signals[f"SIG{name}"] for name in protocol.KICK_SIGNALS}
_MOST_WHY: Final = 256


def _tenants(request: Request, node: Node) -> Answer:
    everything = request.flag("all")
    entries = [entry for entry in running(node) if everything or entry.state != "none"]
    named = naming.with_names(entries, node)
    return (dict(rows.tenant_row(entry, node)) for entry in named), {}


def running(node: Node) -> list[Entry]:
    """Return the entries but for those that are only waiting to be swept (release.reconcile)."""
    entries = node.ledger.entries.values()
    return [entry for entry in entries if not release.has_ended_with_none(entry)]


def _tenant(request: Request, node: Node) -> Answer:
    entry = named(request.text("name"), node)
    return answer({"tenant": rows.tenant_row(entry, node)})


def _why(request: Request, node: Node) -> Answer:
    entry = named(request.text("name"), node)
    report, holders = why.why(entry, node)
    return (dict(row) for row in holders), {"why": report}


def _set(request: Request, node: Node) -> Answer:
    request.root_only()
    entry = named(request.text("name"), node)
    if "reset" in request.fields:
        return _reset(entry, request, node)
    asked = {
        name.replace("_", "-"): request.text(name, 64)
        for name in protocol.SET_FIELDS
        if name in request.fields
    }
    if not asked:
        raise BadRequest(f"set needs one of {', '.join(protocol.SET_FIELDS)}")
    on_over = asked.pop(over.KEY, None)
    if asked:
        entry = set_quota(entry, asked, node)
    if on_over is not None:
        over.set_on_over(entry, on_over, node)
    return answer({"tenant": rows.tenant_row(entry, node)})


def _reset(entry: Entry, request: Request, node: Node) -> Answer:
    known = [name.replace("_", "-") for name in protocol.SET_FIELDS]
    said = request.text("reset", 256)
    keys = [] if said == protocol.RESET_ALL else said.split(",")
    unknown = [key for key in keys if key not in known]
    if unknown or any(name in request.fields for name in protocol.SET_FIELDS):
        raise BadRequest(
            f"reset is {protocol.RESET_ALL} or some of {','.join(known)}, and stands alone"
        )
    return _now(reset_quota(entry, keys, node), node)


def _pause(request: Request, node: Node) -> Answer:
    request.root_only()
    entry = named(request.text("name"), node)
    pause(entry, _why_given(request), node)
    return _now(entry, node)


def _resume(request: Request, node: Node) -> Answer:
    request.root_only()
    entry = named(request.text("name"), node)
    resume(entry, node)
    return _now(entry, node)


def _kick(request: Request, node: Node) -> Answer:
    request.root_only()
    number = _SIGNALS.get(request.text("signal", 8))
    if number is None:
        raise BadRequest(f"signal is none of {', '.join(_SIGNALS)}")
    grace = request.number("grace", 0, protocol.KICK_MOST_SECONDS)
    entry = named(request.text("name"), node)
    row = rows.tenant_row(entry, node)
    kick(entry, Kick(number, grace, _why_given(request)), node)
    return answer({"tenant": {**row, "held": rows.held(entry, node)}})


def _why_given(request: Request) -> str:
    return request.text("why", _MOST_WHY) if "why" in request.fields else ""


def _now(entry: Entry, node: Node) -> Answer:
    return answer({"tenant": rows.tenant_row(node.ledger.entries[entry.key], node)})


def named(name: str, node: Node) -> Entry:
    """Return the one tenant that `name` means: its name, an end of it, or the start of its id."""
    entries = naming.with_names(running(node), node)
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


OPERATIONS: Final[Mapping[str, Operation]] = {
    "tenants": Operation(_tenants),
    "tenant": Operation(_tenant),
    "why": Operation(_why),
    "set": Operation(_set, changes=True),
    "pause": Operation(_pause, changes=True),
    "resume": Operation(_resume, changes=True),
    "kick": Operation(_kick, changes=True),
}
