# SPDX-License-Identifier: Apache-2.0
"""KubeShare: annotations of a SharePod (1.x), labels of a pod (2.0).

Source: NTHU-LSALAB/KubeShare (README.md, doc/).
"""

from __future__ import annotations

from typing import Final

from gpushare.quota.dialects.row import Dialect, Row, Where
from gpushare.quota.dialects.rules import Needs
from gpushare.quota.dialects.units import BYTES, PART_UP_TO_ONE, TEXT

_FORMS: Final[tuple[tuple[str, Where], ...]] = (("kubeshare", "annotation"), ("sharedgpu", "label"))

KUBESHARE: Final = Dialect(
    "kubeshare",
    "KubeShare",
    rows=tuple(
        row
        for prefix, where in _FORMS
        for row in (
            Row(
                f"{prefix}/gpu_request",
                where,
                "asks",
                "Compute that it is sure of, 0 to 1.",
                PART_UP_TO_ONE,
                "cores",
            ),
            Row(
                f"{prefix}/gpu_limit",
                where,
                "says",
                "The most compute that it may use; where it is more than gpu_request, that holds.",
                PART_UP_TO_ONE,
                "cores",
            ),
            Row(f"{prefix}/gpu_mem", where, "asks", "Memory in bytes.", BYTES, "memory"),
            Row(
                f"{prefix}/GPUID",
                where,
                "kept",
                "The virtual GPU that the scheduler chose.",
                TEXT,
            ),
        )
    ),
    rules=(
        Needs("cores", "memory", "add gpu_mem"),
        Needs("memory", "cores", "add gpu_request and gpu_limit"),
    ),
    translated_by="the annotations themselves reach a runtime that is let see them; labels do not",
    domains=("kubeshare/gpu", "sharedgpu/gpu"),
    notes=(
        "KubeShare counts gpu_mem in bytes.",
        "What KubeShare lends up to gpu_limit, gpushare.io/policy burst-share does.",
    ),
)
