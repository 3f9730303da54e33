# SPDX-License-Identifier: Apache-2.0
"""The docker command of a stage, as a user types it, and the probe in its containers."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from gpushare.verify.runners import ProbeTenant
from tests.stack import Stack
from tests.system.waiting import wait_until

GIB = 1 << 30
IMAGE = "gpushare-probe"
#: What a user asks for with it, the same in every test that is not about the asking.
FOUR_GIB = ("-e", "GPUSHARE_MEMORY=4GiB")
PLAIN = ("--network", "none")


class DockerClient:
    """`docker` of the stage's distribution, talking to its dockerd."""

    def __init__(self, stage: Stack) -> None:
        self.stage = stage

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a docker command; nothing is asserted of it."""
        return subprocess.run(
            ["docker", *words],
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env=self.stage.environment,
            timeout=60,
        )

    def __call__(self, *words: str) -> str:
        """Run a docker command that must succeed; return what it printed."""
        done = self.call(*words)
        assert done.returncode == 0, f"docker {' '.join(words)}: {done.stderr}"
        return done.stdout.strip()

    @contextmanager
    def run(self, name: str, *flags: str) -> Iterator[ProbeTenant]:
        """Run the probe in the foreground; after it the container is gone, its quota with it."""
        words = ["docker", "run", "--rm", "-i", "--name", name, *PLAIN, *flags, IMAGE]
        with self.nothing_kept(), ProbeTenant(name, words, self.stage.environment) as tenant:
            yield tenant

    @contextmanager
    def background(self, name: str, *flags: str) -> Iterator[str]:
        """Run the probe in the background, waiting for input that never comes; a stop kills it."""
        quick = ("--stop-signal", "KILL")
        with self.nothing_kept():
            try:
                self("run", "--detach", "-i", "--name", name, *quick, *PLAIN, *flags, IMAGE)
                yield name
            finally:
                self.call("rm", "--force", name)

    @contextmanager
    def exec(self, name: str, *flags: str, probe: Sequence[str] = ()) -> Iterator[ProbeTenant]:
        """Run a second probe in a container that runs, with the words of `probe`."""
        words = ["docker", "exec", "-i", *flags, name, "gpushare-probe", *probe]
        with ProbeTenant(name, words, self.stage.environment) as tenant:
            yield tenant

    def state(self, name: str) -> dict[str, Any]:
        """Return what docker says of a container's state."""
        [found] = json.loads(self("inspect", name))
        state: dict[str, Any] = found["State"] | {"RestartCount": found["RestartCount"]}
        return state

    def quotas(self) -> dict[str, int]:
        """Return the quota of every tenant, in bytes of its first card, by docker's name for it."""
        rows = self.stage.client.tenants()
        return {row["name"]: row["cards"][0]["quota_bytes"] for row in rows}

    @contextmanager
    def nothing_kept(self) -> Iterator[None]:
        """What was reserved since the beginning is given back after the end."""
        client = self.stage.client
        before = {row["key"] for row in client.tenants()}
        yield
        wait_until(lambda: {row["key"] for row in client.tenants()} <= before)


def holds(tenant: ProbeTenant, size: int = 4 * GIB) -> None:
    """The probe sees a card of `size` bytes, can have most of it, and no more than it."""
    assert tenant.start()["code"] == 0, tenant.errors
    assert tenant.ask("info")["total"] == size
    assert tenant.ask(f"alloc {size - GIB}")["code"] == 0
    assert tenant.ask(f"alloc {GIB}")["result"] == "CUDA_ERROR_OUT_OF_MEMORY"
    tenant.ask("free")
