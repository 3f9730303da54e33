# SPDX-License-Identifier: Apache-2.0
"""Task definitions of AWS ECS, as the API and CloudFormation write them.

Source: ECS API Reference, ContainerDefinition and ResourceRequirement with its sharingStrategy.
CloudFormation begins each key with a capital letter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpushare.manifest.model import (
    Container,
    Document,
    ManifestValue,
    Pod,
    value_of,
    values_of_mapping,
)
from gpushare.text_position import KeyPath
from gpushare.yaml_nodes import MappingEntry, YamlNode, fields, items, scalar_text, value_at

_TYPE: Final = "AWS::ECS::TaskDefinition"


def is_ecs(root: YamlNode) -> bool:
    """Whether `root` has a task definition, or is one."""
    return next(_definitions(root), None) is not None


def read_ecs(root: YamlNode) -> Document:
    """Return the document of task definitions; each container is a pod of its own."""
    document = Document("ecs", root)
    for definition, place in _definitions(root):
        document.name = document.name or scalar_text(_get(definition, "family")) or ""
        key, containers = _entry(definition, "containerDefinitions")
        for number, node in enumerate(items(containers)):
            document.pods.append(_pod(document, node, (*place, key, number)))
    return document


def _definitions(root: YamlNode) -> Iterator[tuple[YamlNode, KeyPath]]:
    for node, place in (
        (root, ()),
        (value_at(root, "taskDefinition"), ("taskDefinition",)),
        *(
            (value_at(entry.value, "Properties"), ("Resources", name, "Properties"))
            for name, entry in fields(value_at(root, "Resources")).items()
            if scalar_text(value_at(entry.value, "Type")) == _TYPE
        ),
    ):
        if node is not None and _get(node, "containerDefinitions") is not None:
            yield node, place


def _entry(node: YamlNode | None, key: str) -> tuple[str, YamlNode | None]:
    """Return the spelling of `key` that is there, and its value."""
    capital = key[0].upper() + key[1:]
    entries = fields(node)
    spelling = capital if capital in entries else key
    return spelling, entries[spelling].value if spelling in entries else None


def _get(node: YamlNode | None, *way: str) -> YamlNode | None:
    for key in way:
        _, node = _entry(node, key)
    return node


def _pod(document: Document, node: YamlNode, place: KeyPath) -> Pod:
    labels, where = _get(node, "dockerLabels"), _entry(node, "dockerLabels")[0]
    pod = Pod(document, place, node, labels=values_of_mapping(labels, (*place, where)))
    pod.containers.append(
        Container(
            name=scalar_text(_get(node, "name")) or "",
            place=place,
            node=node,
            pod=pod,
            image=scalar_text(_get(node, "image")) or "",
            env=_env(node, place),
            task=dict(_task(node, place)),
        )
    )
    return pod


def _env(node: YamlNode, place: KeyPath) -> dict[str, ManifestValue]:
    variables: dict[str, ManifestValue] = {}
    key, environment = _entry(node, "environment")
    for number, item in enumerate(items(environment)):
        name, (spelling, value) = _get(item, "name"), _entry(item, "value")
        if name is not None and name.kind == "scalar" and value is not None:
            variable = value_of(MappingEntry(name, value), (*place, key, number, spelling))
            if variable is not None:
                variables[name.text] = variable
    return variables


def _task(node: YamlNode, place: KeyPath) -> Iterator[tuple[str, ManifestValue]]:
    """Yield what a container asks of GPUs: whole ones, or `nvidiaMps.memory` and its neighbour."""
    key, requirements = _entry(node, "resourceRequirements")
    for number, item in enumerate(items(requirements)):
        if scalar_text(_get(item, "type")) != "GPU":
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
            entry = fields(holder).get(spelling)
            value = value_of(entry, (*place, key, number, *way)) if entry else None
            if value is not None:
                yield name, value
