# SPDX-License-Identifier: Apache-2.0
"""The section evict of gpushare.yaml: how much is evicted, and of which containers by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpushare.quota.size import parse_size
from gpushare.quota.values import parse_duration


@dataclass(frozen=True)
class EvictPolicy:
    """What may be evicted. Requests of an operator are bounded by `host_memory_bytes` alone.

    `host_memory_bytes` is for all evicted containers together; None: half of the machine's memory,
    0: nothing is evicted. `offline`: containers of class offline are evicted for a request of class
    online that has no room. `min_resident_seconds`: so long a restored container is not evicted for
    another one. `moves`: new containers get the device nodes of all cards of their card's model.
    """

    host_memory_bytes: int | None = None
    offline: bool = False
    min_resident_seconds: int = 60
    moves: bool = False


def evict_policy(given: Mapping[str, Any]) -> EvictPolicy:
    """Return the policy of the section, which has been checked."""
    plain, memory, resident = EvictPolicy(), given.get("host_memory"), given.get("min_resident")
    return EvictPolicy(
        host_memory_bytes=None if memory is None else _size(memory),
        offline=bool(given.get("offline", plain.offline)),
        moves=bool(given.get("moves", plain.moves)),
        min_resident_seconds=(
            plain.min_resident_seconds if resident is None else parse_duration(resident)
        ),
    )


def _size(value: Any) -> int:
    return 0 if value in {"0", "0B", 0} else parse_size(value)
