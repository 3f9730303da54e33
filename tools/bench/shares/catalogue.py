# SPDX-License-Identifier: Apache-2.0
"""The scenarios, by the letters of tools/model."""

from __future__ import annotations

from typing import Final

from .judges import (
    aggregate,
    latency,
    loss,
    of_bound,
    of_native,
    parts,
    ratio_errors,
    reclaim,
    scheduler_cpu,
    share_errors,
)
from .load import Load, in_phases, inference, replayed, synchronising, training
from .scenario import Scenario, TenantSpec

_NEAR: Final = share_errors(mean=0.5, most=1.2)  # kernels of 5 ms and less
_SYNCHRONISING: Final = (parts, ratio_errors(mean=1.2, most=2.5))
_FEW: Final = aggregate(least=97.5)
_BOUND: Final = synchronising(50, after=1, gap_us=440)  # by the host
_SIXTEEN: Final = (
    TenantSpec("t0", training(100), 25),
    *(TenantSpec(f"t{number}", training(100), 5) for number in range(1, 16)),
)
_ONLINE: Final = TenantSpec("on", inference(40), 30, class_="online", shared=False)


def _two(one: Load, other: Load, policy: str = "burst-share") -> tuple[TenantSpec, TenantSpec]:
    """Return tenants a and b, of 30 % and 70 %."""
    return TenantSpec("a", one, 30, policy), TenantSpec("b", other, 70, policy)


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
        (parts, share_errors(most=3.5), _FEW),
        alone="b",
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
        (_ONLINE, TenantSpec("off", training(100, kernels=1000), 70, shared=False)),
        (parts, latency("on", times_alone=1.1)),
        alone="on",
    ),
    Scenario(
        "H",
        "the same next to training with kernels of 5 ms",
        (_ONLINE, TenantSpec("off", training(5000, spread=0.3, kernels=40), 70, shared=False)),
        (parts, latency("on", times_alone=1.6)),
        alone="on",
    ),
    Scenario(
        "I-long",
        "70 % in phases of 0.3 s next to a greedy 30 % with kernels of 20 ms, burst-share",
        (
            TenantSpec("a", training(20000, spread=0.3, kernels=8), 30, shared=False),
            TenantSpec("b", in_phases(300, 300), 70, shared=False),
        ),
        (parts, reclaim("b", most_ms=5)),
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
        (scheduler_cpu(most=5),),
        slow=1,
    ),
    *(
        Scenario(
            f"P{after}-{us}",
            f"30/70, kernels of {us} us, synchronised after {after}, burst-share",
            _two(synchronising(us, after=after), synchronising(us, after=after)),
            (*_SYNCHRONISING, of_native(least=97), of_bound()),
            alone="a",
            slow=16,
        )
        for after, us in ((1, 20), (8, 20), (2, 100), (8, 100), (1, 500), (1, 2000))
    ),
    *(
        Scenario(
            f"S{after}-{us}{'-free' * free}",
            f"{'/'.join(map(str, shares))}, kernels of {us} us, synchronised after {after},"
            f" sleeping{', on a card whose switches cost nothing' * free}, burst-share",
            tuple(
                TenantSpec(name, synchronising(us, after=after, gap_us=85), cores)
                for name, cores in zip("abcd", shares, strict=False)
            ),
            # A pause of 85 us is over twice a free switch and 40 us, so it is lent.
            (*_SYNCHRONISING, of_native(), of_bound(least=95 if free else None)),
            alone="a",
            slow=16,
            profile="h200-free-switches" if free else "h200",
        )
        for after, us, shares, free in (
            (1, 200, (30, 70), False),
            (1, 200, (30, 70), True),
            (8, 20, (25, 25, 25, 25), True),
        )
    ),
    Scenario(
        "Z",
        "30/70, bound by the host: kernels of 50 us, 0.44 ms apart, burst-share",
        _two(_BOUND, _BOUND),
        (parts, of_native(least=97)),
    ),
    Scenario(
        "graphs",
        "30/70, one replays graphs of 50 kernels of 100 us, fixed-share",
        _two(replayed(100, of=50), training(100), policy="fixed-share"),
        (parts, _NEAR, _FEW),
        alone="b",
    ),
)
