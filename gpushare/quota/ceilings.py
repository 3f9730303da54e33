# SPDX-License-Identifier: Apache-2.0
"""What the node's operator lets requests ask for, and what is given where nobody says.

A request above a ceiling is refused, whoever asks and by whatever source: a container that got less
than it asks for would find out much later, by an allocation that fails. Only what nobody asked for
is made smaller: a default above a ceiling is the ceiling. `gpushare set` is the operator's own word
and is held to none of this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpushare.quota.cards import Cards
from gpushare.quota.defaults import Defaults
from gpushare.quota.errors import QuotaError
from gpushare.quota.given import Given, refuse_whole
from gpushare.quota.others import Dialects
from gpushare.quota.quota import Quota, Value
from gpushare.quota.size import exact_size
from gpushare.quota.sources import Trust


@dataclass(frozen=True)
class Ceilings:
    """The most that one request may ask for; None: as much as there is.

    Memory and cores are per card; `memory_limit_bytes` is `memory_bytes` where it is None.
    `priority` is the smallest number that may be asked for. `policies`, `classes` and `backends`
    are those that may be. `whole_cards` None: only where nothing bounds a share of a card. `where`
    has for each key of the file where the file says it.
    """

    memory_bytes: int | None = None
    memory_percent: int | None = None
    memory_limit_bytes: int | None = None
    cores: int | None = None
    count: int | None = None
    weight: int | None = None
    priority: int | None = None
    policies: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    backends: tuple[str, ...] | None = None
    whole_cards: bool | None = None
    where: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def allows_whole(self) -> bool:
        """Whether a request may have whole cards."""
        if self.whole_cards is not None:
            return self.whole_cards
        return not self._bounding()

    def said(self, key: str) -> str:
        """Return where the file has `key`, in parentheses; empty where it is not known."""
        return f" ({self.where[key]})" if key in self.where else ""

    def held(self, defaults: Defaults) -> Defaults:
        """Return `defaults` with what is above a ceiling put down to it."""
        policy = defaults.policy
        if self.policies is not None and (policy or "fixed-share") not in self.policies:
            policy = self.policies[0]
        return replace(
            defaults,
            memory_bytes=_least(defaults.memory_bytes, self.memory_bytes),
            cores=_least(defaults.cores, self.cores),
            policy=policy,
        )

    def put_down(self, quota: Quota, given: Given) -> Given:
        """Return `given` with what nobody asked for put down to its ceiling."""
        if quota.priority is not None or self.priority is None:
            return given
        return replace(given, priority=max(given.priority, self.priority))

    def refuse_above(self, quota: Quota, given: Given, cards: Cards | None = None) -> None:
        """Raise QuotaError where `given`, which `quota` asks for, is above a ceiling."""
        if given.kind == "none":
            return
        if given.kind == "whole" and not self.allows_whole:
            key = "whole_cards" if self.whole_cards is not None else self._bounding()[0]
            rule = f"asks for whole cards, which are not given here{self.said(key)}"
            raise refuse_whole(quota, cards, rule)
        if given.count is not None and self.count is not None and given.count > self.count:
            raise self.too_many(quota, given.count, cards)
        if given.kind == "shared":
            self._refuse_share(quota, given)
        self._refuse_more(quota, "weight", quota.weight, self.weight)
        if self.priority is not None and _below(quota.priority, self.priority):
            self._refuse(quota, "priority", "priority", f"{self.priority}", "or more")
        self._refuse_other(quota, "class", "classes", quota.class_, self.classes)
        self._refuse_other(quota, "backend", "backends", quota.backend, self.backends)

    def too_many(self, quota: Quota, count: int, cards: Cards | None = None) -> QuotaError:
        """Return the error for more cards than may be asked for."""
        key = next((key for key in ("devices", "count") if key in quota.asked), None)
        rule = f"are above the ceiling, {self.count}{self.said('count')}"
        if key is None:
            where = cards.source if cards is not None else "count"
            return QuotaError(where, None, f"{count} cards {rule}", f"ask for {self.count} or less")
        return quota.refuse(key, f"is {count} cards, which {rule}", f"ask for {self.count} or less")

    def _bounding(self) -> list[str]:
        """Return the ceilings that leave less than all of a card."""
        bounding = [] if self.memory_bytes is None else ["memory"]
        percents = {"memory_percent": self.memory_percent, "cores": self.cores}
        return bounding + [key for key, bound in percents.items() if bound not in {None, 100}]

    def _refuse_share(self, quota: Quota, given: Given) -> None:
        self._refuse_more(quota, "memory", given.memory_bytes, self.memory_bytes, size=True)
        self._refuse_more(quota, "memory-percent", given.memory_percent, self.memory_percent)
        limit, key = self.memory_limit_bytes, "memory_limit"
        if limit is None:
            limit, key = self.memory_bytes, "memory"
        self._refuse_more(
            quota, "memory-limit", given.memory_limit_bytes, limit, ceiling=key, size=True
        )
        self._refuse_more(quota, "cores", given.cores, self.cores)
        if "policy" in quota.asked:
            self._refuse_other(quota, "policy", "policies", given.policy, self.policies)
        elif self.policies is not None and given.policy not in self.policies:
            if quota.is_set("cores"):
                return  # it follows from what the operator set
            raise self._unasked_policy(quota, given.policy, self.policies)

    def _unasked_policy(self, quota: Quota, policy: str, may: tuple[str, ...]) -> QuotaError:
        """Return the error for a policy that follows from what else is asked."""
        rule = f"is policy {policy}, which is not given here{self.said('policies')}"
        if "cores" in quota.asked:
            return quota.refuse("cores", rule, f"ask for {_either(may)}")
        key = "memory" if "memory" in quota.asked else "memory-percent"
        return quota.refuse(key, f"without cores {rule}", f"add cores: {_either(may)} takes them")

    def _refuse_more(  # noqa: PLR0913 - a ceiling and what is held to it
        self,
        quota: Quota,
        key: str,
        value: int | None,
        most: int | None,
        *,
        ceiling: str = "",
        size: bool = False,
    ) -> None:
        if value is None or most is None or value <= most:
            return
        shown = exact_size(most) if size else str(most)
        self._refuse(quota, key, ceiling or key.replace("-", "_"), shown, "or less")

    def _refuse(self, quota: Quota, key: str, ceiling: str, most: str, direction: str) -> None:
        if quota.is_set(key):
            return
        rule = f"is above the ceiling, {most}{self.said(ceiling)}"
        raise quota.refuse(key, rule, f"ask for {most} {direction}")

    def _refuse_other(
        self, quota: Quota, key: str, ceiling: str, value: Value | None, may: tuple[str, ...] | None
    ) -> None:
        if value is None or may is None or value in may or quota.is_set(key):
            return
        rule = f"is not given here{self.said(ceiling)}"
        raise quota.refuse(key, rule, f"ask for {_either(may)}")


@dataclass(frozen=True)
class Together:
    """The most that all tenants of one namespace, or of one user, have of one card at once.

    A burst counts as far as it may go: what is lent and used cannot be taken back.
    """

    memory_bytes: int | None = None
    memory_percent: int | None = None
    cores: int | None = None
    tenants: int | None = None
    where: Mapping[str, str] = field(default_factory=dict, compare=False)

    def said(self, key: str) -> str:
        """Return where the file has `key`, in parentheses; empty where it is not known."""
        return f" ({self.where[key]})" if key in self.where else ""


@dataclass(frozen=True)
class Total:
    """The most that all tenants of one namespace, or user, have of all cards together at once.

    `memory_bytes` and `cores` (percent of a card) are added up over cards; `cards` is how many
    different ones. `models` say the same of the cards of one model, by words of its name.
    """

    memory_bytes: int | None = None
    cores: int | None = None
    cards: int | None = None
    tenants: int | None = None
    models: Mapping[str, Total] = field(default_factory=dict)
    where: Mapping[str, str] = field(default_factory=dict, compare=False)

    def said(self, key: str) -> str:
        """Return where the file has `key`, in parentheses; empty where it is not known."""
        return f" ({self.where[key]})" if key in self.where else ""


@dataclass(frozen=True)
class Terms:
    """What requests of one kind are held to, and given where they do not say.

    `trust` None is the default for the container's kind; `dialects` says which other systems'
    requests are read. `over` and `compute` are how far the audit goes with who takes more memory
    than it may, and more of a card's time. `compat` is what becomes of who brings an image that the
    driver, or the card, does not run.
    """

    defaults: Defaults = field(default_factory=Defaults)
    ceilings: Ceilings = field(default_factory=Ceilings)
    together: Together = field(default_factory=Together)
    total: Total = field(default_factory=Total)
    trust: Trust | None = None
    dialects: Dialects = field(default_factory=Dialects)
    over: str = "freeze"  # observe | warn | freeze | kill
    compute: str = "warn"  # observe | warn | freeze
    compat: str = "warn"  # ignore | warn | block: an image that does not fit driver or card


def _least(value: int | None, most: int | None) -> int | None:
    return value if value is None or most is None else min(value, most)


def _below(value: int | None, least: int) -> bool:
    return value is not None and value < least


def _either(choices: tuple[str, ...]) -> str:
    return choices[0] if len(choices) == 1 else ", ".join(choices[:-1]) + f" or {choices[-1]}"
