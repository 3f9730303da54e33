# SPDX-License-Identifier: Apache-2.0
"""Who goes round the gate is held to its part of the card, where the operator chose so.

`audit: {compute: freeze}`: what the driver saw of a tenant lately is put beside what it may have of
that card; policy/duty.py says for how much of the time it runs, and the freezer has it so. On
several cards the least counts.

`look` is the truth thread's; `view` is replaced, never changed, so any thread may read it;
`resumed` may be called by any.
"""

from __future__ import annotations

import queue
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gpushare.daemon.compute import shares
from gpushare.daemon.compute.spent import CHECKED, Spent
from gpushare.daemon.log import log
from gpushare.daemon.policy import duty
from gpushare.errors import UserError

if TYPE_CHECKING:
    from gpushare.daemon.node import Node
    from gpushare.daemon.store.ledger import Entry

CHOICE: Final = "freeze"
_SPARED_NS: Final = 60 * 10**9  # after an operator let it go on
_AGAIN_NS: Final = 5 * 10**9  # after it could not be held
_ACTIVE_PERCENT: Final = 1.0
_ACTIVE_WAITS: Final = 0.01
_ROUND_TIMES: Final = 1.3  # of who is held: what the driver sees is little by then
_ROUND_PERCENT: Final = 1.0

Place = tuple[str, str]  # tenant key, card uuid


@dataclass(frozen=True)
class Held:
    """What a tenant is held to on a card: percent of it; and the part of the time it runs."""

    may_percent: float
    runs: float


@dataclass(frozen=True)
class _Case:
    identity: tuple[int, int]  # of its first process: a container may be started once more
    state: duty.State


class Overuse:
    """Looks at the tenants of `node`, and has its freezer do what is decided."""

    def __init__(self, node: Node) -> None:
        self.view: Mapping[Place, Held] = MappingProxyType({})
        self._node = node
        self._cases: dict[Place, _Case] = {}
        self._on: frozenset[str] = frozenset()  # who was asked to be held
        self._spared: dict[str, int] = {}  # by key, until when
        self._events: queue.SimpleQueue[tuple[str, int]] = queue.SimpleQueue()

    def look(self, now_ns: int | None = None) -> None:
        """Judge by what was spent, which was just looked at. `now_ns` is CLOCK_MONOTONIC.

        Whatever goes wrong lets everybody go and is no end of looking.
        """
        now_ns = time.monotonic_ns() if now_ns is None else now_ns
        try:
            cases, view = self._judged(now_ns)
        except Exception:  # noqa: BLE001 - see above
            log("look-failed", "error", traceback=traceback.format_exc())
            cases, view = {}, {}
        self._cases = cases
        self.view = MappingProxyType(view)
        self._act(view)

    def resumed(self, key: str) -> None:
        """Note that an operator lets tenant `key` go on."""
        self._events.put((key, _SPARED_NS))

    def _judged(self, now_ns: int) -> tuple[dict[Place, _Case], dict[Place, Held]]:
        self._hear(now_ns)
        cases: dict[Place, _Case] = {}
        view: dict[Place, Held] = {}
        for entry in self._node.ledger.entries.values():
            if not self._may_be_held(entry, now_ns):
                continue
            for holding in entry.holdings:
                place, identity = (entry.key, holding.uuid), (entry.pid, entry.starttime)
                before = self._cases.get(place)
                same = before is not None and before.identity == identity
                state = before.state if before is not None and same else duty.State()
                sample = self._sample(place, engaged=state.engaged)
                state = duty.decide(now_ns, sample, state)
                cases[place] = _Case(identity, state)
                if state.engaged and sample is not None:
                    view[place] = Held(sample.may_percent, state.runs)
        return cases, view

    def _hear(self, now_ns: int) -> None:
        while not self._events.empty():
            key, for_ns = self._events.get()
            self._spared[key] = now_ns + for_ns
            self._on -= {key}
        self._spared = {key: until for key, until in self._spared.items() if until > now_ns}

    def _may_be_held(self, entry: Entry, now_ns: int) -> bool:
        node = self._node
        return (
            entry.state == "bound"
            and entry.shared
            and node.config.terms_of(entry.namespace).compute == CHOICE
            and self._spared.get(entry.key, 0) <= now_ns
            and not node.freezer.is_held(entry.key)
        )

    def _sample(self, place: Place, *, engaged: bool) -> duty.Sample | None:
        key, uuid = place
        spent = self._node.spending.of(key, uuid)
        if spent.lately_percent is None or spent.driver_percent is None or spent.silent:
            return None
        found = shares.of_card(uuid, self._node)
        if key not in found:
            return None  # the ledger has changed meanwhile
        may = duty.may(
            found[key],
            [
                (share, _is_active(self._node.spending.of(other, uuid)))
                for other, share in found.items()
                if other != key
            ],
        )
        if may is None:
            return None
        return duty.Sample(spent.lately_percent, may, _goes_round(spent, engaged=engaged))

    def _act(self, view: Mapping[Place, Held]) -> None:
        runs: dict[str, Held] = {}
        for (key, _), held in view.items():
            if key not in runs or held.runs < runs[key].runs:
                runs[key] = held
        submit, freezer = self._node.decide.submit, self._node.freezer
        for key, held in runs.items():
            # One that was held by another meanwhile, in vain, runs all the time.
            if not freezer.pace(key, held.runs):
                submit(partial(self._hold, key, held))
        for key in self._on - runs.keys():
            submit(partial(self._let_go, key))
        self._on = frozenset(runs)

    def _hold(self, key: str, held: Held) -> None:
        why = f"goes round the gate: held to {held.may_percent:.0f} % by freezing"
        try:
            self._node.freezer.take_turns(key, why, held.runs, lambda why: self._lost(key, why))
        except (UserError, OSError) as error:
            log("compute-not-held", "error", tenant=key, error=str(error))
            self._events.put((key, _AGAIN_NS))

    def _let_go(self, key: str) -> None:
        try:
            self._node.freezer.release(key, "duty")
        except (UserError, OSError) as error:
            log("compute-not-held", "error", tenant=key, error=str(error))

    def _lost(self, key: str, why: str) -> None:
        """Note that it goes on, for a reason of its own; any thread may."""
        log("compute-not-held", "error", tenant=key, error=why)
        self._events.put((key, _AGAIN_NS))
        self._node.decide.submit(lambda: self._let_go(key))


def _is_active(spent: Spent) -> bool:
    """Whether a tenant uses the card, or wants to."""
    got, waits = spent.got[CHECKED], spent.throttled[CHECKED]
    return (got or 0.0) >= _ACTIVE_PERCENT or (waits or 0.0) >= _ACTIVE_WAITS


def _goes_round(spent: Spent, *, engaged: bool) -> bool:
    if not engaged:
        return spent.bypassed
    charged = spent.got[CHECKED]
    seen = spent.driver_percent
    return charged is None or (seen or 0.0) > charged * _ROUND_TIMES + _ROUND_PERCENT
