# SPDX-License-Identifier: Apache-2.0
"""Task definitions of AWS ECS, as the API and CloudFormation write them.

Source: ECS API Reference, ContainerDefinition and ResourceRequirement with its sharingStrategy.
CloudFormation begins each key with a capital letter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import yaml

from gpushare.manifest.file import Container, Document, Pod, Value
from gpushare.manifest.nodes import Entry, below, entries, items, word
from gpushare.manifest.values import mapping, value_of
from gpushare.marks import Place

_TYPE: Final = "AWS::ECS::TaskDefinition"


def is_ecs(root: yaml.Node) -> bool:
    """Whether `root` has a task definition, or is one."""
    return next(_definitions(root), None) is not None


def read(root: yaml.Node) -> Document:
    """Return the document of task definitions; each container is a pod of its own."""
    document = Document("ecs", root)
    for definition, place in _definitions(root):
        document.name = document.name or word(_get(definition, "family")) or ""
        key, containers = _entry(definition, "containerDefinitions")
        for number, node in enumerate(items(containers)):
            document.pods.append(_pod(document, node, (*place, key, number)))
    return document


def _definitions(root: yaml.Node) -> Iterator[tuple[yaml.Node, Place]]:
    for node, place in (
        (root, ()),
        (below(root, "taskDefinition"), ("taskDefinition",)),
        *(
            (below(entry.value, "Properties"), ("Resources", name, "Properties"))
            for name, entry in entries(below(root, "Resources")).items()
            if word(below(entry.value, "Type")) == _TYPE
        ),
    ):
        if node is not None and _get(node, "containerDefinitions") is not None:
            yield node, place


def _entry(node: yaml.Node | None, key: str) -> tuple[str, yaml.Node | None]:
    """Return the spelling of `key` that is there, and its value."""
    capital = key[0].upper() + key[1:]
    found = entries(node)
    spelling = capital if capital in found else key
    return spelling, found[spelling].value if spelling in found else None


def _get(node: yaml.Node | None, *way: str) -> yaml.Node | None:
    for key in way:
        _, node = _entry(node, key)
    return node


def _pod(document: Document, node: yaml.Node, place: Place) -> Pod:
    labels, where = _get(node, "dockerLabels"), _entry(node, "dockerLabels")[0]
    pod = Pod(document, place, node, labels=mapping(labels, (*place, where)))
    pod.containers.append(
        Container(
            name=word(_get(node, "name")) or "",
            place=place,
            node=node,
            pod=pod,
            image=word(_get(node, "image")) or "",
            env=_env(node, place),
            task=dict(_task(node, place)),
        )
    )
    return pod


def _env(node: yaml.Node, place: Place) -> dict[str, Value]:
    found: dict[str, Value] = {}
    key, environment = _entry(node, "environment")
    for number, item in enumerate(items(environment)):
        name, (spelling, value) = _get(item, "name"), _entry(item, "value")
        if isinstance(name, yaml.ScalarNode) and value is not None:
            made = value_of(Entry(name, value), (*place, key, number, spelling))
            if made is not None:
                found[name.value] = made
    return found


def _task(node: yaml.Node, place: Place) -> Iterator[tuple[str, Value]]:
    """Yield what a container asks of GPUs: whole ones, or `nvidiaMps.memory` and its neighbour."""
    key, requirements = _entry(node, "resourceRequirements")
    for number, item in enumerate(items(requirements)):
        if word(_get(item, "type")) != "GPU":
            continue
        for name, way in (
            ("resourceRequirements.GPU", ("value",)),
            ("nvidiaMps.memory", ("sharingStrategy", "nvidiaMps", "memory")),
            (
                "nvidiaMps.maxComputePercent",
                ("sharingStrategy", "nvidiaMps", "maxComputePercent"),
            ),
        ):
            holder = _get(item, *way[:-1])
            spelling, _ = _entry(holder, way[-1])
            entry = entries(holder).get(spelling)
            value = value_of(entry, (*place, key, number, *way)) if entry else None
            if value is not None:
                yield name, value
