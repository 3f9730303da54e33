# SPDX-License-Identifier: Apache-2.0
"""From annotations, environment and the operator's overrides to one Quota.

Precedence: operator > annotation of this container > annotation of its pod > env. A lower source
may shrink what a higher one grants, never enlarge it; what the operator set stands as it is. What
a lower source said and did not get is kept in `Quota.notes`: nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Final, Literal, TypeAlias

from gpushare.quota.errors import BadValue, QuotaError, quoted
from gpushare.quota.keys import ANNOTATION_PREFIX, BY_ENV, KEYS, Key, is_quota
from gpushare.quota.quota import Asked, Quota, Source, SourceKind

Trust: TypeAlias = Literal["ask", "shrink", "ignore"]
Layer: TypeAlias = "dict[str, Asked]"

_SCOPE: Final = "container."
_CRI_PREFIX: Final = "io.kubernetes.cri"
_CONTAINER_NAMES: Final = ("io.kubernetes.cri.container-name", "io.kubernetes.container.name")


def read_quota(
    annotations: Mapping[str, str],
    env: Mapping[str, str],
    *,
    operator: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
    trust: Trust | None = None,
) -> Quota:
    """Return what a container asks for; a Quota with nothing `asked` where it asks for nothing.

    `operator` has canonical keys (`memory`), and so have `options`, those of a command line, which
    stand beside annotations; `trust` None is the default for these annotations.
    QuotaError: an unknown gpushare key, a value that is none, a scope that fits no container.
    """
    trust = trust or default_trust(annotations)
    granted: Layer = {}
    notes: list[str] = []
    for layer in (_layer("option", options or {}), *_annotation_layers(annotations)):
        _merge(granted, layer, notes, shrink_only=False)
    if trust == "ignore":
        notes += [
            f"{name} was not read: trust.env is ignore" for name in sorted(env) if is_quota(name)
        ]
    else:
        _merge(granted, _env_layer(env), notes, shrink_only=trust == "shrink")
    _override(granted, _layer("operator", operator or {}), notes)
    return _quota(granted, notes)


def default_trust(annotations: Mapping[str, str]) -> Trust:
    """Return how far env is trusted where the node's configuration does not say.

    Docker merges an image's ENV with the caller's, so env may be the image's word. Under Kubernetes
    annotations can ask, and env may only shrink; elsewhere env is the only way to ask.
    """
    return "shrink" if any(name.startswith(_CRI_PREFIX) for name in annotations) else "ask"


def container_name(annotations: Mapping[str, str]) -> str | None:
    """Return the container's name in its pod, as containerd or CRI-O annotate it."""
    return next((annotations[name] for name in _CONTAINER_NAMES if name in annotations), None)


def _layer(kind: SourceKind, values: Mapping[str, str]) -> Layer:
    layer: Layer = {}
    for name, text in values.items():
        source = Source(kind, name)
        layer[name] = _asked(_key(name, source, text, KEYS), text, source)
    return layer


def _annotation_layers(annotations: Mapping[str, str]) -> tuple[Layer, Layer]:
    """Return the container's own layer and the pod's; the former is the higher."""
    scoped: Layer = {}
    unscoped: Layer = {}
    here = container_name(annotations)
    for full_name, text in annotations.items():
        if not full_name.startswith(ANNOTATION_PREFIX):
            continue
        source = Source("annotation", full_name)
        name = full_name[len(ANNOTATION_PREFIX) :]
        if name.startswith(_SCOPE):
            container, _, name = name[len(_SCOPE) :].partition(".")
            _check_scope(container, name, source, text, here)
            if container == here:
                scoped[name] = _asked(_key(name, source, text, KEYS), text, source)
        else:
            unscoped[name] = _asked(_key(name, source, text, KEYS), text, source)
    return scoped, unscoped


def _check_scope(container: str, name: str, source: Source, text: str, here: str | None) -> None:
    if not container or not name:
        fix = "write gpushare.io/container.NAME.memory"
        raise QuotaError(str(source), text, "names no container or no key", fix)
    if here is None:
        rule = f"is for container {quoted(container)} of a pod, and this container is in none"
        raise QuotaError(str(source), text, rule, f"write {ANNOTATION_PREFIX}{name}")


def _env_layer(env: Mapping[str, str]) -> Layer:
    layer: Layer = {}
    for name, text in env.items():
        if is_quota(name):
            source = Source("env", name)
            key = _key(name, source, text, BY_ENV)
            layer[key.name] = _asked(key, text, source)
    return layer


def _key(name: str, source: Source, text: str, known: Mapping[str, Key]) -> Key:
    key = known.get(name)
    if key is not None:
        return key
    shown = source.name[: len(source.name) - len(name)]
    folded = {key.casefold(): key for key in known}
    close = get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    fix = f"did you mean {shown}{folded[close[0]]}?" if close else "the keys are " + ", ".join(KEYS)
    raise QuotaError(str(source), text, "is for a key that gpushare does not know", fix)


def _asked(key: Key, text: str, source: Source) -> Asked:
    try:
        return Asked(text, key.parse(text), source)
    except BadValue as bad:
        raise QuotaError(str(source), text, bad.rule, bad.fix) from bad


def _merge(granted: Layer, layer: Layer, notes: list[str], *, shrink_only: bool) -> None:
    """Put `layer` beneath what is granted already."""
    higher = dict(granted)
    for name, asked in layer.items():
        refusal = _why_not(name, asked, higher, shrink_only)
        if refusal is not None:
            notes.append(f"{asked.source} {quoted(asked.text)} was not taken: {refusal}")
        elif name not in higher:
            granted[name] = asked
        else:
            value = KEYS[name].narrow(higher[name].value, asked.value)
            if value != higher[name].value:
                granted[name] = Asked(asked.text, value, asked.source)


def _override(granted: Layer, operator: Layer, notes: list[str]) -> None:
    """Put the operator's values in place of others', and leave the rest as it was asked.

    He set them on a container that was given the rest: nothing of it is smaller, or larger, when
    the container starts the next time.
    """
    for name, asked in operator.items():
        other = {"memory": "memory-percent", "memory-percent": "memory"}.get(name)
        for replaced in (name, other):
            if replaced in granted:
                below = granted.pop(replaced)
                text = f"{below.source} {quoted(below.text)}"
                notes.append(
                    f"{text} was not taken: {asked.source} {quoted(asked.text)} is above it"
                )
        granted[name] = asked


def _why_not(name: str, asked: Asked, higher: Layer, shrink_only: bool) -> str | None:
    """Return why a lower source's value is not taken; None when it is, or says the same."""
    if name in higher:
        above = higher[name]
        if asked.value != above.value == KEYS[name].narrow(above.value, asked.value):
            return f"{above.source} {quoted(above.text)} is above it"
        return None
    if shrink_only:
        return "the environment may only shrink what an annotation grants (trust.env)"
    other = {"memory": "memory-percent", "memory-percent": "memory"}.get(name)
    if other in higher:
        return f"{higher[other].source} says memory in the other form"
    if higher and _enlarges(name, asked, higher):
        return "it would enlarge what " + str(next(iter(higher.values())).source) + " grants"
    return None


def _enlarges(name: str, asked: Asked, higher: Layer) -> bool:
    """Whether a key that no higher source set would give more than those sources grant."""
    if name == "cores":
        return asked.value == 100
    if name == "devices":
        assert isinstance(asked.value, tuple)
        count = higher["count"].value if "count" in higher else 1
        assert isinstance(count, int)
        return len(asked.value) > count
    if name == "class":
        return asked.value == "online"
    return name in {"memory-limit", "count", "oversubscribe", "weight", "priority", "backend"}


def _quota(granted: Mapping[str, Asked], notes: Sequence[str]) -> Quota:
    values = {KEYS[name].field: asked.value for name, asked in granted.items()}
    return Quota(**values, asked=granted, notes=tuple(notes))  # type: ignore[arg-type]
