# SPDX-License-Identifier: Apache-2.0
"""The requests in annotations for this container: its own, and those of its pod.

containerd and CRI-O write which pod a container is in over whatever the pod's author wrote under
these names. docker and podman take any annotation from their users, so there they mean nothing:
without_pod.

An engine passes the pod's annotations to every container of the pod, so `gpushare.io/memory`
reaches all of them. `gpushare.io/container.NAME.memory` is for one. If a pod has such annotations,
only the containers that they name may request anything, and what names no container is theirs if
only one is named; if none is named, the daemon makes sure that only one container takes it
(daemon/lifecycle/reserve.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from gpushare.quota.errors import QuotaError, quoted
from gpushare.quota.keys import ANNOTATION_PREFIX, KEYS, Diagnostics
from gpushare.quota.request import Diagnostic, Layer, RequestedValue, ValueSource

CRI_PREFIX: Final = "io.kubernetes.cri"  # containerd's, and the beginning of CRI-O's

# containerd's name for each, then CRI-O's. Sources: containerd pkg/cri/annotations, CRI-O
# pkg/annotations, kubelet types/labels.go.
CONTAINER_NAME: Final = "io.kubernetes.container.name"
_CONTAINER: Final = ("io.kubernetes.cri.container-name", CONTAINER_NAME)
_SANDBOX: Final = ("io.kubernetes.cri.sandbox-id", "io.kubernetes.cri-o.SandboxID")
_NAMESPACE: Final = ("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace")
_NAME: Final = ("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name")
_UID: Final = ("io.kubernetes.cri.sandbox-uid", "io.kubernetes.pod.uid")


@dataclass(frozen=True)
class PodIdentity:
    """A container's pod. What its engine does not say is empty; `container` is the container's."""

    container: str
    sandbox: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""

    def __str__(self) -> str:
        """Return `team/train`, as kubectl's users know it."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name or self.sandbox


def pod_of(annotations: Mapping[str, str]) -> PodIdentity | None:
    """Return the pod that a container with these annotations is in; None where it is in none."""
    container = _first(annotations, _CONTAINER)
    if not container:
        return None
    return PodIdentity(
        container,
        sandbox=_first(annotations, _SANDBOX),
        namespace=_first(annotations, _NAMESPACE),
        name=_first(annotations, _NAME),
        uid=_first(annotations, _UID),
    )


def without_pod(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations without those by which an engine names a pod."""
    names = {*_CONTAINER, *_SANDBOX, *_NAMESPACE, *_NAME, *_UID}
    return {
        name: text
        for name, text in annotations.items()
        if name not in names and not name.startswith(CRI_PREFIX)
    }


def _first(annotations: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((annotations[name] for name in names if name in annotations), "")


SCOPE: Final = "container."
#: The key of vendors' keys that an admission policy recorded (dialects/translate.py).
VENDOR: Final = "vendor"
_SHOWN: Final = 4  # containers that a note names


class Annotation(NamedTuple):
    """One annotation."""

    source: ValueSource
    text: str


@dataclass
class Annotated:
    """The requests in annotations, each layer above the next.

    `own` is from the maker of the container (a device plugin through the kubelet), `scoped` from
    the pod's author for this container, `of_pod` from the pod's author for any container; the first
    of those is `unnamed` if no container is named at all. `notes` say what is for another one.
    `vendor` has the vendors' keys that an admission policy recorded for this container.
    """

    own: Layer = field(default_factory=dict)
    scoped: Layer = field(default_factory=dict)
    of_pod: Layer = field(default_factory=dict)
    unnamed: RequestedValue | None = None
    notes: list[str] = field(default_factory=list)
    vendor: Annotation | None = None


class _Scoped(NamedTuple):
    container: str
    key: str
    source: ValueSource
    text: str


def read_annotations(
    annotations: Mapping[str, str], of_pod: Mapping[str, str] | None, diagnostics: Diagnostics
) -> Annotated:
    """Return what `annotations`, a container's, request; what is refused goes to `diagnostics`.

    `of_pod` are the annotations of its pod; None where they cannot be seen, and then every one that
    names no container is taken for the pod's.
    """
    pod = pod_of(annotations)
    annotated = Annotated()
    scoped: list[_Scoped] = []
    unscoped: dict[str, Annotation] = {}
    for full_name, text in annotations.items():
        if not full_name.startswith(ANNOTATION_PREFIX):
            continue
        name = full_name[len(ANNOTATION_PREFIX) :]
        source = ValueSource("annotation", full_name)
        if name.startswith(SCOPE):
            scope = _scope(source, text, None if pod is None else pod.container)
            if isinstance(scope, QuotaError):
                diagnostics.append(Diagnostic(scope, source))
            else:
                scoped.append(scope)
        elif pod is not None and (of_pod is None or of_pod.get(full_name) == text):
            unscoped[name] = Annotation(ValueSource("pod annotation", full_name), text)
        elif value := diagnostics.read(name, source, text, KEYS):
            annotated.own[name] = value
    if pod is None:
        return annotated
    for annotation in (
        annotation for annotation in scoped if annotation.container == pod.container
    ):
        if annotation.key == VENDOR:
            annotated.vendor = Annotation(annotation.source, annotation.text)
        elif value := diagnostics.read(annotation.key, annotation.source, annotation.text, KEYS):
            annotated.scoped[annotation.key] = value
    _read_unscoped(
        unscoped,
        pod.container,
        sorted({annotation.container for annotation in scoped}),
        annotated,
        diagnostics,
    )
    return annotated


def _read_unscoped(
    unscoped: Mapping[str, Annotation],
    here: str,
    named: list[str],
    annotated: Annotated,
    diagnostics: Diagnostics,
) -> None:
    """Read the pod's annotations that name no container, if they are for container `here`.

    `named` are the containers that others name.
    """
    if not named or named == [here]:
        annotated.of_pod = _read_all(unscoped, diagnostics)
        annotated.unnamed = None if named else next(iter(annotated.of_pod.values()), None)
        return
    if here in named:
        diagnostics += _ambiguous(unscoped, here, named)
    else:
        annotated.notes.append(
            f"the annotations of the pod are for {', '.join(map(quoted, named[:_SHOWN]))}, "
            f"and this is {quoted(here)}"
        )
    unread = Diagnostics()
    _read_all(unscoped, unread)
    diagnostics += [replace(annotation, applies=False) for annotation in unread]


def _read_all(texts: Mapping[str, Annotation], diagnostics: Diagnostics) -> Layer:
    values = {name: diagnostics.read(name, *text, KEYS) for name, text in texts.items()}
    return {name: value for name, value in values.items() if value is not None}


def _scope(source: ValueSource, text: str, here: str | None) -> _Scoped | QuotaError:
    """Return the container and the key in the name of a scoped annotation, or why it has none."""
    container, _, key = source.name[len(ANNOTATION_PREFIX) + len(SCOPE) :].partition(".")
    if not container or not key:
        fix = "write gpushare.io/container.NAME.memory"
        return QuotaError(str(source), text, "must name a container and a key", fix)
    if here is None:
        rule = f"is for container {quoted(container)} of a pod, and this container is not in a pod"
        return QuotaError(str(source), text, rule, f"write {ANNOTATION_PREFIX}{key}")
    return _Scoped(container, key, source, text)


def scoped_name(container: str, key: str) -> str:
    """Return the annotation that requests `key` for one container of a pod."""
    return f"{ANNOTATION_PREFIX}{SCOPE}{container}.{key}"


def _ambiguous(
    unscoped: Mapping[str, Annotation], here: str, named: list[str]
) -> Iterator[Diagnostic]:
    """Yield a problem for each annotation that names no container, where several are named."""
    others = ", ".join(container for container in named if container != here)
    rule = f"names no container, but other annotations name {here} and {others}"
    for name, (source, text) in unscoped.items():
        fix = f"write {scoped_name(here, name)}"
        yield Diagnostic(QuotaError(str(source), text, rule, fix), source)
