# SPDX-License-Identifier: Apache-2.0
"""Other systems' requests: what their keys mean here.

A table for each vendor (hami.py, tencent.py ...), and one translator: find() looks names up,
combine() makes canonical keys of the words of each dialect, together() of several dialects one
request. Pure, standard library only.
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.alibaba import ALIBABA, EGPU
from gpushare.quota.dialects.aws import AWS
from gpushare.quota.dialects.baidu import BAIDU
from gpushare.quota.dialects.combine import combine
from gpushare.quota.dialects.find import Tables
from gpushare.quota.dialects.gke import GKE
from gpushare.quota.dialects.hami import HAMI
from gpushare.quota.dialects.hami_dra import HAMI_DRA
from gpushare.quota.dialects.hear import Heard, Listener, asks, naming
from gpushare.quota.dialects.huawei import HUAWEI
from gpushare.quota.dialects.kai import KAI
from gpushare.quota.dialects.koordinator import KOORDINATOR
from gpushare.quota.dialects.kubeshare import KUBESHARE
from gpushare.quota.dialects.nvidia import NVIDIA
from gpushare.quota.dialects.nvshare import NVSHARE
from gpushare.quota.dialects.orionx import ORIONX
from gpushare.quota.dialects.places import Place, beside
from gpushare.quota.dialects.row import REACHES, Dialect, Row, Where, Word
from gpushare.quota.dialects.spoken import Problem, Spoken, shown
from gpushare.quota.dialects.tencent import ELASTIC, QGPU, VCUDA
from gpushare.quota.dialects.together import OURS, Said, Together, both, together
from gpushare.quota.dialects.volcano import VOLCANO
from gpushare.quota.dialects.volcengine import MGPU
from gpushare.quota.others import Dialects, Mode

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
        AWS,
        GKE,
    )
}
TABLES: Final = Tables(DIALECTS.values())

__all__ = [
    "DIALECTS",
    "OURS",
    "REACHES",
    "TABLES",
    "Dialect",
    "Dialects",
    "Heard",
    "Listener",
    "Mode",
    "Place",
    "Problem",
    "Row",
    "Said",
    "Spoken",
    "Tables",
    "Together",
    "Where",
    "Word",
    "asks",
    "beside",
    "both",
    "combine",
    "naming",
    "shown",
    "together",
]
