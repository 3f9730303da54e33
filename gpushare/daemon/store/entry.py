# SPDX-License-Identifier: Apache-2.0
"""What is noted of one tenant: what it was promised, and who holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpushare.quota import DEFAULT_PRIORITY

State = Literal["reserved", "bound", "none"]


@dataclass(frozen=True)
class Holding:
    """What a tenant has of one card; its place in `Entry.holdings` is the tenant's card number.

    `memory_bytes` is promised. Up to `memory_limit_bytes` it may be lent; None: nothing is.
    """

    uuid: str
    memory_bytes: int
    cores: int = 0  # asked
    reserved_cores: int = 0  # as far as the policy guarantees them
    whole: bool = False
    memory_limit_bytes: int | None = None

    @property
    def most_bytes(self) -> int:
        """The most that it may ever use: what is promised, or what may be lent with it."""
        return self.memory_limit_bytes or self.memory_bytes


@dataclass(frozen=True)
class Entry:
    """One tenant. `created` is seconds since the epoch; `expires` of CLOCK_BOOTTIME."""

    key: str
    state: State
    id: str
    name: str = ""  # as the engine or Kubernetes names it; empty: not known yet
    engine: str = "runc"
    bundle: str = ""
    uid: int = 0  # who opened it
    policy: str = ""
    isolation: str = ""
    why: str = ""
    quota: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0
    expires: float = 0.0
    pid: int = 0
    starttime: int = 0  # of `pid`: /proc/PID/stat field 22
    cgroup: str = ""  # "hierarchy:path" as in /proc/PID/cgroup; empty: none of its own
    notes: tuple[str, ...] = ()  # what a lower source said and did not get
    namespace: str = ""  # of Kubernetes, and so the next two; empty: of no pod
    sandbox: str = ""  # the pod's id
    container: str = ""  # its name in the pod
    holdings: tuple[Holding, ...] = ()
    uninterposed: tuple[str, ...] = ()  # capabilities of the driver that go past the interposer
    compat: str = ""  # the copy of a cuda-compat package that is its driver
    weight: int = 0  # 0: none asked
    priority: int = DEFAULT_PRIORITY  # 0 comes first
    class_: str = "offline"
    maker: int = 0  # the runtime that is making it, of one that is only reserved; 0: not known
    maker_starttime: int = 0
    # As `quota`, without what an operator set; empty: an earlier version did not note it.
    asked: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What to call it in a message."""
        return self.name or self.id[:12]

    @property
    def shared(self) -> bool:
        """Whether it has pages and an interposer."""
        return bool(self.holdings) and not self.holdings[0].whole

    def is_set(self, key: str) -> bool:
        """Whether canonical `key` has the operator's word."""
        return self.quota.get(key, "").endswith(" operator")
