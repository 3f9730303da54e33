# SPDX-License-Identifier: Apache-2.0
"""Requests in other systems' keys, and what they mean to gpushare.

A table for each dialect (hami.py, clouds.py ...), and one engine: `parse` looks keys up, reads
their values and makes a request per card of them, `translate` does so for a container on a node.
Several dialects become one request in quota/parse.py. Standard library only.
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.clouds import ALIBABA, AWS, BAIDU, EGPU, ELASTIC, GKE, QGPU, VCUDA
from gpushare.quota.dialects.hami import HAMI, HAMI_DRA
from gpushare.quota.dialects.nvidia import NVIDIA
from gpushare.quota.dialects.other_vendors import OTHERS
from gpushare.quota.dialects.parse import Tables
from gpushare.quota.dialects.schedulers import (
    HUAWEI,
    KAI,
    KOORDINATOR,
    KUBESHARE,
    NVSHARE,
    ORIONX,
    SWARM,
    VOLCANO,
)
from gpushare.quota.dialects.volcengine import MGPU

#: Every dialect, by name; a vendor's file has one or more.
DIALECTS: Final = {
    one.name: one
    for one in (
        NVIDIA,
        HAMI,
        HAMI_DRA,
        VOLCANO,
        ALIBABA,
        EGPU,
        QGPU,
        VCUDA,
        ELASTIC,
        MGPU,
        KAI,
        HUAWEI,
        BAIDU,
        KOORDINATOR,
        KUBESHARE,
        NVSHARE,
        ORIONX,
        SWARM,
        AWS,
        GKE,
        *OTHERS,
    )
}
TABLES: Final = Tables(DIALECTS.values())
