# SPDX-License-Identifier: Apache-2.0
"""KubeShare: annotations of a SharePod (1.x), labels of a pod (2.0).

Source: NTHU-LSALAB/KubeShare (README.md, doc/).
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.units import BYTES, PART_UP_TO_ONE
from gpushare.quota.dialects.vendor_key import Dialect, KeyLocation, VendorKey, needs

_FORMS: Final[tuple[tuple[str, KeyLocation], ...]] = (
    ("kubeshare", "annotation"),
    ("sharedgpu", "label"),
)

KUBESHARE: Final = Dialect(
    "kubeshare",
    "KubeShare",
    rows=tuple(
        row
        for prefix, where in _FORMS
        for row in (
            VendorKey(
                f"{prefix}/gpu_request",
                "Guaranteed compute, 0 to 1.",
                PART_UP_TO_ONE,
                "cores",
                where=where,
                role="request",
            ),
            VendorKey(
                f"{prefix}/gpu_limit",
                "Compute limit; if it exceeds gpu_request, gpu_request applies.",
                PART_UP_TO_ONE,
                "cores",
                where=where,
                role="option",
            ),
            VendorKey(
                f"{prefix}/gpu_mem",
                "Memory in bytes.",
                BYTES,
                "memory",
                where=where,
                role="request",
            ),
            VendorKey(
                f"{prefix}/GPUID",
                "The virtual GPU that the scheduler chose.",
                where=where,
                role="record",
            ),
        )
    ),
    rules=(
        needs("cores", "memory", "add gpu_mem"),
        needs("memory", "cores", "add gpu_request and gpu_limit"),
    ),
    translated_by="the annotations themselves, if the engine passes them; labels are never passed",
    domains=("kubeshare/gpu", "sharedgpu/gpu"),
    notes=(
        "KubeShare counts gpu_mem in bytes.",
        "For bursts up to gpu_limit, use gpushare.io/policy burst-share.",
    ),
)
