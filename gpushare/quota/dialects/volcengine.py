# SPDX-License-Identifier: Apache-2.0
"""Volcengine's mGPU on VKE: limits, annotations, and what Volcano's plugin for it is told.

Source: volcano-sh/volcano, the design of mGPU and its webhook; volcengine.com 6460/182418,
6461/1581673.
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.units import (
    CARDS_BY_CONTAINER,
    MIB,
    MIBS,
    PERCENT_OR_HUNDREDTHS,
    choice,
)
from gpushare.quota.dialects.vendor_key import (
    Dialect,
    annotation,
    least_bytes,
    least_each,
    limit,
    most_cards,
    needs,
    node_label,
    plugin,
    several_only,
    whole_without,
)
from gpushare.quota.node_settings import ALLOWED_MODE, APPLIED, POLICY

#: In the label of a node and in the annotation of a pod.
POLICIES: Final = choice(
    "fixed-share, guaranteed-burst-share or native-burst-share",
    {
        "fixed-share": "fixed-share",
        "guaranteed-burst-share": "burst-share",
        "native-burst-share": "native-burst-share",
    },
)

# mgpu-core: 100 requests a whole card, so that mgpu does not exclude them.
_MODE: Final = choice("mgpu or nvidia", {"mgpu": "any", "nvidia": "exclusive"})

_ASKS: Final = (
    limit.request(
        "vke.volcengine.com/mgpu-core",
        "Compute of all cards together: a percentage of one card, or N x 100 for whole cards.",
        PERCENT_OR_HUNDREDTHS,
        "cores",
        summed=True,
    ),
    limit.request(
        "vke.volcengine.com/mgpu-memory",
        "Memory of all cards together; more than 256 MiB, on several cards more than 1 GiB each.",
        MIBS,
        "memory",
        summed=True,
        rules=(least_bytes(256 * MIB, more=True),),
    ),
    annotation.request(
        "vke.volcengine.com/container-multiple-gpu",
        "Cards for each container of the pod, in their order: 2,0,1. mgpu-core and mgpu-memory "
        "must divide by them.",
        CARDS_BY_CONTAINER,
        "count",
    ),
    annotation.option(
        "vke.volcengine.com/mgpu-compute-policy",
        "Compute policy. Default: the node's label, otherwise fixed-share.",
        POLICIES,
        "policy",
    ),
)

_NODE: Final = (
    node_label.setting(
        "vke.volcengine.com/mgpu-compute-policy",
        "Compute policy of the node's cards.",
        POLICIES,
        setting=POLICY,
        instead=f"{APPLIED} defaults.policy; gpushare.io/policy of a pod has precedence",
    ),
    node_label.setting(
        "vke.node.gpu.schedule",
        "mgpu (shares, and whole cards by mgpu-core) or nvidia (whole cards).",
        _MODE,
        setting=ALLOWED_MODE,
        instead=f"{APPLIED} allowed_mode of all cards: any or exclusive",
    ),
    *(
        plugin.setting(name, meaning, instead=instead)
        for name, meaning, instead in (
            (
                "predicate.MGPUEnable",
                "Whether Volcano places shares.",
                "always the case with gpushared",
            ),
            ("predicate.MGPUPolicy", "binpack or spread over cards.", "defaults.placement"),
            (
                "predicate.MGPUWeightOfCore",
                "Weight of compute when cards are compared, of 100.",
                "nothing: cards are compared by memory",
            ),
            (
                "predicate.MGPUScheduleMode",
                "Whether cards are named by index or by ID.",
                "gpushare.io/devices accepts both",
            ),
            ("predicate.MGPUMaxContainersPerCard", "Default: 16.", "max_tenants"),
        )
    ),
)

_BOOKS: Final = (
    annotation.record(
        "vke.volcengine.com/assumed",
        "Whether the scheduler has chosen cards.",
        instead="gpushare ps, gpushare inspect",
    ),
    annotation.record(
        "vke.volcengine.com/gpu-index-container-{container}",
        "The cards that it chose for a container.",
        instead="gpushare ps, gpushare inspect",
    ),
)

MGPU: Final = Dialect(
    "mgpu",
    "Volcengine mGPU",
    rows=(*_ASKS, *_NODE, *_BOOKS),
    rules=(
        needs(
            "count",
            "memory",
            "resource limits are not passed to the container runtime: see gpushare convert",
            strict=False,
        ),
        needs("cores", "memory", "add vke.volcengine.com/mgpu-memory"),
        needs("memory", "cores", "add vke.volcengine.com/mgpu-core"),
        whole_without("memory"),
        least_each(1024 * MIB, more=True),
        most_cards(8),
        several_only("policy", "native-burst-share"),
    ),
    equal_requests=True,
    domains=("vke.volcengine.com/",),
    notes=(
        "Memory and compute are totals of all cards: 8192 over 2 cards is 4 GiB of each.",
        "mgpu-core from 1 to 8 without a decimal point is refused: it may be percent or cards.",
        "The policies are fixed-share, guaranteed-burst-share and native-burst-share.",
    ),
)
