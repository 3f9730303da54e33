# SPDX-License-Identifier: Apache-2.0
"""A node of a cluster without its kubelet: containerd with its CRI plugin, our handler in it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from gpushare.verify import image
from tests.stack import Stack
from tests.stack.program import ServiceProcess, find
from tests.system.waiting import wait_until

from .cri import Cri, CriError
from .pod import PodSandbox

BUSYBOX = "/bin/busybox"
PAUSE = "gpushare-pause:latest"
#: As a kubelet with cgroupfs names a pod's cgroup; see PodSandbox.
PARENT = "kubepods/burstable/pod{uid}"

CONFIG = """version = 2
root = "{root}/root"
state = "{root}/state"
imports = ["{root}/conf.d/*.toml"]
[grpc]
  address = "{root}/containerd.sock"
[ttrpc]
  address = "{root}/containerd.sock.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
  path = "{root}/opt"
"""
# What a node's administrator says of CRI, in a drop-in: a state folder of runc's for the default
# handler, which ours must take over. Raising oom_score_adj needs CAP_SYS_RESOURCE.
DROP_IN = """version = 2
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/library/{pause}"
  restrict_oom_score_adj = true
  {more}
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{root}/cni"
    conf_dir = "{root}/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      Root = "{root}/runc"
"""
# The same in version 3, which only containerd 2.x reads.
DROP_IN_3 = """version = 3
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "docker.io/library/{pause}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true
  {more}
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dir = "{root}/cni"
    conf_dir = "{root}/cni"
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      Root = "{root}/runc"
"""


class CriNode:
    """Runs with the handler that `gpushare runtime configure` writes, which is the default too.

    CRI is configured in a file that containerd's own imports, as on nodes that are managed. `more`
    are lines for its plugin's table; `version` is that of the files.
    """

    def __init__(self, stack: Stack, *more: str, version: int = 2) -> None:
        self.stack = stack
        self.root = stack.root / "node"
        self.root.mkdir()
        self.config = self.root / "config.toml"
        config = CONFIG.replace("version = 2", f"version = {version}")
        self.config.write_text(config.format(root=self.root))
        drop_in = self.root / "conf.d" / "10-cri.toml"
        drop_in.parent.mkdir()
        text = DROP_IN_3 if version == 3 else DROP_IN
        drop_in.write_text(text.format(root=self.root, pause=PAUSE, more="\n  ".join(more)))
        self._configure()
        address = self.root / "containerd.sock"
        self.env = {**stack.environment, "CONTAINERD_ADDRESS": str(address)}
        self.containerd = self._start()
        self.cri = Cri(address)
        try:
            self.containerd.wait_until(self._answers)
            self._import()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> CriNode:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def pod(
        self,
        annotations: dict[str, str] | None = None,
        *,
        handler: str = "gpushare",
        parent: str = PARENT,
        pid: str = "CONTAINER",
    ) -> PodSandbox:
        """Run a pod's sandbox; `annotations` are the user's, without gpushare.io/ before them."""
        named = {f"gpushare.io/{name}": value for name, value in (annotations or {}).items()}
        parent = f"/{self.stack.cgroup}/{parent}"
        logs = self.root / "logs"
        return PodSandbox(self.cri, logs, parent, annotations=named, handler=handler, pid=pid)

    def restart(self) -> None:
        """Stop containerd, and start it anew beside the shims of what runs."""
        self.containerd.stop()
        self.containerd = self._start()
        self.containerd.wait_until(self._answers)

    def close(self) -> None:
        self.cri.close()
        self.containerd.stop()

    def _start(self) -> ServiceProcess:
        argv = self.stack.argv("containerd", "--config", str(self.config))
        return self.stack.start("containerd", argv)

    def _configure(self) -> None:
        argv = [
            *self.stack.cli,
            "runtime",
            "configure",
            "--runtime",
            "containerd",
            "--config",
            str(self.config),
            "--set-as-default",
            "--launcher",
            str(self.stack.installation.launcher),
        ]
        subprocess.run(argv, check=True, capture_output=True, env=self.stack.environment)

    def _answers(self) -> bool:
        try:
            conditions = self.cri.call("Status")["status"]["conditions"]
        except CriError:
            return False
        return any(found["type"] == "RuntimeReady" and found["status"] for found in conditions)

    def _import(self) -> None:
        probe, busybox = (
            self.stack.installation.probe,
            {BUSYBOX: Path(find("busybox")).read_bytes()},
        )
        pause = image.build(probe, busybox, tag=PAUSE, command=(BUSYBOX, "sleep", "1000000"))
        for archive in (image.build(probe, busybox), pause):
            subprocess.run(
                ["ctr", "--namespace", "k8s.io", "images", "import", "-"],
                check=True,
                capture_output=True,
                input=archive,
                env=self.env,
            )
        # CRI hears of an image by an event, and would ask a registry for one that it does not know.
        wanted = {f"docker.io/library/{tag}" for tag in (image.TAG, PAUSE)}
        wait_until(lambda: wanted <= self._images())

    def _images(self) -> set[str]:
        found = self.cri.call("ListImages")["images"]
        return {tag for known in found for tag in known["repo_tags"]}
