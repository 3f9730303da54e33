# SPDX-License-Identifier: Apache-2.0
"""For which container of a pod an annotation is, and annotations that are no pod's."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final

from gpushare.manifest.check.finding import WARNING, Finding, of_key
from gpushare.manifest.file import OUTSIDE, Document, Pod, Value
from gpushare.manifest.nodes import below
from gpushare.quota.annotations import scoped_name
from gpushare.quota.dialects import TABLES, naming, shown
from gpushare.quota.keys import ANNOTATION_PREFIX, KEYS

_SCOPE: Final = "container."


def scopes(document: Document) -> Iterator[Finding]:
    """Yield annotations that are for no container, or for nobody knows which."""
    if document.kind in {*OUTSIDE, "oci"}:
        return
    for pod in document.pods:
        yield from _named(pod)
        yield from _unnamed(pod)
        yield from _first_takes(pod)
    yield from _misplaced(document)


def _named(pod: Pod) -> Iterator[Finding]:
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
            yield of_key(
                f"annotation {name}",
                value,
                f"is for container {container}, which this pod does not have",
                _meant(name, container, names),
            )


def _scope(name: str) -> tuple[str, str]:
    """Return the container and the key of `gpushare.io/container.NAME.KEY`."""
    container, _, key = name[len(ANNOTATION_PREFIX) + len(_SCOPE) :].partition(".")
    return container, key


def _meant(name: str, container: str, names: list[str]) -> str:
    close = get_close_matches(container, names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {name.replace(container, close[0], 1)}?"
    return "its containers are " + ", ".join(names)


def _unnamed(pod: Pod) -> Iterator[Finding]:
    """Yield annotations of ours that several containers would take, of which one is refused."""
    mine = [name for name in pod.annotations if name.startswith(ANNOTATION_PREFIX)]
    unscoped = [name for name in mine if not name.startswith(ANNOTATION_PREFIX + _SCOPE)]
    named = {_scope(name)[0] for name in mine if name not in unscoped}
    running = [container.name for container in pod.containers if not container.init]
    if named or len(running) < 2:
        return
    for name in unscoped:
        key = name[len(ANNOTATION_PREFIX) :]
        if key in KEYS:
            yield of_key(
                f"annotation {name}",
                pod.annotations[name],
                f"is for no container by name, and {' and '.join(running)} would take it",
                f"write {scoped_name(running[0], key)}",
            )


def _first_takes(pod: Pod) -> Iterator[Finding]:
    """Yield vendors' annotations that ask for no container by name, where there are several.

    Their vendor knows which one is the first of its pod, and a node does not.
    """
    running = [container.name for container in pod.containers if not container.init]
    if len(running) < 2:
        return
    texts = {name: value.text for name, value in pod.annotations.items()}
    words = TABLES.find("annotation", texts)
    named = {word.dialect.name for word in words if word.container or word.row.names_container}
    for word in words:
        if word.row.use == "asks" and word.dialect.name not in named:
            by = naming(TABLES, word.name)
            yield of_key(
                f"annotation {shown(word).partition(' ')[2]}",
                pod.annotations[word.name],
                "names no container, and a node gives it to the one that is made first and refuses "
                f"the others of {', '.join(running)}",
                f"add {by}: {running[0]}" if by else "gpushare convert names containers",
                WARNING,
            )
            named.add(word.dialect.name)


def _misplaced(document: Document) -> Iterator[Finding]:
    """Yield annotations of an object that asks, where only its pods' template could."""
    of_pods = {id(pod.metadata[0]) for pod in document.pods if pod.metadata}
    if not document.pods or id(below(document.root, "metadata")) in of_pods:
        return  # a Pod's own are its pod's
    for name, value in document.annotations.items():
        if _asks(name, value):
            yield of_key(
                f"annotation {name}",
                value,
                f"is the {document.kind}'s own, and its pods do not get it",
                "write it to metadata.annotations of the pod template",
            )


def _asks(name: str, value: Value) -> bool:
    if name.startswith(ANNOTATION_PREFIX):
        return True
    return any(word.row.use == "asks" for word in TABLES.find("annotation", {name: value.text}))
