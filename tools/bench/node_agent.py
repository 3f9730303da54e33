# SPDX-License-Identifier: Apache-2.0
"""What gpushare-node takes where nothing happens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.stack import Stack
from tests.stack.api_server import StandInApiServer
from tests.stack.kubelet import StandInKubelet
from tests.stack.kubelet.dra import DraKubelet
from tests.stack.node_agent import NodeAgent, write_kubeconfig
from tests.system.waiting import wait_until

from .idle import cpu_ns, pss_mib
from .result import Result

IDLE_CARDS = 8
SECONDS = 30.0
SETTLE_SECONDS = 5.0
MOST_PERCENT = 0.2
MOST_MIB = 60.0
NODE = "bench"


def measure() -> Iterator[Result]:
    """Measure each mode, with a kubelet that reads its streams and an API server."""
    for mode in ("plugin", "dra"):
        with (
            _node(mode) as agent,
            StandInKubelet(agent.folder) as kubelet,
            DraKubelet(agent.folder) as drivers,
        ):
            pid = agent.start().process.pid

            def is_known(kubelet: StandInKubelet = kubelet, drivers: DraKubelet = drivers) -> bool:
                """gpushare-node has registered, or reports to a kubelet that it has a driver."""
                drivers.look()
                known = [endpoint.lists for endpoint in kubelet.endpoints.values()]
                return any((*known, *(driver.reports for driver in drivers.drivers.values())))

            wait_until(is_known)
            time.sleep(SETTLE_SECONDS)
            before, begun = cpu_ns(pid), time.monotonic_ns()
            time.sleep(SECONDS)
            percent = 100 * (cpu_ns(pid) - before) / (time.monotonic_ns() - begun)
            mib = pss_mib(pid)
        for name, unit, value, most in (
            (f"gpushare-node idle, {mode}, {IDLE_CARDS} cards", "%", percent, MOST_PERCENT),
            (f"gpushare-node's memory, {mode}, {IDLE_CARDS} cards", "MiB", mib, MOST_MIB),
        ):
            yield Result(name, unit, value, value, 0.0, most, absolute=True)


@contextmanager
def _node(mode: str) -> Iterator[NodeAgent]:
    """Make a node, an API server, and gpushare-node, which is not started."""
    with Stack(cards=IDLE_CARDS) as stack, StandInApiServer().running() as cluster:
        stack.configure(kubernetes={"mode": mode, "cdi_dir": str(stack.root / "cdi")})
        stack.start_daemon()
        cluster.put(f"/api/v1/nodes/{NODE}", {"metadata": {"name": NODE, "uid": "uid"}})
        kubeconfig = write_kubeconfig(stack.root / "kubeconfig", cluster)
        with NodeAgent(stack, "--node", NODE, "--kubeconfig", str(kubeconfig)) as agent:
            yield agent
