# SPDX-License-Identifier: Apache-2.0
"""The content of a file of manifests: documents, their pods, and the containers of those.

Every text of the file is a ManifestValue, which knows its position, and so does a ManifestFinding.
The functions that read the forms in which names and texts are written omit what has another shape
than it should: gpushare/manifest/check reports that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, TypeAlias

from gpushare.errors import ErrorCode, UserError
from gpushare.quota.errors import refusal
from gpushare.quota.keys import ANNOTATION_PREFIX
from gpushare.quota.parse import default_trust
from gpushare.quota.request import EngineCards
from gpushare.text_position import Fault, KeyPath, at
from gpushare.yaml_nodes import (
    DuplicateKey,
    MappingEntry,
    YamlNode,
    fields,
    items,
    scalar_text,
    value_at,
)

#: error: refused, or without the effect that it is meant to have. warning: may be. info: a note.
FindingLevel: TypeAlias = Literal["error", "warning", "info"]

ERROR: Final[FindingLevel] = "error"
WARNING: Final[FindingLevel] = "warning"
INFO: Final[FindingLevel] = "info"
#: Documents whose containers no kubelet makes.
OUTSIDE: Final = frozenset({"compose", "ecs"})
#: Values by the name of what they are of: a variable, an annotation, a resource.
ManifestValues = Mapping[str, "ManifestValue"]
#: Of configs/kubernetes: the DeviceClass, and the beginning of the RuntimeClasses.
OWN_CLASS: Final = "gpushare"
#: The path by which standard input is named, as by `kubectl apply -f -`.
STDIN: Final = "-"


class ManifestError(UserError):
    """It is no YAML or JSON, or too much of it; the text has file, line, column and the fix."""

    code = ErrorCode.INVALID

    def __init__(self, path: str, fault: Fault) -> None:
        super().__init__(f"{at(path, fault.line, fault.column)}: {fault.message}")
        self.path = path
        self.fault = fault


@dataclass(frozen=True)
class ManifestValue:
    """One text that was written, and where: `line` and `column` count from 1.

    `key_node` is the node of its key, and is `value_node` itself for `NAME=VALUE` in one scalar.
    `place` leads to the value from its document's root. What came through an alias or a merge key
    stands where it was written.
    """

    text: str
    place: KeyPath
    key_node: YamlNode
    value_node: YamlNode

    @property
    def line(self) -> int:
        """The line of the value."""
        return self.value_node.line

    @property
    def column(self) -> int:
        """The column of the value; for `NAME=VALUE` that of the name."""
        return self.value_node.column


@dataclass(eq=False)
class Container:
    """One container that a document describes.

    `position` counts the containers of its pod from 0, init containers apart. `sidecar` is an init
    container that keeps running next to the others (`restartPolicy: Always`). `annotations` and
    `labels` are those of its pod, and where there are no pods its own. `limits` and `requests` are
    its resources, `task` what a task definition says of its GPU, `claim` what the claims of devices
    that it names (`claims`) ask, where the file has them. `cards` are those that an engine is asked
    for beside its environment. `unknown` are variables of which only a shell or a cluster knows the
    value, and `unresolved` is what decides its request and cannot be known from the file.
    """

    name: str
    place: KeyPath
    node: YamlNode
    pod: Pod
    position: int = 0
    init: bool = False
    sidecar: bool = False
    image: str = ""
    env: ManifestValues = field(default_factory=dict)
    limits: ManifestValues = field(default_factory=dict)
    requests: ManifestValues = field(default_factory=dict)
    task: ManifestValues = field(default_factory=dict)
    claims: tuple[str, ...] = ()
    claim: ManifestValues = field(default_factory=dict)
    cards: EngineCards | None = None
    runtime: str = ""
    unknown: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()

    @property
    def annotations(self) -> ManifestValues:
        """The annotations of its pod."""
        return self.pod.annotations

    @property
    def labels(self) -> ManifestValues:
        """The labels of its pod."""
        return self.pod.labels

    @property
    def arguments(self) -> tuple[str, ...]:
        """Its command line, as far as the manifest says it; a shell's line is one argument."""
        keys = (("entrypoint",), ("entryPoint",), ("command",), ("args",), ("process", "args"))
        nodes = [value_at(self.node, *path) for path in keys]
        words = [item for node in nodes for item in (items(node) or (node,))]
        return tuple(text for text in map(scalar_text, words) if text)

    @property
    def scheduled(self) -> str:
        """The part of a card that the Kubernetes scheduler allocates by gpushare-node; or ""."""
        for name, value in self.limits.items():
            if name.startswith(ANNOTATION_PREFIX):
                return f"limit {name}={value.text}"
        if self.claims and self.pod.runtime_class.startswith(OWN_CLASS):
            return f"claim {self.claims[0]}"
        return ""

    @property
    def document(self) -> Document:
        """The document that describes it."""
        return self.pod.document

    @property
    def in_cluster(self) -> bool:
        """Whether a kubelet makes it: its environment then asks for nothing by itself."""
        if self.document.kind == "oci":
            texts = {name: value.text for name, value in self.annotations.items()}
            return default_trust(texts) == "reduce"
        return self.document.kind not in OUTSIDE

    def values(self, kind: str) -> ManifestValues:
        """Return its values where sources of that kind are (gpushare.quota.Source)."""
        values_by_kind: Mapping[str, ManifestValues] = {
            "env": self.env,
            "annotation": self.annotations,
            "pod annotation": self.annotations,
            "limit": self.limits,
            "label": self.labels,
            "claim": self.claim,
            "task": self.task,
        }
        return values_by_kind.get(kind, {})

    @property
    def line(self) -> int:
        """The line in which its description begins."""
        return self.node.line


@dataclass(eq=False)
class Pod:
    """Containers that share annotations and labels.

    `claims` has for each claim of devices the kind and name of the object that says what it asks.
    A service of compose, a container of a task and a config.json are a pod of one container.
    """

    document: Document
    place: KeyPath
    node: YamlNode
    annotations: ManifestValues = field(default_factory=dict)
    labels: ManifestValues = field(default_factory=dict)
    containers: list[Container] = field(default_factory=list)
    claims: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    runtime_class: str = ""
    metadata: tuple[YamlNode, KeyPath] | None = None

    @cached_property
    def names(self) -> Counter[str]:
        """How many of its containers have each name, once all are read."""
        return Counter(container.name for container in self.containers)

    @property
    def running_together(self) -> list[Container]:
        """The containers that run at the same time: all but init containers, then sidecars."""
        regular = [container for container in self.containers if not container.init]
        return regular + [container for container in self.containers if container.sidecar]


@dataclass(eq=False)
class Document:
    """One document of a file, or one item of a List.

    `kind` is that of Kubernetes, or compose, ecs, oci, device-plugin; empty where it is none that
    is known. `annotations` and `labels` are the object's own. `plugin` has what a ConfigMap or a
    file says to a device plugin, `claim` what a claim or a class of devices asks, both by dotted
    keys; `data` has the texts of a ConfigMap.
    """

    kind: str
    root: YamlNode
    name: str = ""
    namespace: str = ""
    annotations: ManifestValues = field(default_factory=dict)
    labels: ManifestValues = field(default_factory=dict)
    data: ManifestValues = field(default_factory=dict)
    plugin: ManifestValues = field(default_factory=dict)
    claim: ManifestValues = field(default_factory=dict)
    pods: list[Pod] = field(default_factory=list)

    @property
    def line(self) -> int:
        """The line in which it begins."""
        return self.root.line

    @property
    def containers(self) -> list[Container]:
        """All containers, pod after pod, init containers first."""
        return [container for pod in self.pods for container in pod.containers]

    def values(self, kind: str) -> ManifestValues:
        """Return the object's own values where sources of that kind are: for the operator's."""
        if self.kind == "Node":
            values_by_kind = {"node label": self.labels, "node annotation": self.annotations}
            return values_by_kind.get(kind, {})
        return {"plugin": self.plugin, "claim": self.claim}.get(kind, {})

    def __str__(self) -> str:
        """Return `Deployment team/train`, as kubectl's users know it."""
        named = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return " ".join(part for part in (self.kind, named) if part)


@dataclass(frozen=True)
class ManifestFile:
    """One file; `duplicates` are the keys that a mapping of it has a second time.

    `values` is how many values there are to look at.
    """

    path: str
    text: str
    roots: tuple[YamlNode, ...]
    documents: tuple[Document, ...]
    duplicates: tuple[DuplicateKey, ...] = ()
    values: int = 0

    @property
    def containers(self) -> list[Container]:
        """All containers of all documents."""
        return [container for document in self.documents for container in document.containers]


def values_of_mapping(node: YamlNode | None, place: KeyPath) -> dict[str, ManifestValue]:
    """Return the values of a mapping from names to scalars: annotations, limits, data."""
    values: dict[str, ManifestValue] = {}
    for name, entry in fields(node).items():
        value = value_of(entry, (*place, name))
        if value is not None:
            values[name] = value
    return values


def value_of(entry: MappingEntry, place: KeyPath) -> ManifestValue | None:
    """Return the value of `entry` where it is a scalar and not null."""
    text = scalar_text(entry.value)
    return None if text is None else ManifestValue(text, place, entry.key, entry.value)


def values_of_named(node: YamlNode | None, place: KeyPath) -> dict[str, ManifestValue]:
    """Return the values of a list of `{name: ..., value: ...}`; of a name twice the last."""
    values: dict[str, ManifestValue] = {}
    for number, item in enumerate(items(node)):
        name, value = value_at(item, "name"), value_at(item, "value")
        if name is None or name.kind != "scalar" or value is None:
            continue
        named_value = value_of(MappingEntry(name, value), (*place, number, "value"))
        if named_value is not None:
            values[name.text] = named_value
    return values


def values_of_pairs(node: YamlNode | None, place: KeyPath) -> dict[str, ManifestValue]:
    """Return the values of a list of `NAME=VALUE`; one without `=` has its value elsewhere."""
    values: dict[str, ManifestValue] = {}
    for number, item in enumerate(items(node)):
        if item.kind == "scalar":
            name, equals, text = item.text.partition("=")
            if equals:
                values[name] = ManifestValue(text, (*place, number), item, item)
    return values


def values_of_either(node: YamlNode | None, place: KeyPath) -> dict[str, ManifestValue]:
    """Return the values of what may be a mapping or a list of `NAME=VALUE`, as in compose."""
    return {**values_of_mapping(node, place), **values_of_pairs(node, place)}


def leaf_values(
    node: YamlNode | None, place: KeyPath, above: str = ""
) -> Iterator[tuple[str, ManifestValue]]:
    """Yield every scalar beneath a mapping by its dotted key, which no index of a list is in."""
    for name, entry in fields(node).items():
        yield from _leaf(entry, (*place, name), f"{above}.{name}" if above else name)


def _leaf(entry: MappingEntry, place: KeyPath, key: str) -> Iterator[tuple[str, ManifestValue]]:
    value = value_of(entry, place)
    if value is not None:
        yield key, value
    elif entry.value.kind == "sequence":
        for number, item in enumerate(items(entry.value)):
            yield from _leaf(MappingEntry(entry.key, item), (*place, number), key)
    else:
        yield from leaf_values(entry.value, place, key)


def first_leaf_values(node: YamlNode | None, place: KeyPath) -> ManifestValues:
    """Return the leaves by key; of a key that several items of a list have the first."""
    values: dict[str, ManifestValue] = {}
    for key, value in leaf_values(node, place):
        values.setdefault(key, value)
    return values


@dataclass(frozen=True, order=True)
class ManifestFinding:
    """An error or a note: line and column (0: none), key, value, rule and fix."""

    line: int
    column: int
    key: str
    rule: str
    fix: str
    value: str = ""
    level: FindingLevel = ERROR

    def __str__(self) -> str:
        """Return `gpushare.io/memory=4Q: not a size. Write e.g. 4GiB.` or alike."""
        text = self.rule
        if self.key:
            text = refusal(self.key, self.value or None, self.rule, self.fix)
        return text if self.level == ERROR else f"{self.level}: {text}"


def value_finding(
    key: str, value: ManifestValue, rule: str, fix: str, level: FindingLevel = ERROR
) -> ManifestFinding:
    """Return a finding where `value` stands."""
    return ManifestFinding(value.line, value.column, key, rule, fix, value.text, level)


def key_finding(
    key: str, value: ManifestValue, rule: str, fix: str, level: FindingLevel = ERROR
) -> ManifestFinding:
    """Return a finding where the key of `value` stands."""
    return node_finding(key, value.key_node, rule, fix, value=value.text, level=level)


def node_finding(  # noqa: PLR0913 - a finding's parts
    key: str, node: YamlNode, rule: str, fix: str, *, value: str = "", level: FindingLevel = ERROR
) -> ManifestFinding:
    """Return a finding where `node` begins."""
    return ManifestFinding(node.line, node.column, key, rule, fix, value, level)
