# SPDX-License-Identifier: Apache-2.0
"""Objects of Kubernetes: those with pods, nodes, ConfigMaps, claims of devices.

There is no list of kinds: whatever has `containers` with the keys of a container is a pod, and its
metadata is beside it or one level above. So Jobs and CronJobs are read as Volcano's tasks are, and
Kubeflow's replicas, Ray's workers and any custom kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpushare.manifest.model import (
    OWN_CLASS,
    Container,
    Document,
    ManifestValue,
    ManifestValues,
    Pod,
    first_leaf_values,
    values_of_mapping,
    values_of_named,
)
from gpushare.text_position import KeyPath, UnreadableText
from gpushare.yaml_nodes import YamlNode, fields, items, parse, scalar_text, text_at, value_at

#: The first key in the file of a device plugin: NVIDIA's, and HAMi's two.
_PLUGIN: Final = ("sharing", "nodeconfig", "nvidia")
_PLUGIN_KEY: Final = re.compile(rf'^[\s{{"]*(?:{"|".join(_PLUGIN)})"?\s*:', re.MULTILINE)
_LETTERS_A_VALUE: Final = 32  # as long takes it to skip them, before a text of a ConfigMap
_CLAIMS: Final = frozenset({"ResourceClaim", "ResourceClaimTemplate", "DeviceClass"})


#: Keys of containers and of hardly anything else, one of which is there.
_SIGNS: Final = frozenset({"image", "resources", "env", "command", "args"})
#: KServe's runtimes, each with resources of its own beneath spec.predictor. Source: KServe's
#: v1beta1 PredictorSpec.
_PREDICTORS: Final = (
    "model",
    "huggingface",
    "lightgbm",
    "onnx",
    "paddle",
    "pmml",
    "pytorch",
    "sklearn",
    "tensorflow",
    "triton",
    "xgboost",
)
_KSERVE: Final = "kserve-container"
_ARGO: Final = "main"  # workflow/common of Argo, MainContainerName
#: Of a template; ScriptTemplate has the fields of a container, and the text of its program.
_ARGO_KEYS: Final = ("container", "script")


class KubernetesReader:
    """Reads the objects of one file; texts of ConfigMaps, also files, have `most` values."""

    def __init__(self, text: str, most: int) -> None:
        self._text = text
        self._left = most

    def read(self, root: YamlNode) -> Iterator[Document]:
        """Yield the object at `root`; of a List each item."""
        kind = text_at(root, "kind")
        listed = value_at(root, "items")
        if kind.endswith("List") and listed is not None and listed.kind == "sequence":
            for item in items(listed):
                yield from self.read(item)
            return
        metadata = value_at(root, "metadata")
        document = Document(
            kind,
            root,
            name=scalar_text(value_at(metadata, "name"))
            or scalar_text(value_at(metadata, "generateName"))
            or "",
            namespace=text_at(metadata, "namespace"),
            annotations=values_of_mapping(
                value_at(metadata, "annotations"), ("metadata", "annotations")
            ),
            labels=values_of_mapping(value_at(metadata, "labels"), ("metadata", "labels")),
        )
        if kind == "ConfigMap":
            document.data = values_of_mapping(value_at(root, "data"), ("data",))
            document.plugin = self._plugin(document)
        elif kind in _CLAIMS:
            claimed = claim_values(root)
            document.claim = {} if OWN_CLASS in claimed else claimed  # those of other drivers
        else:
            document.pods = list(_walk(document, root, (), None))
        yield document

    def _plugin(self, document: Document) -> dict[str, ManifestValue]:
        """Return what the texts of a ConfigMap say to a device plugin."""
        settings: dict[str, ManifestValue] = {}
        for value in document.data.values():
            if _PLUGIN_KEY.search(value.text):
                settings = {**plugin_settings(self._within(value), value.place), **settings}
        return settings

    def _within(self, value: ManifestValue) -> YamlNode | None:
        """Return the root of the YAML that `value` holds, its marks those of the whole file."""
        node = value.value_node
        text, start = value.text, 0
        self._left -= (node.end if node.style == "|" else len(text)) // _LETTERS_A_VALUE
        if self._left <= 0:
            return None
        if node.style == "|":
            start = self._text.find("\n", node.start) + 1
            blank = re.sub(r"[^\n]", " ", self._text[:start])
            text = blank + self._text[start : node.end] + "\n"
        try:
            roots = parse(text, max_values=self._left).roots
        except UnreadableText:
            return None  # it need not be YAML: only what reads as a plugin's file is looked at
        self._left -= sum(root.values for root in roots)
        return roots[0] if roots and roots[0].kind == "mapping" else None


def plugin_settings(root: YamlNode | None, place: KeyPath) -> dict[str, ManifestValue]:
    """Return what the file of a device plugin says, by dotted keys."""
    settings: dict[str, ManifestValue] = {}
    for name in _PLUGIN:
        if name in fields(root):
            leaves = first_leaf_values(value_at(root, name), (*place, name))
            settings |= {f"{name}.{key}": value for key, value in leaves.items()}
    return settings


def claim_values(root: YamlNode) -> dict[str, ManifestValue]:
    """Return what a claim, its template or a class of devices asks, by dotted keys.

    Each class of devices is a key, its value the number of devices. Beside those stand what a
    request says (`capacity.requests.memory`) and the parameters for its driver
    (`sharing.strategy`). Source: resource.k8s.io/v1 and its betas.
    """
    way: tuple[str, ...] = ("spec",)
    if "spec" in fields(value_at(root, *way)):
        way = ("spec", "spec")  # a template's
    found: list[ManifestValues] = []
    requests = (*way, "devices", "requests")
    for number, request in enumerate(items(value_at(root, *requests))):
        exactly = value_at(request, "exactly")  # v1 has it one deeper than its betas
        here: KeyPath = (*requests, number, "exactly") if exactly else (*requests, number)
        found.append(_request_values(exactly or request, here))
    for configs in ((*way, "devices", "config"), (*way, "config")):
        for number, config in enumerate(items(value_at(root, *configs))):
            here = (*configs, number, "opaque", "parameters")
            found.append(first_leaf_values(value_at(config, "opaque", "parameters"), here))
    return {name: value for one in reversed(found) for name, value in one.items()}


def _request_values(request: YamlNode, place: KeyPath) -> dict[str, ManifestValue]:
    requested = dict(first_leaf_values(request, place))
    of_class, count = requested.get("deviceClassName"), requested.get("count")
    if of_class is not None:
        every = requested.get("allocationMode")
        number = count or of_class
        text = "all" if every is not None and every.text == "All" else count.text if count else "1"
        requested[of_class.text] = ManifestValue(
            text, number.place, number.key_node, number.value_node
        )
    return requested


def _walk(document: Document, node: YamlNode, place: KeyPath, above: Pod | None) -> Iterator[Pod]:
    """Yield the pods at `node` and beneath, as written; `above` has the nearest metadata."""
    if node.kind == "sequence":
        for number, item in enumerate(items(node)):
            yield from _walk(document, item, (*place, number), above)
        return
    here = _with_metadata(document, node, place, above)
    pod = _pod(document, node, place, here)
    if pod is not None:
        yield pod
    for name, entry in fields(node).items():
        if not (pod and name in {"containers", "initContainers", *_ARGO_KEYS}):
            yield from _walk(document, entry.value, (*place, name), here)


def _with_metadata(
    document: Document, node: YamlNode, place: KeyPath, above: Pod | None
) -> Pod | None:
    """Return the metadata that pods beneath `node` have: its own, else what is above.

    An object's metadata is its pods' only where there is no template between: a Deployment's
    annotations reach no pod. KServe hands on those of its InferenceService.
    """
    if "template" in fields(node) and "metadata" not in fields(value_at(node, "template")):
        above = None
    metadata = value_at(node, "metadata")
    if metadata is None:
        return above
    return _pod_metadata(document, node, place, metadata)


def _pod_metadata(document: Document, node: YamlNode, place: KeyPath, metadata: YamlNode) -> Pod:
    return Pod(
        document,
        place,
        node,
        values_of_mapping(value_at(metadata, "annotations"), (*place, "metadata", "annotations")),
        values_of_mapping(value_at(metadata, "labels"), (*place, "metadata", "labels")),
        metadata=(metadata, (*place, "metadata")),
    )


def _pod(document: Document, node: YamlNode, place: KeyPath, above: Pod | None) -> Pod | None:
    described = list(_described(node, place))
    if not described:
        return None
    annotations: ManifestValues = {} if above is None else above.annotations
    labels: ManifestValues = {} if above is None else above.labels
    if document.kind.startswith(("InferenceService", "ServingRuntime", "ClusterServingRuntime")):
        own = ("annotations", "labels")
        more = [values_of_mapping(value_at(node, name), (*place, name)) for name in own]
        annotations, labels = {**annotations, **more[0]}, {**labels, **more[1]}
    pod = Pod(document, place, node, annotations, labels, claims=_claims(node))
    pod.metadata = None if above is None else above.metadata
    pod.runtime_class = text_at(node, "runtimeClassName")
    positions = {True: 0, False: 0}
    for item, where, init in described:
        pod.containers.append(_container(pod, item, where, positions[init], init=init))
        positions[init] += 1
    return pod


def _described(node: YamlNode, place: KeyPath) -> Iterator[tuple[YamlNode, KeyPath, bool]]:
    """Yield each container that `node` describes, init containers first."""
    for key, init in (("initContainers", True), ("containers", False)):
        for number, item in enumerate(items(value_at(node, key))):
            if _is_container(item, place):
                yield item, (*place, key, number), init
    for key in _ARGO_KEYS:  # Argo's templates have one of them
        single = value_at(node, key)
        if single is not None and "image" in fields(single):
            yield single, (*place, key), False
    if place[-1:] == ("predictor",):
        for name in _PREDICTORS:
            model = value_at(node, name)
            if model is not None:
                yield model, (*place, name), False


def _is_container(item: YamlNode, place: KeyPath) -> bool:
    """Whether an item of `containers` is one: a name is enough in what is called a spec."""
    keys = fields(item)
    return not _SIGNS.isdisjoint(keys) or (place[-1:] == ("spec",) and "name" in keys)


def _container(pod: Pod, node: YamlNode, place: KeyPath, position: int, *, init: bool) -> Container:
    resources = value_at(node, "resources")
    default = _KSERVE if place[-1] in _PREDICTORS else _ARGO if place[-1] in _ARGO_KEYS else ""
    env = value_at(node, "env")
    return Container(
        name=scalar_text(value_at(node, "name")) or default,
        place=place,
        node=node,
        pod=pod,
        position=position,
        init=init,
        sidecar=init and text_at(node, "restartPolicy") == "Always",
        image=text_at(node, "image"),
        env=values_of_named(env, (*place, "env")),
        limits=values_of_mapping(value_at(resources, "limits"), (*place, "resources", "limits")),
        requests=values_of_mapping(
            value_at(resources, "requests"), (*place, "resources", "requests")
        ),
        claims=tuple(_claim_names(value_at(resources, "claims"))),
        unknown=tuple(_unknown_variables(env)),
    )


def _claim_names(node: YamlNode | None) -> Iterator[str]:
    for item in items(node):
        name = scalar_text(value_at(item, "name"))
        if name:
            yield name


def _unknown_variables(env: YamlNode | None) -> Iterator[str]:
    """Yield the variables whose value a ConfigMap, a Secret or the cluster has."""
    for item in items(env):
        if "valueFrom" in fields(item):
            yield text_at(item, "name")


def _claims(node: YamlNode) -> dict[str, tuple[str, str]]:
    """Return for each claim of a pod the kind and name of the object that says what is claimed."""
    claims: dict[str, tuple[str, str]] = {}
    for item in items(value_at(node, "resourceClaims")):
        name = text_at(item, "name")
        for kind in ("ResourceClaimTemplate", "ResourceClaim"):
            key = f"{kind[0].lower()}{kind[1:]}Name"
            value = scalar_text(value_at(item, key)) or scalar_text(value_at(item, "source", key))
            if value:
                claims[name] = kind, value
    return claims
