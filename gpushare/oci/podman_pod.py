# SPDX-License-Identifier: Apache-2.0
"""Which container of its pod a container of podman is: `podman kube play` says it by its name.

podman calls container `train` of pod `job-1` `job-1-train`, in its storage, and gives the pod's
infra container the pod's name as its host name. Both are podman's own files: neither an image nor
an annotation can change them.
Source: containers/storage, store.go: the list of containers is beside their folders, that of
containers with `--rm` in a file of its own; podman, pkg/specgen/generate/kube (4.3 and 5.4 tested).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from gpushare.oci import spec
from gpushare.oci.bounded_read import read_at_most

SANDBOX: Final = "io.kubernetes.cri-o.SandboxID"  # podman writes CRI-O's name for a pod's infra
_LISTS: Final = ("containers.json", "volatile-containers.json")
_ID: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_INFRA: Final = re.compile(r"[0-9a-f]{12}-infra", re.ASCII)
_MOST_BYTES: Final = 4 << 20


def stored_name(bundle: str) -> str:
    """Return podman's name of the container whose bundle is in podman's storage; empty: none."""
    folder = Path(bundle)
    identity = folder.parent.name
    if folder.name != "userdata" or not _ID.fullmatch(identity):
        return ""
    for name in _LISTS:
        for container in _listed(folder.parent.parent / name):
            if container.get("id") == identity:
                names = container.get("names")
                return str(names[0]) if isinstance(names, list) and names else ""
    return ""


def name_in_pod(bundle: str, annotations: Mapping[str, str]) -> str | None:
    """Return the name in its pod of the container at `bundle`; None if it is in no pod.

    Empty if podman does not say it: the pod has a host name of its own, or no infra container.
    """
    stored = stored_name(bundle)
    sandbox = annotations.get(SANDBOX, "")
    if not sandbox:
        return stored if _INFRA.fullmatch(stored) else None
    pod = _host_name(Path(bundle).parent.parent, sandbox)
    return stored.removeprefix(f"{pod}-") if pod and stored.startswith(f"{pod}-") else ""


def _listed(path: Path) -> list[dict[str, Any]]:
    try:
        with path.open("rb") as file:
            found = json.loads(read_at_most(file.fileno(), _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return []
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _host_name(storage: Path, sandbox: str) -> str:
    if not _ID.fullmatch(sandbox):
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
