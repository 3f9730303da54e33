# SPDX-License-Identifier: Apache-2.0
"""Names of HAMi for the cards of other vendors than NVIDIA: known, so that they are no riddle.

A pod with them belongs on another node. Nothing of them is a request here.

Source: HAMi 2.10, charts/hami (device-configmap), pkg/device/*.
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.vendor_key import Dialect, annotation, limit

_ASCEND: Final = ("910A", "910B2", "910B3", "910B4", "910B4-1", "910C", "310P")
_ILUVATAR: Final = ("MR-V100", "MR-V50", "BI-V150", "BI-V100")


def _vendor(
    name: str, cards: str, domain: str, limits: tuple[str, ...], annotations: tuple[str, ...] = ()
) -> Dialect:
    """Return the table of a vendor; an annotation with a slash has a domain of its own."""
    where = f"nothing: only nodes with {cards} serve it, and gpushare shares NVIDIA cards"
    return Dialect(
        name,
        f"HAMi for {cards}",
        rows=(
            *(
                limit.record(f"{domain}/{key}", f"A part of {cards}.", instead=where)
                for key in limits
            ),
            *(
                annotation.record(
                    key if "/" in key else f"{domain}/{key}", f"Which {cards}.", instead=where
                )
                for key in annotations
            ),
        ),
        other_cards=cards,
        domains=(f"{domain}/",),
    )


OTHERS: Final = (
    _vendor(
        "amd",
        "AMD GPUs",
        "amd.com",
        ("gpu", "gpumem", "gpucores"),
        (
            "use-gputype",
            "nouse-gputype",
            "use-gpu-uuid",
            "nouse-gpu-uuid",
            "hami.io/amd-devices-allocated",
        ),
    ),
    _vendor(
        "ascend",
        "Huawei Ascend NPUs",
        "huawei.com",
        tuple(f"Ascend{model}{part}" for model in _ASCEND for part in ("", "-memory", "-core")),
        ("vnpu-mode",),
    ),
    _vendor(
        "hygon",
        "Hygon DCUs",
        "hygon.com",
        ("dcunum", "dcumem", "dcucores"),
        ("use-dcutype", "nouse-dcutype", "use-gpuuuid", "nouse-gpuuuid"),
    ),
    _vendor(
        "cambricon",
        "Cambricon MLUs",
        "cambricon.com",
        ("vmlu", "mlu.smlu.vmemory", "mlu.smlu.vcore"),
        ("use-mlutype", "use-gpuuuid"),
    ),
    _vendor(
        "iluvatar",
        "Iluvatar GPUs",
        "iluvatar.ai",
        tuple(f"{model}{part}" for model in _ILUVATAR for part in ("-vgpu", ".vMem", ".vCore")),
    ),
    _vendor(
        "mthreads",
        "Moore Threads GPUs",
        "mthreads.com",
        ("gpu", "vgpu", "sgpu-memory", "sgpu-core"),
        ("mthreads.ai/use-gpuuuid",),
    ),
    _vendor(
        "metax",
        "MetaX GPUs",
        "metax-tech.com",
        ("gpu", "sgpu", "vcore", "vmemory"),
        ("sgpu-qos-policy", "sgpu-app-class", "sgpu-topology-aware", "use-gpuuuid"),
    ),
    _vendor(
        "enflame",
        "Enflame GCUs",
        "enflame.com",
        ("gcu", "drs-gcu", "gcu-memory", "gcu-core", "vgcu", "vgcu-percentage"),
        ("use-gpuuuid",),
    ),
    _vendor(
        "kunlunxin",
        "Kunlunxin XPUs",
        "kunlunxin.com",
        ("xpu", "vxpu", "vxpu-memory"),
        ("hami.io/use-xpu-uuid", "hami.io/no-use-xpu-uuid"),
    ),
    _vendor("biren", "Biren GPUs", "birentech.com", ("gpu",)),
)
