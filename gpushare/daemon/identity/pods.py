# SPDX-License-Identifier: Apache-2.0
"""Containers of one pod: what the daemon, which sees one at a time, knows of the others.

All of them come with the annotations of the pod and the id of its sandbox. The ledger has those
that were given a part of a GPU, and the sandbox's own spec says which annotations are the pod's.
Nothing says how many containers there will be, nor which of them are init containers
(docs/adr/0017).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpushare.daemon.identity import names, processes
from gpushare.daemon.life import release
from gpushare.daemon.node import Node
from gpushare.daemon.store.ledger import Entry
from gpushare.oci import spec
from gpushare.quota import Pod, Quota, QuotaError, dialects, without_pod
from gpushare.quota.annotations import scoped_name
from gpushare.quota.keys import ANNOTATION_PREFIX

_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,127}", re.ASCII)
_CRI_NAMESPACE: Final = "k8s.io"  # containerd's CRI plugin has no other
# CRI-O's bundles are in its run root; podman's, whose folders have the same names, in its storage.
_CRI_O: Final = re.compile(r"/(var/)?run/.*/overlay-containers/[^/]+/userdata/?")
_PODMANS: Final = re.compile(r"/userdata/?$")


def believed(bundle: str, annotations: Mapping[str, str]) -> Mapping[str, str]:
    """Return the annotations of the container at `bundle`, as far as they speak of a pod truly.

    A user of docker or podman may give any annotation, and such a container is in no pod of
    Kubernetes: it has no namespace, and no other container's name. Of those that containerd makes,
    only the CRI plugin's are; docker's are in whatever namespace of containerd it is told to use.
    Podman lets its user say that CRI-O made it (io.container.manager), so the bundle's place does.
    """
    namespace = names.containerd_namespace(bundle)
    is_podmans = _PODMANS.search(bundle) and not _CRI_O.fullmatch(bundle)
    if namespace not in {"", _CRI_NAMESPACE} or is_podmans:
        return without_pod(annotations)
    return annotations


def annotations_of(pod: Pod | None, bundle: str) -> Mapping[str, str] | None:
    """Return the annotations of `pod` itself, of which `bundle` is a container's.

    None where its sandbox cannot be seen. The sandbox's bundle is beside the container's, under
    containerd and under CRI-O.
    """
    if pod is None or not _ID.fullmatch(pod.sandbox):
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


def settle(pod: Pod, node: Node) -> None:
    """Release what containers of `pod` that are gone had: an init container is, before the next."""
    for entry in _of(pod, node):
        if _is_gone(entry, node):
            release.end(entry.key, node, "the next container of its pod is made")


def refuse_second(pod: Pod, quota: Quota, node: Node) -> None:
    """Refuse what the pod is asked for without a name where another container of it has that.

    QuotaError. Whoever was refused so while the other ran stays refused, whether it runs or not.
    """
    asked = quota.unnamed
    if asked is None or not pod.sandbox:
        return
    holder = next((entry for entry in _of(pod, node) if entry.container != pod.container), None)
    if holder is not None and _runs(holder):
        node.siblings.note(pod.sandbox, pod.container, holder.container)
    had = node.siblings.before(pod.sandbox, pod.container)
    if holder is None and not had:
        return
    first = holder.container if holder is not None else had
    key = next((key for key, one in quota.asked.items() if one.source == asked.source), "memory")
    raise QuotaError(
        str(asked.source),
        asked.shown,
        f"names no container, and {first} of pod {pod} has it",
        f"write {scoped_name(first, key)}, and {scoped_name(pod.container, key)} if this one needs "
        "a part of a GPU too",
    )


def _of(pod: Pod, node: Node) -> list[Entry]:
    """Return the tenants of `pod` that have a part of a GPU."""
    entries = node.ledger.entries.values()
    return [entry for entry in entries if pod.sandbox == entry.sandbox != "" and entry.holdings]


def _is_gone(entry: Entry, node: Node) -> bool:
    """Whether nothing of it runs, or ever will: what was to make it has ended before it did."""
    if entry.state == "bound":
        return release.is_gone(entry, node)
    return release.is_abandoned(entry)


def _runs(entry: Entry) -> bool:
    pidfd = processes.open_pidfd(entry.pid, entry.starttime) if entry.state == "bound" else None
    if pidfd is None:
        return False
    os.close(pidfd)
    return True
