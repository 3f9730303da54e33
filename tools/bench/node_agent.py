# SPDX-License-Identifier: Apache-2.0
"""What gpushare-node takes of a node of eight cards where nothing happens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

from tests.stack import Stack
from tests.stack.api_server import StandInApiServer
from tests.stack.kubelet import StandInKubelet
from tests.stack.kubelet.dra import DraKubelet
from tests.stack.node_agent import NodeAgent, set_mode, write_kubeconfig

from .idle import cpu_ns, pss_mib
from .result import Result
from .turns import BenchError

CARDS = 8
SECONDS = 30.0
SETTLE_SECONDS = 5.0
START_SECONDS = 30.0
MOST_PERCENT = 0.2
MOST_MIB = 60.0
NODE = "bench"


def measure() -> Iterator[Result]:
    """Measure each mode, with a kubelet that reads its streams and an API server."""
    for mode in ("plugin", "dra"):
        with Stack(cards=CARDS) as stack, StandInApiServer().running() as cluster:
            set_mode(stack, mode, cdi_dir=str(stack.root / "cdi"))
            stack.start_daemon()
            cluster.put(f"/api/v1/nodes/{NODE}", {"metadata": {"name": NODE, "uid": "uid"}})
            kubeconfig = write_kubeconfig(stack.root / "kubeconfig", cluster)
            options = ("--node", NODE, "--kubeconfig", str(kubeconfig))
            with ExitStack() as ending:
                agent = ending.enter_context(NodeAgent(stack, *options))
                kubelet = ending.enter_context(StandInKubelet(agent.folder))
                drivers = ending.enter_context(DraKubelet(agent.folder))
                pid = agent.start().process.pid
                _wait_for(kubelet, drivers)
                time.sleep(SETTLE_SECONDS)
                before, begun = cpu_ns(pid), time.monotonic_ns()
                time.sleep(SECONDS)
                percent = 100 * (cpu_ns(pid) - before) / (time.monotonic_ns() - begun)
                mib = pss_mib(pid)
        for name, unit, value, most in (
            (f"gpushare-node idle, {mode}, {CARDS} cards", "%", percent, MOST_PERCENT),
            (f"gpushare-node's memory, {mode}, {CARDS} cards", "MiB", mib, MOST_MIB),
        ):
            yield Result(name, unit, value, value, 0.0, most, absolute=True)


def _wait_for(kubelet: StandInKubelet, drivers: DraKubelet) -> None:
    """Return once either has what gpushare-node streams."""
    deadline = time.monotonic() + START_SECONDS
    while not any(endpoint.lists for endpoint in kubelet.endpoints.values()):
        drivers.look()
        if any(driver.reports for driver in drivers.drivers.values()):
            return
        if time.monotonic() > deadline:
            raise BenchError("gpushare-node has not registered with the kubelet")
        time.sleep(0.1)
