# SPDX-License-Identifier: Apache-2.0
"""Who has more of a card than he may: every shared tenant on every card of it, at every look.

Nobody is judged whose figures say nothing: a card that did not answer, a process of which the
driver does not know the memory, a driver that has been changed since the look before. A tenant
whose pages are lost is judged by the driver's figures alone. While nobody knows what a context
takes of a model, a tenant is warned at the most: what its contexts took it could not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from gpushare.daemon.audit.evidence import Course, Figures, said
from gpushare.daemon.audit.view import Look
from gpushare.daemon.cards.card import Use
from gpushare.daemon.identity.processes import Process
from gpushare.daemon.policy import ladder
from gpushare.daemon.policy.entitlement import Entitlement, entitled
from gpushare.daemon.policy.ladder import Action, Choice, Sample, State
from gpushare.daemon.store.ledger import Entry, Holding
from gpushare.daemon.tenants import Pages

Place = tuple[str, str]  # a tenant's key and a card's uuid


@dataclass(frozen=True)
class Rules:
    """What is asked of others at a look: the operator's choice for a tenant, a card's context.

    `lacks` is whether somebody else on the card was refused what he was promised of it.
    """

    choice: Callable[[Entry], Choice]
    context_bytes: Callable[[str], int]
    lacks: Callable[[Place], bool]


@dataclass(frozen=True)
class Verdict:
    """What was found of one tenant on one card, and what is to be done; `sample` None: nothing."""

    entry: Entry
    uuid: str
    state: State
    choice: Choice
    sample: Sample | None = None
    actions: tuple[Action, ...] = ()
    pids: tuple[int, ...] = ()
    in_doubt: bool = False  # it may be above, or a step may follow: another look tells


@dataclass(frozen=True)
class _Tenant:
    """One tenant on one card at one look; `uses` None: the card did not answer."""

    entry: Entry
    number: int  # of the card, as the tenant counts
    holding: Holding
    uses: list[tuple[Process, Use]] | None


@dataclass
class _Case:
    """What is known of one tenant on one card from look to look."""

    course: Course
    state: State = field(default_factory=State)
    entitlement: Entitlement | None = None


class Judge:
    """Judges; `verdicts` is the last look's. The truth thread's."""

    def __init__(self) -> None:
        self.verdicts: Mapping[Place, Verdict] = MappingProxyType({})
        self._cases: dict[Place, _Case] = {}

    def look(self, now_ns: int, look: Look | None, rules: Rules) -> Mapping[Place, Verdict]:
        """Return what comes of a look, None where it was not answered, by tenant and card."""
        if look is None:
            self._unheard(now_ns)
            return self.verdicts
        found: dict[Place, Verdict] = {}
        seen = _by_place(look)
        for entry in look.entries.values():
            if entry.state != "bound" or not entry.shared:
                continue
            for number, holding in enumerate(entry.holdings):
                place = entry.key, holding.uuid
                case = self._cases.setdefault(place, _Case(Course(now_ns)))
                uses = seen.get(place, []) if holding.uuid in look.owned else None
                tenant = _Tenant(entry, number, holding, uses)
                found[place] = _judged(now_ns, look, rules, tenant, case)
        self._cases = {place: case for place, case in self._cases.items() if place in found}
        self.verdicts = MappingProxyType(found)
        return self.verdicts

    def begin_anew(self, now_ns: int) -> None:
        """Forget what was seen, not what was done: the figures are of something else now."""
        for case in self._cases.values():
            case.course = Course(now_ns)
        self._unheard(now_ns)

    def resumed(self, now_ns: int, key: str) -> None:
        """Note that an operator lets tenant `key` go on."""
        for place, case in self._cases.items():
            if place[0] == key:
                case.state = ladder.resumed(now_ns, case.state)

    def undone(self, now_ns: int, key: str) -> None:
        """Note that tenant `key` could not be frozen: it is tried again some seconds later."""
        for place, case in self._cases.items():
            if place[0] == key:
                case.state = ladder.undone(now_ns, case.state)

    def _unheard(self, now_ns: int) -> None:
        for case in self._cases.values():
            case.state, _ = ladder.decide(now_ns, None, case.state, "observe")
        self.verdicts = MappingProxyType(
            {
                place: Verdict(
                    verdict.entry, verdict.uuid, self._cases[place].state, verdict.choice
                )
                for place, verdict in self.verdicts.items()
                if place in self._cases
            }
        )


def _by_place(look: Look) -> dict[Place, list[tuple[Process, Use]]]:
    """Return what the driver says of each tenant's processes that are known to go on."""
    found: dict[Place, list[tuple[Process, Use]]] = {}
    for uuid, uses in look.owned.items():
        for sighting, use in uses:
            if sighting is not None and sighting.process is not None and sighting.key is not None:
                found.setdefault((sighting.key, uuid), []).append((sighting.process, use))
    return found


def _judged(now_ns: int, look: Look, rules: Rules, tenant: _Tenant, case: _Case) -> Verdict:
    entry, uuid = tenant.entry, tenant.holding.uuid
    choice = rules.choice(entry)
    context_bytes = rules.context_bytes(uuid)
    if not context_bytes and choice in {"freeze", "kill"}:
        choice = "warn"
    figures = _figures(now_ns, look, case.course, tenant)
    if figures is None:
        case.state, _ = ladder.decide(now_ns, None, case.state, choice)
        return Verdict(entry, uuid, case.state, choice)
    limit, ever = _limits(look.pages.get(entry.key), tenant.number, tenant.holding)
    case.entitlement = entitled(now_ns, limit, figures.most_bytes, case.entitlement, ever)
    may = case.entitlement.may_bytes
    slack = ladder.slack(may, context_bytes, figures.contexts)
    sample = Sample(figures.sure_bytes, may, slack, rules.lacks((entry.key, uuid)))
    case.state, actions = ladder.decide(now_ns, sample, case.state, choice)
    return Verdict(
        entry,
        uuid,
        case.state,
        choice,
        sample,
        actions,
        pids=tuple(process.pid for process, _ in tenant.uses or ()),
        in_doubt=case.state.looks < ladder.FROZEN_LOOKS and figures.alone_bytes > may + slack,
    )


def _figures(now_ns: int, look: Look, course: Course, tenant: _Tenant) -> Figures | None:
    """Return the figures of one tenant on one card; None where the look says nothing of it."""
    if tenant.uses is None:
        return None
    seen = [(process, use.bytes) for process, use in tenant.uses if use.bytes is not None]
    if len(seen) < len(tenant.uses):
        return None
    before, after = (
        said(claims.get(tenant.entry.key, ()), tenant.number)
        for claims in (look.before, look.after)
    )
    return course.look(now_ns, seen, before, after)


def _limits(pages: Pages | None, number: int, holding: Holding) -> tuple[int, int]:
    """Return what a tenant may use now, and the most that it was ever allowed."""

    def read(pages: Pages) -> tuple[int, int] | None:
        if number >= pages.grant.card_count:
            return None
        return pages.grant.limit_bytes(number), pages.grant.most_bytes(number)

    told = None if pages is None else pages.look(read, None)
    limit, most = told or (holding.most_bytes, holding.most_bytes)
    return limit, max(limit, most, holding.most_bytes)
