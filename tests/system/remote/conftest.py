# SPDX-License-Identifier: Apache-2.0
"""LUPINE between two nodes, each with a gpushared, and containers in a network of their own."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import remote_engine

from gpushare.protocol.rows import TenantStatus
from gpushare.verify.runners import ProbeTenant
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.stack.program import ServiceProcess
from tests.system.waiting import wait_until

ENGINE = remote_engine.place(Path(__file__).resolve().parents[3] / "build")
LIBRARY = ENGINE / "libcuda.so.1"
VERSION = hashlib.sha256(LIBRARY.read_bytes()).hexdigest() if LIBRARY.exists() else ""
NO_DRIVER = Path("/nowhere/nvidia.yaml")
FAR, NEAR = "10.87.0.1", "10.87.0.2"
PORT = 14833
LISTENS = f":{PORT:04X} 00000000:0000 0A"  # of net/tcp, proc(5)
PROGRAM = "/usr/bin/server"


@dataclass
class RemoteGpu:
    """`far` has the card and runs the server; `near` has none, and its containers use that one."""

    far: Stack
    near: Stack
    far_network: Path
    near_network: Path

    @contextmanager
    def serving(self, **quota: str) -> Iterator[Bundle]:
        """Run the server in a container."""
        content = (ENGINE / remote_engine.SERVER).read_bytes()
        server = Bundle(self.far, quota=quota, args=[PROGRAM], files={PROGRAM: content})
        into(server, self.far_network)
        try:
            server.detach()
            self._wait_for_server()
            yield server
        finally:
            server.remove()

    @contextmanager
    def serving_by_run(self, **quota: str) -> Iterator[ServiceProcess]:
        """Run the server by `gpushare run`; it ends with the stack, if not before."""
        enter = ["nsenter", f"--net={self.far_network}", *self.far.cli]
        options = [word for key, value in quota.items() for word in (f"--{key}", value)]
        server = str(ENGINE / remote_engine.SERVER)
        process = self.far.start("server", [*enter, "run", *options, "--", server])
        try:
            self._wait_for_server()
            yield process
        finally:
            process.stop()

    def _wait_for_server(self) -> None:
        wait_until(lambda: LISTENS in (self.far_network.parents[1] / "net/tcp").read_text())

    @property
    def server(self) -> TenantStatus:
        """The one tenant of the server's node."""
        [row] = self.far.client.tenants()
        return row

    def taken(self) -> tuple[int, int | None]:
        """Return what is allocated of the card, and what is used of it."""
        [card] = self.far.client.cards()
        return card["allocated_bytes"], card["used_bytes"]

    def client(self, **quota: str) -> Bundle:
        """Return a container that uses the GPU of the other node."""
        return into(Bundle(self.near, quota={"remote": "lab", **quota}), self.near_network)

    def configure(self, version: str) -> None:
        """Tell the node without cards of the engine and the server."""
        environment = {
            "LUPINE_SERVER": "{server}",
            "LUPINE_SESSION": "{session}",
            "LUPINE_DISABLE_LOCAL": "1",  # else it takes itself, by its path, for a local driver
        }
        engine = {"libraries": str(ENGINE), "version": version, "environment": environment}
        server = {"address": f"{FAR}:{PORT}", "engine": "lupine"}
        self.near.configure(remote={"engines": {"lupine": engine}, "servers": {"lab": server}})

    @contextmanager
    def asking(self) -> Iterator[ProbeTenant]:
        """Run a program in such a container."""
        with self.client().started() as program:
            yield program


def into(bundle: Bundle, network: Path) -> Bundle:
    """Have a container in a network."""
    for namespace in bundle.config["linux"]["namespaces"]:
        if namespace["type"] == "network":
            namespace["path"] = str(network)
    bundle.save()
    return bundle


def network_of(stack: Stack) -> Path:
    """Return a new network namespace, which ends with the stack."""
    script = "ip link set lo up && echo up && exec sleep infinity"
    holder = stack.start("network", ["unshare", "--net", "sh", "-c", script])
    holder.wait_until(lambda: "up" in holder.log.read_text())
    return Path(f"/proc/{holder.process.pid}/ns/net")


def join(far: Path, near: Path) -> None:
    """Connect two network namespaces."""
    [one, other] = (network.parts[2] for network in (far, near))
    ends = ("netns", one, "type", "veth", "peer", "gpu0", "netns", other)
    subprocess.run(["ip", "link", "add", "gpu0", *ends], check=True)
    for network, address in ((far, FAR), (near, NEAR)):
        script = f"ip address add {address}/24 dev gpu0 && ip link set gpu0 up"
        subprocess.run(["nsenter", f"--net={network}", "sh", "-c", script], check=True)


@pytest.fixture(scope="package")
def remote_gpu() -> Iterator[RemoteGpu]:
    with Stack() as far, Stack(cdi=NO_DRIVER) as near:
        networks = network_of(far), network_of(near)
        join(*networks)
        made = RemoteGpu(far, near, *networks)
        made.configure(VERSION)
        far.start_daemon()
        near.start_daemon()
        yield made


@pytest.fixture
def lab(remote_gpu: RemoteGpu) -> Iterator[RemoteGpu]:
    """Two nodes on which nothing runs; what is left of a test fails it."""
    yield remote_gpu
    wait_until(lambda: remote_gpu.far.client.tenants() == remote_gpu.near.client.tenants() == [])
    wait_until(lambda: remote_gpu.taken() == (0, 0))
