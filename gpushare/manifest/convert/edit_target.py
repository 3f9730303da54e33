# SPDX-License-Identifier: Apache-2.0
"""Where a target's words go: limits, annotations and variables, by the kind of file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpushare.manifest.convert.edits import NewText, Quoted
from gpushare.manifest.convert.plan import DocumentEdits
from gpushare.manifest.convert.targets import Surface
from gpushare.text_position import KeyPath
from gpushare.yaml_nodes import YamlNode

CLASS: Final = "runtimeClassName"
#: Runtimes that a vendor's set-up asks for: ours takes their place.
VENDOR_RUNTIMES: Final = frozenset({"nvidia", "nvidia-cdi", "nvidia-legacy", "nvidia-experimental"})
GPUSHARE: Final = "gpushare"
#: Kinds whose pods get containers that are not in the file (KServe's storage initializer), and
#: that have annotations beside their containers.
SERVING: Final = ("InferenceService", "ServingRuntime", "ClusterServingRuntime")


def surface_of(kind: str) -> Surface:
    """Return where a document of this kind is run."""
    if kind == "oci":
        return "oci"
    if kind == "compose":
        return "compose"
    return "ecs" if kind == "ecs" else "kubernetes"


def same_names(variables: YamlNode, number: int) -> list[int]:
    """Return which items of an environment set the same variable as one of them does."""
    names = [_variable(item.resolved) for item in variables.items]
    return [place for place, name in enumerate(names) if place == number or name == names[number]]


def _variable(item: YamlNode) -> str | None:
    if item.kind == "scalar":
        return item.text.partition("=")[0]
    name = item.get("name") or item.get("Name")
    return None if name is None else name.text


@dataclass
class EditTarget:
    """One container, or a pod's part of the file, in the plan of its document."""

    plan: DocumentEdits
    node: YamlNode
    path: KeyPath

    def limits(self, new: Sequence[NewText], others: tuple[YamlNode, KeyPath] | None) -> None:
        """Put `new` into the limits of this container: in the mapping of `others`, which go."""
        if others is None:
            self.plan.add(self.path, ("resources", "limits"), new)
        else:
            self.plan.add(others[1], (), new, site=others[0])

    def variables(self, new: Sequence[NewText], surface: Surface) -> None:
        """Put `new`, names with texts, into the environment of this container."""
        if surface == "kubernetes":
            items = [(_first_entry("name", one), NewText("value", one.value)) for one in new]
            self.plan.add_items(self.path, "env", list(items))
        elif surface == "ecs":
            capital = self.node.get("Name") is not None
            name, value, key = (
                ("Name", "Value", "Environment")
                if capital
                else (
                    "name",
                    "value",
                    "environment",
                )
            )
            items = [(_first_entry(name, one), NewText(value, one.value)) for one in new]
            self.plan.add_items(self.path, key, list(items))
        elif (there := self.node.get("environment")) is not None and there.kind == "sequence":
            lines = [f"{one.key}={_value_text(one)}" for one in new]
            self.plan.add_items(self.path, "environment", list(lines))
        else:
            self.plan.add(self.path, ("environment",), new)

    def runtime(self, key: str) -> str | None:
        """Have our runtime run this; return the name of another that stays."""
        there = self.node.get(key)
        if there is None or there.is_empty:
            new = NewText(key, GPUSHARE)
            self.plan.add(self.path, (), [new], after=_before_containers(self.node))
            return None
        if there.text in VENDOR_RUNTIMES:
            self.plan.remove((*self.path, key))
            self.plan.add(self.path, (), [NewText(key, GPUSHARE)])
        return None if there.text in {GPUSHARE, *VENDOR_RUNTIMES} else there.text

    def drop(self, key: str, text: str) -> bool:
        """Take `key` out where it has this text; return whether it had."""
        there = self.node.get(key)
        if there is None or there.text != text:
            return False
        self.plan.remove((*self.path, key))
        return True

    def annotations(self, new: Sequence[NewText], *, serving: bool, several: bool) -> None:
        """Put `new` into the annotations of the pod whose part this is.

        `serving`: a kind of KServe's, whose annotations stand beside its containers where it has
        `several` pods, and else in its own metadata.
        """
        holder, path, way = self._holder(serving=serving, several=several)
        first = way[0] == "metadata" and holder.get("metadata") is None
        self.plan.add(path, way, new, after="" if first else None)

    def _holder(self, *, serving: bool, several: bool) -> tuple[YamlNode, KeyPath, tuple[str, ...]]:
        if not self.path:
            return self.node, self.path, ("annotations",)  # a config.json
        if serving and (several or self.path[-1:] == ("spec",) or self.node.get("annotations")):
            return self.node, self.path, ("annotations",)
        if serving:
            root = self.plan.at(())
            return root, (), ("metadata", "annotations")
        if self.node.get("metadata") is not None or self.path[-1] != "spec":
            return self.node, self.path, ("metadata", "annotations")
        return self.plan.at(self.path[:-1]), self.path[:-1], ("metadata", "annotations")


def _before_containers(node: YamlNode) -> str | None:
    """Return the key behind which a runtime is named: what stands before the containers."""
    if node.get("containers") is None and node.get("initContainers") is None:
        return "image" if node.entry("image") else None
    before = ""
    for entry in node.entries:
        if entry.key.text in {"containers", "initContainers"}:
            break
        before = entry.key.text
    return before


def _first_entry(name: str, new: NewText) -> NewText:
    """Return the first entry of an item of a list, with the comments that `new` will get."""
    return NewText(name, new.key, above=new.above)


def _value_text(new: NewText) -> str:
    assert isinstance(new.value, (str, Quoted))
    return new.value if isinstance(new.value, str) else new.value.text
