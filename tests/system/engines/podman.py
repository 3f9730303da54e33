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
BUSYBOX = "/bin/busybox"
IDLE = (BUSYBOX, "sleep", "1000")
PATIENCE_SECONDS = 120

# podman raises limits to the machine's highest, which needs CAP_SYS_RESOURCE.
_LIMITS = "etc/containers/containers.conf.d/10-limits.conf"
_CONFIG = """[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1000:1000"]
"""

Done = subprocess.CompletedProcess[str]


class Podman:
    """Registered with as `gpushare runtime configure --runtime podman` does.

    The files are where podman looks for them, in the stage's place: hooks.d among them.
    """

    def __init__(self, stage: Stack) -> None:
        self.stage = stage
        self.root = stage.root / "podman"
        self.root.mkdir()
        self._configure()
        files = {BUSYBOX: Path(find("busybox")).read_bytes()}
        archive = self.root / "image.tar"
        archive.write_bytes(image.build(stage.installation.probe, files))
        (self.root / "run").mkdir(mode=0o700)
        loaded = self.call("load", "--input", str(archive))
        assert loaded.returncode == 0, loaded.stderr

    def call(self, *words: str, runtime: str = "gpushare") -> Done:
        """Run a command of podman's with `runtime`, a name or a path; nothing is asserted."""
        return subprocess.run(
            [*self.argv(), f"--runtime={runtime}", *words],
            check=False,
            capture_output=True,
            text=True,
            env=self._environment(),
            cwd="/",
            timeout=PATIENCE_SECONDS,
        )

    def run(self, *flags: str, command: Sequence[str] = IDLE, runtime: str = "gpushare") -> Done:
        """Run a container of the probe's image, without a network."""
        parent = f"--cgroup-parent=/{self.stage.cgroup}"
        words = ["run", "--network=none", parent, *flags, IMAGE, *command]
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

    def argv(self) -> list[str]:
        words = [f"--root={self.root}/storage", "--cgroup-manager=cgroupfs"]
        words += ["--events-backend=file"]
        return self.stage.argv("podman", "--storage-driver=overlay", *words)

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
        (files / _LIMITS).write_text(_CONFIG)
        launcher = self.stage.installation.launcher
        for change in config_files.configure(engine.locate(files), launcher, default=False):
            change.apply()
        assert self.stage.place is not None  # else it would be this machine that is configured
        subprocess.run(self.stage.argv("cp", "-rT", str(files), "/"), check=True)
