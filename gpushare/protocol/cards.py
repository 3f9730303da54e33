# SPDX-License-Identifier: Apache-2.0
"""What a card has, has promised and can still give."""

from __future__ import annotations

from typing import TypedDict


class ForeignProcess(TypedDict):
    """A process of no tenant that holds memory of a card."""

    pid: int
    name: str
    bytes: int
    container: str  # which it seems to be in, as "docker 4f5e6d7c8b9a"; empty: a host's program


class CardLink(TypedDict):
    """What is between a card and another one."""

    index: int
    uuid: str
    kind: str  # NV4 (that many NVLinks) | PIX | PXB | PHB | NODE | SYS | ?, as nvidia-smi topo -m
    distance: int  # 1 (near) to 70


class Card(TypedDict):
    """What one card has, has promised and can still give."""

    index: int
    uuid: str
    model: str
    brand: str  # as NVIDIA_REQUIRE_ variables name it: tesla, nvidia, geforce; empty: not known
    capability: str  # compute capability, "9.0"; empty: not known
    datacenter: bool  # of the kind that cuda-compat packages are made for
    memory_bytes: int  # NVML's total less what the driver reserves
    reserve_bytes: int  # kept back by the node's configuration
    promised_bytes: int
    borrowed_bytes: int  # what tenants use above what they were promised
    lent_bytes: int  # what tenants may use above it now: borrowed_bytes and more
    foreign_bytes: int  # processes of no tenant, high-water mark
    foreign: list[ForeignProcess]
    unattributed_bytes: int  # in use, and the driver tells of no process: nobody is blamed for it
    free_bytes: int
    cores_free: int  # percent of the card
    tenants: int
    tenants_max: int
    mode: str  # "shared" | "exclusive" | "free"
    utilisation: int | None  # percent of the time that it was busy, by NVML; None: not known
    health: str  # "ok" or what is wrong
    policy: str  # set for the compute of its tenants; empty: each has what it asks
    takes: str  # which requests: "any" | "shared" | "exclusive", by the node's configuration
    cordoned: bool  # nothing new is placed on it
    cordon_reason: str
    numa: int | None  # its NUMA node; None: not known
    links: list[CardLink]  # to each other card
