# SPDX-License-Identifier: Apache-2.0
"""Whether the CUDA of an image runs on a machine: its driver, its cards and its backend.

`evaluate` has the rules, which are pure, `image` finds the facts of an image, `matrix` has the
figures. Standard library and gpushare.oci only, because a container's start waits for it.
"""

from gpushare.compatibility.evaluate import RULES, evaluate_image
from gpushare.compatibility.facts import (
    BACKENDS,
    LEVELS,
    Backend,
    CardFacts,
    CompatibilityFinding,
    CompatibilityLevel,
    Image,
    Machine,
    Runtime,
    worst,
)

__all__ = [
    "BACKENDS",
    "LEVELS",
    "RULES",
    "Backend",
    "CardFacts",
    "CompatibilityFinding",
    "CompatibilityLevel",
    "Image",
    "Machine",
    "Runtime",
    "evaluate_image",
    "worst",
]
