# SPDX-License-Identifier: Apache-2.0
"""The pod that a container is in, as the engine's annotations on the container say.

containerd and CRI-O write them over whatever a pod's author wrote under these names. docker and
podman take any annotation from their users, so of their containers they mean nothing: without_pod.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

CRI_PREFIX: Final = "io.kubernetes.cri"  # containerd's, and the beginning of CRI-O's

# containerd's name for each, then CRI-O's. Sources: containerd pkg/cri/annotations, CRI-O
# pkg/annotations, kubelet types/labels.go.
_CONTAINER: Final = ("io.kubernetes.cri.container-name", "io.kubernetes.container.name")
_SANDBOX: Final = ("io.kubernetes.cri.sandbox-id", "io.kubernetes.cri-o.SandboxID")
_NAMESPACE: Final = ("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace")
_NAME: Final = ("io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name")


@dataclass(frozen=True)
class Pod:
    """A container's pod. What its engine does not say is empty; `container` is the container's."""

    container: str
    sandbox: str = ""
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        """Return `team/train`, as kubectl's users know it."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name or self.sandbox


def pod_of(annotations: Mapping[str, str]) -> Pod | None:
    """Return the pod that a container with these annotations is in; None where it is in none."""
    container = _first(annotations, _CONTAINER)
    if not container:
        return None
    return Pod(
        container,
        sandbox=_first(annotations, _SANDBOX),
        namespace=_first(annotations, _NAMESPACE),
        name=_first(annotations, _NAME),
    )


def without_pod(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations less those by which an engine speaks of a pod."""
    said = {*_CONTAINER, *_SANDBOX, *_NAMESPACE, *_NAME}
    return {
        name: text
        for name, text in annotations.items()
        if name not in said and not name.startswith(CRI_PREFIX)
    }


def _first(annotations: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((annotations[name] for name in names if name in annotations), "")
