# SPDX-License-Identifier: Apache-2.0
"""containerd's own client: no handlers, so the launcher is named as the runc to use."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Sequence
from pathlib import Path

from gpushare.verify import image
from gpushare.verify.image import PROGRAM
from tests.stack import Stack
from tests.stack.program import find

from .slices import GIB, assert_slice, parse, probing

BUSYBOX = "/bin/busybox"
TAGGED = "gpushare-shell:latest"
IDLE = (BUSYBOX, "sleep", "1000")
# ctr 1.6 passes the end of its stdin on only where that comes late enough.
_WORDS = " ".join(f"'{command}'" for command in probing(4 * GIB))
PROBE = (BUSYBOX, "sh", "-c", f"exec {PROGRAM} {_WORDS} </dev/null")
ANNOTATION = ("--annotation", "gpushare.io/memory=4GiB")
PATIENCE_SECONDS = 120

Done = subprocess.CompletedProcess[str]


class Ctr:
    """Container `name`, by the `ctr` of the stage's distribution."""

    def __init__(self, stage: Stack) -> None:
        self.stage = stage
        self.name = f"train-{secrets.token_hex(4)}"

    @property
    def full_name(self) -> str:
        return f"{self.stage.cgroup}/{self.name}"

    def call(self, *words: str) -> Done:
        return subprocess.run(
            ["ctr", *words],
            check=False,
            capture_output=True,
            text=True,
            env=self.stage.environment,
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE_SECONDS,
        )

    def run(self, *flags: str, command: Sequence[str] = PROBE) -> Done:
        return self.call(*self.argv(*flags, command=command)[1:])

    def start(self, *flags: str) -> None:
        """Run it in the background, with a quota of 4 GiB."""
        done = self.run("--detach", *flags, *ANNOTATION, command=IDLE)
        assert done.returncode == 0, done.stderr

    def holds_its_quota(self, *words: str) -> None:
        """Run the probe by `words` of ctr's: it sees a card of 4 GiB, and gets no more.

        ctr cancels the copying of the output when the process has ended, so that the output of a
        short one can be lost; its exit status is not.
        """
        for _ in range(5):
            done = self.call(*words)
            if done.stdout or done.returncode:
                break
        assert done.returncode == 0, done.stderr
        assert_slice(parse(done.stdout), 4 * GIB)

    def argv(self, *flags: str, command: Sequence[str] = PROBE) -> list[str]:
        """Return the command line that runs the container."""
        launcher = str(self.stage.installation.launcher)
        words = ["ctr", "run", "--runc-binary", launcher, *flags, f"docker.io/library/{TAGGED}"]
        return [*words, self.name, *command]

    def executed(self) -> tuple[str, ...]:
        """Return ctr's words that run the probe in the container."""
        return ("tasks", "exec", "--exec-id", "probe", self.name, *PROBE)

    def kill(self) -> None:
        assert self.call("tasks", "kill", "--signal", "SIGKILL", self.name).returncode == 0

    def processes(self) -> list[int]:
        listed = self.call("tasks", "ps", self.name).stdout.splitlines()[1:]
        return [int(line.split()[0]) for line in listed]

    def remove(self) -> None:
        self.call("tasks", "rm", "--force", self.name)
        self.call("containers", "rm", self.name)


def import_shell(stage: Stack) -> None:
    """Import the probe's image, with a shell."""
    busybox = {BUSYBOX: Path(find("busybox")).read_bytes()}
    archive = image.build(stage.installation.probe, busybox, tag=TAGGED)
    words = ["ctr", "images", "import", "-"]
    subprocess.run(words, check=True, input=archive, capture_output=True, env=stage.environment)
