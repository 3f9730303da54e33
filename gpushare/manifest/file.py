# SPDX-License-Identifier: Apache-2.0
"""What a file of manifests has in it: documents, their pods, the containers of those.

Everything that somebody wrote is a Value, which knows where it stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import yaml

from gpushare.manifest.nodes import Twice
from gpushare.marks import Place
from gpushare.quota import Cards, default_trust

#: Documents whose containers no kubelet makes.
OUTSIDE: Final = frozenset({"compose", "ecs"})

#: Values by the name of what they are of: a variable, an annotation, a resource.
Values = Mapping[str, "Value"]


@dataclass(frozen=True)
class Value:
    """One text that was written, and where: `line` and `column` count from 1.

    `key_node` is the node of its key, and is `value_node` itself for `NAME=VALUE` in one scalar.
    Marks are those of PyYAML, `index` being into the text of the file; `place` leads to the value
    from its document's root. What came through an alias or a merge key stands where it was written.
    """

    text: str
    place: Place
    key_node: yaml.ScalarNode
    value_node: yaml.ScalarNode

    @property
    def line(self) -> int:
        """The line of the value."""
        return self.value_node.start_mark.line + 1

    @property
    def column(self) -> int:
        """The column of the value; for `NAME=VALUE` that of the name."""
        return self.value_node.start_mark.column + 1


@dataclass(eq=False)
class Container:
    """One container that a document describes.

    `position` counts the containers of its pod from 0, init containers apart. `annotations` and
    `labels` are those of its pod, and where there are no pods its own. `limits` and `requests` are
    its resources, `task` what a task definition says of its GPU, `claim` what the claims of devices
    that it names (`claims`) ask, where the file has them. `cards` are those that an engine is asked
    for beside its environment. `unknown` are variables of which only a shell or a cluster knows the
    value.
    """

    name: str
    place: Place
    node: yaml.Node
    pod: Pod
    position: int = 0
    init: bool = False
    image: str = ""
    env: Values = field(default_factory=dict)
    limits: Values = field(default_factory=dict)
    requests: Values = field(default_factory=dict)
    task: Values = field(default_factory=dict)
    claims: tuple[str, ...] = ()
    claim: Values = field(default_factory=dict)
    cards: Cards | None = None
    runtime: str = ""
    unknown: tuple[str, ...] = ()

    @property
    def annotations(self) -> Values:
        """The annotations of its pod."""
        return self.pod.annotations

    @property
    def labels(self) -> Values:
        """The labels of its pod."""
        return self.pod.labels

    @property
    def document(self) -> Document:
        """The document that describes it."""
        return self.pod.document

    @property
    def in_cluster(self) -> bool:
        """Whether a kubelet makes it: its environment then asks for nothing by itself."""
        if self.document.kind == "oci":
            texts = {name: value.text for name, value in self.annotations.items()}
            return default_trust(texts) == "shrink"
        return self.document.kind not in OUTSIDE

    def values(self, kind: str) -> Values:
        """Return its values where sources of that kind are (gpushare.quota.Source)."""
        found: Mapping[str, Values] = {
            "env": self.env,
            "annotation": self.annotations,
            "pod annotation": self.annotations,
            "limit": self.limits,
            "label": self.labels,
            "claim": self.claim,
            "task": self.task,
        }
        return found.get(kind, {})

    @property
    def line(self) -> int:
        """The line in which its description begins."""
        return self.node.start_mark.line + 1


@dataclass(eq=False)
class Pod:
    """Containers that share annotations and labels.

    `claims` has for each claim of devices the kind and name of the object that says what it asks.
    A service of compose, a container of a task and a config.json are a pod of one container.
    """

    document: Document
    place: Place
    node: yaml.Node
    annotations: Values = field(default_factory=dict)
    labels: Values = field(default_factory=dict)
    containers: list[Container] = field(default_factory=list)
    claims: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    runtime_class: str = ""
    metadata: tuple[yaml.Node, Place] | None = None


@dataclass(eq=False)
class Document:
    """One document of a file, or one item of a List.

    `kind` is that of Kubernetes, or compose, ecs, oci, device-plugin; empty where it is none that
    is known. `annotations` and `labels` are the object's own. `plugin` has what a ConfigMap or a
    file says to a device plugin, `claim` what a claim or a class of devices asks, both by dotted
    keys; `data` has the texts of a ConfigMap.
    """

    kind: str
    root: yaml.Node
    name: str = ""
    namespace: str = ""
    annotations: Values = field(default_factory=dict)
    labels: Values = field(default_factory=dict)
    data: Values = field(default_factory=dict)
    plugin: Values = field(default_factory=dict)
    claim: Values = field(default_factory=dict)
    pods: list[Pod] = field(default_factory=list)

    @property
    def line(self) -> int:
        """The line in which it begins."""
        return self.root.start_mark.line + 1

    @property
    def containers(self) -> list[Container]:
        """All containers, pod after pod, init containers first."""
        return [container for pod in self.pods for container in pod.containers]

    def values(self, kind: str) -> Values:
        """Return the object's own values where sources of that kind are: for the operator's."""
        if self.kind == "Node":
            found = {"node label": self.labels, "node annotation": self.annotations}
            return found.get(kind, {})
        return {"plugin": self.plugin, "claim": self.claim}.get(kind, {})

    def __str__(self) -> str:
        """Return `Deployment team/train`, as kubectl's users know it."""
        named = f"{self.namespace}/{self.name}" if self.namespace else self.name
        return " ".join(part for part in (self.kind, named) if part)


@dataclass(frozen=True)
class File:
    """One file; `twice` are the keys that a mapping of it has a second time."""

    path: str
    text: str
    documents: tuple[Document, ...]
    twice: tuple[Twice, ...] = ()

    @property
    def containers(self) -> list[Container]:
        """All containers of all documents."""
        return [container for document in self.documents for container in document.containers]


#: The path by which standard input is named, as by `kubectl apply -f -`.
STDIN: Final = "-"
