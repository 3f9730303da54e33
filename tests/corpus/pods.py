# SPDX-License-Identifier: Apache-2.0
"""The pods of the corpus: as their controllers create them, and what gpushared reads of them."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any, Final

import yaml

from gpushare.daemon.lifecycle.scheduled import effective_request
from gpushare.manifest import read
from gpushare.manifest.convert.requests import Meaning, meaning_of
from gpushare.manifest.model import OUTSIDE, Pod
from gpushare.oci.request import SpecRequest, parse_spec_request
from gpushare.protocol.kubernetes import RESOURCE, NodeMode
from gpushare.quota.errors import QuotaError
from gpushare.quota.request import COMPUTE_KEYS, RequestedValue, ScheduledAllocation, ValueSource
from gpushare.quota.request_policy import RequestPolicy
from gpushare.quota.size import exact_size
from gpushare.yaml_nodes import YamlNode, fields, items

from .cases import CorpusManifest, conversion

Object = dict[str, Any]
_IN_SPEC: Final = ("runtimeClassName", "schedulerName", "nodeSelector", "resourceClaims")


@cache
def pods(case: CorpusManifest) -> list[Object]:
    """Return the pods of a manifest; none if it is not for Kubernetes."""
    return pods_of(case.path.name, case.file.text)


@cache
def converted(case: CorpusManifest) -> list[Object] | None:
    """Return the pods of what `gpushare convert` writes; None if it refuses the manifest."""
    made = conversion(case)
    return None if isinstance(made, str) else pods_of(case.path.name, made.text)


def pods_of(name: str, text: str) -> list[Object]:
    """Return the pods of the text of a manifest."""
    return [
        _made_of(pod)
        for document in read(name, text).documents
        if document.kind not in {*OUTSIDE, "oci"}
        for pod in document.pods
    ]


def _made_of(template: Pod) -> Object:
    spec = {key: value for key, value in _plain(template.node).items() if key in _IN_SPEC}
    for container in template.containers:
        kind = "initContainers" if container.init else "containers"
        spec.setdefault(kind, []).append({**_plain(container.node), "name": container.name})
    metadata = {
        kind: {name: value.text for name, value in values.items()}
        for kind, values in (("annotations", template.annotations), ("labels", template.labels))
        if values
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "default", **metadata},
        "spec": spec,
    }


def _plain(node: YamlNode | None) -> Any:
    """Return what a node of YAML stands for, with its aliases and merge keys written out."""
    if node is None:
        return None
    node = node.resolved
    if node.kind == "mapping":
        return {name: _plain(entry.value) for name, entry in fields(node).items()}
    if node.kind == "sequence":
        return [_plain(one) for one in items(node)]
    return node.text if node.style else yaml.safe_load(node.text)


def containers_of(pod: Object) -> list[Object]:
    """Return the containers of a pod, init containers first."""
    found: list[Object] = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
    return found


def on_node(pods: list[Object], mode: NodeMode) -> list[Meaning | str]:
    """Return what gpushared reads of each container of `pods`, or why it refuses the container.

    It sees neither limits nor labels. In the mode plugin, it sees what the kubelet allocated.
    """
    return [
        requested(container, pod["metadata"].get("annotations", {}), mode)
        for pod in pods
        for container in containers_of(pod)
    ]


def requested(
    container: Object, annotations: dict[str, str], mode: NodeMode = "annotations"
) -> Meaning | str:
    """Return what gpushared reads of a container whose pod has `annotations`, or why it refuses."""
    units = container.get("resources", {}).get("limits", {}).get(RESOURCE)
    try:
        found = spec_request(container, annotations, int(units or 0) << 30)
        if not units:
            effective_request(found, None, mode, in_pod=True)
        return meaning_of(dict(found.quota.requested))
    except QuotaError as error:
        return str(error)


def spec_request(
    container: Object, annotations: dict[str, str], allocated_bytes: int
) -> SpecRequest:
    """Return what a container requests; `allocated_bytes` are those of the device plugin.

    QuotaError if gpushared refuses it.
    """
    name = {"io.kubernetes.cri.container-name": container["name"]}
    env = {one["name"]: str(one["value"]) for one in container.get("env", []) if "value" in one}
    source = ValueSource("device plugin", "memory")
    size = RequestedValue(exact_size(allocated_bytes), allocated_bytes, source)
    card = RequestedValue("GPU-1", ("GPU-1",), ValueSource("device plugin", "devices"))
    allocated = ScheduledAllocation({"devices": card, "memory": size}, frozenset(COMPUTE_KEYS))
    return parse_spec_request(
        {**annotations, **name},
        env,
        of_pod=annotations,
        cards=None,
        terms_of=lambda _: RequestPolicy(),
        scheduled=allocated if allocated_bytes else None,
    )


def allocated_like(pods: list[Object], others: list[Object]) -> list[Object]:
    """Return `pods` with what the scheduler allocates to the containers of `others`."""
    made = copy.deepcopy(pods)
    for pod, other in zip(made, others, strict=True):
        for one, same in zip(containers_of(pod), containers_of(other), strict=True):
            limits = same.get("resources", {}).get("limits", {})
            if RESOURCE in limits:
                one["resources"] = {"limits": {RESOURCE: limits[RESOURCE]}}
    return made
