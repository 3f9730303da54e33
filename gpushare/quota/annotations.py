# SPDX-License-Identifier: Apache-2.0
"""What annotations ask of this container: its own, and those of its pod.

An engine hands every container of a pod the pod's annotations, so `gpushare.io/memory` reaches all
of them. `gpushare.io/container.NAME.memory` is for one. Where a pod has such, only the containers
that it names may ask, and what is for no container by name is theirs if there is one of them; where
it names none, the daemon sees to it that only one container takes it (daemon/identity/pods.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gpushare.quota.errors import QuotaError, quoted
from gpushare.quota.keys import ANNOTATION_PREFIX, KEYS, read
from gpushare.quota.pod import pod_of
from gpushare.quota.quota import Asked, Layer, Source

_SCOPE: Final = "container."
_SHOWN: Final = 4  # containers that a note names


@dataclass
class Annotated:
    """What was asked, each layer above the next; `notes` say what was not for this container.

    `own` is the word of whoever made the container (a device plugin through the kubelet), `scoped`
    that of the pod's author for this container, `of_pod` his for whichever there is; the first of
    those where no container is named at all is `unnamed`.
    """

    own: Layer = field(default_factory=dict)
    scoped: Layer = field(default_factory=dict)
    of_pod: Layer = field(default_factory=dict)
    unnamed: Asked | None = None
    notes: list[str] = field(default_factory=list)


class _Scoped(NamedTuple):
    container: str
    key: str
    source: Source
    text: str


def read_annotations(
    annotations: Mapping[str, str], of_pod: Mapping[str, str] | None = None
) -> Annotated:
    """Return what `annotations`, a container's, ask for.

    `of_pod` are the annotations of its pod; None where they cannot be seen, and then every one that
    names no container is taken for the pod's. QuotaError as read_quota.
    """
    pod = pod_of(annotations)
    found = Annotated()
    scoped: list[_Scoped] = []
    unscoped: dict[str, tuple[Source, str]] = {}
    for full_name, text in annotations.items():
        if not full_name.startswith(ANNOTATION_PREFIX):
            continue
        name = full_name[len(ANNOTATION_PREFIX) :]
        if name.startswith(_SCOPE):
            source = Source("annotation", full_name)
            scoped.append(_scope(source, text, None if pod is None else pod.container))
        elif pod is not None and (of_pod is None or of_pod.get(full_name) == text):
            unscoped[name] = (Source("pod annotation", full_name), text)
        else:
            found.own[name] = read(name, Source("annotation", full_name), text, KEYS)
    if pod is None:
        return found
    for one in scoped:
        if one.container == pod.container:
            found.scoped[one.key] = read(one.key, one.source, one.text, KEYS)
    named = sorted({one.container for one in scoped})
    if not named or named == [pod.container]:
        found.of_pod = {
            name: read(name, source, text, KEYS) for name, (source, text) in unscoped.items()
        }
        found.unnamed = None if named else next(iter(found.of_pod.values()), None)
    elif pod.container in named:
        _refuse_ambiguous(unscoped, pod.container, named)
    else:
        found.notes.append(
            f"the annotations of its pod are for {', '.join(map(quoted, named[:_SHOWN]))}, "
            f"and this is {quoted(pod.container)}"
        )
    return found


def _scope(source: Source, text: str, here: str | None) -> _Scoped:
    """Return the container and the key that the name of a scoped annotation says."""
    container, _, key = source.name[len(ANNOTATION_PREFIX) + len(_SCOPE) :].partition(".")
    if not container or not key:
        fix = "write gpushare.io/container.NAME.memory"
        raise QuotaError(str(source), text, "names no container or no key", fix)
    if here is None:
        rule = f"is for container {quoted(container)} of a pod, and this container is in none"
        raise QuotaError(str(source), text, rule, f"write {ANNOTATION_PREFIX}{key}")
    return _Scoped(container, key, source, text)


def scoped_name(container: str, key: str) -> str:
    """Return the annotation that asks for `key` for one container of a pod."""
    return f"{ANNOTATION_PREFIX}{_SCOPE}{container}.{key}"


def _refuse_ambiguous(
    unscoped: Mapping[str, tuple[Source, str]], here: str, named: list[str]
) -> None:
    for name, (source, text) in unscoped.items():
        others = ", ".join(container for container in named if container != here)
        rule = f"is for no container by name, and those of {here} and {others} may ask"
        raise QuotaError(str(source), text, rule, f"write {scoped_name(here, name)}")
