# SPDX-License-Identifier: Apache-2.0
"""What a ticket of `gpushare run` requests, and who shows it."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Final

from gpushare.config import Config
from gpushare.daemon.lifecycle import oversubscription
from gpushare.daemon.state import DaemonState
from gpushare.daemon.store.ticket import TicketRecord, TicketSource, digest
from gpushare.quota.effective_request import EffectiveRequest, resolve_request
from gpushare.quota.errors import QuotaError
from gpushare.quota.parse import parse_request
from gpushare.quota.request import EngineCards, QuotaRequest
from gpushare.quota.request_policy import RequestPolicy


@dataclass(frozen=True)
class ResolvedRequest:
    """A request, the effective one, and what the node's policy says of it."""

    quota: QuotaRequest
    effective: EffectiveRequest
    terms: RequestPolicy


def refuse_for_user(
    quota: QuotaRequest, effective: EffectiveRequest, terms: RequestPolicy, *, rootless: bool
) -> None:
    """Raise QuotaError if `gpushare run` does not start, or queue, what is requested."""
    if effective.kind == "none":
        raise QuotaError("run", None, "asks for no GPU", "add --memory 4GiB")
    if effective.kind == "exclusive" and rootless:
        # gpushare could not keep others off the card, and would refuse the card to all of them.
        raise QuotaError("run", None, "whole cards require root", "use sudo, or add --memory 4GiB")
    terms.max_per_request.refuse_above(quota, effective)


def resolve_source(source: TicketSource, config: Config, *, is_rootless: bool) -> ResolvedRequest:
    """Return what a ticket requests under `config`; QuotaError."""
    terms = config.users if is_rootless else config.terms
    cards = engine_cards(source.cards)
    parsed = parse_request(
        source.annotations,
        source.variables,
        options=source.options,
        cards=cards,
        defaults=terms.defaults,
        trust=terms.trust,
        dialects=terms.dialects if source.annotations or source.variables else None,
        profiles=terms.profiles,
    )
    quota = terms.idle.limit(parsed.valid())
    effective = resolve_request(quota, cards=cards)
    refuse_for_user(quota, effective, terms, rootless=is_rootless)
    return ResolvedRequest(quota, terms.max_per_request.put_down(quota, effective), terms)


def managed_bytes(
    ticket: TicketRecord, resolved: ResolvedRequest, cards: int, state: DaemonState
) -> int:
    """Return its managed memory beyond the quota on each of `cards`; QuotaError, NoRoom for now."""
    if resolved.quota.oversubscribe in {None, "none"}:
        return 0
    own = frozenset({ticket.file})
    return oversubscription.managed_bytes(resolved.quota, own, cards, 0, state)


def has_secret(ticket: TicketRecord, secret: str) -> bool:
    """Whether `secret` is what the holder of `ticket` has."""
    return hmac.compare_digest(ticket.secret, digest(secret))


def find_granted(secret: str, state: DaemonState) -> TicketRecord | None:
    """Return the granted ticket whose secret it is; None where there is none (any more)."""
    granted = (one for one in state.ledger.tickets.values() if one.is_granted)
    return next((one for one in granted if has_secret(one, secret)), None)


_ALL_CARDS: Final = "all"


def engine_cards(text: str) -> EngineCards | None:
    """Return the cards of `--gpus`: all, a number, or device=0,1; "": none. QuotaError."""
    if not text:
        return None
    source = "--gpus"
    if text in {_ALL_CARDS, "-1"}:
        return EngineCards(source, all_cards=True)
    if text.isdecimal() and text != "0":
        return EngineCards(source, count=int(text))
    kind, _, names = text.strip('"').partition("=")
    if kind == "device" and names:
        return EngineCards(source, devices=tuple(names.split(",")))
    rule = "is not a request for cards that the queue knows"
    raise QuotaError(source, text, rule, "use all, a number, or device=0,1")


def shown_by_container(secret: str, state: DaemonState) -> TicketRecord | None:
    """Return the granted ticket that a container shows; None where there is none (any more).

    A container keeps its variables when it is started again, and then its ticket has ended.
    """
    ticket = find_granted(secret, state)
    return ticket if ticket is not None and ticket.kind != "command" else None
