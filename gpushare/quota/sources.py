# SPDX-License-Identifier: Apache-2.0
"""From annotations, environment and the operator's overrides to one Quota.

Precedence: operator > whoever made the container > the pod's author, for this container and then
for any > env. A lower source may shrink what a higher one grants, never enlarge it; what the
operator set stands as it is. What a lower source said and did not get is kept in `Quota.notes`:
nothing is dropped silently. What is asked in another system's words (dialects/) is in the layer of
the source that it came from, beside our own keys there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from gpushare.quota.annotations import Annotated, read_annotations
from gpushare.quota.cards import Cards
from gpushare.quota.defaults import Defaults
from gpushare.quota.errors import printable
from gpushare.quota.keys import BY_ENV, KEYS, is_quota, read
from gpushare.quota.layers import Granted
from gpushare.quota.others import Dialects
from gpushare.quota.pod import CRI_PREFIX, pod_of
from gpushare.quota.quota import Asked, Layer, Quota, Source, SourceKind
from gpushare.quota.visible import VISIBLE_DEVICES

if TYPE_CHECKING:
    from gpushare.quota.dialects import Heard

Trust: TypeAlias = Literal["ask", "shrink", "ignore"]

# The longer first: a row of a pod's annotation ends with the name of both.
_KINDS: Final[Sequence[SourceKind]] = sorted(get_args(SourceKind), key=len, reverse=True)


def read_quota(  # noqa: PLR0913 - one argument a source
    annotations: Mapping[str, str],
    env: Mapping[str, str],
    *,
    of_pod: Mapping[str, str] | None = None,
    operator: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
    cards: Cards | None = None,
    defaults: Defaults | None = None,
    trust: Trust | None = None,
    dialects: Dialects | None = None,
) -> Quota:
    """Return what a container asks for; a Quota with nothing `asked` where it asks for nothing.

    `of_pod` are the annotations of its pod, None where they cannot be seen. `operator` has
    canonical keys (`memory`), and so have `options`, those of a command line, which stand beside
    annotations. `cards` are what an engine put into the spec. `trust` None is the default for these
    annotations. `dialects` says which other systems' requests are read, None: none of them.
    QuotaError: an unknown gpushare key, a value that is none, a scope that fits no container, a
    request in two dialects or in one that is not taken.
    """
    trust = trust or default_trust(annotations)
    defaults = defaults or Defaults()
    annotated = read_annotations(annotations, of_pod)
    of_env = {} if trust == "ignore" else _env_layer(env)
    meanings: list[str] = []
    if dialects is not None:
        # Imported here: the clients read this package for its sizes and need no tables.
        from gpushare.quota.dialects import TABLES, Listener  # noqa: PLC0415

        listener = Listener(TABLES, dialects, pod_of(annotations), of_pod)
        # Cards that are in the spec are what it says of cards, and more exactly.
        said = env if cards is None else {**env, VISIBLE_DEVICES: "void"}
        heard = listener.hear(annotations, said, reads_env=trust != "ignore")
        of_env = _with(heard, annotated, of_env, dialects)
        meanings = heard.meanings
    granted = Granted({}, annotated.notes, "" if cards is None else cards.source)
    above = (_layer("option", options or {}), annotated.own, annotated.scoped, annotated.of_pod)
    for layer in above:
        granted.merge(layer)
    if trust == "ask":
        granted.merge(of_env)
    elif trust == "shrink":
        # It asks for nothing, so what nobody asked for is the node's to say before it shrinks that.
        defaults.fill(granted)
        granted.merge(of_env, shrink_only=True)
    else:
        granted.notes += [
            f"{printable(name)} was not read: trust.env is ignore"
            for name in sorted(env)
            if is_quota(name)
        ]
    if granted.layer:
        granted.notes += meanings
    defaults.fill(granted)
    beneath = dict(granted.layer)
    granted.override(_layer("operator", operator or {}))
    defaults.fill(granted)  # cores that the operator set have the node's policy, as any
    return replace(_quota(granted, annotated.unnamed), beneath=beneath)


def _with(heard: Heard, annotated: Annotated, of_env: Layer, dialects: Dialects) -> Layer:
    """Put what was `heard` beside our own keys where it was said; return the environment's."""
    annotated.notes += heard.notes
    if heard.said:
        annotated.own, annotated.scoped, annotated.of_pod, of_env = heard.beside(
            (annotated.own, annotated.scoped, annotated.of_pod, of_env),
            strict=dialects.mode == "strict",
            notes=annotated.notes,
        )
    annotated.unnamed = annotated.unnamed or heard.unnamed
    return of_env


def read_again(
    rows: Mapping[str, str], asked: Mapping[str, str], defaults: Defaults | None = None
) -> Quota:
    """Return what `rows` (Quota.rows of who has it) come to with `asked` above all of it.

    QuotaError where `asked`, by canonical key, is what no quota can say.
    """
    granted = Granted(_as_noted(rows), [])
    granted.override(_layer("option", asked))
    (defaults or Defaults()).fill(granted)
    return _quota(granted)


def _as_noted(rows: Mapping[str, str]) -> Layer:
    layer: Layer = {}
    for name, row in rows.items():
        kind = next(kind for kind in _KINDS if row.endswith(f" {kind}"))
        layer[name] = read(name, Source(kind, name), row.removesuffix(f" {kind}"), KEYS)
    return layer


def _quota(granted: Granted, unnamed: Asked | None = None) -> Quota:
    values = {KEYS[name].field: asked.value for name, asked in granted.layer.items()}
    return Quota(
        **values,  # type: ignore[arg-type]
        asked=granted.layer,
        notes=tuple(granted.notes),
        unnamed=unnamed,
    )


def default_trust(annotations: Mapping[str, str]) -> Trust:
    """Return how far env is trusted where the node's configuration does not say.

    Docker merges an image's ENV with the caller's, so env may be the image's word. Under Kubernetes
    annotations can ask, and env may only shrink; elsewhere env is the only way to ask.
    """
    return "shrink" if any(name.startswith(CRI_PREFIX) for name in annotations) else "ask"


def _layer(kind: SourceKind, values: Mapping[str, str]) -> Layer:
    return {name: read(name, Source(kind, name), text, KEYS) for name, text in values.items()}


def _env_layer(env: Mapping[str, str]) -> Layer:
    found = [read(name, Source("env", name), env[name], BY_ENV) for name in env if is_quota(name)]
    return {BY_ENV[asked.source.name].name: asked for asked in found}
