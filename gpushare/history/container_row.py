# SPDX-License-Identifier: Apache-2.0
"""What the metrics history has of a container beside its figures."""

from __future__ import annotations

import functools
import json
import pwd
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gpushare.metrics_schema import TenantMetrics

CONTAINER_COLUMNS: Final = (
    *("key", "identity", "name", "namespace", "pod", "user", "labels", "engine", "mode", "policy"),
)


@functools.lru_cache(maxsize=256)
def _user_name(uid: int | None) -> str:
    """Return the name of a user, or the number if it has none here."""
    if uid is None:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def container_row(tenant: TenantMetrics) -> tuple[str, ...]:
    """Return the values of CONTAINER_COLUMNS."""
    pod = tenant["pod"]
    return (
        tenant["key"],
        tenant["id"],
        tenant["name"],
        "" if pod is None else pod["namespace"],
        "" if pod is None else pod["name"],
        _user_name(tenant["uid"]),
        json.dumps(tenant["labels"], sort_keys=True),
        tenant["engine"],
        "mps" if tenant["isolation"] == "mps" else tenant["mode"],
        tenant["policy"],
    )
