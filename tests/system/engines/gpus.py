# SPDX-License-Identifier: Apache-2.0
"""Containers started with an engine's own options for GPUs, and what they were given."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpushare.protocol.rows import TenantStatus
from gpushare.verify import image
from gpushare.verify.runners import ProbeTenant
from tests.stack import Stack

#: For this dockerd looks when it starts.
PROGRAM = "nvidia-container-runtime-hook"
RAN = "hook-ran"


def stand_in(stack: Stack) -> None:
    """Put a program by the name of NVIDIA's where docker looks: with it, it takes `--gpus`.

    Where it is run it leaves the file RAN in the stack's folder: under gpushare it never is.
    """
    program = stack.root / "stand-in"
    program.write_text(f'#!/bin/sh\n: >"{stack.root / RAN}"\n')
    program.chmod(0o755)
    inside(stack, f"cp '{program}' /usr/bin/{PROGRAM}")


def inside(stack: Stack, script: str) -> None:
    """Run a shell's script where the engines are; what it writes is gone with the stack."""
    assert stack.place is not None, "this would write to the machine itself"
    subprocess.run(stack.argv("/bin/sh", "-euc", script), check=True)


def assert_untouched(mounts: Sequence[str]) -> None:
    """Nothing of ours is in a container with whole cards."""
    # The loader's names lead to the driver itself, in a tmpfs without anything of a share.
    own = [path for path in mounts if path.startswith("/.gpushare/")]
    assert [path for path in own if not path.startswith("/.gpushare/lib")] == []
    assert any(path.endswith("/libcuda.so.1") for path in mounts)


@dataclass
class EngineClient:
    """A client of docker's command line: `argv` begins `docker` or `podman`."""

    stack: Stack
    argv: Sequence[str] = ("docker",)
    options: Sequence[str] = ("--network", "none", "--runtime=gpushare")

    def call(self, *words: str, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        """Call the client; its failure is the test's to judge."""
        return subprocess.run(
            [*self.argv, *words],
            check=False,
            input=data,
            capture_output=True,
            env=self.stack.environment,
        )

    @contextmanager
    def tenant(self, *options: str) -> Iterator[ProbeContainer]:
        """Run the probe until it is left; it is a container's word that it started."""
        name = f"gpus-{secrets.token_hex(3)}"
        words = ("run", "--rm", "-i", "--name", name, *self.options, *options, image.TAG)
        try:
            with ProbeTenant(name, [*self.argv, *words], self.stack.environment) as tenant:
                yield ProbeContainer(self, tenant, tenant.start().get("code") == 0)
        finally:
            self.call("rm", "--force", name)


@dataclass
class ProbeContainer:
    """A running probe; `found` is whether cuInit found a driver and a card."""

    engine: EngineClient
    tenant: ProbeTenant
    found: bool

    @property
    def row(self) -> TenantStatus:
        """What `gpushare ps` says of it."""
        inspected = self.engine.call("inspect", "--format", "{{.Id}}", self.tenant.name)
        rows = self.engine.stack.client.tenants(everything=True)
        return {row["id"]: row for row in rows}[inspected.stdout.decode().strip()]

    @property
    def isolation(self) -> str:
        """What holds its quota; "exclusive" are whole cards, "" is no GPU."""
        return str(self.row["isolation"])

    @property
    def cards(self) -> list[int]:
        """The indices of its cards."""
        return [card["index"] for card in self.row["cards"]]

    def information(self) -> dict[str, Any]:
        """What CUDA says in it: how many cards, and of the first one its memory."""
        return self.tenant.ask("info")

    def mounts(self) -> list[str]:
        """The mount points that it sees."""
        lines = Path(f"/proc/{self.row['pid']}/mountinfo").read_text().splitlines()
        return [line.split()[4] for line in lines]

    def nodes(self) -> list[str]:
        """The cards' nodes that it has."""
        return sorted(
            path.name for path in Path(f"/proc/{self.row['pid']}/root/dev").glob("nvidia[0-9]*")
        )

    def environment(self) -> list[str]:
        """The variables of its first process."""
        return Path(f"/proc/{self.row['pid']}/environ").read_text().rstrip("\0").split("\0")
