# SPDX-License-Identifier: Apache-2.0
"""Google GKE: node pools whose GPUs are shared; a pod asks for one nvidia.com/gpu of such a node.

Source: GKE API, GPUSharingConfig; the manual's node labels for sharing.
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.units import CLIENTS, choice
from gpushare.quota.dialects.vendor_key import Dialect, node_label, plugin

_STRATEGY: Final = choice(
    "time-sharing or mps",
    {
        "time-sharing": "best-effort",
        "mps": "fixed-share",
        "TIME_SHARING": "best-effort",
        "MPS": "fixed-share",
    },
)
_MOST: Final = "max_tenants of gpushare.yaml"
_POLICY: Final = "defaults.policy of gpushare.yaml"

GKE: Final = Dialect(
    "gke",
    "Google GKE",
    rows=(
        node_label.setting(
            "cloud.google.com/gke-gpu-sharing-strategy",
            "time-sharing: time slices. mps: equal parts of memory and compute.",
            _STRATEGY,
            instead=_POLICY,
        ),
        node_label.setting(
            "cloud.google.com/gke-max-shared-clients-per-gpu",
            "Maximum number of containers on a card, 2 to 48.",
            CLIENTS,
            instead=_MOST,
        ),
        plugin.setting(
            "gpuSharingConfig.gpuSharingStrategy",
            "TIME_SHARING or MPS.",
            _STRATEGY,
            instead=_POLICY,
        ),
        plugin.setting(
            "gpuSharingConfig.maxSharedClientsPerGpu",
            "Maximum number of containers on a card, 2 to 48.",
            CLIENTS,
            instead=_MOST,
        ),
    ),
    translated_by="NVIDIA's device plugin allocates the card; gpushare.io/memory sets the share",
    domains=("cloud.google.com/gke-gpu-", "cloud.google.com/gke-max-shared-"),
)
