# SPDX-License-Identifier: Apache-2.0
"""Keys that are unknown or misplaced, and annotations that are for no container."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from typing import Final

from gpushare.manifest.model import (
    ERROR,
    OUTSIDE,
    WARNING,
    Container,
    Document,
    ManifestFinding,
    ManifestValue,
    Pod,
    key_finding,
    values_of_mapping,
)
from gpushare.quota.annotations import scoped_name
from gpushare.quota.dialects import TABLES, Dialect, KeyLocation, container_selector, value_title
from gpushare.quota.keys import ANNOTATION_PREFIX, KEYS
from gpushare.quota.request import REFINING_KEYS
from gpushare.text_position import KeyPath
from gpushare.yaml_nodes import YamlNode, find, value_at

_SCOPE: Final = "container."
#: Kubernetes' own kinds with pods. Another kind may have resources beside its pods.
_WORKLOADS: Final = frozenset(
    {
        "CronJob",
        "DaemonSet",
        "Deployment",
        "Job",
        "Pod",
        "PodTemplate",
        "ReplicaSet",
        "ReplicationController",
        "StatefulSet",
    }
)
_OURS: Final = ANNOTATION_PREFIX.rstrip("/")
_LOOKED_AT: Final[tuple[KeyLocation, ...]] = ("limit", "annotation", "env")
_PLACES: Final[dict[KeyLocation, str]] = {
    "limit": "resources.limits of the container",
    "annotation": "annotations of the pod",
    "label": "labels of the pod",
    "env": "the container's environment",
    "node label": "labels of the node",
    "node annotation": "annotations of the node",
}


def check_scopes(document: Document) -> Iterator[ManifestFinding]:
    """Yield annotations that are for no container, or do not say for which."""
    if document.kind in {*OUTSIDE, "oci"}:
        return
    for pod in document.pods:
        yield from _missing_containers(pod)
        yield from _ambiguous_keys(pod)
        yield from _first_container_takes(pod)
    yield from _misplaced_annotations(document)


def _missing_containers(pod: Pod) -> Iterator[ManifestFinding]:
    """Yield annotations for a container that the pod does not have."""
    names = [container.name for container in pod.containers]
    scoped = {
        name: (value, _scope(name)[0])
        for name, value in pod.annotations.items()
        if name.startswith(ANNOTATION_PREFIX + _SCOPE)
    }
    texts = {name: value.text for name, value in pod.annotations.items()}
    for found in TABLES.find("annotation", texts):
        if found.container:
            scoped[found.name] = pod.annotations[found.name], found.container
    for name, (value, container) in scoped.items():
        if container and container not in names:
            yield key_finding(
                f"annotation {name}",
                value,
                f"is for container {container}, which this pod does not have",
                _suggest(name, container, names),
            )


def _scope(name: str) -> tuple[str, str]:
    """Return the container and the key of `gpushare.io/container.NAME.KEY`."""
    container, _, key = name[len(ANNOTATION_PREFIX) + len(_SCOPE) :].partition(".")
    return container, key


def _suggest(name: str, container: str, names: list[str]) -> str:
    close = get_close_matches(container, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {name.replace(container, close[0], 1)}?"
    return "its containers are " + ", ".join(names)


def _ambiguous_keys(pod: Pod) -> Iterator[ManifestFinding]:
    """Yield annotations of ours that apply to several containers, of which one is refused."""
    mine = [name for name in pod.annotations if name.startswith(ANNOTATION_PREFIX)]
    unscoped = [name for name in mine if not name.startswith(ANNOTATION_PREFIX + _SCOPE)]
    named = {_scope(name)[0] for name in mine if name not in unscoped}
    running = [container.name for container in pod.running_together]
    if named or len(running) < 2:
        return
    # Each container that has an allocation of the scheduler may use its part as they say.
    scheduled = any(container.scheduled for container in pod.containers)
    for name in unscoped:
        key = name[len(ANNOTATION_PREFIX) :]
        if key in KEYS and not (key in REFINING_KEYS and scheduled):
            yield key_finding(
                f"annotation {name}",
                pod.annotations[name],
                f"names no container, and applies to each of {', '.join(running)}",
                f"write {scoped_name(running[0], key)}",
            )


def _first_container_takes(pod: Pod) -> Iterator[ManifestFinding]:
    """Yield vendors' annotations that name no container in a pod that has several.

    Their vendor knows which one is the first of its pod, and a node does not.
    """
    running = [container.name for container in pod.running_together]
    if len(running) < 2:
        return
    texts = {name: value.text for name, value in pod.annotations.items()}
    words = TABLES.find("annotation", texts)
    named = {word.dialect.name for word in words if word.container or word.row.names_container}
    for word in words:
        if word.row.role == "request" and word.dialect.name not in named:
            by = container_selector(TABLES, word.name)
            yield key_finding(
                f"annotation {value_title(word).partition(' ')[2]}",
                pod.annotations[word.name],
                f"names no container: of {', '.join(running)} the one that is created first gets "
                "it, and the others are refused",
                f"add {by}: {running[0]}" if by else "use gpushare convert, which adds the names",
                WARNING,
            )
            named.add(word.dialect.name)


def _misplaced_annotations(document: Document) -> Iterator[ManifestFinding]:
    """Yield requests in the annotations of an object instead of its pod template."""
    of_pods = {id(pod.metadata[0]) for pod in document.pods if pod.metadata}
    if not document.pods or id(value_at(document.root, "metadata")) in of_pods:
        return  # a Pod's own are its pod's
    for name, value in document.annotations.items():
        if _is_request(name, value):
            yield key_finding(
                f"annotation {name}",
                value,
                f"belongs to the {document.kind}, and is not passed to its pods",
                "move it to metadata.annotations of the pod template",
            )


def _is_request(name: str, value: ManifestValue) -> bool:
    if name.startswith(ANNOTATION_PREFIX):
        return True
    return any(word.row.role == "request" for word in TABLES.find("annotation", {name: value.text}))


def check_misplaced_resources(document: Document) -> Iterator[ManifestFinding]:
    """Yield vendors' resources that are in a pod or its object, or in a container's own keys."""
    if document.kind in {*OUTSIDE, "oci"}:
        return
    for pod in document.pods:
        for container in pod.containers:
            yield from _misplaced_resources(container.node, container.place)
        if document.kind in _WORKLOADS:
            for length in range(len(pod.place) + 1):
                place = (*pod.place[:length], "resources")
                yield from _misplaced_resources(find(document.root, place), place)


def _misplaced_resources(node: YamlNode | None, place: KeyPath) -> Iterator[ManifestFinding]:
    for kind in ("limit", "request"):
        values = values_of_mapping(value_at(node, f"{kind}s"), (*place, f"{kind}s"))
        known = {word.name for word in TABLES.find("limit", dict.fromkeys(values, ""))}
        for name in sorted(known):
            yield key_finding(
                f"{kind} {name}",
                values[name],
                "is not in resources of a container, and allocates nothing",
                f"move it to resources.{kind}s of the container",
            )


def check_unknown_keys(container: Container) -> Iterator[ManifestFinding]:
    """Yield the keys of `container` that begin like a vendor's and are in no table."""
    for where in _LOOKED_AT:
        values = container.values(where)
        known = {word.name for word in TABLES.find(where, dict.fromkeys(values, ""))}
        for name, value in values.items():
            if name not in known:
                yield from _check_key(where, name, value)
    for name, value in container.labels.items():
        if not TABLES.find("label", {name: ""}):
            yield from _misplaced_key("label", name, value)
    for name, value in container.annotations.items():
        domain, slash, key = name.partition("/")
        if slash and domain != _OURS and get_close_matches(domain, [_OURS], cutoff=0.8):
            fix = f"did you mean {ANNOTATION_PREFIX}{key}?"
            yield key_finding(f"annotation {name}", value, "is not a key of gpushare", fix)


def _check_key(where: KeyLocation, name: str, value: ManifestValue) -> Iterator[ManifestFinding]:
    found = list(_misplaced_key(where, name, value))
    yield from found
    dialect = _dialect_of(name)
    if found or dialect is None:
        return
    key = f"{where} {name}"
    close = get_close_matches(name, _known_names(where), n=1, cutoff=0.8)
    if close:
        yield key_finding(
            key, value, f"is not a key of {dialect.title}", f"did you mean {close[0]}?"
        )
    elif where != "limit" or not name.startswith("nvidia.com/"):
        # A cluster's own device plugin may call what it shares as it likes.
        fix = "gpushare ignores it"
        yield key_finding(key, value, f"is not a known key of {dialect.title}", fix, WARNING)


def _misplaced_key(
    where: KeyLocation, name: str, value: ManifestValue
) -> Iterator[ManifestFinding]:
    """Yield a key that its vendor only reads in another place."""
    places = [other for other in _PLACES if other != where and TABLES.find(other, {name: ""})]
    if not places or "/" not in name:
        return
    rule = f"has no effect in {_PLACES[where]}"
    yield key_finding(f"{where} {name}", value, rule, f"move it to {_PLACES[places[0]]}", ERROR)


def _dialect_of(name: str) -> Dialect | None:
    found = (one for one in TABLES.dialects if one.domains and name.startswith(one.domains))
    return next(found, None)


@cache
def _known_names(where: KeyLocation) -> tuple[str, ...]:
    rows = (row for one in TABLES.dialects for row in one.rows if row.where == where)
    return tuple(dict.fromkeys(row.name for row in rows if row.pattern is None))
