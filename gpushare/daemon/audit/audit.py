# SPDX-License-Identifier: Apache-2.0
"""The audit: at every look at the driver, who has more than he may, and what comes of it.

`look` is the truth thread's; `view` and `lacking` are replaced, never changed, so any thread may
read them; `lacks`, `resumed` and `failed` may be called by any.
"""

from __future__ import annotations

import queue
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from gpushare.daemon.audit.act import Actor
from gpushare.daemon.audit.judge import Judge, Place, Rules, Verdict
from gpushare.daemon.audit.unattributed import Unattributed
from gpushare.daemon.audit.unknown import Strangers
from gpushare.daemon.audit.view import Look
from gpushare.daemon.identity.owners import Owners
from gpushare.daemon.log import log
from gpushare.daemon.policy.ladder import CHOICES, Choice

if TYPE_CHECKING:
    from gpushare.daemon.cards.card import Generation
    from gpushare.daemon.node import Node
    from gpushare.daemon.store.ledger import Entry

QUICK_SECONDS: Final = 0.1  # where a card is nearly full
DOUBT_SECONDS: Final = 0.05  # three looks more, before half a second is over
_LACKS_NS: Final = 5 * 10**9  # how long a word of that stands
_TELL_AGAIN_NS: Final = 10 * 10**9


@dataclass(frozen=True)
class Finding:
    """What there is to show of a tenant on a card, while there is; `since` is of the epoch."""

    level: str
    choice: Choice
    used_bytes: int
    may_bytes: int
    since: float


class Audit:
    """Judges the tenants of `node`, and has its freezer do what is decided."""

    def __init__(self, node: Node) -> None:
        self.view: Mapping[Place, Finding] = MappingProxyType({})
        self.hurry = threading.Event()  # set: look now
        self.strangers = Strangers()
        self.unattributed = Unattributed()
        self._node = node
        self._judge = Judge()
        self._actor = Actor(node.freezer, node.decide.submit, self._failed, self._called)
        self._held: frozenset[str] = frozenset()
        self._generation: Generation | None = None
        self._lacking: Mapping[Place, int] = MappingProxyType({})  # when it was said last
        self._told: Mapping[Place, int] = MappingProxyType({})  # when that was logged last
        self._waited = 0.0
        self._events: queue.SimpleQueue[Callable[[int], None]] = queue.SimpleQueue()

    def look(self, look: Look | None, now_ns: int | None = None) -> None:
        """Judge by a look, None where the driver did not answer. `now_ns` is CLOCK_MONOTONIC.

        Whatever goes wrong acts on nobody and is no end of looking: nobody else looks.
        """
        try:
            self._look(look, time.monotonic_ns() if now_ns is None else now_ns)
        except Exception:  # noqa: BLE001 - see above
            log("look-failed", "error", traceback=traceback.format_exc())

    def lacks(self, key: str, uuid: str, size: int) -> bool:
        """Note that the driver refused tenant `key` `size` bytes of a card; True where believed.

        Whoever would be over its promise with them lacks nothing. What is done about it is done to
        those who are over theirs, whoever says this.
        """
        node = self._node
        entry = node.ledger.entries.get(key)
        holding = next((one for one in entry.holdings if one.uuid == uuid), None) if entry else None
        if entry is None or holding is None or node.driver is None or not entry.shared:
            return False
        # Not its account: that has them reserved, now or a look ago.
        used = node.driver.truth.view.driver_bytes(key, uuid)
        if not 0 < size <= holding.memory_bytes - used:
            return False
        place, now_ns = (key, uuid), time.monotonic_ns()
        self._lacking = MappingProxyType({**self._recent(now_ns), place: now_ns})
        if now_ns - self._told.get(place, -_TELL_AGAIN_NS) >= _TELL_AGAIN_NS:
            known = {one: at for one, at in self._told.items() if one[0] in node.ledger.entries}
            self._told = MappingProxyType({**known, place: now_ns})
            log(
                "memory-lacking",
                "warning",
                tenant=key,
                name=entry.title,
                card=uuid,
                wanted_bytes=size,
            )
        self.hurry.set()
        return True

    def resumed(self, key: str) -> None:
        """Note that an operator lets tenant `key` go on, whom the audit may hold."""
        self._events.put(lambda now_ns: self._judge.resumed(now_ns, key))
        self.hurry.set()

    def wait(self, slower: int = 1) -> bool:
        """Return when it is time for the next look; at once, and True, when somebody cannot wait.

        It is time after `slower` times the usual period.
        """
        hurried = self.hurry.wait(self.period() * slower)
        # Tenants may ask for it, and without an end.
        time.sleep(max(0.0, self._waited + DOUBT_SECONDS - time.monotonic()))
        self.hurry.clear()
        self._waited = time.monotonic()
        return hurried

    def period(self) -> float:
        """Return how long to wait for the next look, in seconds: less where it matters."""
        usual = self._node.config.timing.sample
        if any(verdict.in_doubt for verdict in self._judge.verdicts.values()):
            return min(usual, DOUBT_SECONDS)
        return min(usual, QUICK_SECONDS) if self._is_tight() else usual

    def choice(self, entry: Entry) -> Choice:
        """Return how far the operator lets it go with a tenant: his word for it, or the node's."""
        chosen = self._node.overrides.of(entry.id).get("on-over")
        chosen = chosen or self._node.config.terms_of(entry.namespace).over
        return next(choice for choice in CHOICES if choice == chosen)

    def _called(self, uuid: str) -> str:
        card = self._node.driver.card(uuid) if self._node.driver else None
        return f"card {uuid}" if card is None else f"card {card.index}"

    def _failed(self, key: str) -> None:
        self._events.put(lambda now_ns: self._not_held(now_ns, key))

    def _not_held(self, now_ns: int, key: str) -> None:
        self._held -= {key}
        self._judge.undone(now_ns, key)

    def _look(self, look: Look | None, now_ns: int) -> None:
        while not self._events.empty():
            self._events.get()(now_ns)
        if look is not None and self._is_another(look):
            self._judge.begin_anew(now_ns)
            look = None
        if look is not None:
            self._look_around(now_ns, look)
        verdicts = self._judge.look(now_ns, look, self._rules(now_ns))
        for verdict in verdicts.values():
            self._actor.tell(verdict)
        self._hold(verdicts)
        self._publish(verdicts)

    def _look_around(self, now_ns: int, look: Look) -> None:
        """Look at what is no tenant's."""
        driver, unknown = self._node.driver, self._node.config.unknown
        if driver is not None:
            truth, keys = driver.truth, Owners(look.entries).all_of
            self.strangers.look(look, truth.view.cards, truth.sightings, keys, unknown)
            memory = {card.uuid: card.memory_bytes for card in driver.cards}
            self.unattributed.look(now_ns, look, memory)

    def _is_another(self, look: Look) -> bool:
        """Whether the driver, its parts or its cards are not those of the look before."""
        before, self._generation = self._generation, look.sample.generation
        return before is not None and before != self._generation

    def _rules(self, now_ns: int) -> Rules:
        driver, lacking = self._node.driver, self._recent(now_ns)

        def context_bytes(uuid: str) -> int:
            card = driver.card(uuid) if driver else None
            return driver.contexts.bytes_of(card) if driver and card else 0

        def lacks(place: Place) -> bool:
            return any(key != place[0] and uuid == place[1] for key, uuid in lacking)

        return Rules(self.choice, context_bytes, lacks)

    def _recent(self, now_ns: int) -> dict[Place, int]:
        return {place: said for place, said in self._lacking.items() if now_ns - said < _LACKS_NS}

    def _hold(self, verdicts: Mapping[Place, Verdict]) -> None:
        """Hold who is to be held by any of its cards, and nobody else."""
        frozen = {key: one for (key, _), one in verdicts.items() if one.state.level == "frozen"}
        for key in frozen.keys() - self._held:
            self._actor.hold(frozen[key])
        entries = self._node.ledger.entries
        for key in self._held - frozen.keys():
            if key in entries:
                self._actor.release(key)
        self._held = frozenset(frozen)

    def _publish(self, verdicts: Mapping[Place, Verdict]) -> None:
        found: dict[Place, Finding] = {}
        for place, verdict in verdicts.items():
            level, before = verdict.state.level, self.view.get(place)
            if level == "quiet":
                continue
            used, may = before.used_bytes if before else 0, before.may_bytes if before else 0
            if verdict.sample is not None:
                used, may = verdict.sample.used_bytes, verdict.sample.may_bytes
            since = before.since if before else time.time()
            found[place] = Finding(level, verdict.choice, used, may, since)
        self.view = MappingProxyType(found)

    def _is_tight(self) -> bool:
        """Whether a card with shares has little left."""
        driver = self._node.driver
        look = driver.truth.last if driver else None
        if driver is None or look is None:
            return False
        shared = {
            one.uuid for entry in look.entries.values() if entry.shared for one in entry.holdings
        }
        return any(
            card.memory_bytes - look.sample.taken_bytes(card.uuid) < card.little_bytes
            for card in driver.cards
            if card.uuid in shared
        )
