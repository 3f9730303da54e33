# SPDX-License-Identifier: Apache-2.0
"""What the node gives where nobody says: `defaults` in gpushare.yaml."""

from __future__ import annotations

from dataclasses import dataclass

from gpushare.quota.layers import Granted
from gpushare.quota.quota import Asked, Source, Value
from gpushare.quota.size import exact_size


@dataclass(frozen=True)
class Defaults:
    """The node's own word where a container says nothing (`defaults` in gpushare.yaml).

    `whole_is_share`: a request for cards without memory becomes a share of `memory_bytes`.
    """

    memory_bytes: int | None = None
    cores: int | None = None
    policy: str | None = None
    whole_is_share: bool = False
    placement: str | None = None
    numa: str | None = None

    def fill(self, granted: Granted) -> None:
        """Put into `granted` what it lacks; a request for nothing stays one."""
        if not granted.something:
            return
        for key in ("placement", "numa"):
            if (said := getattr(self, key)) is not None:
                _put(granted, key, said, said)
        fills = not granted.whole or (self.whole_is_share and "cores" not in granted.layer)
        if self.memory_bytes is not None and fills and not granted.has_memory:
            _put(granted, "memory", exact_size(self.memory_bytes), self.memory_bytes)
        if granted.whole or not granted.has_memory:
            return
        if self.cores is not None and "cores" not in granted.layer:
            _put(granted, "cores", str(self.cores), self.cores)
        if self.policy is not None and "cores" in granted.layer:
            _put(granted, "policy", self.policy, self.policy)


def _put(granted: Granted, key: str, text: str, value: Value) -> None:
    granted.layer.setdefault(key, Asked(text, value, Source("default", f"defaults.{key}")))
