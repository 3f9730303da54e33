# SPDX-License-Identifier: Apache-2.0
"""How long a kubelet waits for a claim: 200 of them prepared one after the other, and at once."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from gpushare.client import Client
from tests.stack import Stack
from tests.stack.api_server import StandInApiServer
from tests.stack.claims import AllocatedPart, ScheduledClaim
from tests.stack.kubelet.dra import DraKubelet
from tests.stack.node_agent import NodeAgent, set_mode, write_kubeconfig

from .idle import pss_mib
from .node_agent import MOST_MIB
from .result import Result
from .turns import BenchError

COUNT = 200
CARDS = 16
AT_ONCE = 8  # calls that a kubelet has open
NODE = "bench"
START_SECONDS = 30.0
MOST_MS = 50.0


def measure() -> Iterator[Result]:
    """Measure at the kubelet: gRPC, the claim of the API server, the reservation, the CDI spec."""
    with Stack(cards=CARDS) as stack, StandInApiServer().running() as cluster:
        set_mode(stack, "dra", cdi_dir=str(stack.root / "cdi"))
        stack.start_daemon()
        cluster.put(f"/api/v1/nodes/{NODE}", {"metadata": {"name": NODE, "uid": "uid"}})
        kubeconfig = write_kubeconfig(stack.root / "kubeconfig", cluster)
        options = ("--node", NODE, "--kubeconfig", str(kubeconfig))
        uuids = [row["uuid"] for row in Client(stack.socket).cards()]
        claims = [_claim(cluster, number, uuids) for number in range(COUNT)]
        with NodeAgent(stack, *options) as agent, DraKubelet(agent.folder) as kubelet:
            pid = agent.start().process.pid
            _wait_for(kubelet)
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


def _wait_for(kubelet: DraKubelet) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not kubelet.drivers:
        if time.monotonic() > deadline:
            raise BenchError("gpushare-node has not registered with the kubelet")
        kubelet.look()
        time.sleep(0.1)
