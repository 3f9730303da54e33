# SPDX-License-Identifier: Apache-2.0
"""A pod's life through CRI: the sandbox, then its containers, as a kubelet asks for them."""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from gpushare.verify.image import PROGRAM, TAG
from tests.system.waiting import wait_until

from .cri import Cri, CriError
from .slices import Said, parse

NAMESPACE = "ai"
IDLE = ("/bin/busybox", "sleep", "1000")
IMAGE = {"image": f"docker.io/library/{TAG}"}


class Executed(NamedTuple):
    """What ExecSync brings back; `said` is what the probe said, event by event."""

    status: int
    stdout: str
    stderr: str

    @property
    def said(self) -> list[Said]:
        return parse(self.stdout)


class PodSandbox:
    """A sandbox; `parent` is the cgroup that a kubelet would have made for the pod, and `folder`
    for logs. An empty `handler` is containerd's default, as for a pod without a RuntimeClass.
    """

    def __init__(
        self,
        cri: Cri,
        folder: Path,
        parent: str,
        *,
        annotations: Mapping[str, str] | None = None,
        handler: str = "gpushare",
        pid: str = "CONTAINER",
    ) -> None:
        self.cri = cri
        # NODE: the host's network, for which no network plugin is asked.
        self._namespaces = {"namespace_options": {"network": "NODE", "pid": pid}}
        self.uid = secrets.token_hex(4)
        self.name = f"pod-{self.uid}"
        logs = folder / self.name
        self.config = {
            "metadata": {"name": self.name, "uid": self.uid, "namespace": NAMESPACE},
            "log_directory": str(logs),
            "annotations": dict(annotations or {}),
            "linux": {
                "cgroup_parent": parent.format(uid=self.uid),
                "security_context": self._namespaces,
            },
        }
        logs.mkdir(parents=True)
        reply = cri.call("RunPodSandbox", config=self.config, runtime_handler=handler)
        self.id: str = reply["pod_sandbox_id"]

    def __enter__(self) -> PodSandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.cri.call("StopPodSandbox", pod_sandbox_id=self.id)
        self.cri.call("RemovePodSandbox", pod_sandbox_id=self.id)

    def create(self, name: str, *command: str, **config: Any) -> PodContainer:
        """Create container `name`; `config` are further fields of ContainerConfig.

        CriError where it is not made; of its start is not heard before `Container.start`.
        """
        wanted = {
            "metadata": {"name": name},
            "image": IMAGE,
            "command": list(command or IDLE),
            "log_path": f"{name}.log",
            "linux": {"security_context": self._namespaces},
        } | config
        reply = self.cri.call(
            "CreateContainer", pod_sandbox_id=self.id, config=wanted, sandbox_config=self.config
        )
        return PodContainer(self, name, reply["container_id"])

    def run(self, name: str, *command: str, **config: Any) -> PodContainer:
        """Create and start container `name`; CriError where either fails."""
        container = self.create(name, *command, **config)
        container.start()
        return container


class PodContainer:
    """One container of a pod, as long as the pod is there."""

    def __init__(self, pod: PodSandbox, name: str, identity: str) -> None:
        self.pod = pod
        self.id = identity
        self.full_name = f"{NAMESPACE}/{pod.name}/{name}"

    def start(self) -> None:
        self._call("StartContainer")

    def probe(self, *commands: str) -> Executed:
        """Run the probe in it; its events are `Executed.said`."""
        return self.execute(PROGRAM, *commands)

    def execute(self, *command: str) -> Executed:
        """Run a program in it to its end."""
        reply = self._call("ExecSync", cmd=list(command))
        out, err = (base64.b64decode(reply[name]).decode() for name in ("stdout", "stderr"))
        return Executed(reply["exit_code"], out, err)

    def state(self) -> str:
        found: str = self.status()["state"]
        return found

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self._call("ContainerStatus")["status"]
        return found

    def pid(self) -> int:
        """Return its first process, as the host numbers it."""
        info = self._call("ContainerStatus", verbose=True)["info"]["info"]
        return int(json.loads(info)["pid"])

    def wait(self) -> int:
        """Return its exit code once it has ended."""
        wait_until(lambda: self.state() == "CONTAINER_EXITED")
        return int(self.status()["exit_code"])

    def stop(self) -> None:
        self._call("StopContainer", timeout=0)

    def remove(self) -> None:
        with suppress(CriError):  # ended already
            self.stop()
        self._call("RemoveContainer")

    def _call(self, method: str, **request: Any) -> dict[str, Any]:
        return self.pod.cri.call(method, container_id=self.id, **request)
