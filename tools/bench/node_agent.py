# SPDX-License-Identifier: Apache-2.0
"""What gpushare-node takes where nothing happens, and how long a kubelet waits for a claim."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from gpushare.client import Client
from tests.stack import Stack
from tests.stack.api_server import StandInApiServer
from tests.stack.claims import AllocatedPart, ScheduledClaim
from tests.stack.kubelet import StandInKubelet
from tests.stack.kubelet.dra import DraKubelet
from tests.stack.node_agent import NodeAgent, set_mode, write_kubeconfig

from .idle import cpu_ns, pss_mib
from .result import Result
from .turns import BenchError

IDLE_CARDS, CARDS = 8, 16
SECONDS = 30.0
SETTLE_SECONDS = 5.0
START_SECONDS = 30.0
MOST_PERCENT = 0.2
MOST_MIB = 60.0
MOST_MS = 50.0
NODE = "bench"
COUNT = 200
AT_ONCE = 8  # calls that a kubelet has open


def measure() -> Iterator[Result]:
    """Measure each mode, with a kubelet that reads its streams and an API server."""
    for mode in ("plugin", "dra"):
        with (
            _node(mode, IDLE_CARDS) as (_, _, agent),
            StandInKubelet(agent.folder) as kubelet,
            DraKubelet(agent.folder) as drivers,
        ):
            pid = agent.start().process.pid

            def is_streamed(kubelet: StandInKubelet = kubelet) -> bool:
                return any(endpoint.lists for endpoint in kubelet.endpoints.values())

            _wait_for(drivers, is_streamed)
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


def prepare() -> Iterator[Result]:
    """Prepare 200 claims one after the other, and at once, measured at the kubelet.

    That is gRPC, the claim of the API server, the reservation and the CDI spec.
    """
    with _node("dra", CARDS) as (stack, cluster, agent):
        uuids = [row["uuid"] for row in Client(stack.socket).cards()]
        claims = [_claim(cluster, number, uuids) for number in range(COUNT)]
        with DraKubelet(agent.folder) as kubelet:
            pid = agent.start().process.pid
            _wait_for(kubelet, lambda: bool(kubelet.drivers))
            for at_once in (1, AT_ONCE):
                with ThreadPoolExecutor(at_once) as pool:
                    times = sorted(pool.map(lambda claim: _prepare(kubelet, claim), claims))
                for claim in claims:
                    kubelet.unprepare(claim.reference)
                how = "one after the other" if at_once == 1 else f"{at_once} at a time"
                for percent, most in ((50, None), (99, MOST_MS if at_once == 1 else None)):
                    value = times[(len(times) - 1) * percent // 100]
                    name = f"a claim is prepared, {COUNT} {how}, p{percent}"
                    yield Result(name, "ms", value, value, 0.0, most, absolute=True)
            mib = pss_mib(pid)
    name = f"gpushare-node's memory after {2 * COUNT} claims"
    yield Result(name, "MiB", mib, mib, 0.0, MOST_MIB, absolute=True)


@contextmanager
def _node(mode: str, cards: int) -> Iterator[tuple[Stack, StandInApiServer, NodeAgent]]:
    """A node of so many cards, an API server, and gpushare-node, which is not started."""
    with Stack(cards=cards) as stack, StandInApiServer().running() as cluster:
        set_mode(stack, mode, cdi_dir=str(stack.root / "cdi"))
        stack.start_daemon()
        cluster.put(f"/api/v1/nodes/{NODE}", {"metadata": {"name": NODE, "uid": "uid"}})
        kubeconfig = write_kubeconfig(stack.root / "kubeconfig", cluster)
        with NodeAgent(stack, "--node", NODE, "--kubeconfig", str(kubeconfig)) as agent:
            yield stack, cluster, agent


def _claim(cluster: StandInApiServer, number: int, uuids: Sequence[str]) -> ScheduledClaim:
    part = AllocatedPart(uuids[number % len(uuids)], memory="1Gi", cores="5")
    claim = ScheduledClaim(cluster, f"claim-{number}", NODE, [part], of_one_pod=True)
    claim.reserve(f"pod-{number}")
    return claim


def _prepare(kubelet: DraKubelet, claim: ScheduledClaim) -> float:
    """Return the milliseconds until the kubelet has its answer."""
    begun = time.monotonic()
    answer = kubelet.prepare(claim.reference)[claim.uid]
    took = time.monotonic() - begun
    if answer["error"]:
        raise BenchError(f"{claim.name} was not prepared: {answer['error']}")
    return took * 1e3


def _wait_for(kubelet: DraKubelet, is_there: Callable[[], bool]) -> None:
    """Return once gpushare-node has registered, or reports to a kubelet that it has a driver."""
    deadline = time.monotonic() + START_SECONDS
    while not is_there() and not any(driver.reports for driver in kubelet.drivers.values()):
        if time.monotonic() > deadline:
            raise BenchError("gpushare-node has not registered with the kubelet")
        kubelet.look()
        time.sleep(0.1)
