# SPDX-License-Identifier: Apache-2.0
"""The rules of a node for requests (gpushare.yaml); its defaults are in effective_request.

A request above a ceiling is refused, from every source and in every place: a container that
got less than it requests would find out much later, by an allocation that fails. Only what was not
requested is made smaller: a default above a ceiling becomes the ceiling. `gpushare set` is the
operator's own decision, and no ceiling applies to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Final, Literal, TypeAlias

from gpushare.quota.effective_request import Defaults, EffectiveRequest, whole_cards_refused
from gpushare.quota.errors import BadValue, QuotaError, quoted
from gpushare.quota.keys import (
    KEYS,
    Diagnostics,
    either,
    exact_duration,
    full_policy,
    parse_duration,
)
from gpushare.quota.node_settings import NodeSetting
from gpushare.quota.request import (
    IDLE_AFTER,
    PROFILE,
    Diagnostic,
    EngineCards,
    Layer,
    Percent,
    QuotaRequest,
    RequestedValue,
    RequestRecord,
    Value,
    ValueSource,
)
from gpushare.quota.size import exact_size

DialectMode: TypeAlias = Literal["strict", "lenient"]
OtherDialects: TypeAlias = Literal["refuse", "ignore"]
EnvTrust: TypeAlias = Literal["request", "reduce", "ignore"]


@dataclass(frozen=True)
class ConfiguredPart:
    """A part of the configuration; `where` has the position of each of its keys in the file."""

    where: Mapping[str, str] = field(default_factory=dict, compare=False, kw_only=True)

    def source(self, key: str) -> str:
        """Return the position of `key` in the file, in parentheses; empty if it is not known."""
        return f" ({self.where[key]})" if key in self.where else ""


@dataclass(frozen=True)
class Dialects(ConfiguredPart):
    """How other systems' requests are read.

    `accept` has the names of the dialects that are taken, None: all. A request in another one is
    refused, or with `others` "ignore" treated as if it were not there: a limit that is not applied
    must not look as if it were, so that has to be configured. `weighs`: cores that an admission
    policy recorded are a weight, since the device plugin counts none.
    """

    mode: DialectMode = "lenient"
    accept: frozenset[str] | None = None
    others: OtherDialects = "refuse"
    weighs: bool = False

    def takes(self, name: str) -> bool:
        """Whether requests in dialect `name` are taken."""
        return self.accept is None or name in self.accept

    def source(self, key: str) -> str:
        """Return `dialects.accept`, and its position in the file if that is known."""
        return f"dialects.{key}" + super().source(key)


@dataclass(frozen=True)
class MaxPerRequest(ConfiguredPart):
    """The maximum of one request; None: no limit.

    Memory and cores are per card; `memory_limit_bytes` is `memory_bytes` where it is None.
    `priority` is the smallest number that may be asked for. `policies`, `classes` and `backends`
    are those that may be. `allow_exclusive` None: only if nothing limits a share of a card.
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
    allow_exclusive: bool | None = None

    @property
    def allows_whole(self) -> bool:
        """Whether a request may have whole cards."""
        if self.allow_exclusive is not None:
            return self.allow_exclusive
        return not self._bounding()

    def limit_defaults(self, defaults: Defaults) -> Defaults:
        """Return `defaults` with what is above a ceiling lowered to it."""
        policy = defaults.policy
        if self.policies is not None and (policy or "fixed-share") not in self.policies:
            policy = self.policies[0]
        return replace(
            defaults,
            memory_bytes=_least(defaults.memory_bytes, self.memory_bytes),
            cores=_least(defaults.cores, self.cores),
            policy=policy,
        )

    def put_down(self, request: QuotaRequest, effective: EffectiveRequest) -> EffectiveRequest:
        """Return `effective` with a priority that was not requested lowered to its ceiling."""
        if request.priority is not None or self.priority is None:
            return effective
        return replace(effective, priority=max(effective.priority, self.priority))

    def refuse_above(
        self, request: QuotaRequest, effective: EffectiveRequest, cards: EngineCards | None = None
    ) -> None:
        """Raise QuotaError if `effective`, which `request` comes to, is above a ceiling."""
        if effective.kind == "none":
            return
        if effective.kind == "exclusive" and not self.allows_whole:
            key = "allow_exclusive" if self.allow_exclusive is not None else self._bounding()[0]
            rule = "requests whole cards, which the policy of this node does not allow"
            rule += self.source(key)
            raise whole_cards_refused(request, cards, rule)
        if effective.count is not None and self.count is not None and effective.count > self.count:
            raise self.too_many(request, effective.count, cards)
        if effective.kind == "shared":
            self._refuse_share(request, effective)
        self._refuse_more(request, "weight", request.weight, self.weight)
        highest = self.priority or 0
        if request.priority is not None and request.priority < highest:
            rule = f"is above the highest allowed priority, {highest}{self.source('priority')}"
            if not request.is_set("priority"):
                raise request.refuse("priority", rule, f"request {highest} to 9; 0 is the highest")
        self._refuse_other(request, "class", "classes", request.class_, self.classes)
        self._refuse_other(request, "backend", "backends", request.backend, self.backends)

    def too_many(
        self, request: QuotaRequest, count: int, cards: EngineCards | None = None
    ) -> QuotaError:
        """Return the error for more cards than may be requested."""
        key = next((key for key in ("devices", "count") if key in request.requested), None)
        rule = f"{count} cards exceed the maximum, {self.count}{self.source('count')}"
        fix = f"request {self.count} or less"
        if key is None:
            return QuotaError(cards.source if cards is not None else "count", None, rule, fix)
        return request.refuse(key, rule, fix)

    def _bounding(self) -> list[str]:
        """Return the ceilings that leave less than all of a card."""
        bounding = [] if self.memory_bytes is None else ["memory"]
        percents = {"memory_percent": self.memory_percent, "cores": self.cores}
        return bounding + [key for key, bound in percents.items() if bound not in {None, 100}]

    def _refuse_share(self, request: QuotaRequest, effective: EffectiveRequest) -> None:
        self._refuse_more(request, "memory", effective.memory_bytes, self.memory_bytes, size=True)
        self._refuse_more(request, "memory-percent", effective.memory_percent, self.memory_percent)
        limit, key = self.memory_limit_bytes, "memory_limit"
        if limit is None:
            limit, key = self.memory_bytes, "memory"
        self._refuse_more(
            request, "memory-limit", effective.memory_limit_bytes, limit, ceiling=key, size=True
        )
        self._refuse_more(request, "cores", effective.cores, self.cores)
        if "policy" in request.requested:
            self._refuse_other(request, "policy", "policies", effective.policy, self.policies)
        elif self.policies is not None and effective.policy not in self.policies:
            if request.is_set("cores"):
                return  # it follows from what the operator set
            raise self._unasked_policy(request, effective.policy, self.policies)

    def _unasked_policy(
        self, request: QuotaRequest, policy: str, may: tuple[str, ...]
    ) -> QuotaError:
        """Return the error for a policy that follows from what else is requested."""
        rule = f"is policy {policy}, which this node does not allow{self.source('policies')}"
        if "cores" in request.requested:
            return request.refuse("cores", rule, f"request {either(may)}")
        key = "memory" if "memory" in request.requested else "memory-percent"
        return request.refuse(
            key, f"without cores {rule}", f"add cores, which {either(may)} requires"
        )

    def _refuse_more(  # noqa: PLR0913 - a ceiling and what is held to it
        self,
        request: QuotaRequest,
        key: str,
        value: Percent | None,
        most: Percent | None,
        *,
        ceiling: str = "",
        size: bool = False,
    ) -> None:
        if value is None or most is None or value <= most or request.is_set(key):
            return
        shown = exact_size(int(most)) if size else str(most)
        rule = f"exceeds the maximum, {shown}{self.source(ceiling or key.replace('-', '_'))}"
        raise request.refuse(key, rule, f"request {shown} or less")

    def _refuse_other(
        self,
        request: QuotaRequest,
        key: str,
        ceiling: str,
        value: Value | None,
        may: tuple[str, ...] | None,
    ) -> None:
        if value is None or may is None or value in may or request.is_set(key):
            return
        rule = f"is not allowed on this node{self.source(ceiling)}"
        raise request.refuse(key, rule, f"request {either(may)}")


@dataclass(frozen=True)
class MaxPerCard(ConfiguredPart):
    """The maximum that all tenants of a namespace, or of a user, may have of one card at once.

    A burst counts up to its limit: memory in use cannot be taken back.
    """

    memory_bytes: int | None = None
    memory_percent: int | None = None
    cores: int | None = None
    tenants: int | None = None


@dataclass(frozen=True)
class MaxPerNode(ConfiguredPart):
    """The maximum that all tenants of a namespace, or user, may have of all cards together.

    `memory_bytes` and `cores` (percent of a card) are added up over cards; `cards` is how many
    different ones.
    """

    memory_bytes: int | None = None
    cores: int | None = None
    cards: int | None = None
    tenants: int | None = None


@dataclass(frozen=True)
class IdlePolicy:
    """When a container counts as idle, and what happens to it then."""

    after_seconds: int | None = None  # None: never
    action: str = "report"  # report | warn | evict | pause | kick

    def limit(self, request: QuotaRequest) -> QuotaRequest:
        """Return `request` with the node's time in place of a longer one, and a note of that."""
        own, most = request.idle_after_seconds, self.after_seconds
        if own is None or most is None or own <= most or request.is_set(IDLE_AFTER):
            return request
        above = RequestedValue(exact_duration(most), most, ValueSource("default", "idle.after"))
        replaced = request.requested[IDLE_AFTER]
        note = (
            f"{replaced.source} {quoted(replaced.shown)} was not applied: idle.after of this node, "
            f"{above.text}, takes precedence"
        )
        return replace(
            request,
            idle_after_seconds=most,
            requested={**request.requested, IDLE_AFTER: above},
            before_operator={**request.before_operator, IDLE_AFTER: above},
            notes=(*request.notes, note),
        )

    def of_container(self, record: RequestRecord) -> IdlePolicy:
        """Return the policy for a container with this request: it may shorten the time.

        What the operator set for the container stands above the node's policy.
        """
        row = record.get(IDLE_AFTER)
        if row is None or row["source"] == "default":
            return self
        own = parse_duration(row["value"])
        if row["source"] != "operator" and self.after_seconds is not None:
            own = min(own, self.after_seconds)
        return replace(self, after_seconds=own)


@dataclass(frozen=True)
class RequestPolicy:
    """The rules for requests of one kind, and their defaults.

    `trust` None is the default for the container's kind; `dialects` says which other systems'
    requests are read, and `profiles` are the node's, by name. `over` and `compute` are how far the
    audit goes with a container that exceeds its quota of memory, and of compute. `compat` is what
    happens to an image that the driver, or the card, does not run.
    """

    defaults: Defaults = field(default_factory=Defaults)
    max_per_request: MaxPerRequest = field(default_factory=MaxPerRequest)
    max_per_card: MaxPerCard = field(default_factory=MaxPerCard)
    max_per_node: MaxPerNode = field(default_factory=MaxPerNode)
    trust: EnvTrust | None = None
    dialects: Dialects = field(default_factory=Dialects)
    over: str = "freeze"  # observe | warn | freeze | kill
    compute: str = "warn"  # observe | warn | freeze
    idle: IdlePolicy = field(default_factory=IdlePolicy)
    profiles: ShareProfiles = field(default_factory=dict)
    compat: str = "warn"  # ignore | warn | refuse: an image that does not fit driver or card

    def labelled(self, settings: Mapping[str, NodeSetting]) -> RequestPolicy:
        """Return the rules with the defaults that labels of the node set, below the maximum."""
        defaults = self.max_per_request.limit_defaults(self.defaults.labelled(settings))
        return replace(self, defaults=defaults)


@dataclass(frozen=True)
class ResolvedRequest:
    """A request as it was written, what is effective of it, and what the node's policy says."""

    quota: QuotaRequest
    effective: EffectiveRequest
    terms: RequestPolicy = field(default_factory=RequestPolicy)

    @property
    def is_whole(self) -> bool:
        """Whether it is for whole cards."""
        return self.effective.kind == "exclusive"


def _least(value: int | None, most: int | None) -> int | None:
    return value if value is None or most is None else min(value, most)


# --- profiles: the node's names for sizes of a share (`profiles` in gpushare.yaml) ---
#
# A profile stands in the request for the keys that it sets, with the place where it was named as
# their source. Beside it, in the same place, none of them may be set: of the two neither is
# obvious.

#: The keys that a profile may set, and that may therefore not be set beside one.
SET_BY_PROFILE: Final = ("memory", "memory-percent", "memory-limit", "cores", "policy", "weight")
#: The rule against a profile beside them, and the fix.
CONFLICT: Final = (
    "sets memory and compute, and so do other keys beside it",
    "keep the profile or the other keys",
)
#: NVIDIA's vGPU policy: time is divided equally among those that run. Its two others have the
#: names of ours, best-effort and fixed-share ("Scheduling Policies", AI Enterprise 8.1).
EQUAL_SHARE: Final = "equal-share"
#: Policies that guarantee no part of the card's time.
_WITHOUT_CORES: Final = frozenset({"best-effort", EQUAL_SHARE, "native-burst-share"})


@dataclass(frozen=True)
class ShareProfile:
    """The keys of a profile: texts by canonical key."""

    name: str
    values: Mapping[str, str]

    def layer(self, named: RequestedValue) -> Layer:
        """Return its values as requested where `named`, the profile's name, was written."""
        return {
            key: RequestedValue(text, KEYS[key].parse(text), named.source, written=named.shown)
            for key, text in self.values.items()
        }


ShareProfiles: TypeAlias = "Mapping[str, ShareProfile]"


def profile(name: str, section: Mapping[str, Any]) -> ShareProfile:
    """Return the profile of a section of gpushare.yaml, whose form has been checked.

    `equal: N` is one of N equal parts of a card, exactly: its memory and, unless the policy
    guarantees none, its compute, of which N parts leave less than N percent over.
    """
    values = {
        key.replace("_", "-"): str(value)
        for key, value in section.items()
        if value is not None and key != "equal"
    }
    if policy := full_policy(values.get("policy", "")):
        values["policy"] = policy
    if (parts := section.get("equal")) is not None:
        whole, rest = divmod(100, parts)
        values["memory-percent"] = str(whole) if not rest else f"100/{parts}"
        if policy not in _WITHOUT_CORES and "cores" not in values:
            values["cores"] = str(whole)
    if policy == EQUAL_SHARE:
        values |= {"policy": "native-burst-share", "weight": values.get("weight", "1")}
    return ShareProfile(name, {key: values[key] for key in SET_BY_PROFILE if key in values})


def expand(layer: Layer, profiles: ShareProfiles | None, diagnostics: Diagnostics) -> Layer:
    """Return `layer` with what its profile requests in place of the profile's name.

    `profiles` None: those of the node are not known; the name stays.
    """
    named = layer.get(PROFILE)
    if named is None:
        return layer
    rest = {key: value for key, value in layer.items() if key != PROFILE}
    if not rest.keys().isdisjoint(SET_BY_PROFILE):
        error = QuotaError(str(named.source), named.shown, *CONFLICT)
        diagnostics.append(Diagnostic(error, named.source))
        return rest
    if profiles is None:
        return layer
    try:
        return {**_known(named, profiles).layer(named), **rest}
    except QuotaError as unknown:
        diagnostics.append(Diagnostic(unknown, named.source))
        return rest


def profile_of(layer: Layer, named: Mapping[str, RequestedValue]) -> RequestedValue | None:
    """Return the profile, by the place where it was `named`, whose memory `layer` has."""
    memory = layer.get("memory") or layer.get("memory-percent")
    return None if memory is None else named.get(str(memory.source))


def _known(named: RequestedValue, profiles: ShareProfiles) -> ShareProfile:
    profile_named = profiles.get(str(named.value))
    if profile_named is not None:
        return profile_named
    if not profiles:
        bad = BadValue("names a profile, and this node has none", "add profiles to gpushare.yaml")
    else:
        close = get_close_matches(str(named.value), profiles, n=1, cutoff=0.6)
        names = f"the profiles are {', '.join(profiles)}"
        bad = BadValue(
            "is not a profile of this node", f"did you mean {close[0]}?" if close else names
        )
    raise QuotaError(str(named.source), named.shown, bad.rule, bad.fix)
