# SPDX-License-Identifier: Apache-2.0
"""Times what an engine asks of an OCI runtime in a container's life."""

from __future__ import annotations

import os
import secrets
import select
from collections.abc import Mapping
from pathlib import Path

from .turns import Times, spawn

EXITED_SECONDS = 10


class Lives:
    """Containers from one bundle, one after the other, under one runtime program."""

    def __init__(
        self, program: Path, bundle: Path, folder: Path, environment: Mapping[str, str]
    ) -> None:
        self._program = program
        self._bundle = bundle
        self._environment = environment
        self._state = folder / "state"
        self._log = folder / "output"
        self._pid_file = folder / "pid"

    def whole(self) -> Times:
        """Live one container's life; the milliseconds of each verb."""
        name = f"bench-{secrets.token_hex(4)}"
        try:
            times = {"create": self._create(name)}
            init = os.pidfd_open(int(self._pid_file.read_text()))
            try:
                times["start"] = self._call("start", name)
                times["state"] = self._call("state", name)
                times["exec"] = self._call("exec", name, "/bin/busybox", "true")
                times["kill"] = self._call("kill", name, "KILL")
                # Before init is gone, delete would fail, and afterwards it has nothing to wait for.
                select.select([init], [], [], EXITED_SECONDS)
            finally:
                os.close(init)
            times["delete"] = self._call("delete", name)
        except BaseException:
            self._call("delete", "--force", name)
            raise
        return times

    def created(self, name: str = "") -> Times:
        """Create a container and take it away again; the milliseconds of the former."""
        name = name or f"bench-{secrets.token_hex(4)}"
        try:
            return {"create": self._create(name)}
        finally:
            self._call("delete", "--force", name)

    def keep(self) -> str:
        """Create a container that stays, and return its name for `remove`."""
        name = f"bench-{secrets.token_hex(4)}"
        self._create(name)
        return name

    def remove(self, name: str) -> None:
        """Take a container away."""
        self._call("delete", "--force", name)

    def _create(self, name: str) -> float:
        words = ("--bundle", str(self._bundle), "--pid-file", str(self._pid_file), name)
        return self._call("create", *words)

    def _call(self, *words: str) -> float:
        argv = [str(self._program), "--root", str(self._state), *words]
        return spawn(argv, self._environment, self._log)
