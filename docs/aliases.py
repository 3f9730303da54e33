# SPDX-License-Identifier: Apache-2.0
"""The names of other exporters: what gpushare-exporter serves under them, and what it does not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from docs.markdown import table
from gpushare.exporter.aliases import COMPAT

_PROFILING: Final = (
    "It needs the profiling counters of DCGM, which only one program at a time can use."
)
_LINKS: Final = "DCGM computes it; NVML has counters of each link in another unit."
_MIG: Final = "An instance is a card of its own here: its series have its UUID, MIG-..."
_SOURCE: Final = re.compile(r"gpushare_\w+")
_RESOURCE_QUOTA: Final = "A quota of a Kubernetes namespace: the node does not know it."

_INTRO: Final = """\
## Aliases

`gpushare-exporter --compat=hami,hami-legacy,dcgm` (or some of them) adds these names,
with the labels and units of those exporters: HAMi 2.10, and as `hami-legacy` the names that HAMi
used before; dcgm-exporter up to 4.8 (4.9 has other names by default). If such an
exporter also runs, omit its name: a duplicate series would be counted twice.

Containers have these series only if they belong to a pod. The labels `node`, `nodeid`, `nodename`
and `Hostname` are the name of the node in Kubernetes, if it is known
([label node](../how-to/metrics.md#in-kubernetes)). `container_index` counts the containers of a pod
that have a GPU, by name. `Device_memory_desc_of_container` lacks the labels `context`, `module`,
`data` and `offset`: their values are sizes, so each change would be a new series.

**Number of series.** For each card: 14 with `hami`, 9 with `hami-legacy`, 18 with `dcgm`. For each
container and card: 10 with `hami`, 7 with `hami-legacy`."""

#: The other names of the same versions, by exporter, with the reason.
MISSING: Final[Mapping[str, Mapping[str, str]]] = {
    "hami": {
        "hami_resource_quota_used": _RESOURCE_QUOTA,
        "hami_node_gpu_mig_instance_info": _MIG,
        "hami_mig_device_info": _MIG,
        "hami_build_info": "It is the version of HAMi. See `gpushare_build_info`.",
    },
    "hami-legacy": {
        "QuotaUsed": _RESOURCE_QUOTA,
        "nodeGPUMigInstance": _MIG,
        "MigInfo": _MIG,
    },
    "dcgm": {
        "DCGM_FI_DEV_PCIE_TX_THROUGHPUT": "NVML measures it for 20 ms for each request.",
        "DCGM_FI_DEV_PCIE_RX_THROUGHPUT": "NVML measures it for 20 ms for each request.",
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": _LINKS,
        "DCGM_FI_DEV_VGPU_LICENSE_STATUS": "Licenses exist in virtual machines with NVIDIA vGPU.",
        **dict.fromkeys(
            (
                f"DCGM_FI_PROF_{name}"
                for name in (
                    "GR_ENGINE_ACTIVE",
                    "PIPE_TENSOR_ACTIVE",
                    "DRAM_ACTIVE",
                    "PCIE_TX_BYTES",
                    "PCIE_RX_BYTES",
                )
            ),
            _PROFILING,
        ),
    },
}


def aliases() -> Iterator[str]:
    """Yield the section."""
    yield from _INTRO.splitlines()
    yield ""
    yield from table(
        ("exporter", "name", "labels", "meaning"),
        (
            (
                who,
                f"`{family.name}`",
                ", ".join(f"`{label}`" for label in family.labels),
                _SOURCE.sub(r"`\g<0>`", family.help),
            )
            for who, families in COMPAT.items()
            for family in families
        ),
    )
    yield "These names are missing:"
    yield ""
    yield from table(
        ("exporter", "name", "reason"),
        ((who, f"`{name}`", why) for who, names in MISSING.items() for name, why in names.items()),
    )
