# SPDX-License-Identifier: Apache-2.0
"""A share that reaches an MPS server of the host: it is seen, and shares the server's faults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpushare import simulator
from gpushare.client import Client
from gpushare.simulator import Simulator
from gpushare.verify import image
from tests.stack import Stack
from tests.stack.bundle import Bundle
from tests.unit.simulator.conftest import SimulatorMachine
from tests.unit.simulator.mps_daemon import MpsDaemon, mps_daemon

from .waiting import wait_until

GIB = 1 << 30
PIPES = "/run/host-mps"


@pytest.fixture
def stack() -> Iterator[Stack]:
    """A stack of its own: the server is a non-tenant process, whose memory counts for a while."""
    with Stack() as made:
        made.start_daemon()
        yield made


@pytest.fixture
def control(stack: Stack) -> Iterator[MpsDaemon]:
    """A control daemon for the stack's card, which an operator of the host has started."""
    made = Simulator(stack.cdi.with_name("device"), stack.cdi, ())
    with mps_daemon(SimulatorMachine(made, simulator.libraries())) as running:
        yield running


def test_a_share_that_uses_the_hosts_server_is_named_and_keeps_its_quota(
    stack: Stack, control: MpsDaemon
) -> None:
    bundle = Bundle(stack, quota={"memory": "4GiB"}, args=(image.PROGRAM,))
    folder = control.folder / "pipe"
    mount = {"destination": PIPES, "type": "bind", "source": str(folder), "options": ["bind"]}
    bundle.config["mounts"].append(mount)
    bundle.config["process"]["env"].append(f"CUDA_MPS_PIPE_DIRECTORY={PIPES}")
    bundle.save()
    client = Client(stack.socket)
    with bundle.run() as tenant, control.client().started("tenant.py") as other:
        assert tenant.start()["code"] == 0
        assert tenant.ask(f"alloc {3 * GIB}")["code"] == 0
        assert tenant.ask(f"alloc {GIB}")["result"] == "CUDA_ERROR_OUT_OF_MEMORY"
        wait_until(lambda: any("MPS" in text for text in client.tenant(bundle.id)["warnings"]))
        assert other.ask("init") == 0
        assert other.ask("context") == 0
        assert other.ask("trap")[1] != 0
        wait_until(lambda: tenant.ask("alloc 4096")["result"] == "CUDA_ERROR_LAUNCH_FAILED")
