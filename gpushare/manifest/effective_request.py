# SPDX-License-Identifier: Apache-2.0
"""What a container of a manifest requests on a node, and what that comes to.

A config.json is read as gpushared reads it at the container's create. Of anything else that file is
made first, as an engine would make it: the container's variables, and of a pod its annotations and
the names that a kubelet's engine says of it. What an image says of itself is in neither.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpushare.manifest.model import STDIN, Container, ManifestFile
from gpushare.oci import edits, injected_gpu, spec
from gpushare.oci.driver_files import DriverFiles
from gpushare.oci.request import (
    SpecRequest,
    parse_spec_request,
    sandbox_annotations,
    trusted_annotations,
)
from gpushare.quota import EffectiveRequest, EngineCards, QuotaError, RequestPolicy
from gpushare.quota.dialects import TABLES
from gpushare.quota.keys import ANNOTATION_PREFIX

SANDBOX: Final = "it is the pause container of a pod, which never gets a GPU"
_NO_DRIVER: Final = (
    "its engine passes something of NVIDIA's, and what that asks for is not read here: this "
    "machine has no driver to compare it with"
)


@dataclass(frozen=True)
class NodeRequest:
    """What a container requests on a node, and what that comes to; or why it is `refused`.

    `notes` are what this reading cannot know.
    """

    requested: SpecRequest | None = None
    effective: EffectiveRequest | None = None
    refused: str = ""
    notes: tuple[str, ...] = ()


def request_on_node(
    container: Container,
    file: ManifestFile,
    *,
    terms_of: Callable[[str], RequestPolicy],
    driver: DriverFiles | None = None,
) -> NodeRequest:
    """Return what `container`, which is in `file`, requests on a node with this policy.

    `driver` is this machine's, by whose files what an engine passed is recognised. SpecError: a
    config.json that gpushared could not read either.
    """
    if container.document.kind == "oci":
        return _of_spec(file, terms_of, driver)
    annotations, of_pod = _annotations(container)
    env = {name: value.text for name, value in container.env.items()}
    return _requested(annotations, env, of_pod, container.cards, terms_of)


def _of_spec(
    file: ManifestFile, terms_of: Callable[[str], RequestPolicy], driver: DriverFiles | None
) -> NodeRequest:
    original = edits.strip(spec.parse(file.text.encode()))
    placed = injected_gpu.is_placed(original)
    if original.is_sandbox() and not placed:
        return NodeRequest(effective=EffectiveRequest("none", SANDBOX, count=0))
    bundle = "" if file.path == STDIN else str(Path(file.path).resolve().parent)
    try:
        request = (
            injected_gpu.InjectedGpu() if driver is None else injected_gpu.find(original, driver)
        )
    except QuotaError as error:
        return NodeRequest(refused=str(error))
    annotations = trusted_annotations(bundle, original.annotations)
    of_pod = sandbox_annotations(annotations, bundle)
    notes = (_NO_DRIVER,) if placed and driver is None else ()
    return _requested(annotations, original.variables, of_pod, request.cards, terms_of, notes)


def _requested(  # noqa: PLR0913, PLR0917 - one argument a source
    annotations: Mapping[str, str],
    env: Mapping[str, str],
    of_pod: Mapping[str, str] | None,
    cards: EngineCards | None,
    terms_of: Callable[[str], RequestPolicy],
    notes: tuple[str, ...] = (),
) -> NodeRequest:
    requested = None
    try:
        requested = parse_spec_request(
            annotations, env, of_pod=of_pod, cards=cards, terms_of=terms_of
        )
        effective = requested.effective()
        requested.terms.max_per_request.refuse_above(requested.quota, effective, cards)
    except QuotaError as error:
        return NodeRequest(requested, refused=str(error), notes=notes)
    return NodeRequest(requested, effective, notes=notes)


def _annotations(container: Container) -> tuple[dict[str, str], dict[str, str] | None]:
    """Return the annotations that a runtime sees of `container`, and those of its pod."""
    texts = {name: value.text for name, value in container.annotations.items()}
    if not container.in_cluster:
        return texts, None
    document = container.document
    # As containerd's CRI plugin names them: gpushare.quota.annotations.
    around = {
        "io.kubernetes.cri.container-type": "container",
        "io.kubernetes.cri.container-name": container.name,
        "io.kubernetes.cri.sandbox-name": document.name,
        "io.kubernetes.cri.sandbox-namespace": document.namespace or "default",
    }
    return {**texts, **around}, texts


def handed_on(container: Container) -> frozenset[str]:
    """Return the vendors' annotations that a kubelet's engine passes on only if configured to.

    `gpushare runtime configure` has it pass on gpushare's own (engines/containerd.py).
    """
    if not container.in_cluster or container.document.kind == "oci":
        return frozenset()
    texts = {name: value.text for name, value in container.annotations.items()}
    values = TABLES.find("annotation", texts)
    return frozenset(one.name for one in values if not one.name.startswith(ANNOTATION_PREFIX))
