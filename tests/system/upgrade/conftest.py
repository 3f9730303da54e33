# SPDX-License-Identifier: Apache-2.0
"""A machine on which gpushare is replaced while containers work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpushare.client import Client
from gpushare.errors import UserError
from gpushare.install import Installation, activate, install
from gpushare.protocol import TenantStatus
from tests.stack import Stack
from tests.stack.bundle import Bundle

from . import variant
from .variant import Variant


class TwoVersions:
    """A stack with two versions of gpushare, of which one is current: `ours` or `other`."""

    def __init__(self, stack: Stack, other: Variant) -> None:
        self.stack = stack
        self.prefix = stack.installation.root.parent
        self.ours = stack.installation
        self.variant = other
        self.switch(self.ours)

    @property
    def other(self) -> Installation:
        return install(
            self.prefix,
            runtime=self.stack.runtime,
            socket=self.stack.socket,
            source=self.variant.source,
        )

    @property
    def client(self) -> Client:
        return Client(self.stack.socket)

    def switch(self, to: Installation) -> None:
        """As `gpushare setup` does: engines and daemon know `current` only."""
        current = activate(to)
        self.stack.installation = current
        config = yaml.safe_load(self.stack.config.read_text())
        config["library_dir"] = str(current.libraries)
        self.stack.config.write_text(yaml.safe_dump(config))

    def start_daemon(self) -> None:
        """Start the daemon of the current version, and return once it serves."""
        is_ours = self.stack.installation.root.resolve() == self.ours.root
        argv = self.stack.gpushared
        if not is_ours:
            argv = self.variant.argv("gpushare.daemon.__main__", "--config", str(self.stack.config))
        self.stack.daemon = self.stack.start("gpushared", argv)
        pid = self.stack.daemon.process.pid
        self.stack.daemon.wait_until(lambda: self._serves(pid))

    def replace_daemon(self, to: Installation | None = None) -> None:
        """As systemd does when `gpushare setup` says so."""
        if to is not None:
            self.switch(to)
        assert self.stack.daemon is not None
        self.stack.daemon.stop()
        self.start_daemon()

    def row(self, bundle: Bundle) -> TenantStatus:
        [found] = [one for one in self.client.tenants() if one["id"] == bundle.id]
        return found

    def allocated(self) -> int:
        return sum(card["allocated_bytes"] for card in self.client.cards())

    def events(self) -> list[str]:
        text = (self.stack.root / "gpushared.log").read_text()
        return [str(json.loads(line)["event"]) for line in text.splitlines() if line]

    def maps(self, bundle: Bundle, installation: Installation) -> bool:
        """Whether the container's program has the filter of that version loaded."""
        inode = str((installation.libraries / "libcuda.so.1").stat().st_ino)
        pid = self.row(bundle)["pid"]
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        return any(line.split()[4] == inode for line in lines)

    def page(self, bundle: Bundle, name: str) -> Path:
        """Return where a tenant's grant or status is, on the host."""
        folder = self.stack.root / "run" / "tenants" / self.row(bundle)["key"]
        [found] = folder.rglob(name)
        return found

    def _serves(self, pid: int) -> bool:
        try:
            return self.client.status()["pid"] == pid
        except (UserError, OSError):
            return False


@pytest.fixture(scope="session")
def other() -> Variant:
    with Stack() as stack:
        return variant.build(stack.installation)


@pytest.fixture
def both(other: Variant) -> Iterator[TwoVersions]:
    """One with both versions; this one is current, and its daemon runs."""
    with Stack() as stack:
        made = TwoVersions(stack, other)
        made.start_daemon()
        yield made


def share(stack: Stack, **quota: Any) -> Bundle:
    return Bundle(stack, quota={"memory": "1GiB", **quota})
