# SPDX-License-Identifier: Apache-2.0
"""A background program of the stack: started, waited for, ended, its output kept in a file."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .forked import Forked

START_SECONDS = 60.0
STOP_SECONDS = 30.0
#: Where distributions put engines, besides PATH; build/tools is where ./dev unpacks one that it
#: may not install.
PLACES = ("/usr/sbin", "/usr/bin", "/sbin", "/usr/local/sbin", "/usr/local/bin")
TOOLS = Path(__file__).resolve().parents[2] / "build" / "tools"


class Missing(RuntimeError):
    """A program of the stack is not on this machine; says what installs it."""


def find(name: str) -> str:
    """Return the absolute path of program `name`."""
    unpacked = [str(TOOLS / place.lstrip("/")) for place in PLACES]
    for folder in (None, ":".join((*PLACES, *unpacked))):
        found = shutil.which(name, path=folder)
        if found and Path(found).resolve() != Path("/bin/false"):
            return found
    raise Missing(f"{name} is not on this machine: run ./dev setup")


class ServiceProcess:
    """`argv`, executed; with `forked` it is gpushared's, see forked.py."""

    def __init__(
        self,
        argv: Sequence[str],
        log: Path,
        env: dict[str, str] | None = None,
        *,
        forked: bool = False,
    ) -> None:
        self.argv = list(argv)
        self.log = log
        self.process: subprocess.Popen[bytes] | Forked
        with log.open("ab") as output:
            if forked:
                self.process = Forked(self.argv, output.fileno(), env or os.environ)
                return
            self.process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=env,
                start_new_session=True,
            )

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Return once `ready`; RuntimeError with its last words when it ends or takes too long."""
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.argv[0]} ended: {self.last_words()}")
            if time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"{self.argv[0]} did not start: {self.last_words()}")
            time.sleep(0.05)

    def last_words(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
