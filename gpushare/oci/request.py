# SPDX-License-Identifier: Apache-2.0
"""The request in a container's config.json: read in one place, for `create` and for `explain`.

The annotations of its pod are in the spec of the pod's sandbox, whose bundle is beside its own.
Podman has the names of containers in its storage.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from gpushare.oci import spec
from gpushare.oci.bounded_read import read_at_most
from gpushare.quota import dialects
from gpushare.quota.annotations import CONTAINER_NAME, SCOPE, PodIdentity, pod_of, without_pod
from gpushare.quota.dialects import translate
from gpushare.quota.effective_request import EffectiveRequest, resolve_request
from gpushare.quota.errors import QuotaError
from gpushare.quota.keys import ANNOTATION_PREFIX
from gpushare.quota.parse import parse_request
from gpushare.quota.request import EngineCards, QuotaRequest, ScheduledAllocation, visible_devices
from gpushare.quota.request_policy import RequestPolicy

#: Podman writes CRI-O's name for a pod's infra container.
PODMAN_SANDBOX: Final = "io.kubernetes.cri-o.SandboxID"
_PODMAN_LISTS: Final = ("containers.json", "volatile-containers.json")
_PODMAN_ID: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_INFRA: Final = re.compile(r"[0-9a-f]{12}-infra", re.ASCII)
_MOST_BYTES: Final = 4 << 20


def podman_name(bundle: str) -> str:
    """Return podman's name of the container whose bundle is in podman's storage; empty: none."""
    folder = Path(bundle)
    identity = folder.parent.name
    if folder.name != "userdata" or not _PODMAN_ID.fullmatch(identity):
        return ""
    for name in _PODMAN_LISTS:
        for container in _listed(folder.parent.parent / name):
            if container.get("id") == identity:
                names = container.get("names")
                return str(names[0]) if isinstance(names, list) and names else ""
    return ""


def name_in_podman_pod(bundle: str, annotations: Mapping[str, str]) -> str | None:
    """Return the name in its pod of the container at `bundle`; None if it is in no pod.

    Empty if podman does not say it: the pod has a host name of its own, or no infra container.
    """
    stored = podman_name(bundle)
    sandbox = annotations.get(PODMAN_SANDBOX, "")
    if not sandbox:
        return stored if _INFRA.fullmatch(stored) else None
    pod = _host_name(Path(bundle).parent.parent, sandbox)
    return stored.removeprefix(f"{pod}-") if pod and stored.startswith(f"{pod}-") else ""


def _listed(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            rows = json.loads(read_at_most(file.fileno(), _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return []
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def _host_name(storage: Path, sandbox: str) -> str:
    if not _PODMAN_ID.fullmatch(sandbox):
        return ""
    try:
        fd = os.open(storage / sandbox / "userdata", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        name = spec.load(fd).at("hostname")
    except spec.SpecError:
        return ""
    finally:
        os.close(fd)
    return name if isinstance(name, str) else ""


@dataclass(frozen=True)
class SpecRequest:
    """The request of a container: by keys, and by the `cards` that its engine put into its spec."""

    quota: QuotaRequest
    cards: EngineCards | None
    visible: str | None
    pod: PodIdentity | None
    terms: RequestPolicy

    def effective(self) -> EffectiveRequest:
        """Return what that comes to on this node; QuotaError where that is impossible."""
        return resolve_request(self.quota, visible=self.visible, cards=self.cards)


def parse_spec_request(  # noqa: PLR0913 - one argument a source
    annotations: Mapping[str, str],
    env: Mapping[str, str],
    *,
    of_pod: Mapping[str, str] | None,
    cards: EngineCards | None,
    terms_of: Callable[[str], RequestPolicy],
    operator: Mapping[str, str] | None = None,
    scheduled: ScheduledAllocation | None = None,
) -> SpecRequest:
    """Return what a container requests; QuotaError for the first value that is refused.

    `annotations` are its trusted_annotations, `of_pod` those of its pod, and `terms_of` returns the
    policy for the containers of a namespace. `scheduled` is what the scheduler allocated.
    """
    pod = pod_of(annotations)
    terms = terms_of("" if pod is None else pod.namespace)
    parsed = parse_request(
        annotations,
        env,
        of_pod=of_pod,
        operator=operator,
        cards=cards,
        defaults=terms.defaults,
        trust=terms.trust,
        dialects=terms.dialects,
        profiles=terms.profiles,
        scheduled=scheduled,
    )
    quota = terms.idle.limit(parsed.valid())
    return SpecRequest(quota, cards, visible_devices(env), pod, terms)


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


def is_of_kubelet(original: spec.Spec, bundle: str) -> bool:
    """Whether a kubelet had the container made: users of the cluster read its refusals as events.

    Docker under cri-dockerd passes no annotations on; the cgroup is of the kubelet's hierarchy.
    """
    path = original.at("linux", "cgroupsPath")
    return (
        pod_of(original.annotations) is not None
        or containerd_namespace(bundle) == "k8s.io"
        or (isinstance(path, str) and "kubepods" in path)
    )


def trusted_annotations(bundle: str, annotations: Mapping[str, str]) -> Mapping[str, str]:
    """Return the annotations of the container at `bundle`, without a pod that its user invented.

    A user of docker or podman may give any annotation, and such a container is in no pod of
    Kubernetes: it has no namespace, and no other container's name. Of those that containerd makes,
    only the CRI plugin's are; docker's are in the namespace that dockerd is configured with.
    Podman lets its user say that CRI-O made it (io.container.manager), so the bundle's place does.
    If an annotation names a container, podman's own files say whether it is this one; QuotaError if
    they do not. Otherwise each container of podman's pods requests for itself.
    """
    namespace = containerd_namespace(bundle)
    if namespace not in {"", _CRI_NAMESPACE}:
        return without_pod(annotations)
    if not _PODMANS.search(bundle) or _CRI_O.fullmatch(bundle):
        return annotations
    trusted = without_pod(annotations)
    scoped = _scoped(trusted)
    name = name_in_podman_pod(bundle, annotations) if scoped else None
    if name == "":
        rule = "names a container of its pod, and podman does not tell which one this is"
        fix = "set GPUSHARE_MEMORY in the environment of that container, or omit the pod's hostname"
        raise QuotaError(f"annotation {scoped}", trusted[scoped], rule, fix)
    return trusted if name is None else {**trusted, CONTAINER_NAME: name}


def _scoped(annotations: Mapping[str, str]) -> str:
    """Return the first annotation that names a container of a pod; empty if there is none."""
    ours = (name for name in annotations if name.startswith(f"{ANNOTATION_PREFIX}{SCOPE}"))
    return next(ours, "") or translate.scoped_annotation(dialects.TABLES, annotations)


def sandbox_annotations(annotations: Mapping[str, str], bundle: str) -> Mapping[str, str] | None:
    """Return the annotations of the pod itself, of which `bundle` is a container's.

    `annotations` are the container's. None if they request nothing, or if the pod's sandbox
    cannot be seen. The sandbox's bundle is beside the container's, under containerd and under
    CRI-O.
    """
    pod = pod_of(annotations)
    if pod is None or not requests_gpu(annotations) or not _ID.fullmatch(pod.sandbox):
        return None
    directory = Path(bundle)
    last = Path("userdata") if directory.name == "userdata" else Path()
    sandbox = (directory.parent.parent if last.name else directory.parent) / pod.sandbox / last
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


def requests_gpu(annotations: Mapping[str, str]) -> bool:
    """Whether any of them requests a part of a GPU, in our keys or another system's."""
    ours = any(name.startswith(ANNOTATION_PREFIX) for name in annotations)
    return ours or translate.has_request(dialects.TABLES, annotations)
