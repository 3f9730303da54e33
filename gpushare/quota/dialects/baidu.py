# SPDX-License-Identifier: Apache-2.0
"""Baidu AI Cloud CCE: cGPU by the model of the card. What is asked is of all cards together.

Source: CCE's manual on GPU sharing (cloud.baidu.com/doc/CCE/s/1lye233ps), as others quote it.
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.row import Dialect, Row
from gpushare.quota.dialects.rules import Needs, NotBoth, StepEach
from gpushare.quota.dialects.units import CARDS, GIBS, PERCENT_OR_CARDS

_MODEL: Final = "baidu.com/{model}_cgpu"

BAIDU: Final = Dialect(
    "baidu",
    "Baidu CCE",
    rows=(
        Row(_MODEL, "limit", "asks", "Cards of the model; alone whole ones.", CARDS, "count"),
        Row(
            f"{_MODEL}_core",
            "limit",
            "asks",
            "Compute in steps of 5, of all cards together.",
            PERCENT_OR_CARDS,
            "cores",
            total=True,
        ),
        Row(
            f"{_MODEL}_memory",
            "limit",
            "asks",
            "Memory in whole GiB, of all cards together.",
            GIBS,
            "memory",
            total=True,
        ),
        Row(
            f"{_MODEL}_memory_percent",
            "limit",
            "asks",
            "The same, in percent of a card.",
            PERCENT_OR_CARDS,
            "memory-percent",
            total=True,
        ),
    ),
    rules=(
        Needs("cores", "memory", "add baidu.com/MODEL_cgpu_memory", strict=False),
        NotBoth("memory", "memory-percent", "keep one of the two"),
        StepEach("cores", 5),
    ),
    equal_requests=True,
    domains=("baidu.com/",),
    notes=("The model in the key chooses the node; here gpushare.io/allow names models.",),
)
