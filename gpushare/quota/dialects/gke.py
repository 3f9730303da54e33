# SPDX-License-Identifier: Apache-2.0
"""Google GKE: node pools whose GPUs are shared; a pod asks for one nvidia.com/gpu of such a node.

Source: GKE API, GPUSharingConfig; the manual's node labels for sharing.
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.row import Dialect, Row
from gpushare.quota.dialects.units import CLIENTS, choice

_STRATEGY: Final = choice(
    "time-sharing or mps",
    {
        "time-sharing": "best-effort",
        "mps": "fixed-share",
        "TIME_SHARING": "best-effort",
        "MPS": "fixed-share",
    },
)
_MOST: Final = "max_shares of gpushare.yaml"
_POLICY: Final = "defaults.policy of gpushare.yaml"

GKE: Final = Dialect(
    "gke",
    "Google GKE",
    rows=(
        Row(
            "cloud.google.com/gke-gpu-sharing-strategy",
            "node label",
            "node",
            "time-sharing: turns. mps: equal parts of memory and compute.",
            _STRATEGY,
            instead=_POLICY,
        ),
        Row(
            "cloud.google.com/gke-max-shared-clients-per-gpu",
            "node label",
            "node",
            "The most containers on a card, 2 to 48.",
            CLIENTS,
            instead=_MOST,
        ),
        Row(
            "gpuSharingConfig.gpuSharingStrategy",
            "plugin",
            "node",
            "TIME_SHARING or MPS.",
            _STRATEGY,
            instead=_POLICY,
        ),
        Row(
            "gpuSharingConfig.maxSharedClientsPerGpu",
            "plugin",
            "node",
            "The most containers on a card, 2 to 48.",
            CLIENTS,
            instead=_MOST,
        ),
    ),
    translated_by="NVIDIA's device plugin gives the card; gpushare.io/memory says the part",
    domains=("cloud.google.com/gke-gpu-", "cloud.google.com/gke-max-shared-"),
)
