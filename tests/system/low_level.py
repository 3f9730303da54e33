# SPDX-License-Identifier: Apache-2.0
"""A low-level runtime, bare or behind the launcher, and bundles for it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.stack.program import Missing, find

WAIT_SECONDS = 30.0
#: Of busybox, in a bundle's root.
APPLETS = ("sh", "cat", "echo", "sleep", "test", "tty", "env", "ls", "stty", "wc", "true")

#: crun refuses a host that has cgroup v1 and v2 side by side: there it gets a view without v2.
_V1_ONLY = 'umount /sys/fs/cgroup/unified && exec "$@"'

_CHANGING = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)"), "TIME"),
    (re.compile(r"\b(CREATED|TIME) +"), r"\1 "),  # the column is as wide as the times
    (re.compile(r'"pid": ?\d+'), '"pid": PID'),
    (re.compile(r"^\[[\d,\s]*\]$", re.MULTILINE), "[PIDS]"),
    (re.compile(r"\S*/(runc|crun)(?=: )"), r"\1"),
    # runc 1.1.15 tries before the kernel has let go of what was killed, now and then
    (re.compile(r"^.*level=warning.*Failed to remove cgroup .will retry.*\n", re.MULTILINE), ""),
)


class CallOutcome(NamedTuple):
    """What a caller of a runtime can see of one call; what differs between any two is masked."""

    status: int
    stdout: str
    stderr: str


def program(name: str) -> Path:
    """Return one of our C programs as it is installed beside this Python."""
    for folder in (Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))):
        if (folder / name).exists():
            return folder / name
    raise Missing(f"{name} is not installed: run ./dev setup")


def masked(text: bytes) -> str:
    shown = text.decode(errors="replace")
    for pattern, mask in _CHANGING:
        shown = pattern.sub(mask, shown)
    return shown


class LowLevelRuntime:
    """`argv` is the program, and what enters its mount namespace; `state` its --root."""

    def __init__(self, argv: Sequence[str], state: Path) -> None:
        self.program = list(argv)
        self.state_folder = state

    def instead(self, program: str) -> LowLevelRuntime:
        """Return one of the same state with `program` in the last place of how it is started."""
        return LowLevelRuntime([*self.program[:-1], program], self.state_folder)

    def argv(self, *words: str, before: Sequence[str] = ()) -> list[str]:
        """Return the command line of one verb; `before` executes the rest of its arguments."""
        *entrance, program = self.program
        return [*entrance, *before, program, "--root", str(self.state_folder), *words]

    def call(self, *words: str, stdin: bytes = b"", before: Sequence[str] = ()) -> CallOutcome:
        """Run one verb; `before` is a program that executes the rest of its arguments."""
        done = subprocess.run(
            self.argv(*words, before=before), input=stdin, capture_output=True, check=False
        )
        return CallOutcome(done.returncode, masked(done.stdout), masked(done.stderr))

    def create(self, bundle: Path, container: str) -> int:
        """Create without output pipes: the container's init keeps those it is given."""
        return subprocess.run(
            self.argv("create", "--bundle", str(bundle), container),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        ).returncode

    def wait_for(self, container: str, status: str) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while (seen := self.state(container).get("status")) != status:
            assert time.monotonic() < deadline, f"{container} is {seen}, never {status}"
            time.sleep(0.02)

    def state(self, container: str) -> dict[str, Any]:
        """Return the OCI state; empty where there is no such container."""
        done = subprocess.run(self.argv("state", container), capture_output=True, check=False)
        state: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
        return state


def low_level(name: str) -> list[str]:
    """Return the argv that starts runc or crun on this machine."""
    path = find(name)
    if name == "crun" and Path("/sys/fs/cgroup/unified").is_dir():
        slave = ("--mount", "--propagation", "slave")
        return [find("unshare"), *slave, "sh", "-c", _V1_ONLY, path, path]
    return [path]


def behind_launcher(folder: Path, argv: Sequence[str], socket: Path) -> list[str]:
    """Return the argv of a launcher, installed in `folder`, for the low-level runtime of `argv`.

    It has the low-level runtime's name there, for usage texts quote argv[0].
    """
    folder.mkdir()
    launcher = shutil.copy(program("gpushare-runtime"), folder / Path(argv[-1]).name)
    configuration = folder / "gpushare-runtime.conf"
    configuration.write_text(f"runtime = {argv[-1]}\nsocket = {socket}\n")
    configuration.chmod(0o644)
    return [*argv[:-1], str(launcher)]


def write_bundle(folder: Path, *command: str, **changes: Any) -> Path:
    """Write a bundle that runs `command` of busybox; `changes` replace top-level fields.

    Its root is made once: what a container leaves there is there for the next one.
    """
    if not (root := folder / "rootfs").exists():
        for name in ("bin", "proc", "dev", "tmp"):
            (root / name).mkdir(parents=True)
        shutil.copy(find("busybox"), root / "bin" / "busybox")
        for applet in APPLETS:
            (root / "bin" / applet).symlink_to("busybox")
    capabilities = {key: ["CAP_KILL"] for key in ("bounding", "effective", "permitted")}
    process = {
        "terminal": False,
        "user": {"uid": 0, "gid": 0},
        "args": list(command),
        "env": ["PATH=/bin"],
        "cwd": "/",
        "capabilities": capabilities,
        "noNewPrivileges": True,
    }
    spec = {
        "ociVersion": "1.0.2",
        "process": process | changes.pop("process", {}),
        "root": {"path": "rootfs", "readonly": False},
        "hostname": "tenant",
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
            {
                "destination": "/dev/pts",
                "type": "devpts",
                "source": "devpts",
                "options": ["newinstance", "ptmxmode=0666", "mode=0620"],
            },
        ],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")],
            "resources": {"devices": [{"allow": False, "access": "rwm"}]},
        },
    } | changes
    (folder / "config.json").write_text(json.dumps(spec))
    return folder


@contextmanager
def removed_afterwards(runtime: LowLevelRuntime, *containers: str) -> Iterator[None]:
    try:
        yield
    finally:
        for container in containers:
            runtime.call("delete", "--force", container)
