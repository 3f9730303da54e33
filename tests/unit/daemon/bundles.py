# SPDX-License-Identifier: Apache-2.0
"""Bundles as engines write them, and the create operation on them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpushare.daemon.lifecycle import create
from gpushare.daemon.lifecycle.create import NewContainer

from .fakes import FakeDaemon

SETKEY = {"path": "/proc/4711/exe", "args": ["libnetwork-setkey", "-exec-root=/run", "4f1c"]}
THEIRS = {"path": "/opt/theirs", "args": ["theirs"]}
TASKS = Path("io.containerd.runtime.v2.task/k8s.io")


class BundleToCreate:
    """A bundle in `folder`, and the create operation on it."""

    def __init__(self, folder: Path, *env: str, identity: str = "4f1c", **changes: Any) -> None:
        self.folder = folder
        self.identity = identity
        (folder / "rootfs/usr/lib64").mkdir(parents=True)
        document = {
            "ociVersion": "1.0.2",
            "process": {"args": ["sh"], "env": ["PATH=/bin", *env], "cwd": "/"},
            "root": {"path": "rootfs"},
            "hooks": {"prestart": [SETKEY], "createRuntime": [THEIRS]},
            "linux": {"resources": {"devices": [{"allow": False, "access": "rwm"}]}},
            **changes,
        }
        (folder / "config.json").write_text(json.dumps(document))

    def text(self) -> bytes:
        return (self.folder / "config.json").read_bytes()

    def document(self) -> Any:
        return json.loads(self.text())

    @contextmanager
    def bundle(self, marker: str = "strong", maker: int = 0) -> Iterator[NewContainer]:
        fds = [
            os.open(self.folder / name, os.O_RDONLY | os.O_DIRECTORY) for name in (".", "rootfs")
        ]
        try:
            yield NewContainer(self.identity, str(self.folder), marker, fds[0], fds[1], maker)
        finally:
            for fd in fds:
                os.close(fd)

    def create(
        self, node: FakeDaemon, marker: str = "strong", maker: int = 0, **changes: Any
    ) -> dict[str, Any]:
        with self.bundle(marker, maker) as bundle:
            return create.create(replace(bundle, **changes), node, node.room, node.servers)


class ContainerdBundles:
    """containerd's folder of bundles, beneath `folder`, with the sandbox of one pod."""

    def __init__(
        self,
        folder: Path,
        asked: Mapping[str, str],
        tasks: Path = TASKS,
        *,
        pod: str = "5a4d",
        namespace: str = "team",
    ) -> None:
        self.tasks, self.pod, self.asked = folder / tasks, pod, dict(asked)
        self.namespace = namespace
        sandbox = self.tasks / pod
        sandbox.mkdir(parents=True)
        (sandbox / "config.json").write_text(json.dumps({"annotations": self.asked}))

    def container(self, name: str, *env: str, attempt: int = 0, **own: str) -> BundleToCreate:
        annotations = {
            "io.kubernetes.cri.container-name": name,
            "io.kubernetes.cri.container-type": "container",
            "io.kubernetes.cri.sandbox-id": self.pod,
            "io.kubernetes.cri.sandbox-name": "job-1",
            "io.kubernetes.cri.sandbox-namespace": self.namespace,
            "io.kubernetes.cri.sandbox-uid": f"uid-{self.pod}",
            **self.asked,
            **{f"gpushare.io/{key}": text for key, text in own.items()},
        }
        identity = f"{name}-{attempt}"
        folder = self.tasks / identity
        return BundleToCreate(folder, *env, identity=identity, annotations=annotations)
