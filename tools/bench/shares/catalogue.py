# SPDX-License-Identifier: Apache-2.0
"""The scenarios: A to L of the model that the policy was chosen with, and those after them."""

from __future__ import annotations

from typing import Final

from .judges import (
    aggregate,
    latency,
    loss,
    of_native,
    parts,
    ratio_errors,
    reclaim,
    scheduler_cpu,
    share_errors,
    work_of_share,
)
from .load import Load, in_phases, inference, lockstep, replayed, synchronising, tiny, training
from .scenario import Scenario, TenantSpec

_NEAR: Final = share_errors(mean=1.2, most=2.0)  # kernels of 5 ms and less
_NEARER_LONG: Final = share_errors(mean=None, most=3.5)  # of 20 ms and less
_SYNCHRONISING: Final = (ratio_errors(mean=1.2, most=2.5), of_native(least=97))
_FEW: Final = aggregate(least=97.5)
_BOUND: Final = synchronising(50, after=1, gap_us=440)  # by the host
_SIXTEEN: Final = (
    TenantSpec("t0", training(100), 25),
    *(TenantSpec(f"t{number}", training(100), 5) for number in range(1, 16)),
)


def _two(
    one: Load, other: Load, cores: tuple[int, int] = (30, 70), policy: str = "burst-share"
) -> tuple[TenantSpec, TenantSpec]:
    """Return tenants a and b, judged by their shares."""
    return TenantSpec("a", one, cores[0], policy), TenantSpec("b", other, cores[1], policy)


SCENARIOS: Final = (
    Scenario(
        "A",
        "30/70, training with kernels of 100 us, burst-share",
        _two(training(100), training(100)),
        (parts, _NEAR, _FEW),
        alone="a",
    ),
    Scenario(
        "A-fixed",
        "the same, fixed-share",
        _two(training(100), training(100), policy="fixed-share"),
        (parts, _NEAR, _FEW),
        alone="a",
    ),
    Scenario(
        "B",
        "10/20/30/40 fixed-share, kernels of 20 us, 200 us, 2 ms and 20 ms",
        (
            TenantSpec("a", training(20, kernels=1000), 10, "fixed-share"),
            TenantSpec("b", training(200), 20, "fixed-share"),
            TenantSpec("c", training(2000, kernels=40), 30, "fixed-share"),
            TenantSpec("d", training(20000, spread=0.3, kernels=8), 40, "fixed-share"),
        ),
        (parts, _NEARER_LONG, _FEW),
        alone="b",
    ),
    Scenario(
        "C",
        "50/50, kernels of 5 us next to 20 ms, burst-share",
        _two(tiny(), training(20000, spread=0.3, kernels=8), (50, 50)),
        (parts, _NEARER_LONG, _FEW),
        alone="a",
    ),
    Scenario(
        "D",
        "50/50, kernels of 100 us next to 500 ms, burst-share",
        _two(training(100), training(500_000, spread=0.1, kernels=2), (50, 50)),
        # The hardware divides the card while a long kernel runs: natively it does so all the time.
        (parts, share_errors(), aggregate()),
        alone="a",
    ),
    Scenario(
        "E",
        "30 % fixed-share, next to an idle tenant",
        (
            TenantSpec("a", training(100), 30, "fixed-share"),
            TenantSpec("b", inference(0.001), 70, "fixed-share", shared=False),
        ),
        (parts, _NEAR),
    ),
    Scenario(
        "F",
        "alone, burst-share",
        (TenantSpec("a", training(100), 30, shared=False),),
        (loss(most=0.5),),
    ),
    Scenario(
        "G",
        "online, 40 requests a second of 3.4 ms, next to training with kernels of 100 us",
        (
            TenantSpec("on", inference(40), 30, class_="online", shared=False),
            TenantSpec("off", training(100, kernels=1000), 70, shared=False),
        ),
        (parts, latency("on", times_alone=1.2)),
        alone="on",
    ),
    Scenario(
        "H",
        "the same next to training with kernels of 5 ms",
        (
            TenantSpec("on", inference(40), 30, class_="online", shared=False),
            TenantSpec("off", training(5000, spread=0.3, kernels=40), 70, shared=False),
        ),
        (parts, latency("on", times_alone=1.8)),
        alone="on",
    ),
    Scenario(
        "I",
        "70 % in phases of 0.3 s next to a greedy 30 %, burst-share",
        (
            TenantSpec("a", training(100), 30, shared=False),
            TenantSpec("b", in_phases(300, 300), 70, shared=False),
        ),
        (parts, reclaim("b", most_ms=10)),
    ),
    Scenario(
        "I-long",
        "the same next to kernels of 20 ms",
        (
            TenantSpec("a", training(20000, spread=0.3, kernels=8), 30, shared=False),
            TenantSpec("b", in_phases(300, 300), 70, shared=False),
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
        (TenantSpec("on", inference(40), 30, class_="online", shared=False),),
        (latency("on"),),
        alone="on",
    ),
    Scenario(
        "L",
        "50/50, one of them with three contexts, burst-share",
        # What the one with three loses by switches among its own contexts is its own affair.
        (
            TenantSpec("a", training(100), 50),
            TenantSpec("b", training(100).in_contexts(3), 50, shared=False),
        ),
        (parts, _NEAR, _FEW),
        alone="a",
    ),
    *(
        Scenario(
            f"P{after}-{us}",
            f"30/70, kernels of {us} us, synchronised after {after}, burst-share",
            _two(synchronising(us, after=after), synchronising(us, after=after)),
            (parts, *_SYNCHRONISING),
            slow=16,
        )
        for after, us in ((1, 20), (8, 20), (2, 100), (8, 100), (1, 500), (1, 2000))
    ),
    Scenario(
        "Q8-20",
        "10/20/30/40 burst-share, kernels of 20 us, synchronised after 8",
        tuple(
            TenantSpec(name, synchronising(20, after=8), cores)
            for name, cores in zip("abcd", (10, 20, 30, 40), strict=True)
        ),
        (parts, *_SYNCHRONISING),
        slow=16,
    ),
    Scenario(
        "Y64",
        "30/70, kernels of 100 us, synchronised after 8 next to 64, burst-share",
        _two(synchronising(100, after=8), synchronising(100, after=64)),
        (parts, *_SYNCHRONISING),
        slow=16,
    ),
    Scenario(
        "X8-20",
        "30/70, kernels of 20 us synchronised after 8, next to training with kernels of 100 us",
        (
            TenantSpec("a", synchronising(20, after=8), 30, shared=False),
            TenantSpec("b", training(100), 70),
        ),
        (parts, of_native(least=97)),
        slow=16,
    ),
    *(
        Scenario(
            f"Z-{policy}",
            f"30/70 {policy}-share, bound by the host: kernels of 50 us, 0.44 ms apart",
            _two(_BOUND, _BOUND, policy=f"{policy}-share"),
            (parts, of_native(least=97)),
        )
        for policy in ("burst", "fixed")
    ),
    Scenario(
        "W",
        "30/70, bound by the host: kernels of 50 us, 0.44 ms apart, next to kernels of 100 us",
        (
            TenantSpec("a", _BOUND, 30, shared=False),
            TenantSpec("b", training(100), 70, shared=False),
        ),
        (parts, of_native(least=97)),
    ),
    Scenario(
        "R",
        "30 % burst-share, 40 requests a second of 3.4 ms, next to training with kernels of 100 us",
        (
            TenantSpec("on", inference(40), 30, shared=False),
            TenantSpec("off", training(100, kernels=1000), 70, shared=False),
        ),
        (parts, of_native(least=97), latency("on")),
        alone="on",
        slow=16,
    ),
    Scenario(
        "graphs",
        "30/70, one replays graphs of 50 kernels of 100 us, fixed-share",
        _two(replayed(100, of=50), training(100), policy="fixed-share"),
        (parts, _NEAR, _FEW),
        alone="b",
    ),
    Scenario(
        "processes",
        "30/70, the 30 with three processes that copy 1 MiB a step, the 70 on two streams, "
        "fixed-share",
        (
            # Its three processes switch among themselves in its windows, at its own expense.
            TenantSpec(
                "a", training(100).copying(1 << 20), 30, "fixed-share", processes=3, shared=False
            ),
            TenantSpec("b", training(100).on_streams(2), 70, "fixed-share"),
        ),
        (parts, _NEAR, work_of_share("a", least=97.5), _FEW),
        alone="b",
    ),
    Scenario(
        "gang",
        "two cards: 50 % of both in lockstep, next to 50 % of each, burst-share",
        (
            TenantSpec("both", lockstep(100, cards=2), 50, cards=(0, 1)),
            TenantSpec("left", training(100), 50, cards=(0,)),
            TenantSpec("right", training(100), 50, cards=(1,)),
        ),
        (parts, share_errors(), _FEW),
        alone="left",
        cards=2,
    ),
)
