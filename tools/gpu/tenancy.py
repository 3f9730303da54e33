# SPDX-License-Identifier: Apache-2.0
"""A tenant of one card without daemon, engine or container: the filters over the real driver.

The pages are those that the daemon would write, the mounts those that it would make, in a private
mount namespace (child/enter.py). So what is measured is the libraries alone.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from threading import Thread

from gpushare import abi
from gpushare.daemon.pages.status_page import StatusPage
from gpushare.daemon.pages.tenants import CardGrant, GrantPage
from gpushare.host import mounts
from gpushare.host.driver import CUDA, NVML
from gpushare.protocol import MountRow
from tests.c.interposer.tenant import receive

from .driver import DriverPaths
from .process import child, environment, run
from .report import NotMeasured


class Tenancy:
    """`memory_bytes` of `driver`'s first card; `filters` is the folder of the filter libraries."""

    def __init__(
        self, driver: DriverPaths, filters: Path, memory_bytes: int, context_bytes: int = 0
    ) -> None:
        self.driver = driver
        self.filters = filters
        self.memory_bytes = memory_bytes
        self.messages: list[str] = []
        self.directory = Path(tempfile.mkdtemp(prefix="gpushare-tenancy-"))
        self.directory.chmod(0o755)
        opened = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            granted = CardGrant(driver.uuid, memory_bytes, context_bytes, cores=0)
            self.grant = GrantPage.make(opened, "measured", [granted])
            self.grant.set_bound()
            self.status = StatusPage.make(opened)
        finally:
            os.close(opened)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.bind(str(self.directory / abi.SOCKET_NAME))
        self._socket.listen(64)
        Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Tenancy:
        done = run(self.command(["true"]), self.environment)
        if done.returncode:
            raise NotMeasured(f"{done.stderr.strip() or 'a private mount namespace'}; run as root")
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self.status.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    @property
    def environment(self) -> dict[str, str]:
        return environment(self.driver.env)

    @property
    def mounts(self) -> list[MountRow]:
        """What `gpushare run` would mount (gpushare.protocol.Opened says where)."""
        real = {CUDA: self.driver.cuda, NVML: self.driver.nvml}
        rows = [_row(path, mounts.DRIVER / name) for name, path in real.items()]
        rows += [_row(self.filters / name, mounts.FILTERS / name) for name in real]
        status = self.directory / abi.STATUS_NAME
        return [
            *rows,
            _row(self.directory, mounts.TENANT),
            _row(status, mounts.TENANT / abi.STATUS_NAME, read_only=False),
        ]

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs `argv` as this tenant."""
        return [*child("enter"), json.dumps(self.mounts), *argv]

    @property
    def denied(self) -> int:
        """How many allocations its running processes were refused."""
        return sum(claim.denied for claim in self.status.claims(1))

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # the tenancy has ended
            Thread(target=self._listen, args=(connection,), daemon=True).start()

    def _listen(self, connection: socket.socket) -> None:
        with connection:
            while message := receive(connection):
                if message.type == abi.MESSAGE_LOG:
                    self.messages.append(message.text)


def _row(source: Path, destination: Path, *, read_only: bool = True) -> MountRow:
    return {"source": str(source), "destination": str(destination), "read_only": read_only}
