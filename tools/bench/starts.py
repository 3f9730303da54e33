# SPDX-License-Identifier: Apache-2.0
"""200 containers that an engine starts at once, and the same while gpushared is killed."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

from tests.stack import Stack
from tests.stack.distribution import HOST
from tests.system.engines.node import CriNode
from tests.system.engines.starts import (
    Containers,
    CriContainers,
    DockerContainers,
    killed_after,
    start_all,
)
from tests.system.waiting import wait_until

from .result import Result, percentile
from .turns import BenchError

COUNT = 200
CARDS = 13  # a card has 16 shares
ROUNDS = 2
BUDGET = 1.5  # times what the same engine takes with runc alone
QUOTA = "1GiB"

Make = Callable[[str], Containers]
"""Makes the containers of a runtime: runc or gpushare."""


def measure() -> Iterator[Result]:
    """Compare with as many of the same engine under runc; BenchError unless all start."""
    with Stack(distribution=HOST, cards=CARDS) as stack:
        stack.start_daemon()
        stack.start_containerd()
        stack.start_docker().prepare(stack.installation.probe)
        variables = [f"GPUSHARE_MEMORY={QUOTA}"]
        yield from _compare(
            "docker",
            stack,
            lambda runtime: DockerContainers(stack, COUNT, runtime=runtime, variables=variables),
        )
        with CriNode(stack) as node:
            yield from _compare(
                "containerd (CRI)",
                stack,
                lambda runtime: CriContainers(node, COUNT, handler=runtime, memory=QUOTA),
            )


def _compare(engine: str, stack: Stack, make: Make) -> Iterator[Result]:
    p99: dict[str, list[float]] = defaultdict(list)
    for _ in range(ROUNDS):
        p99["runc"].append(_started(stack, make("runc"), nullcontext()))
        p99["gpushare"].append(_started(stack, make("gpushare"), nullcontext()))
    p99["killed"].append(_started(stack, make("gpushare"), killed_after(stack, COUNT // 3)))
    took = {variant: statistics.median(times) for variant, times in p99.items()}
    bare = took["runc"]
    for variant, name, budget in (
        ("gpushare", f"{COUNT} started at once by {engine}, p99", BUDGET),
        ("killed", f"{COUNT} by {engine} while gpushared is killed, p99", None),
    ):
        ours = took[variant]
        within = None if budget is None else budget * bare
        yield Result(name, "s", ours, bare, ours - bare, within, absolute=True)


def _started(
    stack: Stack, containers: Containers, meanwhile: AbstractContextManager[None]
) -> float:
    """Start all; the seconds of the one that all but two in 200 are faster than."""
    try:
        with meanwhile:
            done = start_all(containers)
    finally:
        containers.remove()
    wait_until(lambda: not stack.client.tenants())
    failed = [each.error for each in done if each.error]
    if failed:
        raise BenchError(f"{len(failed)} of {COUNT} did not start: {failed[0]}")
    return percentile([each.seconds for each in done], 99)
