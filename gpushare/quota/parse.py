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

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from gpushare.quota.annotations import CRI_PREFIX, Annotated, pod_of, read_annotations
from gpushare.quota.effective_request import Defaults
from gpushare.quota.errors import BadValue, QuotaError, printable
from gpushare.quota.keys import (
    ANNOTATION_PREFIX,
    BY_ENV,
    KEYS,
    Diagnostics,
    is_quota,
    request_from,
)
from gpushare.quota.precedence import (
    OURS,
    DialectLayer,
    GrantedLayers,
    by_dialect,
    dialect_conflict,
    merge_dialects,
    merge_places,
)
from gpushare.quota.profiles import ShareProfiles, expand, profile_of
from gpushare.quota.request import (
    PROFILE,
    VISIBLE_DEVICES,
    Diagnostic,
    EngineCards,
    Layer,
    QuotaRequest,
    ScheduledAllocation,
    SourceKind,
    ValueSource,
)
from gpushare.quota.request_policy import Dialects, EnvTrust

if TYPE_CHECKING:
    from gpushare.quota.dialects import DialectRequest, KeyLocation
    from gpushare.quota.dialects.recorded import RecordedKeys

_CONTAINER_NAME: Final = "io.kubernetes.cri.container-name"


@dataclass(frozen=True)
class ParsedRequest:
    """What a container requests on a node, without refused values."""

    request: QuotaRequest
    diagnostics: Diagnostics

    def valid(self) -> QuotaRequest:
        """Return the request; QuotaError for the first value that is refused."""
        self.diagnostics.raise_first()
        return self.request


@dataclass(frozen=True)
class ParsedManifest:
    """What a container of a manifest requests.

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
        seen = env if cards is None else {**env, VISIBLE_DEVICES: "void"}
        reads_env = trust != "ignore"
        texts = annotations, of_pod, seen
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
    from gpushare.quota.dialects import TABLES, combine  # noqa: PLC0415 - as in _translate

    diagnostics = Diagnostics()
    notes: list[str] = []
    annotated = _own_annotations(texts, container if in_cluster else "", diagnostics)
    own = _own_keys(texts, annotated, in_cluster, notes, diagnostics)
    recorded = _recorded(annotated, diagnostics)
    if recorded is not None:
        texts = {
            where: {**found, **recorded.texts.get(where, {})} for where, found in texts.items()
        }
    values = [value for where, found in texts.items() for value in TABLES.find(where, found)]
    dialects = combine(values, strict=strict, position=position, container=container)
    diagnostics += [problem for one in dialects for problem in one.problems]
    layers = [
        DialectLayer(OURS, own),
        *(DialectLayer(one.dialect.title, one.layer) for one in dialects),
    ]
    if strict:
        diagnostics += _conflicts(layers)
    merged = merge_dialects(layers)
    notes += [note for one in dialects for note in one.notes]
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
    from gpushare.quota.dialects import TABLES, Translator  # noqa: PLC0415

    annotations, of_pod, env = texts
    translator = Translator(TABLES, dialects, pod_of(annotations), of_pod)
    recorded = _recorded(annotated, diagnostics)
    found = translator.translate(annotations, env, reads_env=reads_env, recorded=recorded)
    diagnostics += found.diagnostics
    annotated.notes += found.notes
    if found.layers:
        ours = annotated.own, annotated.scoped, annotated.of_pod, of_env
        if dialects.mode == "strict":
            diagnostics += _conflicts(by_dialect(ours, found.layers))
        merged = merge_places(ours, found.layers)
        annotated.notes += [note for one in merged for note in one.notes]
        annotated.own, annotated.scoped, annotated.of_pod, of_env = (one.layer for one in merged)
    annotated.unnamed = annotated.unnamed or found.unnamed
    return of_env, found.meanings


def _recorded(annotated: Annotated, diagnostics: Diagnostics) -> RecordedKeys | None:
    """Return the keys that an admission policy recorded for the container, if it did."""
    from gpushare.quota.dialects.recorded import recorded_keys  # noqa: PLC0415 - as in _translate

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
    found = {
        name: diagnostics.read(name, ValueSource("env", name), text, BY_ENV)
        for name, text in env.items()
        if is_quota(name)
    }
    return {BY_ENV[name].name: value for name, value in found.items() if value is not None}


def _of_keys(kind: SourceKind, values: Mapping[str, str], diagnostics: Diagnostics) -> Layer:
    found = {
        name: diagnostics.read(name, ValueSource(kind, name), text, KEYS)
        for name, text in values.items()
    }
    return {name: value for name, value in found.items() if value is not None}
