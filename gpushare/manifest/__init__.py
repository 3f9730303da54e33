# SPDX-License-Identifier: Apache-2.0
"""Manifests as people write them, with the position of everything in them.

`read` finds the documents, pods and containers of a file (`model`): `kubernetes`, `compose_file`,
a container's config.json, and task definitions of ECS. `request` is what a container requests by
them.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from gpushare.manifest import compose_file, kubernetes
from gpushare.manifest.model import (
    STDIN,
    Container,
    Document,
    ManifestError,
    ManifestFile,
    ManifestValue,
    Pod,
    value_of,
    values_of_mapping,
    values_of_pairs,
)
from gpushare.quota.annotations import pod_of
from gpushare.quota.keys import ANNOTATION_PREFIX, ENV_PREFIX
from gpushare.text_position import Fault, KeyPath, UnreadableText, decode, read_text
from gpushare.yaml_nodes import (
    MAX_BYTES,
    MAX_VALUES,
    MappingEntry,
    YamlNode,
    fields,
    items,
    parse,
    scalar_text,
    text_at,
    value_at,
)

_WHAT: Final = "manifest"
_OURS: Final = (ANNOTATION_PREFIX, ENV_PREFIX)
_SLOW_VALUES: Final = 10  # a container, or a key of ours, takes as long as so many other values


def read(path: str | Path, text: str | None = None) -> ManifestFile:
    """Return what the file at `path` describes, or `text` under that name; `-` is standard input.

    ManifestError: it cannot be read, is no YAML or JSON, or is too much of it.
    """
    path, is_file = str(path), text is None
    try:
        text = _text(path) if text is None else text
        parsed = parse(text)
    except UnreadableText as error:
        raise ManifestError(path, error.fault) from error
    if is_file and not parsed.roots:
        raise ManifestError(path, Fault(0, 0, "is empty. Use a manifest that has containers"))
    kinds = kubernetes.KubernetesReader(text, MAX_VALUES)
    folder = None if path == STDIN else Path(path).parent
    documents = [document for root in parsed.roots for document in _documents(root, kinds, folder)]
    values = _count_values(path, parsed.roots, documents)
    _give_claims(documents)
    return ManifestFile(path, text, parsed.roots, tuple(documents), parsed.duplicates, values)


def _text(path: str) -> str:
    if path == STDIN:
        return decode(sys.stdin.buffer, MAX_BYTES, _WHAT)
    return read_text(Path(path), MAX_BYTES, _WHAT)


def _documents(
    root: YamlNode, kinds: kubernetes.KubernetesReader, folder: Path | None
) -> Iterator[Document]:
    if root.kind != "mapping":
        return  # nothing between two lines of dashes, or a text that is no manifest
    if is_oci(root):
        yield read_oci(root)
    elif _is_compose(root):
        yield compose_file.read_compose(root, folder)
    elif is_ecs(root):
        yield read_ecs(root)
    elif "kind" not in fields(root) and (settings := kubernetes.plugin_settings(root, ())):
        yield Document("device-plugin", root, plugin=settings)
    else:
        yield from kinds.read(root)


def _is_compose(root: YamlNode) -> bool:
    """Whether `root` is that of a compose file."""
    services = fields(value_at(root, "services"))
    known = {"image", "build", "extends"}
    return "apiVersion" not in fields(root) and any(
        not known.isdisjoint(fields(entry.value)) for entry in services.values()
    )


def _count_values(path: str, roots: Sequence[YamlNode], documents: list[Document]) -> int:
    """Return what a file comes to: what a pod has is looked at for each of its containers.

    ManifestError: that is too much.
    """
    values = sum(root.values for root in roots)
    claims = {document.name: len(document.claim) for document in documents if document.claim}
    for container in (one for document in documents for one in document.containers):
        pod = container.pod
        named = (claims.get(pod.claims.get(name, ("", ""))[1], 0) for name in container.claims)
        ours = sum(name.startswith(_OURS) for name in (*container.env, *pod.annotations))
        values += _SLOW_VALUES * (1 + ours) + len(pod.annotations) + len(pod.labels) + sum(named)
        if values > MAX_VALUES:
            message = f"comes to over {MAX_VALUES} values for its containers; split the file"
            raise ManifestError(path, Fault(container.line, 0, message))
    return values


def _give_claims(documents: list[Document]) -> None:
    """Give each container what the claims ask that it names, where they are in the same file."""
    claims = {
        (document.kind, document.name): document.claim
        for document in documents
        if document.kind in {"ResourceClaim", "ResourceClaimTemplate"}
    }
    for container in (one for document in documents for one in document.containers):
        for name in container.claims:
            requested = claims.get(container.pod.claims.get(name, ("", "")), {})
            container.claim = {**container.claim, **requested}


def is_oci(root: YamlNode) -> bool:
    """Whether `root` is that of a config.json."""
    return "ociVersion" in fields(root) and "process" in fields(root)


def read_oci(root: YamlNode) -> Document:
    """Return the document of a config.json, with its one container."""
    document = Document("oci", root)
    annotations = values_of_mapping(value_at(root, "annotations"), ("annotations",))
    pod = Pod(document, (), root, annotations)
    around = pod_of({name: value.text for name, value in annotations.items()})
    pod.containers.append(
        Container(
            name=around.container if around else text_at(root, "hostname"),
            place=(),
            node=root,
            pod=pod,
            env=values_of_pairs(value_at(root, "process", "env"), ("process", "env")),
        )
    )
    document.pods.append(pod)
    return document


# --- task definitions of AWS ECS, as the API and CloudFormation write them ---
#
# Source: ECS API Reference, ContainerDefinition and ResourceRequirement with its sharingStrategy.
# CloudFormation begins each key with a capital letter.


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
