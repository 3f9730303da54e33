# SPDX-License-Identifier: Apache-2.0
"""What a container asks in gpushare's own keys, read as a node would, to the last of its errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from gpushare.manifest.file import Container, Value
from gpushare.quota import QuotaError, Source
from gpushare.quota.annotations import Annotated, read_annotations
from gpushare.quota.keys import ANNOTATION_PREFIX, BY_ENV, is_quota, read
from gpushare.quota.layers import Granted
from gpushare.quota.quota import Layer

_NAME: Final = "io.kubernetes.cri.container-name"
_SCOPE: Final = f"{ANNOTATION_PREFIX}container."


@dataclass(frozen=True)
class Refusal:
    """A value that is refused: what it is called, where it stands, the rule and the fix.

    `value` is None where nothing in the file is the reason by itself.
    """

    source: str
    value: Value | None
    text: str | None
    rule: str
    fix: str


@dataclass
class Own:
    """The layer of gpushare's own keys, and what was refused of them or not taken."""

    layer: Layer = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_own(container: Container) -> Own:
    """Return what `container` asks in our keys, by annotations and by its environment."""
    own = Own()
    annotated = _annotated(container, own)
    granted = Granted({}, own.notes)
    for layer in (annotated.own, annotated.scoped, annotated.of_pod):
        granted.merge(layer)
    own.notes += annotated.notes
    granted.merge(_of_env(container, own), shrink_only=container.in_cluster)
    own.layer = granted.layer
    return own


def _annotated(container: Container, own: Own) -> Annotated:
    """Read the annotations one by one, for an error in each, then those that are right together."""
    right: dict[str, str] = {}
    around = {_NAME: container.name} if container.in_cluster and container.name else {}
    for name, value in container.annotations.items():
        if not name.startswith(ANNOTATION_PREFIX):
            continue
        try:
            read_annotations({**around, name: value.text})
        except QuotaError as error:
            own.refusals.append(refused(error, value))
        else:
            right[name] = value.text
    try:
        return read_annotations({**around, **right})
    except QuotaError:
        pass
    unscoped = [name for name in right if not name.startswith(_SCOPE)]
    scoped = {name: text for name, text in right.items() if name.startswith(_SCOPE)}
    for name in unscoped:
        try:
            read_annotations({**around, **scoped, name: right[name]})
        except QuotaError as error:
            own.refusals.append(refused(error, container.annotations[name]))
    return read_annotations({**around, **scoped})


def _of_env(container: Container, own: Own) -> Layer:
    layer: Layer = {}
    for name, value in container.env.items():
        if not is_quota(name):
            continue
        try:
            asked = read(name, Source("env", name), value.text, BY_ENV)
        except QuotaError as error:
            own.refusals.append(refused(error, value))
        else:
            layer[BY_ENV[name].name] = asked
    return layer


def refused(error: QuotaError, value: Value | None) -> Refusal:
    """Return what a reader of quotas refuses, with where it stands."""
    return Refusal(error.where, value, error.value, error.rule, error.fix)
