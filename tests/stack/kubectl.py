# SPDX-License-Identifier: Apache-2.0
"""kubectl with gpushare's plugin, and a cluster as both see it: nodes, pods and a kubeconfig."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpushare.protocol.kubernetes import MODE_LABEL

from .api_server import Body, StandInApiServer
from .node_agent import write_kubeconfig
from .program import TOOLS

KUBECTL = TOOLS / "usr/local/bin/kubectl"
NAMESPACE = "gpushare-system"
PORT = 10418
SECRET = "gpushare-metrics-token"


class Kubectl:
    """kubectl whose context is of a stand-in API server; `folder` is its home."""

    def __init__(self, folder: Path, cluster: StandInApiServer, **user: Any) -> None:
        self.folder = folder
        self.config = write_kubeconfig(folder / "kubeconfig", cluster, **user)
        self.programs = Path(sys.executable).parent  # of kubectl-gpushare

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of its user."""
        path = f"{KUBECTL.parent}:{self.programs}:{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if "KUBE" not in name}
        return {**kept, "PATH": path, "HOME": str(self.folder), "KUBECONFIG": str(self.config)}

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run `kubectl WORDS`."""
        return subprocess.run(
            [str(KUBECTL), *words],
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )


def put_node(
    cluster: StandInApiServer,
    name: str,
    mode: str,
    allocatable: Mapping[str, str] | None = None,
    *,
    is_ready: bool = True,
    labels: Mapping[str, str] | None = None,
) -> None:
    """Store a node with labels of gpushare-node: its mode, and `labels` without the prefix."""
    named = {f"gpushare.io/{name}": value for name, value in (labels or {}).items()}
    ready = {"type": "Ready", "status": "True" if is_ready else "Unknown"}
    cluster.put(
        f"/api/v1/nodes/{name}",
        {
            "metadata": {"labels": {MODE_LABEL: mode, **named}},
            "status": {"conditions": [ready], "allocatable": dict(allocatable or {})},
        },
    )


def put_exporter(
    cluster: StandInApiServer,
    node: str,
    address: tuple[str, int] | None = None,
    status: Body | None = None,
    token: str = "",
    namespace: str = NAMESPACE,
) -> None:
    """Store the exporter's pod of a node, as the chart's DaemonSet makes it, and where it serves.

    With a `token`, also the Secret that the pod mounts.
    """
    name = f"gpushare-exporter-{node}"
    place = f"/api/v1/namespaces/{namespace}/pods/{name}"
    volumes = [{"name": "token", "secret": {"secretName": SECRET}}] if token else []
    port = {"name": "metrics", "containerPort": PORT}
    cluster.put(
        place,
        {
            "metadata": {"labels": {"app.kubernetes.io/name": "gpushare-exporter"}},
            "spec": {
                "nodeName": node,
                "containers": [{"name": "gpushare-exporter", "ports": [port]}],
                "volumes": volumes,
            },
            "status": status or {"phase": "Running"},
        },
    )
    if token:
        data = {"token": base64.b64encode(token.encode()).decode()}
        cluster.put(f"/api/v1/namespaces/{namespace}/secrets/{SECRET}", {"data": data})
    if address is not None:
        cluster.pods[f"{place}:{PORT}"] = address
