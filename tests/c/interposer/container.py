# SPDX-License-Identifier: Apache-2.0
"""What a program in a container has around it."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from gpushare import simulator
from gpushare.simulator import device_file
from tests.supervise import PR_SET_PDEATHSIG

from .tenant import InterposedTenant

HERE = Path(__file__).parent
#: Longer than any of the processes takes on a busy machine.
SECONDS = 180


def program(*lines: str) -> str:
    """Return a Python program: client.py, and `lines`."""
    return "\n".join([(HERE / "client.py").read_text(), *lines])


def bound() -> None:
    """Let this process be killed with its parent, and end by SIGALRM where it hangs."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.alarm(SECONDS)


class Program(subprocess.Popen[str]):
    """A running program; as a context manager, it is killed at the end if it is still there."""

    def line(self) -> str:
        """Return the next line that it says, without its end; "" at the end of all."""
        assert self.stdout
        return self.stdout.readline().rstrip("\n")

    def tell(self, text: str = "") -> None:
        """Write a line to it."""
        assert self.stdin
        self.stdin.write(text + "\n")
        self.stdin.flush()

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self.communicate()


@dataclass
class ProgramContainer:
    """What a program in a container has around it, for as long as a test lasts."""

    libraries: Path
    tenant: InterposedTenant
    env: dict[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "LD_LIBRARY_PATH": str(self.libraries),
            "LIBCUDA": str(self.libraries / "libcuda.so.1"),
            "BEHIND": str(self.libraries.parent / "driver" / "libcuda.so.1"),
            "GPUSHARE_TENANT_DIR": str(self.tenant.directory),
            **self.env,
        }

    def bare(self) -> ProgramContainer:
        """Return one with the simulated driver instead of the filters."""
        return ProgramContainer(self.libraries / "simulator", self.tenant, self.env)

    @property
    def device(self) -> Path:
        """The file of the simulated cards."""
        return Path(self.env["GPUSHARE_SIM_DEVICE"])

    def fail(self, times: int = 0, error: int = 2) -> None:
        """Let the next `times` calls that take memory of the first simulated card fail."""
        simulator.fail(self.device, allocations=times, error=error)

    def failed(self, times: int) -> int:
        """Return how many of those have failed."""
        with self.device.open("rb") as file:
            file.seek(device_file.FAULTS_OFFSET)
            text = file.read(ctypes.sizeof(device_file.Faults))
        return times - int(device_file.Faults.from_buffer_copy(text).allocations)

    def start(self, *command: str | Path) -> Program:
        return Program(
            [str(part) for part in command],
            preexec_fn=bound,
            env=self.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(part) for part in command],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def says(self, *lines: str) -> list[object]:
        """Run `lines` after client.py; return what its one say() printed."""
        done = self.run(sys.executable, "-c", program(*lines))
        assert done.returncode == 0, done.stderr
        assert not done.stderr, done.stderr
        said: list[object] = json.loads(done.stdout)
        return said
