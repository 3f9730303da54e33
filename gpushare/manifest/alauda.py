# SPDX-License-Identifier: Apache-2.0
"""ConfigMaps by which the console of Alauda Container Platform offers extended resources.

The console reads them in the namespace kube-public, one for each resource. gpushare writes those of
its own resources, and of the vendors' resources whose meaning is in gpushare/quota/dialects.

Source: docs.alauda.io container_platform/4.0, "Add Custom Devices Using ConfigMap" (names, labels,
the default of vcuda-core); docs.alauda.io hami/2.8, "Use HAMi vGPU ResourceQuota" (names and units
of the HAMi group). The other defaults of that group are HAMi's own: defaultGPUNum, defaultCores and
defaultMemory of its chart. Alauda's documents do not say what one nvidia.com/mps-memory is, so it
is not offered.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpushare.manifest.check.schemas import ALAUDA_DOMAINS, ALAUDA_LABELS
from gpushare.protocol.kubernetes import CARD_RESOURCE, RESOURCE
from gpushare.quota.dialects import TABLES
from gpushare.quota.dialects.vendor_key import VendorKey

NAMESPACE: Final = "kube-public"


@dataclass(frozen=True)
class ResourceGroup:
    """Resources that a container requests together: the name of the group, and its titles."""

    name: str
    title: str
    title_zh: str
    resources: tuple[ConsoleResource, ...]


@dataclass(frozen=True)
class ConsoleResource:
    """One resource as the console shows it.

    `description` is that of the dialect's table, if empty. `default` is empty where the console
    offers none. `runtime_class` is what the pod needs: the pods of vendors' resources get theirs
    from gpushare's admission policies.
    """

    key: str
    label: str
    label_zh: str
    description_zh: str
    description: str = ""
    default: str = ""
    unit: str = ""
    requests: str = "disabled"
    runtime_class: str = ""

    @property
    def row(self) -> VendorKey | None:
        """The row of its dialect; None for gpushare's own."""
        matches = TABLES.find("limit", {self.key: ""})
        return matches[-1].row if matches else None

    def data(self, group: ResourceGroup) -> dict[str, str]:
        """Return the data of its ConfigMap."""
        row = self.row
        related = [resource.key for resource in group.resources if resource.key != self.key]
        excluded = [
            sibling.key
            for other in GROUPS.values()
            if other is not group
            for sibling in other.resources
        ]
        title = {"en": group.title, "zh": group.title_zh}
        return {
            name: value
            for name, value in {
                "key": self.key,
                "dataType": "integer",
                "defaultValue": self.default,
                "resourceUnit": self.unit,
                "labelEn": self.label,
                "labelZh": self.label_zh,
                "descriptionEn": self.description or (row.meaning if row else ""),
                "descriptionZh": self.description_zh,
                "group": group.name,
                "groupI18n": json.dumps(title, ensure_ascii=False),
                "limits": "optional",
                "requests": self.requests,
                "relatedResources": ",".join(related),
                "excludeResources": ",".join(excluded),
                "runtimeClassName": self.runtime_class,
            }.items()
            if value
        }


GROUPS: Final[Mapping[str, ResourceGroup]] = {
    group.name: group
    for group in (
        ResourceGroup(
            "gpushare",
            "gpushare",
            "gpushare",
            (
                ConsoleResource(
                    RESOURCE,
                    "GPU memory",
                    "显存",
                    "容器在一张卡上的显存，单位 GiB",
                    "Memory of the container on one card, in GiB.",
                    unit="Gi",
                    runtime_class="gpushare-plugin",
                ),
            ),
        ),
        ResourceGroup(
            "gpushare-dra",
            "gpushare: whole cards",
            "gpushare 整卡",
            (
                ConsoleResource(
                    CARD_RESOURCE,
                    "GPU cards",
                    "GPU 卡数",
                    "整卡的数量，由 ResourceClaim（DRA）分配",
                    "Whole cards, allocated by a ResourceClaim (DRA).",
                    default="1",
                    unit="count",
                    runtime_class="gpushare-dra",
                ),
            ),
        ),
        ResourceGroup(
            "gpu-manager",
            "GPU Manager",
            "GPU Manager",
            (
                ConsoleResource(
                    "tencent.com/vcuda-core",
                    "vGPU cores",
                    "vGPU 算力",
                    "算力：1 到 100，100 为一张卡；整卡为 100 的倍数",
                    default="20",
                    requests="fromLimits",
                ),
                ConsoleResource(
                    "tencent.com/vcuda-memory",
                    "vGPU memory",
                    "vGPU 显存",
                    "卡的显存，每 1 个单位为 256 MiB",
                    "Memory of the card; 1 unit is 256 MiB.",
                    requests="fromLimits",
                ),
            ),
        ),
        ResourceGroup(
            "hami-nvidia",
            "HAMi NVIDIA",
            "HAMi NVIDIA",
            (
                ConsoleResource(
                    "nvidia.com/gpualloc",
                    "gpu number",
                    "GPU 个数",
                    "物理 GPU 的个数；算力和显存按每个物理 GPU 计算",
                    default="1",
                    unit="count",
                ),
                ConsoleResource(
                    "nvidia.com/gpucores",
                    "vgpu cores",
                    "vGPU 算力",
                    "每个物理 GPU 的算力百分比；100 为整卡，0 为不限定",
                    default="0",
                ),
                ConsoleResource(
                    "nvidia.com/gpumem",
                    "vgpu memory",
                    "vGPU 显存",
                    "每个物理 GPU 的显存，单位 MiB；0 为全部显存",
                    "Memory of each physical GPU, in MiB; 0 is all of it.",
                    default="0",
                    unit="Mi",
                ),
            ),
        ),
        ResourceGroup(
            "mps",
            "NVIDIA MPS",
            "NVIDIA MPS",
            (
                ConsoleResource(
                    "nvidia.com/mps-core",
                    "MPS cores",
                    "MPS 算力",
                    "卡的算力百分比；显存取自节点的 defaults.memory",
                    "Percent of a card's compute. Memory is defaults.memory of the node.",
                ),
            ),
        ),
    )
}


def config_maps(groups: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the ConfigMaps of `groups`, names of GROUPS.

    They have the labels of both domains: version 4.0 of the platform documents
    features.alauda.io, newer ones read features.cpaas.io.
    """
    for group in (GROUPS[name] for name in groups):
        for resource in group.resources:
            yield {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {
                    "name": f"cf-crl-{group.name}-{resource.key.rpartition('/')[2]}",
                    "namespace": NAMESPACE,
                    "labels": {
                        f"{domain}/{name}": value
                        for domain in ALAUDA_DOMAINS
                        for name, value in zip(
                            ALAUDA_LABELS,
                            ("CustomResourceLimitation", group.name, "true"),
                            strict=True,
                        )
                    },
                },
                "data": resource.data(group),
            }
