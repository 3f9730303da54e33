# SPDX-License-Identifier: Apache-2.0
"""The request parser: from annotations, environment, labels, limits and dialects to one request.

It collects problems instead of raising the first: `create` raises the first (ParsedRequest.valid),
`explain`, `validate` and `convert` report all of them. There are two questions, with one reading of
the keys: what a container requests on a node (parse_request), and what a manifest requests,
including keys that no container runtime sees (parse_manifest).

Precedence on a node: operator > the scheduler of Kubernetes > the maker of the container > the
pod's author, for this container and then for any > env. A lower source may shrink what a higher one
grants, never enlarge it; what the operator set stays as it is. What a lower source requested and
did not get is kept in `QuotaRequest.notes`: nothing is dropped silently. A request in another
system's keys (dialects/) is in the layer of the source that it came from, beside our own keys
there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from gpushare.quota.annotations import CRI_PREFIX, Annotated, pod_of, read_annotations
from gpushare.quota.effective_request import Defaults
from gpushare.quota.errors import BadValue, QuotaError, printable, quoted
from gpushare.quota.keys import (
    ANNOTATION_PREFIX,
    BY_ENV,
    KEYS,
    Diagnostics,
    is_quota,
    request_from,
)
from gpushare.quota.request import (
    IDLE_AFTER,
    PROFILE,
    REMOTE,
    TIME_LIMIT,
    VISIBLE_DEVICES,
    Diagnostic,
    EngineCards,
    Layer,
    QuotaRequest,
    RequestedValue,
    ScheduledAllocation,
    SourceKind,
    ValueSource,
    requests_memory,
    requests_whole_cards,
)
from gpushare.quota.request_policy import (
    SET_BY_PROFILE,
    Dialects,
    EnvTrust,
    ShareProfiles,
    expand,
    profile_of,
)

if TYPE_CHECKING:
    from gpushare.quota.dialects.parse import DialectRequest
    from gpushare.quota.dialects.translate import RecordedKeys
    from gpushare.quota.dialects.vendor_key import KeyLocation


_CONTAINER_NAME: Final = "io.kubernetes.cri.container-name"


@dataclass(frozen=True)
class ParsedRequest:
    """The request of a container on a node, without refused values."""

    request: QuotaRequest
    diagnostics: Diagnostics

    def valid(self) -> QuotaRequest:
        """Return the request; QuotaError for the first value that is refused."""
        self.diagnostics.raise_first()
        return self.request


@dataclass(frozen=True)
class ParsedManifest:
    """The request of a container of a manifest.

    `dialects` has an entry for each dialect that is used, `own` what gpushare's own keys request,
    `requested` the combined request. `notes` say what was not applied, and why.
    """

    dialects: tuple[DialectRequest, ...]
    own: Layer
    requested: Layer
    diagnostics: Diagnostics
    notes: tuple[str, ...]


def parse_request(  # noqa: PLR0913 - one argument a source
    annotations: Mapping[str, str],
    env: Mapping[str, str],
    *,
    of_pod: Mapping[str, str] | None = None,
    operator: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
    cards: EngineCards | None = None,
    defaults: Defaults | None = None,
    trust: EnvTrust | None = None,
    dialects: Dialects | None = None,
    profiles: ShareProfiles | None = None,
    scheduled: ScheduledAllocation | None = None,
) -> ParsedRequest:
    """Return what a container requests; nothing is `requested` if it asks for no GPU.

    `of_pod` are the annotations of its pod, None where they cannot be seen. `operator` has
    canonical keys (`memory`), and so have `options`, those of a command line, which stand beside
    annotations. `cards` are what an engine put into the spec. `trust` None is the default for these
    annotations. `dialects` says which other systems' requests are read, None: none of them.
    `profiles` are the node's. `scheduled` is what the scheduler allocated, which all but the
    operator may only refine. Refused are an unknown gpushare key, a text that is no value, a scope
    that fits no container, a request in two dialects or in one that is not accepted.
    """
    trust = trust or default_trust(annotations)
    defaults = defaults or Defaults()
    diagnostics = Diagnostics()
    annotated = read_annotations(annotations, of_pod, diagnostics)
    of_env = {} if trust == "ignore" else _of_env(env, diagnostics)
    meanings: list[str] = []
    if dialects is not None:
        # Cards that are in the spec are what it says of cards, and more exactly.
        variables = env if cards is None else {**env, VISIBLE_DEVICES: "void"}
        reads_env = trust != "ignore"
        texts = annotations, of_pod, variables
        of_env, meanings = _translate(
            texts, annotated, of_env, dialects, diagnostics, reads_env=reads_env
        )
    granted = GrantedLayers({}, annotated.notes, "" if cards is None else cards.source)
    if scheduled is not None:
        granted.merge(scheduled.layer)
        granted.refinable = scheduled.refinable - scheduled.layer.keys()
        defaults = defaults.beside(scheduled)
    has_cards = bool(granted.cards)
    of_options = _of_keys("option", options or {}, diagnostics)
    named = {
        str(layer[PROFILE].source): layer[PROFILE]
        for layer in (of_options, annotated.own, annotated.scoped, annotated.of_pod, of_env)
        if PROFILE in layer
    }
    of_env = expand(of_env, profiles or {}, diagnostics)
    for layer in (of_options, annotated.own, annotated.scoped, annotated.of_pod):
        granted.merge(expand(layer, profiles or {}, diagnostics))
    if trust == "request":
        granted.merge(of_env)
    elif trust == "reduce":
        # Env requests nothing here: what was not requested is the node's, before env shrinks that.
        defaults.fill(granted.layer, has_cards=has_cards)
        granted.merge(of_env, shrink_only=True)
    else:
        granted.notes += [
            f"{printable(name)} was not read: trust.env is ignore"
            for name in sorted(env)
            if is_quota(name)
        ]
    if granted.layer:
        granted.notes += meanings
    defaults.fill(granted.layer, has_cards=has_cards)
    if (profile := profile_of(granted.layer, named)) is not None:
        granted.layer[PROFILE] = profile
    before_operator = dict(granted.layer)
    granted.override(_of_keys("operator", operator or {}, diagnostics))
    defaults.fill(
        granted.layer, has_cards=has_cards
    )  # cores that the operator set have the node's policy, as any
    request = replace(
        request_from(granted.layer),
        notes=tuple(granted.notes),
        # What only refines an allocation applies to each container that has one.
        unnamed=annotated.unnamed if scheduled is None else None,
        before_operator=before_operator,
    )
    return ParsedRequest(request, diagnostics)


def parse_manifest(
    texts: Mapping[KeyLocation, Mapping[str, str]],
    *,
    strict: bool,
    container: str = "",
    position: int | None = None,
    in_cluster: bool = False,
) -> ParsedManifest:
    """Return what a container requests by all `texts`, whether a container runtime sees them.

    `position` is its place among the containers of its pod. `in_cluster`: a kubelet makes it, and
    its environment requests nothing by itself. `strict` holds each vendor's own rules, and refuses
    a request in two dialects.
    """
    from gpushare.quota.dialects import TABLES  # noqa: PLC0415
    from gpushare.quota.dialects.parse import combine  # noqa: PLC0415 - as in _translate

    diagnostics = Diagnostics()
    notes: list[str] = []
    annotated = _own_annotations(texts, container if in_cluster else "", diagnostics)
    own = _own_keys(texts, annotated, in_cluster, notes, diagnostics)
    recorded = _recorded(annotated, diagnostics)
    if recorded is not None:
        texts = {
            where: {**place_texts, **recorded.texts.get(where, {})}
            for where, place_texts in texts.items()
        }
    values = [
        value for where, place_texts in texts.items() for value in TABLES.find(where, place_texts)
    ]
    dialects = combine(values, strict=strict, position=position, container=container)
    diagnostics += [problem for dialect in dialects for problem in dialect.problems]
    layers = [
        DialectLayer(OURS, own),
        *(DialectLayer(request.dialect.title, request.layer) for request in dialects),
    ]
    if strict:
        diagnostics += _conflicts(layers)
    merged = merge_dialects(layers)
    notes += [note for request in dialects for note in request.notes]
    return ParsedManifest(
        tuple(dialects),
        own,
        merged.layer,
        diagnostics,
        tuple(dict.fromkeys((*notes, *merged.notes))),
    )


def default_trust(annotations: Mapping[str, str]) -> EnvTrust:
    """Return how far env is trusted if the node's configuration does not set it.

    Docker merges an image's ENV with the caller's, so env may be the image's choice. Under
    Kubernetes annotations can request, and env may only shrink; elsewhere env is the only way.
    """
    return "reduce" if any(name.startswith(CRI_PREFIX) for name in annotations) else "request"


def _translate(  # noqa: PLR0913 - what is read, and where it goes
    texts: tuple[Mapping[str, str], Mapping[str, str] | None, Mapping[str, str]],
    annotated: Annotated,
    of_env: Layer,
    dialects: Dialects,
    diagnostics: Diagnostics,
    *,
    reads_env: bool,
) -> tuple[Layer, list[str]]:
    """Put requests in other systems' keys beside our own in `annotated`, each in its place.

    Returns the environment's layer, and what the values mean in canonical keys.
    """
    # Imported here: the clients read this package for its sizes and need no tables.
    from gpushare.quota.dialects import TABLES  # noqa: PLC0415
    from gpushare.quota.dialects.translate import Translator  # noqa: PLC0415

    annotations, of_pod, env = texts
    translator = Translator(TABLES, dialects, pod_of(annotations), of_pod)
    recorded = _recorded(annotated, diagnostics)
    translation = translator.translate(annotations, env, reads_env=reads_env, recorded=recorded)
    diagnostics += translation.diagnostics
    annotated.notes += translation.notes
    if translation.layers:
        ours = annotated.own, annotated.scoped, annotated.of_pod, of_env
        if dialects.mode == "strict":
            diagnostics += _conflicts(by_dialect(ours, translation.layers))
        merged = merge_places(ours, translation.layers)
        annotated.notes += [note for merged_layer in merged for note in merged_layer.notes]
        annotated.own, annotated.scoped, annotated.of_pod, of_env = (
            merged_layer.layer for merged_layer in merged
        )
    annotated.unnamed = annotated.unnamed or translation.unnamed
    return of_env, translation.meanings


def _recorded(annotated: Annotated, diagnostics: Diagnostics) -> RecordedKeys | None:
    """Return the keys that an admission policy recorded for the container, if it did."""
    from gpushare.quota.dialects.translate import recorded_keys  # noqa: PLC0415 - as in _translate

    if annotated.vendor is None:
        return None
    source, text = annotated.vendor
    try:
        return recorded_keys(text)
    except BadValue as bad:
        error = QuotaError(str(source), text, bad.rule, bad.fix)
        diagnostics.append(Diagnostic(error, source))
        return None


def _own_annotations(
    texts: Mapping[KeyLocation, Mapping[str, str]], container: str, diagnostics: Diagnostics
) -> Annotated:
    """Return what gpushare's annotations request in a manifest."""
    annotations = {
        name: text
        for name, text in texts.get("annotation", {}).items()
        if name.startswith(ANNOTATION_PREFIX)
    }
    pod = {_CONTAINER_NAME: container} if container else {}
    return read_annotations({**pod, **annotations}, None, diagnostics)


def _own_keys(
    texts: Mapping[KeyLocation, Mapping[str, str]],
    annotated: Annotated,
    in_cluster: bool,
    notes: list[str],
    diagnostics: Diagnostics,
) -> Layer:
    """Return what gpushare's own keys request in a manifest, of whatever place."""
    granted = GrantedLayers({}, notes)
    for layer in (annotated.own, annotated.scoped, annotated.of_pod):
        granted.merge(expand(layer, None, diagnostics))
    notes += annotated.notes
    of_env = expand(_of_env(texts.get("env", {}), diagnostics), None, diagnostics)
    granted.merge(of_env, shrink_only=in_cluster)
    return granted.layer


def _conflicts(layers: Iterable[DialectLayer]) -> list[Diagnostic]:
    conflict = dialect_conflict(layers)
    return [] if conflict is None else [conflict]


def _of_env(env: Mapping[str, str], diagnostics: Diagnostics) -> Layer:
    layer = {
        name: diagnostics.read(name, ValueSource("env", name), text, BY_ENV)
        for name, text in env.items()
        if is_quota(name)
    }
    return {BY_ENV[name].name: value for name, value in layer.items() if value is not None}


def _of_keys(kind: SourceKind, values: Mapping[str, str], diagnostics: Diagnostics) -> Layer:
    layer = {
        name: diagnostics.read(name, ValueSource(kind, name), text, KEYS)
        for name, text in values.items()
    }
    return {name: value for name, value in layer.items() if value is not None}


# --- how requests for one container combine: by the place where each is written, and by dialect ---
#
# A lower place may request less than what is granted above it, never more. What is granted is more
# than the keys that are set: whole cards come with all of the card, and memory alone means one
# card, without cores reserved on it.
#
# Requests in several dialects at one place: a strict node refuses them, a lenient one takes the
# smaller value of each key. gpushare's own keys are one of the dialects: a manifest with HAMi's
# keys and our annotations makes two requests, and nothing says which is meant.

_OTHER_FORM: Final = {"memory": "memory-percent", "memory-percent": "memory"}
_PARTS_OF_A_CARD: Final = frozenset({"memory", "memory-percent", "memory-limit", "cores"})
_NEVER_ENLARGE: Final = frozenset(
    {
        "memory",
        "memory-percent",
        "allow",
        "deny",
        "compute-capability",
        "placement",
        IDLE_AFTER,
        TIME_LIMIT,
        PROFILE,
        REMOTE,  # resolve_request refuses it beside any other
    }
)
_MODEST: Final = {"class": "offline", "oversubscribe": "none"}


@dataclass
class GrantedLayers:
    """The keys that the sources read so far grant, and notes on what lower sources did not get.

    `cards` names what put cards into the spec before any source was read; empty: nothing did.
    `refinable` are keys that a lower source may add, although they ask for more: the scheduler
    allocates none of them.
    """

    layer: Layer
    notes: list[str]
    cards: str = ""
    refinable: frozenset[str] = frozenset()

    @property
    def whole(self) -> bool:
        """Whether whole cards are granted."""
        return requests_whole_cards(self.layer, has_cards=bool(self.cards))

    def merge(self, lower: Layer, *, shrink_only: bool = False) -> None:
        """Put `lower` beneath what is granted; `shrink_only`: it may not add a key of its own.

        Of the keys of one layer none comes before another: each is held against what was granted
        above all of them.
        """
        higher = GrantedLayers(dict(self.layer), [], self.cards, self.refinable)
        for name, requested in lower.items():
            refusal = higher.why_not(name, requested, shrink_only=shrink_only)
            if refusal is not None:
                self.note(requested, refusal)
            elif name not in higher.layer:
                self.layer[name] = requested
            else:
                narrowed = KEYS[name].narrow(higher.layer[name].value, requested.value)
                if narrowed != higher.layer[name].value:
                    self.layer[name] = RequestedValue(
                        requested.text, narrowed, requested.source, requested.written
                    )

    def override(self, operator: Layer) -> None:
        """Put the operator's values in place of others, and leave the rest as it was requested.

        The operator set them on a container that had the rest: none of it is smaller, or larger,
        when the container starts the next time.
        """
        if not operator.keys().isdisjoint(SET_BY_PROFILE):
            self.layer.pop(PROFILE, None)  # it is not that any more
        for name, requested in operator.items():
            for replaced in (name, _OTHER_FORM.get(name)):
                below = self.layer.pop(replaced, None) if replaced else None
                if below is not None and below.source.kind != "default":
                    self.note(
                        below, f"{requested.source} {quoted(requested.shown)} takes precedence"
                    )
            self.layer[name] = requested

    def note(self, requested: RequestedValue, why: str) -> None:
        """Add a note that `requested` was not applied: nothing is dropped silently."""
        shown = f"{printable(str(requested.source))} {quoted(requested.shown)}"
        self.notes.append(f"{shown} was not applied: {why}")

    def why_not(self, name: str, requested: RequestedValue, *, shrink_only: bool) -> str | None:
        """Return why a lower source's value is not taken; None when it is, or says the same."""
        if name in self.layer:
            above = self.layer[name]
            if requested.value != above.value == KEYS[name].narrow(above.value, requested.value):
                return f"{above.source} {quoted(above.shown)} takes precedence"
            return None
        part = self.whole and name in _PARTS_OF_A_CARD
        if shrink_only and not part:
            return "the environment may only shrink what an annotation grants (trust.env)"
        other = _OTHER_FORM.get(name)
        if other in self.layer:
            return f"{self.layer[other].source} sets memory in the other form"
        if (self.layer or self.cards) and self._enlarges(name, requested):
            source = next(iter(self.layer.values())).source if self.layer else self.cards
            return f"it would exceed what {source} grants"
        return None

    def _enlarges(self, name: str, requested: RequestedValue) -> bool:
        """Whether a key that no higher source set would give more than the higher ones."""
        if name in self.refinable:
            return name == "cores" and requested.value == 100  # a whole card
        if name in _NEVER_ENLARGE:
            return False
        if name in _MODEST:
            return requested.value != _MODEST[name]
        if name in {"count", "devices"} and self.cards:
            return False  # resolve_request refuses more than what is in the spec
        if name == "count" and "devices" in self.layer:
            devices = self.layer["devices"].value
            assert isinstance(devices, tuple)
            return requested.value != len(devices)
        if name == "devices":
            assert isinstance(requested.value, tuple)
            return len(requested.value) > self._count()
        if name in {"memory-limit", "cores"}:
            has_memory = requests_memory(self.layer)
            return not self.whole and (has_memory or requested.value == 100)
        return requests_memory(self.layer) if name == "policy" else True

    def _count(self) -> int:
        """Return the cards that are granted; a source that says nothing of them means one."""
        count = self.layer["count"].value if "count" in self.layer else 1
        assert isinstance(count, int)
        return count


OURS: Final = "gpushare"


@dataclass(frozen=True)
class DialectLayer:
    """The request in one dialect, by its title."""

    title: str
    layer: Layer


@dataclass(frozen=True)
class MergedLayer:
    """The combined layer of several, which values were not applied, and why."""

    layer: Layer
    notes: tuple[str, ...] = ()


def merge_dialects(layers: Iterable[DialectLayer]) -> MergedLayer:
    """Return the combined request of several dialects: of two values the smaller."""
    notes: list[str] = []
    merged: Layer = {}
    for layer in layers:
        merged = (
            _less(merged, layer.layer, notes) if merged and layer.layer else merged or layer.layer
        )
    return MergedLayer(dict(merged), tuple(notes))


def dialect_conflict(layers: Iterable[DialectLayer]) -> Diagnostic | None:
    """Return the problem that a strict node has with requests in two dialects; None if in one."""
    requesting = [layer for layer in layers if layer.layer]
    if len(requesting) < 2:
        return None
    first, second = requesting[:2]
    value, other = next(iter(first.layer.values())), next(iter(second.layer.values()))
    beside = f"{other.source} {quoted(other.shown)}"
    rule = f"uses {first.title} keys, and {beside} uses {second.title} keys"
    fix = "keep one of the two, or set dialects.mode to lenient to apply the smaller value"
    return Diagnostic(QuotaError(str(value.source), value.shown, rule, fix), value.source)


def _less(first: Layer, second: Layer, notes: list[str]) -> Layer:
    """Return the smaller value of each key; of values that cannot be compared, the first."""
    if requests_whole_cards(first) != requests_whole_cards(second):
        first, second = _parts(first, notes), _parts(second, notes)
    layer: Layer = {}
    for key in dict.fromkeys((*first, *second)):
        mine, other = first.get(key), second.get(key)
        if mine is None and _OTHER_FORM.get(key) in first:
            assert other is not None
            _note(notes, other, first[_OTHER_FORM[key]], "sets memory in the other form")
        elif mine is None or other is None:
            taken = mine or other
            assert taken is not None
            layer[key] = taken
        else:
            layer[key] = _least(key, mine, other, notes)
    return layer


def _parts(layer: Layer, notes: list[str]) -> Layer:
    """Return `layer` without cores of 100: another dialect requests a part of a card."""
    if not requests_whole_cards(layer):
        return layer
    if "cores" in layer:
        requested = layer["cores"]
        notes.append(
            f"{requested.source} {quoted(requested.shown)} was not applied: another dialect "
            "requests part of a card"
        )
    return {key: requested for key, requested in layer.items() if key != "cores"}


def _least(
    key: str, mine: RequestedValue, other: RequestedValue, notes: list[str]
) -> RequestedValue:
    if mine.value == other.value:
        return mine
    narrowed = KEYS[key].narrow(mine.value, other.value)
    if narrowed == other.value:
        _note(notes, mine, other, "requests less")
        return other
    if narrowed == mine.value:
        _note(notes, other, mine, "requests less")
        return mine
    text = ",".join(narrowed) if isinstance(narrowed, tuple) else str(narrowed)
    return RequestedValue(text, narrowed, mine.source, written=mine.written)


def _note(notes: list[str], left: RequestedValue, taken: RequestedValue, why: str) -> None:
    notes.append(
        f"{left.source} {quoted(left.shown)} was not applied: {taken.source} {quoted(taken.shown)} "
        f"{why}"
    )


class Precedence(IntEnum):
    """Where something is requested, the highest first; as read_annotations' layers."""

    OWN = 0
    SCOPED = 1
    OF_POD = 2
    ENV = 3


def merge_places(
    ours: Sequence[Layer], theirs: Mapping[Precedence, Sequence[DialectLayer]]
) -> list[MergedLayer]:
    """Return for each place what our own keys and other dialects there come to.

    How the places combine with each other is for the caller, as it would be without dialects.
    """
    return [
        merge_dialects([DialectLayer(OURS, ours[place]), *theirs.get(place, ())])
        for place in Precedence
    ]


def by_dialect(
    ours: Sequence[Layer], theirs: Mapping[Precedence, Sequence[DialectLayer]]
) -> list[DialectLayer]:
    """Return what is requested in each dialect, in whatever place, our own keys first."""
    layers: dict[str, Layer] = {}
    for place in Precedence:
        for dialect_layer in (DialectLayer(OURS, ours[place]), *theirs.get(place, ())):
            layers[dialect_layer.title] = {
                **dialect_layer.layer,
                **layers.get(dialect_layer.title, {}),
            }
    return [DialectLayer(title, layer) for title, layer in layers.items()]
