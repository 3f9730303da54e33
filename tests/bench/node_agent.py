# SPDX-License-Identifier: Apache-2.0
"""What gpushare-node takes of a node of eight cards where nothing happens, as a device plugin."""

from __future__ import annotations

import time
from collections.abc import Iterator

from tests.stack import Stack
from tests.stack.api_server import StandInApiServer
from tests.stack.kubelet import StandInKubelet
from tests.stack.node_agent import NodeAgent, set_mode, write_kubeconfig

from .idle import cpu_ns, resident_mib
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
    """Measure it with a kubelet that reads its list, and an API server that has its labels."""
    with Stack(cards=CARDS) as stack, StandInApiServer().running() as cluster:
        set_mode(stack, "plugin")
        stack.start_daemon()
        cluster.put(f"/api/v1/nodes/{NODE}", {"metadata": {"name": NODE}})
        kubeconfig = write_kubeconfig(stack.root / "kubeconfig", cluster)
        options = ("--node", NODE, "--kubeconfig", str(kubeconfig))
        with NodeAgent(stack, *options) as agent, StandInKubelet(agent.folder) as kubelet:
            pid = agent.start().process.pid
            _wait_for(kubelet)
            time.sleep(SETTLE_SECONDS)
            before, begun = cpu_ns(pid), time.monotonic_ns()
            time.sleep(SECONDS)
            percent = 100 * (cpu_ns(pid) - before) / (time.monotonic_ns() - begun)
            mib = resident_mib(pid)
    for name, unit, value, most in (
        (f"gpushare-node idle, {CARDS} cards", "%", percent, MOST_PERCENT),
        (f"gpushare-node's memory, {CARDS} cards", "MiB", mib, MOST_MIB),
    ):
        yield Result(name, unit, value, value, 0.0, most, absolute=True)


def _wait_for(kubelet: StandInKubelet) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not kubelet.endpoints or not next(iter(kubelet.endpoints.values())).lists:
        if time.monotonic() > deadline:
            raise BenchError("gpushare-node has not registered with the kubelet")
        time.sleep(0.1)
