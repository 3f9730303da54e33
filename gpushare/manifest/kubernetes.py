# SPDX-License-Identifier: Apache-2.0
"""Objects of Kubernetes: those with pods, nodes, ConfigMaps, claims of devices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import yaml

from gpushare.manifest import pods
from gpushare.manifest.errors import ManifestError
from gpushare.manifest.file import Document, Value
from gpushare.manifest.nodes import MappingNode, below, compose, entries, items, word
from gpushare.manifest.values import first_leaves, mapping
from gpushare.marks import Place

#: What the file of a device plugin begins with: NVIDIA's, and HAMi's two.
_PLUGIN: Final = ("sharing", "nodeconfig", "nvidia")
_PLUGIN_KEY: Final = re.compile(rf'^[\s{{"]*(?:{"|".join(_PLUGIN)})"?\s*:', re.MULTILINE)
_MAX_TEXTS: Final = 64  # of ConfigMaps in one file that are read as files themselves
_CLAIMS: Final = frozenset({"ResourceClaim", "ResourceClaimTemplate", "DeviceClass"})


class Reader:
    """Reads the objects of one file."""

    def __init__(self, text: str, path: str) -> None:
        self._text = text
        self._path = path
        self._texts = 0

    def read(self, root: yaml.Node) -> Iterator[Document]:
        """Yield the object at `root`; of a List each item."""
        kind = word(below(root, "kind")) or ""
        listed = below(root, "items")
        if kind.endswith("List") and isinstance(listed, yaml.SequenceNode):
            for item in listed.value:
                yield from self.read(item)
            return
        metadata = below(root, "metadata")
        document = Document(
            kind,
            root,
            name=word(below(metadata, "name")) or word(below(metadata, "generateName")) or "",
            namespace=word(below(metadata, "namespace")) or "",
            annotations=mapping(below(metadata, "annotations"), ("metadata", "annotations")),
            labels=mapping(below(metadata, "labels"), ("metadata", "labels")),
        )
        if kind == "ConfigMap":
            document.data = mapping(below(root, "data"), ("data",))
            document.plugin = self._plugin(document)
        elif kind in _CLAIMS:
            document.claim = claimed(root)
        else:
            document.pods = list(pods.find(document))
        yield document

    def _plugin(self, document: Document) -> dict[str, Value]:
        """Return what the texts of a ConfigMap say to a device plugin."""
        found: dict[str, Value] = {}
        for value in document.data.values():
            if self._texts < _MAX_TEXTS and _PLUGIN_KEY.search(value.text):
                self._texts += 1
                found = {**plugin(self._within(value), value.place), **found}
        return found

    def _within(self, value: Value) -> yaml.Node | None:
        """Return the root of the YAML that `value` holds, its marks those of the whole file."""
        node = value.value_node
        text, start = value.text, 0
        if node.style == "|":
            start = self._text.find("\n", node.start_mark.index) + 1
            blank = re.sub(r"[^\n]", " ", self._text[:start])
            text = blank + self._text[start : node.end_mark.index]
        try:
            roots = compose(text, self._path).roots
        except ManifestError:
            return None  # it need not be YAML: only what reads as a plugin's file is looked at
        return roots[0] if roots and isinstance(roots[0], MappingNode) else None


def plugin(root: yaml.Node | None, place: Place) -> dict[str, Value]:
    """Return what the file of a device plugin says, by dotted keys."""
    found: dict[str, Value] = {}
    for name in _PLUGIN:
        if name in entries(root):
            said = first_leaves(below(root, name), (*place, name))
            found |= {f"{name}.{key}": value for key, value in said.items()}
    return found


def claimed(root: yaml.Node) -> dict[str, Value]:
    """Return what a claim, its template or a class of devices asks, by dotted keys.

    Each class of devices is a key, its value the number of devices. Beside those stand what a
    request says (`capacity.requests.memory`) and the parameters for its driver
    (`sharing.strategy`). Source: resource.k8s.io/v1 and its betas.
    """
    way: tuple[str, ...] = ("spec",)
    if "spec" in entries(below(root, *way)):
        way = ("spec", "spec")  # a template's
    found: dict[str, Value] = {}
    requests = (*way, "devices", "requests")
    for number, request in enumerate(items(below(root, *requests))):
        exactly = below(request, "exactly")  # v1 has it one deeper than its betas
        here: Place = (*requests, number, "exactly") if exactly else (*requests, number)
        found = {**_requested(exactly or request, here), **found}
    for configs in ((*way, "devices", "config"), (*way, "config")):
        for number, config in enumerate(items(below(root, *configs))):
            here = (*configs, number, "opaque", "parameters")
            found = {**first_leaves(below(config, "opaque", "parameters"), here), **found}
    return found


def _requested(request: yaml.Node, place: Place) -> dict[str, Value]:
    found = dict(first_leaves(request, place))
    of_class, count = found.get("deviceClassName"), found.get("count")
    if of_class is not None:
        every = found.get("allocationMode")
        number = count or of_class
        text = "all" if every is not None and every.text == "All" else count.text if count else "1"
        found[of_class.text] = Value(text, number.place, number.key_node, number.value_node)
    return found
