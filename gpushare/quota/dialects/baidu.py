# SPDX-License-Identifier: Apache-2.0
"""Baidu AI Cloud CCE: cGPU by the model of the card. What is asked is of all cards together.

Source: CCE's manual on GPU sharing (cloud.baidu.com/doc/CCE/s/1lye233ps), as others quote it.
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.units import CARDS, GIBS, PERCENT_OR_CARDS
from gpushare.quota.dialects.vendor_key import Dialect, limit, needs, not_both, step_each

_MODEL: Final = "baidu.com/{model}_cgpu"

BAIDU: Final = Dialect(
    "baidu",
    "Baidu CCE",
    rows=(
        limit.request(
            _MODEL, "Cards of the model; whole cards if it is the only key.", CARDS, "count"
        ),
        limit.request(
            f"{_MODEL}_core",
            "Compute of all cards together, in steps of 5.",
            PERCENT_OR_CARDS,
            "cores",
            summed=True,
        ),
        limit.request(
            f"{_MODEL}_memory",
            "Memory of all cards together, in whole GiB.",
            GIBS,
            "memory",
            summed=True,
        ),
        limit.request(
            f"{_MODEL}_memory_percent",
            "Memory of all cards together, in percent of a card.",
            PERCENT_OR_CARDS,
            "memory-percent",
            summed=True,
        ),
    ),
    rules=(
        needs("cores", "memory", "add baidu.com/MODEL_cgpu_memory", strict=False),
        not_both("memory", "memory-percent", "keep one of the two"),
        step_each("cores", 5),
    ),
    equal_requests=True,
    domains=("baidu.com/",),
    notes=("The model in the key selects the node; in gpushare, gpushare.io/allow names models.",),
)
