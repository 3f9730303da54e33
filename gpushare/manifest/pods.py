# SPDX-License-Identifier: Apache-2.0
"""Where a Kubernetes object has pods in it.

No list of kinds: whatever has `containers`, with what a container has, is a pod, and its metadata
stands beside it or one above. So Jobs and CronJobs are read as Volcano's tasks are, and Kubeflow's
replicas, Ray's workers and any custom kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import yaml

from gpushare.manifest.file import Container, Document, Pod, Values
from gpushare.manifest.nodes import below, entries, items, word
from gpushare.manifest.values import mapping, named
from gpushare.marks import Place

#: What a container has and hardly anything else does, one of which is there.
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


def find(document: Document) -> Iterator[Pod]:
    """Yield the pods of `document`, in the order in which they are written."""
    yield from _walk(document, document.root, (), None)


def _walk(document: Document, node: yaml.Node, place: Place, above: Pod | None) -> Iterator[Pod]:
    """Yield the pods at `node` and beneath; `above` has the metadata that is nearest to it."""
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            yield from _walk(document, item, (*place, number), above)
        return
    here = _with_metadata(document, node, place, above)
    pod = _pod(document, node, place, here)
    if pod is not None:
        yield pod
    for name, entry in entries(node).items():
        if not (pod and name in {"containers", "initContainers", "container"}):
            yield from _walk(document, entry.value, (*place, name), here)


def _with_metadata(
    document: Document, node: yaml.Node, place: Place, above: Pod | None
) -> Pod | None:
    """Return the metadata that pods beneath `node` have: its own, else what is above.

    An object's metadata is its pods' only where there is no template between: a Deployment's
    annotations reach no pod. KServe hands on those of its InferenceService.
    """
    if "template" in entries(node) and "metadata" not in entries(below(node, "template")):
        above = None
    metadata = below(node, "metadata")
    if metadata is None:
        return above
    return _bare(document, node, place, metadata)


def _bare(document: Document, node: yaml.Node, place: Place, metadata: yaml.Node) -> Pod:
    return Pod(
        document,
        place,
        node,
        mapping(below(metadata, "annotations"), (*place, "metadata", "annotations")),
        mapping(below(metadata, "labels"), (*place, "metadata", "labels")),
        metadata=(metadata, (*place, "metadata")),
    )


def _pod(document: Document, node: yaml.Node, place: Place, above: Pod | None) -> Pod | None:
    described = list(_described(node, place))
    if not described:
        return None
    annotations: Values = {} if above is None else above.annotations
    labels: Values = {} if above is None else above.labels
    if document.kind.startswith(("InferenceService", "ServingRuntime", "ClusterServingRuntime")):
        own = ("annotations", "labels")
        more = [mapping(below(node, name), (*place, name)) for name in own]
        annotations, labels = {**annotations, **more[0]}, {**labels, **more[1]}
    pod = Pod(document, place, node, annotations, labels, claims=_claims(node))
    pod.metadata = None if above is None else above.metadata
    pod.runtime_class = word(below(node, "runtimeClassName")) or ""
    positions = {True: 0, False: 0}
    for item, where, init in described:
        pod.containers.append(_container(pod, item, where, positions[init], init=init))
        positions[init] += 1
    return pod


def _described(node: yaml.Node, place: Place) -> Iterator[tuple[yaml.Node, Place, bool]]:
    """Yield each container that `node` describes, init containers first."""
    for key, init in (("initContainers", True), ("containers", False)):
        for number, item in enumerate(items(below(node, key))):
            if _is_container(item, place):
                yield item, (*place, key, number), init
    single = below(node, "container")  # Argo's templates have one
    if single is not None and "image" in entries(single):
        yield single, (*place, "container"), False
    if place[-1:] == ("predictor",):
        for name in _PREDICTORS:
            model = below(node, name)
            if model is not None:
                yield model, (*place, name), False


def _is_container(item: yaml.Node, place: Place) -> bool:
    """Whether an item of `containers` is one: a name is enough in what is called a spec."""
    found = entries(item)
    return not _SIGNS.isdisjoint(found) or (place[-1:] == ("spec",) and "name" in found)


def _container(pod: Pod, node: yaml.Node, place: Place, position: int, *, init: bool) -> Container:
    resources = below(node, "resources")
    default = _KSERVE if place[-1] in _PREDICTORS else _ARGO if place[-1] == "container" else ""
    env = below(node, "env")
    return Container(
        name=word(below(node, "name")) or default,
        place=place,
        node=node,
        pod=pod,
        position=position,
        init=init,
        image=word(below(node, "image")) or "",
        env=named(env, (*place, "env")),
        limits=mapping(below(resources, "limits"), (*place, "resources", "limits")),
        requests=mapping(below(resources, "requests"), (*place, "resources", "requests")),
        claims=tuple(_names(below(resources, "claims"))),
        unknown=tuple(_elsewhere(env)),
    )


def _names(node: yaml.Node | None) -> Iterator[str]:
    for item in items(node):
        name = word(below(item, "name"))
        if name:
            yield name


def _elsewhere(env: yaml.Node | None) -> Iterator[str]:
    """Yield the variables whose value a ConfigMap, a Secret or the cluster has."""
    for item in items(env):
        if "valueFrom" in entries(item):
            yield word(below(item, "name")) or ""


def _claims(node: yaml.Node) -> dict[str, tuple[str, str]]:
    """Return for each claim of a pod the kind and name of the object that says what is claimed."""
    found: dict[str, tuple[str, str]] = {}
    for item in items(below(node, "resourceClaims")):
        name = word(below(item, "name")) or ""
        for kind in ("ResourceClaimTemplate", "ResourceClaim"):
            key = f"{kind[0].lower()}{kind[1:]}Name"
            value = word(below(item, key)) or word(below(item, "source", key))
            if value:
                found[name] = kind, value
    return found
