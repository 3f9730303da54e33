# SPDX-License-Identifier: Apache-2.0
"""What a dump of a cluster has of a system: objects, nodes, and workloads with its keys."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from gpushare.manifest.convert.edit_target import VENDOR_RUNTIMES
from gpushare.manifest.migration.systems import ROLES, Component, ComponentRole, SharingSystem
from gpushare.manifest.model import Container, Document, ManifestError, ManifestFile
from gpushare.manifest.request import ManifestRequest, request_of
from gpushare.quota.annotations import VENDOR, scoped_name
from gpushare.quota.dialects import TABLES, KeyLocation, VendorValue
from gpushare.quota.effective_request import resolve_request
from gpushare.quota.errors import QuotaError, quoted
from gpushare.quota.keys import request_from
from gpushare.text_position import Fault, at
from gpushare.yaml_nodes import fields, items, text_at, value_at

_RELEASE: Final = "meta.helm.sh/release-name"
_RELEASE_NAMESPACE: Final = "meta.helm.sh/release-namespace"
#: What a Deployment appends to its name in that of its ReplicaSet.
_HASH: Final = re.compile(r"-[a-z0-9]{1,10}$")
_OF_PODS: Final[tuple[KeyLocation, ...]] = ("limit", "annotation", "label", "env")
_OF_NODES: Final[tuple[KeyLocation, ...]] = ("node label", "node annotation")
#: Names and labels of the objects that steps name in commands: nothing that a shell expands.
_NAME: Final = re.compile(r"[A-Za-z0-9._:/-]{0,317}", re.ASCII)
#: The owner of a workload, and the name of a container.
WorkloadId: TypeAlias = "tuple[str, str]"


#: How pods request shares of gpushare's nodes.
MigrationMode: TypeAlias = Literal["plugin", "annotations"]

#: What the chart's MutatingAdmissionPolicy translates: RuntimeClasses that it replaces, names of
#: containers that fit into its annotation, and no pods of this namespace.
_TRANSLATED: Final = frozenset({"", *VENDOR_RUNTIMES})
_LONGEST: Final = 63 - len("container..vendor")
_NEVER: Final = "kube-system"


@dataclass(frozen=True)
class FoundObject:
    """An object of a system; `release` is that of helm, `NAMESPACE/NAME`, or empty."""

    role: ComponentRole
    place: str
    release: str
    document: Document = field(repr=False)

    def __str__(self) -> str:
        """Return `DaemonSet kube-system/hami-device-plugin`."""
        return str(self.document)

    @property
    def node_selector(self) -> dict[str, str]:
        """The labels of the nodes on which a DaemonSet runs."""
        node = value_at(self.document.root, "spec", "template", "spec", "nodeSelector")
        return {key: text_at(node, key) for key in fields(node)}


@dataclass(frozen=True)
class NodeKey:
    """A label, an annotation or a resource of a node that is a system's."""

    node: str
    where: str
    key: str
    value: str
    word: VendorValue = field(repr=False)


@dataclass(frozen=True)
class WorkloadKey:
    """A key of a system in a workload: the key that it becomes, and what its value means there."""

    where: str
    key: str
    value: str
    becomes: str
    means: str
    place: str


@dataclass
class FoundWorkload:
    """A container with a system's keys, of a workload with `pods` pods in the dump.

    `request` has gpushare's keys, `problems` why a node would refuse it. `selectors` are labels of
    nodes that its pods select and that the system needs. `has_template`: it was found by its
    owner's template. `names_scheduler`: that names the system's scheduler; a webhook writes the
    name to pods only.
    """

    owner: str
    namespace: str
    container: str
    place: str
    keys: tuple[WorkloadKey, ...]
    request: Mapping[str, str]
    problems: tuple[str, ...]
    runtime_class: str = ""
    selectors: tuple[str, ...] = ()
    names_scheduler: bool = False
    pods: int = 0
    has_template: bool = False

    def stays(self, mode: MigrationMode) -> str:
        """Return why the chart's admission policy leaves its pods as they are; or ""."""
        if self.namespace == _NEVER:
            return f"its namespace is {_NEVER}"
        if self.runtime_class not in _TRANSLATED:
            return f"it has the RuntimeClass {self.runtime_class}"
        if len(self.container) > _LONGEST:
            return f"the name of its container {self.container} has over {_LONGEST} characters"
        return self._not_counted() if mode == "plugin" else ""

    def _not_counted(self) -> str:
        """Return why the device plugin cannot count its memory: one card's, in bytes."""
        asks_memory = {"memory", "memory-percent"} & set(self.request)
        if self.request.get("cores") == "100" or not asks_memory:
            return "it requests whole cards"
        if "memory" not in self.request:
            return "it requests memory in percent"
        if self.request.get("count", "1") != "1":
            return "it requests several cards"
        return ""


@dataclass(frozen=True)
class ClusterFacts:
    """The nodes of a cluster, and the oldest version of their kubelets: (1, 36), or None."""

    nodes: frozenset[str]
    version: tuple[int, int] | None


@dataclass
class Inventory:
    """Everything that a dump has of one system."""

    system: SharingSystem
    objects: list[FoundObject] = field(default_factory=list)
    node_keys: list[NodeKey] = field(default_factory=list)
    workloads: list[FoundWorkload] = field(default_factory=list)

    @property
    def nodes(self) -> list[str]:
        """The nodes that have something of it, sorted."""
        return sorted({one.node for one in self.node_keys})

    @property
    def is_empty(self) -> bool:
        """Whether nothing was found."""
        return not (self.objects or self.node_keys or self.workloads)

    def of_role(self, role: ComponentRole) -> list[FoundObject]:
        """Return its objects with that role, in the order of the dump."""
        return [one for one in self.objects if one.role == role]


def cluster_facts(files: Iterable[ManifestFile]) -> ClusterFacts:
    """Return what all systems of a dump share."""
    nodes = [one for file in files for one in file.documents if one.kind == "Node"]
    versions: list[tuple[int, int]] = []
    for node in nodes:
        shown = text_at(node.root, "status", "nodeInfo", "kubeletVersion")
        match = re.match(r"v([0-9]+)\.([0-9]+)", shown)
        versions += [(int(match[1]), int(match[2]))] if match else []
    return ClusterFacts(frozenset(node.name for node in nodes), min(versions, default=None))


def take_inventory(files: Iterable[ManifestFile], system: SharingSystem) -> Inventory:
    """Return what `files` have of `system`; ManifestError if an object has an impossible name."""
    made = Inventory(system)
    others: list[tuple[ManifestFile, Document]] = []
    for file in files:
        for document in file.documents:
            role = _role_of(document, system)
            if role is not None:
                made.objects.append(_found(file, document, role))
            elif document.kind == "Node":
                made.node_keys += _node_keys(document, system)
            else:
                others.append((file, document))
    made.objects.sort(key=lambda one: ROLES.index(one.role))
    seen: dict[WorkloadId, FoundWorkload] = {}
    for file, document in others:
        _take_workloads(file, document, made, seen)
    made.workloads = sorted(seen.values(), key=lambda one: (one.owner, one.container))
    return made


def _role_of(document: Document, system: SharingSystem) -> ComponentRole | None:
    return next((one.role for one in system.components if _matches(document, one)), None)


def _matches(document: Document, one: Component) -> bool:
    if document.kind != one.kind:
        return False
    if one.webhook:
        hooks = items(value_at(document.root, "webhooks"))
        return any(text_at(hook, "name") == one.webhook for hook in hooks)
    if one.kind == "Pod" and _owner(document)[0]:
        return False  # what its owner is, is found by the owner
    if one.name is not None and one.name.search(document.name):
        return True
    images = [container.image for container in document.containers]
    return one.image is not None and any(one.image.search(image) for image in images)


def _found(file: ManifestFile, document: Document, role: ComponentRole) -> FoundObject:
    release = document.annotations.get(_RELEASE)
    namespace = document.annotations.get(_RELEASE_NAMESPACE)
    within = namespace.text if namespace else document.namespace
    named = f"{within}/{release.text}" if release else ""
    found = FoundObject(role, at(file.path, document.line), named, document)
    names = [document.name, within, named, *found.node_selector, *found.node_selector.values()]
    for name in names:
        if not _NAME.fullmatch(name):
            message = (
                f"{document.kind} {quoted(name)}: not a name of Kubernetes. Make the dump again"
            )
            raise ManifestError(file.path, Fault(document.line, 0, message))
    return found


def _node_keys(document: Document, system: SharingSystem) -> Iterator[NodeKey]:
    for where in _OF_NODES:
        texts = {key: value.text for key, value in document.values(where).items()}
        for word in TABLES.find(where, texts):
            if word.dialect.name in system.dialects:
                yield NodeKey(document.name, where, word.name, word.text, word)
    reported = fields(value_at(document.root, "status", "allocatable"))
    texts = {key: text_at(document.root, "status", "allocatable", key) for key in reported}
    for word in TABLES.find("limit", texts):
        is_shared = word.name in system.shared_limits
        if word.dialect.name in system.dialects and word.text != "0" and not is_shared:
            yield NodeKey(document.name, "resource", word.name, word.text, word)


def _owner(document: Document) -> tuple[str, str]:
    """Return the kind and name of what has made a pod; empty if nothing has."""
    for reference in items(value_at(document.root, "metadata", "ownerReferences")):
        kind, name = text_at(reference, "kind"), text_at(reference, "name")
        if kind == "ReplicaSet":
            return "Deployment", _HASH.sub("", name)
        return kind, name
    return "", ""


def _take_workloads(
    file: ManifestFile, document: Document, made: Inventory, seen: dict[WorkloadId, FoundWorkload]
) -> None:
    """Add the containers of `document` that have keys of the system to `seen`.

    A pod is counted for its owner, whose own template says what a webhook has not rewritten.
    """
    kind, name = _owner(document)
    namespace = f"{document.namespace}/" if document.namespace else ""
    owner = f"{kind} {namespace}{name}" if kind else str(document)
    is_pod = document.kind == "Pod"
    if is_pod and text_at(document.root, "status", "phase") in {"Succeeded", "Failed"}:
        return
    for container in document.containers:
        request = request_of(container, strict=False)
        keys = tuple(_keys(file, container, request, made.system))
        if not keys:
            continue
        known = seen.get((owner, container.name))
        if known is None or not (is_pod or known.has_template):
            workload = _workload(file, owner, container, request, keys)
            workload.pods = 0 if known is None else known.pods
            workload.has_template = not is_pod
            workload.selectors = tuple(_selectors(container, made))
            workload.names_scheduler = not is_pod and _names_scheduler(container, made.system)
            known = seen[owner, container.name] = workload
        known.pods += is_pod


def _workload(
    file: ManifestFile,
    owner: str,
    container: Container,
    request: ManifestRequest,
    keys: tuple[WorkloadKey, ...],
) -> FoundWorkload:
    problems = [str(one.error) for one in request.problems]
    if not problems:
        try:
            resolve_request(request_from(request.requested), cards=container.cards)
        except QuotaError as error:
            problems.append(str(error))
    return FoundWorkload(
        owner,
        container.document.namespace or "default",
        container.name,
        at(file.path, container.line),
        keys,
        {key: one.text for key, one in request.requested.items()},
        tuple(problems),
        container.pod.runtime_class,
    )


def _keys(
    file: ManifestFile, container: Container, request: ManifestRequest, system: SharingSystem
) -> Iterator[WorkloadKey]:
    """Yield the keys of `system`, without its own bookkeeping, where one of them is a request.

    A pod that gpushare's policy has translated is no longer the system's.
    """
    if scoped_name(container.name, VENDOR) in container.annotations:
        return
    words: dict[tuple[str, str], tuple[VendorValue, str]] = {}
    for one in request.dialects:
        for word in one.words:
            if one.dialect.name in system.dialects or word.name in system.shared_limits:
                meant = one.meant.get(word.name, "")
                words.setdefault((word.source.kind, word.name), (word, meant))
    if not any(_requests(word, system) for word, _ in words.values()):
        return
    for where in _OF_PODS:
        for name, value in container.values(where).items():
            found = words.get((where, name)) or words.get((f"pod {where}", name))
            if found is not None and found[0].row.role in {"request", "option"}:
                place = at(file.path, value.line, value.column)
                word, means = found
                yield WorkloadKey(where, name, value.text, becomes(word), means, place)


def _requests(word: VendorValue, system: SharingSystem) -> bool:
    return word.is_request or word.name in system.shared_limits


def becomes(word: VendorValue) -> str:
    """Return what the key of `word` becomes, for people; never empty."""
    row = word.row
    if not row.key:
        return row.instead or "nothing"
    how = ", divided by the number of cards" if row.summed else ""
    how += f", as a part of {row.fraction_of}" if row.fraction_of else ""
    return f"gpushare.io/{row.key}{how}"


def _selectors(container: Container, made: Inventory) -> Iterator[str]:
    """Yield the labels in a pod's nodeSelector that the system's nodes have, or need."""
    needed = {key for one in made.objects for key in one.node_selector}
    node = value_at(container.pod.node, "nodeSelector")
    texts = {key: text_at(node, key) for key in fields(node)}
    known = {
        word.name
        for word in TABLES.find("node label", texts)
        if word.dialect.name in made.system.dialects
    }
    yield from (f"{key}={text}" for key, text in texts.items() if key in known | needed)


def _names_scheduler(container: Container, system: SharingSystem) -> bool:
    named = text_at(container.pod.node, "schedulerName")
    return bool(system.scheduler) and named == system.scheduler
