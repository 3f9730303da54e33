# SPDX-License-Identifier: Apache-2.0
"""What the annotations of a container's spec say of its pod, as far as that is so."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpushare.oci import spec
from gpushare.quota import dialects, pod_of, without_pod
from gpushare.quota.keys import ANNOTATION_PREFIX

_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,127}", re.ASCII)
_TASK: Final = re.compile(r"/io\.containerd\.runtime\.v[12]\.[a-z]+/([^/]+)/[^/]+/?$")
_CRI_NAMESPACE: Final = "k8s.io"  # containerd's CRI plugin has no other
# CRI-O's bundles are in its run root; podman's, whose folders have the same names, in its storage.
_CRI_O: Final = re.compile(r"/(var/)?run/.*/overlay-containers/[^/]+/userdata/?")
_PODMANS: Final = re.compile(r"/userdata/?$")


def containerd_namespace(bundle: str) -> str:
    """Return the namespace of containerd (`moby`, `k8s.io`) whose `bundle` it is; empty: none."""
    task = _TASK.search(bundle)
    return task[1] if task else ""


def believed(bundle: str, annotations: Mapping[str, str]) -> Mapping[str, str]:
    """Return the annotations of the container at `bundle`, as far as they speak of a pod truly.

    A user of docker or podman may give any annotation, and such a container is in no pod of
    Kubernetes: it has no namespace, and no other container's name. Of those that containerd makes,
    only the CRI plugin's are; docker's are in whatever namespace of containerd it is told to use.
    Podman lets its user say that CRI-O made it (io.container.manager), so the bundle's place does.
    """
    namespace = containerd_namespace(bundle)
    is_podmans = _PODMANS.search(bundle) and not _CRI_O.fullmatch(bundle)
    if namespace not in {"", _CRI_NAMESPACE} or is_podmans:
        return without_pod(annotations)
    return annotations


def annotations_of(annotations: Mapping[str, str], bundle: str) -> Mapping[str, str] | None:
    """Return the annotations of the pod itself, of which `bundle` is a container's.

    `annotations` are the container's. None where they ask for nothing, or where the pod's sandbox
    cannot be seen. The sandbox's bundle is beside the container's, under containerd and under
    CRI-O.
    """
    pod = pod_of(annotations)
    if pod is None or not asks(annotations) or not _ID.fullmatch(pod.sandbox):
        return None
    here = Path(bundle)
    last = Path("userdata") if here.name == "userdata" else Path()
    sandbox = (here.parent.parent if last.name else here.parent) / pod.sandbox / last
    try:
        fd = os.open(sandbox, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return spec.load(fd).annotations
    except spec.SpecError:
        return None
    finally:
        os.close(fd)


def asks(annotations: Mapping[str, str]) -> bool:
    """Whether any of them asks for a part of a GPU, in our words or another system's."""
    ours = any(name.startswith(ANNOTATION_PREFIX) for name in annotations)
    return ours or dialects.asks(dialects.TABLES, annotations)
