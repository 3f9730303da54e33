# SPDX-License-Identifier: Apache-2.0
"""podman of a stage's distribution, with its storage beneath the stage's folder."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from gpushare.engines import config_files
from gpushare.engines import podman as engine
from gpushare.verify import image
from tests.stack import Stack
from tests.stack.program import find

IMAGE = f"localhost/{image.TAG}"
INFRA_IMAGE = "localhost/gpushare-infra:latest"
BUSYBOX = "/bin/busybox"
IDLE = (BUSYBOX, "sleep", "1000")
PATIENCE_SECONDS = 120

# podman raises limits to the machine's highest, which needs CAP_SYS_RESOURCE. Its own image for a
# pod's first container would be built from a program (catatonit) that not every machine has.
_LIMITS = "etc/containers/containers.conf.d/10-limits.conf"
_CONFIG = """[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
[engine]
infra_image = "{image}"
"""

Done = subprocess.CompletedProcess[str]


class Podman:
    """Registered with as `gpushare runtime configure --runtime podman` does; run by `user`.

    The files are where podman looks for them, in the stage's place: hooks.d among them.
    """

    def __init__(self, stage: Stack, *, user: int = 0) -> None:
        self.stage = stage
        self.user = user
        self.root = stage.root / f"podman-{user}"
        self.root.mkdir()
        self._configure()
        files = {BUSYBOX: Path(find("busybox")).read_bytes()}
        probe, archives = stage.installation.probe, list[Path]()
        for tag, command in ((image.TAG, (image.PROGRAM,)), (INFRA_IMAGE, IDLE)):
            archives.append(self.root / f"image-{len(archives)}.tar")
            archives[-1].write_bytes(image.build(probe, files, tag=tag, command=command))
        (self.root / "run").mkdir(mode=0o700)
        for path in (self.root, self.root / "run"):
            os.chown(path, user, user)
        for archive in archives:
            loaded = self.call("load", "--input", str(archive))
            assert loaded.returncode == 0, loaded.stderr

    def call(self, *words: str, runtime: str = "gpushare") -> Done:
        """Run a command of podman's with `runtime`, a name or a path; nothing is asserted."""
        return subprocess.run(
            [*self._argv(), f"--runtime={runtime}", *words],
            check=False,
            capture_output=True,
            text=True,
            env=self._environment(),
            cwd="/",
            timeout=PATIENCE_SECONDS,
        )

    def run(self, *flags: str, command: Sequence[str] = IDLE, runtime: str = "gpushare") -> Done:
        """Run a container of the probe's image, without a network."""
        parent = [] if self.user else [f"--cgroup-parent=/{self.stage.cgroup}"]
        words = ["run", "--network=none", *parent, *flags, IMAGE, *command]
        return self.call(*words, runtime=runtime)

    def start(self, name: str, *flags: str) -> str:
        """Run container `name` in the background; return its id."""
        done = self.run("--detach", f"--name={name}", *flags)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def execute(self, name: str, *command: str) -> Done:
        return self.call("exec", name, *command)

    def remove(self, name: str) -> None:
        self.call("rm", "--force", "--time=0", name)

    def _argv(self) -> list[str]:
        words = [f"--root={self.root}/storage", "--cgroup-manager=cgroupfs"]
        words += ["--events-backend=file"]
        if not self.user:
            return self.stage.argv("podman", "--storage-driver=overlay", *words)
        # Without subordinate users a layer cannot be mounted over another.
        assert self.stage.place is not None
        podman = self.stage.place.distribution.find("podman")
        as_user = [f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"]
        return self.stage.argv("setpriv", *as_user, podman, "--storage-driver=vfs", *words)

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.root),
            "XDG_RUNTIME_DIR": str(self.root / "run"),
            "PODMAN_IGNORE_CGROUPSV1_WARNING": "1",
        }

    def _configure(self) -> None:
        """Have the files written in a folder, and put them where podman looks for them."""
        files = self.root / "files"
        (files / _LIMITS).parent.mkdir(parents=True)
        (files / _LIMITS).write_text(_CONFIG.format(image=INFRA_IMAGE))
        launcher = self.stage.installation.launcher
        for change in config_files.configure(engine.locate(files), launcher, default=False):
            change.apply()
        assert self.stage.place is not None  # else it would be this machine that is configured
        subprocess.run(self.stage.argv("cp", "-rT", str(files), "/"), check=True)
