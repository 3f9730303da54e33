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
from gpushare.daemon.audit.truth import Look
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
        for entry in look.entries.values():
            if entry.state != "bound" or not entry.shared:
                continue
            for number, holding in enumerate(entry.holdings):
                place = entry.key, holding.uuid
                found[place] = self._judged(now_ns, look, rules, entry, number, holding)
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

    def undone(self, key: str) -> None:
        """Note that tenant `key` could not be frozen: it is tried again."""
        for place, case in self._cases.items():
            if place[0] == key and case.state.level == "frozen":
                case.state = State("seen", looks=ladder.SEEN_LOOKS)

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

    def _judged(  # noqa: PLR0913, PLR0917 - of one tenant on one card, by all there is
        self, now_ns: int, look: Look, rules: Rules, entry: Entry, number: int, holding: Holding
    ) -> Verdict:
        place = entry.key, holding.uuid
        case = self._cases.setdefault(place, _Case(Course(now_ns)))
        choice = rules.choice(entry)
        context_bytes = rules.context_bytes(holding.uuid)
        if not context_bytes and choice in {"freeze", "kill"}:
            choice = "warn"
        figures = _figures(now_ns, look, case.course, entry, number, holding)
        if figures is None:
            case.state, _ = ladder.decide(now_ns, None, case.state, choice)
            return Verdict(entry, holding.uuid, case.state, choice)
        limit, ever = _limits(look.pages.get(entry.key), number, holding)
        case.entitlement = entitled(now_ns, limit, figures.most_bytes, case.entitlement, ever)
        may = case.entitlement.may_bytes
        slack = ladder.slack(may, context_bytes, figures.contexts)
        sample = Sample(figures.sure_bytes, may, slack, rules.lacks(place))
        case.state, actions = ladder.decide(now_ns, sample, case.state, choice)
        pids = tuple(
            use.pid
            for sighting, use in look.owned[holding.uuid]
            if sighting is not None and sighting.key == entry.key
        )
        return Verdict(entry, holding.uuid, case.state, choice, sample, actions, pids)


def _figures(  # noqa: PLR0913, PLR0917 - as above
    now_ns: int, look: Look, course: Course, entry: Entry, number: int, holding: Holding
) -> Figures | None:
    """Return the figures of one tenant on one card; None where the look says nothing of it."""
    if holding.uuid not in look.owned:
        return None
    seen = []
    for sighting, use in look.owned[holding.uuid]:
        if sighting is None or sighting.key != entry.key or sighting.process is None:
            continue
        if use.bytes is None:
            return None
        seen.append((sighting.process, use.bytes))
    before, after = (
        said(claims.get(entry.key, ()), number) for claims in (look.before, look.after)
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
