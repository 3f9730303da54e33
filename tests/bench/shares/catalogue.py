# SPDX-License-Identifier: Apache-2.0
"""The scenarios: A to L of the model that the policy was chosen with, and those after them."""

from __future__ import annotations

from typing import Final

from .judges import aggregate, latency, loss, parts, reclaim, scheduler_cpu, share_errors
from .load import in_phases, inference, lockstep, replayed, tiny, training
from .scenario import Scenario, Tenant

_NEAR: Final = share_errors(mean=1.2, most=2.0)  # kernels of 5 ms and less
_NEARER_LONG: Final = share_errors(mean=None, most=3.5)  # of 20 ms and less
_FEW: Final = aggregate(least=97.5)
_SIXTEEN: Final = (
    Tenant("t0", training(100), 25),
    *(Tenant(f"t{number}", training(100), 5) for number in range(1, 16)),
)

SCENARIOS: Final = (
    Scenario(
        "A",
        "30/70, training with kernels of 100 us, burst-share",
        (Tenant("a", training(100), 30), Tenant("b", training(100), 70)),
        (parts, _NEAR, _FEW),
        alone="a",
    ),
    Scenario(
        "A-fixed",
        "the same, fixed-share",
        (
            Tenant("a", training(100), 30, "fixed-share"),
            Tenant("b", training(100), 70, "fixed-share"),
        ),
        (parts, _NEAR, _FEW),
        alone="a",
    ),
    Scenario(
        "B",
        "10/20/30/40 fixed-share, kernels of 20 us, 200 us, 2 ms and 20 ms",
        (
            Tenant("a", training(20, kernels=1000), 10, "fixed-share"),
            Tenant("b", training(200), 20, "fixed-share"),
            Tenant("c", training(2000, kernels=40), 30, "fixed-share"),
            Tenant("d", training(20000, spread=0.3, kernels=8), 40, "fixed-share"),
        ),
        (parts, _NEARER_LONG, _FEW),
        alone="b",
    ),
    Scenario(
        "C",
        "50/50, kernels of 5 us beside 20 ms, burst-share",
        (
            Tenant("a", tiny(), 50),
            Tenant("b", training(20000, spread=0.3, kernels=8), 50),
        ),
        (parts, _NEARER_LONG, _FEW),
        alone="a",
    ),
    Scenario(
        "D",
        "50/50, kernels of 100 us beside 500 ms, burst-share",
        (
            Tenant("a", training(100), 50),
            Tenant("b", training(500_000, spread=0.1, kernels=2), 50),
        ),
        (parts, share_errors(), _FEW),
        alone="a",
    ),
    Scenario(
        "E",
        "30 % fixed-share, alone with one that is idle",
        (
            Tenant("a", training(100), 30, "fixed-share"),
            Tenant("b", inference(0.001), 70, "fixed-share", shared=False),
        ),
        (parts, _NEAR),
    ),
    Scenario(
        "F",
        "alone, burst-share",
        (Tenant("a", training(100), 30, shared=False),),
        (loss(most=0.5),),
    ),
    Scenario(
        "G",
        "online, 40 requests a second of 3.4 ms, beside training with kernels of 100 us",
        (
            Tenant("on", inference(40), 30, class_="online", shared=False),
            Tenant("off", training(100, kernels=1000), 70, shared=False),
        ),
        (parts, latency("on", times_alone=1.2)),
        alone="on",
    ),
    Scenario(
        "H",
        "the same beside training with kernels of 5 ms",
        (
            Tenant("on", inference(40), 30, class_="online", shared=False),
            Tenant("off", training(5000, spread=0.3, kernels=40), 70, shared=False),
        ),
        (parts, latency("on", times_alone=1.8)),
        alone="on",
    ),
    Scenario(
        "I",
        "70 % in phases of 0.3 s beside a greedy 30 %, burst-share",
        (
            Tenant("a", training(100), 30, shared=False),
            Tenant("b", in_phases(300, 300), 70, shared=False),
        ),
        (parts, reclaim("b", most_ms=10)),
    ),
    Scenario(
        "I-long",
        "the same beside kernels of 20 ms",
        (
            Tenant("a", training(20000, spread=0.3, kernels=8), 30, shared=False),
            Tenant("b", in_phases(300, 300), 70, shared=False),
        ),
        (parts, reclaim("b", most_ms=10)),
    ),
    Scenario(
        "J",
        "16 tenants, 15 of 5 % and one of 25 %, kernels of 100 us, burst-share",
        _SIXTEEN,
        (_NEAR, aggregate(least=96)),
        alone="t0",
    ),
    Scenario(
        "cost",
        "the scheduler's own time with the 16 tenants of J",
        _SIXTEEN,
        (scheduler_cpu(most=5), share_errors()),
        slow=1,
    ),
    Scenario(
        "K",
        "online, 40 requests a second of 3.4 ms, alone",
        (Tenant("on", inference(40), 30, class_="online", shared=False),),
        (latency("on"),),
        alone="on",
    ),
    Scenario(
        "L",
        "50/50, one of them with three contexts, burst-share",
        # What the one with three loses by switches among its own contexts is its own affair.
        (
            Tenant("a", training(100), 50),
            Tenant("b", training(100).in_contexts(3), 50, shared=False),
        ),
        (parts, _NEAR, _FEW),
        alone="a",
    ),
    Scenario(
        "graphs",
        "30/70, one replays graphs of 50 kernels of 100 us, fixed-share",
        (
            Tenant("a", replayed(100, of=50), 30, "fixed-share"),
            Tenant("b", training(100), 70, "fixed-share"),
        ),
        (parts, _NEAR, _FEW),
        alone="b",
    ),
    Scenario(
        "processes",
        "30/70, the 30 with three processes that copy 1 MiB a step, the 70 on two streams, "
        "fixed-share",
        (
            Tenant("a", training(100).copying(1 << 20), 30, "fixed-share", processes=3),
            Tenant("b", training(100).on_streams(2), 70, "fixed-share"),
        ),
        (parts, _NEAR, _FEW),
        alone="b",
    ),
    Scenario(
        "gang",
        "two cards: 50 % of both in lockstep, beside 50 % of each, burst-share",
        (
            Tenant("both", lockstep(100, cards=2), 50, cards=(0, 1)),
            Tenant("left", training(100), 50, cards=(0,)),
            Tenant("right", training(100), 50, cards=(1,)),
        ),
        (parts, share_errors(), _FEW),
        alone="left",
        cards=2,
    ),
)
