# SPDX-License-Identifier: Apache-2.0
"""Volcengine's mGPU on VKE: limits, annotations, and what Volcano's plugin for it is told.

Source: volcano-sh/volcano, the design of mGPU and its webhook; volcengine.com 6460/182418,
6461/1581673.
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.row import Dialect, Row
from gpushare.quota.dialects.rules import (
    LeastBytes,
    LeastEach,
    MostCards,
    Needs,
    SeveralOnly,
    WholeWithout,
)
from gpushare.quota.dialects.units import (
    CARDS_BY_CONTAINER,
    MIB,
    MIBS,
    PERCENT_OR_HUNDREDTHS,
    TEXT,
    choice,
)

#: In the label of a node and in the annotation of a pod.
POLICIES: Final = choice(
    "fixed-share, guaranteed-burst-share or native-burst-share",
    {
        "fixed-share": "fixed-share",
        "guaranteed-burst-share": "burst-share",
        "native-burst-share": "native-burst-share",
    },
)

_ASKS: Final = (
    Row(
        "vke.volcengine.com/mgpu-core",
        "limit",
        "asks",
        "Compute of all cards together: a percentage of one card, or N x 100 for whole cards.",
        PERCENT_OR_HUNDREDTHS,
        "cores",
        total=True,
    ),
    Row(
        "vke.volcengine.com/mgpu-memory",
        "limit",
        "asks",
        "Memory of all cards together; more than 256 MiB, on several cards more than 1 GiB each.",
        MIBS,
        "memory",
        total=True,
        rules=(LeastBytes(256 * MIB, more=True),),
    ),
    Row(
        "vke.volcengine.com/container-multiple-gpu",
        "annotation",
        "asks",
        "Cards for each container of the pod, in their order: 2,0,1. mgpu-core and mgpu-memory "
        "must divide by them.",
        CARDS_BY_CONTAINER,
        "count",
    ),
    Row(
        "vke.volcengine.com/mgpu-compute-policy",
        "annotation",
        "says",
        "How compute is held; without it as the node's label says, fixed-share.",
        POLICIES,
        "policy",
    ),
)

_NODE: Final = (
    Row(
        "vke.volcengine.com/mgpu-compute-policy",
        "node label",
        "node",
        "How compute is held on the node's cards.",
        POLICIES,
        instead="defaults.policy",
    ),
    Row(
        "vke.node.gpu.schedule",
        "node label",
        "node",
        "mgpu (shares) or nvidia (whole cards).",
        TEXT,
        instead="cards.NAME.mode: any lets a card be either",
    ),
    *(
        Row(name, "plugin", "node", meaning, TEXT, instead=instead)
        for name, meaning, instead in (
            ("predicate.MGPUEnable", "Whether Volcano places shares.", "gpushared always does"),
            ("predicate.MGPUPolicy", "binpack or spread over cards.", "defaults.placement"),
            (
                "predicate.MGPUWeightOfCore",
                "What compute counts when cards are compared, of 100.",
                "nothing: cards are compared by memory",
            ),
            (
                "predicate.MGPUScheduleMode",
                "Whether cards are named by index or by id.",
                "gpushare.io/devices takes both",
            ),
            ("predicate.MGPUMaxContainersPerCard", "16 without it.", "max_shares"),
        )
    ),
)

_BOOKS: Final = (
    Row(
        "vke.volcengine.com/assumed",
        "annotation",
        "kept",
        "That the scheduler has chosen cards.",
        TEXT,
        instead="gpushare ps, gpushare inspect",
    ),
    Row(
        "vke.volcengine.com/gpu-index-container-{container}",
        "annotation",
        "kept",
        "The cards that it chose for a container.",
        TEXT,
        instead="gpushare ps, gpushare inspect",
    ),
)

MGPU: Final = Dialect(
    "mgpu",
    "Volcengine mGPU",
    rows=(*_ASKS, *_NODE, *_BOOKS),
    rules=(
        Needs(
            "count",
            "memory",
            "resource limits reach no runtime: see gpushare convert",
            strict=False,
        ),
        Needs("cores", "memory", "add vke.volcengine.com/mgpu-memory"),
        Needs("memory", "cores", "add vke.volcengine.com/mgpu-core"),
        WholeWithout("memory"),
        LeastEach(1024 * MIB, more=True),
        MostCards(8),
        SeveralOnly("policy", "native-burst-share"),
    ),
    equal_requests=True,
    domains=("vke.volcengine.com/",),
    notes=(
        "Memory and compute are of all cards together: 8192 over 2 cards is 4 GiB of each.",
        "The policies are three words: fixed-share, guaranteed-burst-share, native-burst-share.",
    ),
)
