# SPDX-License-Identifier: Apache-2.0
"""Why a GPU that an engine put into a spec is refused."""

from __future__ import annotations

from typing import Final

from gpushare.quota.errors import QuotaError

SHARE: Final = "-e GPUSHARE_MEMORY=4GiB alone"  # how to ask for a share without an engine's device


def unknown(what: str) -> QuotaError:
    """Return the error for something of NVIDIA's that is not known: it is never left in."""
    rule = "is NVIDIA's and of a kind that gpushare does not know"
    return QuotaError(what, None, rule, "leave it out, or use the runtime runc")


def instance(where: str, value: str | None = None) -> QuotaError:
    """Return the error for a part of a card, by its name or its capability's node."""
    rule = "is a part of a card (MIG), which cannot be passed yet"
    return QuotaError(where, value, rule, f"pass a whole card, or ask for a share: {SHARE}")
