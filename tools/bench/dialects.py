# SPDX-License-Identifier: Apache-2.0
"""Reading what a container asks, with the tables of all other systems and with none of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

from gpushare.quota.dialects import DIALECTS
from gpushare.quota.parse import parse_request
from gpushare.quota.request import QuotaRequest, to_record
from gpushare.quota.request_policy import Dialects

from .result import Result
from .turns import BenchError, Times, take

ROUNDS = 200
READS = 20  # of one go: one is too short for the clock
#: A twentieth of what a create may cost.
BUDGET_US = 250.0

#: What a pod's container brings: a page of variables, and the annotations of its engine and pod.
ENV = {
    **{f"SERVICE_{number}_PORT_80_TCP_ADDR": "10.0.0.1" for number in range(24)},
    "PATH": "/usr/local/cuda/bin:/usr/bin:/bin",
    "CUDA_VERSION": "12.4.1",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    "NVIDIA_REQUIRE_CUDA": "cuda>=12.4",
}
ANNOTATIONS = {
    **{f"io.kubernetes.cri.{number}": "text" for number in range(12)},
    **{f"example.com/note-{number}": "text" for number in range(12)},
}
OURS = {"GPUSHARE_MEMORY": "4GiB", "GPUSHARE_CORES": "30"}
HAMI = {"CUDA_DEVICE_MEMORY_LIMIT_0": "4096m", "CUDA_DEVICE_SM_LIMIT": "30"}


def measure() -> Iterator[Result]:
    """Compare a request in our keys, and one in HAMi's, with the former where nothing is known."""
    variants = {
        "none": _read(OURS, None),
        "all": _read(OURS, Dialects()),
        "hami": _read(HAMI, Dialects()),
    }
    series = take(variants, ROUNDS)
    for variant, asked in (("all", "our keys"), ("hami", "HAMi's")):
        yield series.compare(
            "read",
            variant,
            "none",
            name=f"a request in {asked}, {len(DIALECTS)} dialects",
            budget=BUDGET_US,
            unit="us",
        )


def _read(asked: Mapping[str, str], dialects: Dialects | None) -> Callable[[], Times]:
    env = {**ENV, **asked}

    def go() -> Times:
        begun = time.perf_counter_ns()
        for _ in range(READS):
            quota = parse_request(ANNOTATIONS, env, trust="request", dialects=dialects).valid()
        elapsed = time.perf_counter_ns() - begun
        _was_read(quota)
        return {"read": elapsed / 1e3 / READS}

    return go


def _was_read(quota: QuotaRequest) -> None:
    """A request that no reader finds would be read fast."""
    if (quota.memory_bytes, quota.cores) != (4 << 30, 30):
        raise BenchError(f"was read as {to_record(quota.requested)}")
