# SPDX-License-Identifier: Apache-2.0
"""Whether what an image brings of CUDA runs on a machine: driver, cards and backend.

`judge` is pure, `image` finds the facts of an image, `matrix` has the figures. Standard library and
gpushare.oci only: a container's start asks it.
"""

from gpushare.compat.facts import (
    BACKENDS,
    LEVELS,
    Backend,
    Card,
    Finding,
    Image,
    Level,
    Machine,
    Runtime,
    worst,
)
from gpushare.compat.judge import RULES, judge

__all__ = [
    "BACKENDS",
    "LEVELS",
    "RULES",
    "Backend",
    "Card",
    "Finding",
    "Image",
    "Level",
    "Machine",
    "Runtime",
    "judge",
    "worst",
]
